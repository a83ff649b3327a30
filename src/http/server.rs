//! The accept loop: connections within limits, and an end that leaves no request unanswered.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::linger::Lingering;
use super::router::router;
use super::tls::{Failure, Tls};
use super::turned_away::TurnedAway;
use super::{App, Limits};
use crate::access::Certificate;
use crate::telemetry::{Limit, Metrics, RefusalEntry, RefusalLog, Sender, What};

/// How long to wait after the system refused to accept a connection: it is out of files, mostly.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How large the head of a request may be, and how much of a body is read at once. Each connection may take
/// so much memory.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// How many connections the system holds until they are accepted: as many as may come in a moment.
const BACKLOG: u32 = 1024;

/// Listens.
///
/// # Errors
/// When the address is taken, not of this machine, or not for everybody to take.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?; // or a restart would have to wait for the last connections to be forgotten
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until `shutdown` is cancelled, then answers the requests under way, and returns when the last
/// connection is closed. With `tls` it serves nothing else.
pub async fn serve(listener: TcpListener, app: Arc<App>, tls: Option<Arc<Tls>>, shutdown: CancellationToken) {
    let metrics = Arc::clone(&app.metrics);
    let permits = Arc::new(Semaphore::new(app.limits.max_connections));
    let turned_away = tls.is_none().then(|| TurnedAway::new(app.limits.max_connections));
    if tls.is_some() {
        metrics.tls_handshakes_failed_total.start_with(&Failure::REASONS);
    }
    let tasks = TaskTracker::new();
    let edge = Edge {
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
            () = edge.shutdown.cancelled() => break,
        };
        let (stream, address) = match accepted {
            Ok((stream, from)) => (stream, from.ip().to_canonical()),
            Err(error) => {
                edge.log_refused_connection(Sender::All, "not_accepted", error.to_string());
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            metrics.http_connections_refused_total.increment(1);
            metrics.limited_total.of(Limit::Connections).increment(1);
            let example = format!("{} are open", edge.limits.max_connections);
            edge.log_refused_connection(Sender::Address(address), "too_many_connections", example);
            if let Some(turned_away) = &turned_away {
                turned_away.tell(stream, &tasks); // over TLS a handshake would have to come first
            }
            continue;
        };
        let edge = edge.clone();
        tasks.spawn(async move {
            edge.metrics.http_connections.increment(1.0);
            edge.connection(stream, address).await;
            edge.metrics.http_connections.decrement(1.0);
            drop(permit);
        });
    }
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

/// What a connection needs.
#[derive(Clone)]
struct Edge {
    limits: Limits,
    metrics: Arc<Metrics>,
    refusals: Arc<RefusalLog>,
    router: Router,
    tls: Option<Arc<Tls>>,
    shutdown: CancellationToken,
}

impl Edge {
    fn log_refused_connection(&self, sender: Sender, code: &'static str, example: String) {
        self.refusals.record(sender, RefusalEntry { what: What::Connections, code, count: 1, example });
    }

    async fn connection(&self, stream: TcpStream, address: IpAddr) {
        let _ = stream.set_nodelay(true); // only costs latency where it fails
        let service = TowerToHyperService::new(self.router.clone());
        let Some(tls) = &self.tls else {
            let peer = Peer { address, is_over_tls: false, certificate: None };
            return self.requests(stream, FromPeer { service, peer }).await;
        };
        let accepted = tokio::select! {
            accepted = tls.accept(stream) => accepted,
            () = self.shutdown.cancelled() => return,
        };
        match accepted {
            Ok((stream, certificate)) => {
                let peer = Peer { address, is_over_tls: true, certificate };
                self.requests(stream, FromPeer { service, peer }).await;
            }
            Err(why) => {
                self.metrics.tls_handshakes_failed_total.with(why.reason()).increment(1);
                tracing::debug!(%why, "a TLS handshake failed");
            }
        }
    }

    async fn requests<S, T>(&self, stream: T, service: S)
    where
        S: Service<Request<Incoming>, Response = Response, Error = Infallible>,
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(self.limits.header_timeout);
        http.max_buf_size(MAX_HEAD_BYTES).half_close(true); // who has said all may still be answered
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.limits.body_timeout)); // or answers that nobody reads hold the connection
        let connection = http.serve_connection(TokioIo::new(Lingering::new(Box::pin(stream))), service);
        let mut connection = std::pin::pin!(connection);
        let served = tokio::select! {
            served = connection.as_mut() => served,
            () = self.shutdown.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = served {
            tracing::debug!(%error, "a connection ended early");
        }
    }
}

/// Who is at the other end of a connection. Goes with its requests.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    pub(super) address: IpAddr,
    pub(super) is_over_tls: bool,
    /// The client's certificate, verified, if it showed one.
    pub(super) certificate: Option<Arc<Certificate>>,
}

/// Tells each request of a connection who is at the other end.
struct FromPeer<S> {
    service: S,
    peer: Peer,
}

impl<S: Service<Request<Incoming>>> Service<Request<Incoming>> for FromPeer<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.peer.clone());
        self.service.call(request)
    }
}
