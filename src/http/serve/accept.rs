//! The listening socket and the accept loop.
//!
//! The loop limits the number of connections. A shutdown is graceful.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use metrics::Gauge;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::Connections;
use super::over_capacity::OverCapacity;
use super::threads::Threads;
use crate::http::App;
use crate::http::router::router;
use crate::telemetry::{Limit, Metrics, Sender};
use crate::tls::{Failure, Tls};

/// The wait after a failed `accept`, mostly because the process has no free file.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// The number of connections that the system queues until the server accepts them.
const BACKLOG: u32 = 1024;

/// Listens on `address`.
///
/// # Errors
/// The address is in use, is not an address of this machine, or needs privileges.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?; // else a restart waits for old connections in TIME_WAIT
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until `shutdown` is cancelled, then completes the requests in progress.
///
/// After the shutdown, each connection may send one more request within moments. `serve` returns when the
/// last connection is closed. With `tls`, all connections use TLS.
pub async fn serve(
    listener: TcpListener,
    threads: Threads,
    app: Arc<App>,
    tls: Option<Arc<Tls>>,
    shutdown: CancellationToken,
) {
    let metrics = Arc::clone(&app.metrics);
    let permits = Arc::new(Semaphore::new(app.limits.max_connections));
    let over_capacity = tls.is_none().then(|| OverCapacity::new(app.limits.max_connections, shutdown.clone()));
    if tls.is_some() {
        metrics.tls_handshakes_failed_total.start_with(&Failure::REASONS);
    }
    let tasks = TaskTracker::new();
    let connections = Connections {
        limits: app.limits.clone(),
        metrics: Arc::clone(&metrics),
        refusals: Arc::clone(&app.refusals),
        router: router(app),
        tls,
        shutdown,
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = connections.shutdown.cancelled() => break,
        };
        let (stream, address) = match accepted {
            Ok((stream, from)) => (stream, from.ip().to_canonical()),
            Err(error) => {
                connections.log_refused_connection(Sender::All, "not_accepted", error.to_string());
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            metrics.http_connections_refused_total.increment(1);
            metrics.limited_total.of(Limit::Connections).increment(1);
            let example = format!("{} are open", connections.limits.max_connections);
            connections.log_refused_connection(Sender::Address(address), "too_many_connections", example);
            if let Some(over_capacity) = &over_capacity {
                over_capacity.refuse(stream, &tasks); // with TLS an answer would need a handshake
            }
            continue;
        };
        let stream = match stream.into_std() {
            Ok(stream) => stream,
            Err(error) => {
                connections.log_refused_connection(Sender::All, "not_accepted", error.to_string());
                continue;
            }
        };
        let connections = connections.clone();
        threads.spawn(&tasks, |place| async move {
            let _open = OpenConnection::count(&connections.metrics);
            match TcpStream::from_std(stream) {
                Ok(stream) => connections.serve(stream, address).await,
                Err(error) => connections.log_refused_connection(Sender::All, "not_accepted", error.to_string()),
            }
            drop((place, permit));
        });
    }
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

/// Counts a connection in the metric of open connections until this is dropped.
struct OpenConnection(Gauge);

impl OpenConnection {
    fn count(metrics: &Metrics) -> Self {
        metrics.http_connections.increment(1.0);
        Self(metrics.http_connections.clone())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}
