//! The accept loop: connections within limits, and an end that leaves no request unanswered.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::linger::Lingering;
use super::router::router;
use super::turned_away::TurnedAway;
use super::{App, Limits};
use crate::telemetry::Limit;

/// How long to wait after the system refused to accept a connection: it is out of files, mostly.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `shutdown` is cancelled, then answers the requests under way, and returns when the last connection is
/// closed.
pub async fn serve(listener: TcpListener, app: Arc<App>, shutdown: CancellationToken) {
    let limits = app.limits.clone();
    let metrics = Arc::clone(&app.metrics);
    let connections = Arc::new(Semaphore::new(limits.max_connections));
    let turned_away = TurnedAway::new(limits.max_connections);
    let tasks = TaskTracker::new();
    let router = router(app);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&connections).try_acquire_owned() else {
            metrics.http_connections_refused_total.increment(1);
            metrics.limited_total.of(Limit::Connections).increment(1);
            turned_away.tell(stream, &tasks);
            continue;
        };
        let (gauge, router, limits, shutdown) =
            (metrics.http_connections.clone(), router.clone(), limits.clone(), shutdown.clone());
        tasks.spawn(async move {
            gauge.increment(1.0);
            connection(stream, router, &limits, shutdown, permit).await;
            gauge.decrement(1.0);
        });
    }
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

async fn connection(
    stream: TcpStream,
    router: Router,
    limits: &Limits,
    shutdown: CancellationToken,
    _permit: OwnedSemaphorePermit,
) {
    let _ = stream.set_nodelay(true); // only costs latency where it fails
    let service = TowerToHyperService::new(router);
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.header_timeout).pipeline_flush(true);
    let connection = http.serve_connection(TokioIo::new(Lingering::new(stream)), service);
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended early");
    }
}
