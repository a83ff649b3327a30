//! The connections of a listening socket: accepted up to a limit, served, and closed at a shutdown.
//!
//! The accept loop gives each connection to one of the `threads`. There the server makes the TLS handshake,
//! and hyper reads the requests, which the router answers.
//!
//! A shutdown is graceful. The server accepts no further connection, and each open one may send one more
//! request within moments: its client may have sent it before it saw the shutdown. [`serve`] returns when
//! the last connection is closed.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
use tokio::sync::{Notify, Semaphore};
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::client_disconnect::{Disconnect, WatchedStream};
use super::over_capacity::OverCapacity;
use super::threads::Threads;
use crate::access::Certificate;
use crate::common::lingering_close::LingeringClose;
use crate::http::router::router;
use crate::http::{App, Limits};
use crate::telemetry::{GaugeGuard, Limit, Metrics, RefusalEntry, RefusalLog, Sender, What};
use crate::tls::{Failure, Tls};

/// The wait after a failed `accept`: mostly, no file descriptor is free.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// The number of connections that the system queues until the server accepts them.
const BACKLOG: u32 = 1024;

/// The size of the buffer of a connection, in bytes.
///
/// It is the largest head of a request, and the most that is read of a body at once.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// How long after a shutdown a connection may send its first request.
const FIRST_REQUEST_WAIT: Duration = Duration::from_secs(1);

/// How long after a shutdown a connection may send a further request.
const NEXT_REQUEST_WAIT: Duration = Duration::from_millis(50);

/// The answer to plain HTTP on a TLS port.
const PLAIN_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\
    Content-Length: 37\r\n\r\nThis address speaks HTTPS, not HTTP.\n";

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
/// With `tls`, all connections use TLS.
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
            let _open = GaugeGuard::new(&connections.metrics.http_connections, 1);
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

/// The parts that all connections share.
#[derive(Clone)]
struct Connections {
    limits: Limits,
    metrics: Arc<Metrics>,
    refusals: Arc<RefusalLog>,
    router: Router,
    tls: Option<Arc<Tls>>,
    shutdown: CancellationToken,
}

impl Connections {
    /// Logs a connection that the server did not accept.
    fn log_refused_connection(&self, sender: Sender, code: &'static str, example: String) {
        self.refusals.record(sender, RefusalEntry { what: What::Connections, code, count: 1, example }, None);
    }

    /// Serves a connection until its end. The TLS handshake is first, if there is TLS.
    async fn serve(&self, stream: TcpStream, address: IpAddr) {
        let _ = stream.set_nodelay(true); // if this fails, it costs only latency
        let (service, disconnect) = (TowerToHyperService::new(self.router.clone()), Disconnect::default());
        let Some(tls) = &self.tls else {
            let peer = Peer { address, is_over_tls: false, certificate: None, disconnect };
            return self.requests(stream, FromPeer::new(service, peer)).await;
        };
        let closing = async {
            self.shutdown.cancelled().await;
            tokio::time::sleep(FIRST_REQUEST_WAIT).await;
        };
        let accepted = tokio::select! {
            accepted = tls.accept(stream, &self.shutdown, PLAIN_HTTP) => accepted,
            () = closing => return,
        };
        match accepted {
            Ok((stream, certificate)) => {
                let peer = Peer { address, is_over_tls: true, certificate, disconnect };
                self.requests(stream, FromPeer::new(service, peer)).await;
            }
            Err(why) => {
                self.metrics.tls_handshakes_failed_total.with(why.reason()).increment(1);
                tracing::debug!(%why, "a TLS handshake failed");
                if matches!(why, Failure::Certificate(_)) {
                    self.log_refused_connection(Sender::Address(address), why.reason(), why.to_string());
                }
            }
        }
    }

    /// Serves requests until the connection ends, or until moments after the shutdown.
    async fn requests<S, T>(&self, stream: T, service: FromPeer<S>)
    where
        S: Service<Request<Incoming>, Response = Response, Error = Infallible>,
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let requests = Arc::clone(&service.requests);
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(self.limits.header_timeout);
        // `half_close`: a client that has closed its sending side still gets an answer, unless the query
        // takes too long (see `client_disconnect`).
        http.max_buf_size(MAX_HEAD_BYTES).half_close(true);
        let mut stream = TimeoutStream::new(stream);
        // Without this timeout, a client that does not read its answers would hold the connection.
        stream.set_write_timeout(Some(self.limits.body_timeout));
        let stream = WatchedStream::new(Box::pin(stream), service.peer.disconnect.clone());
        let connection =
            http.serve_connection(TokioIo::new(LingeringClose::new(stream, self.shutdown.clone())), service);
        let mut connection = std::pin::pin!(connection);
        let served = tokio::select! {
            served = connection.as_mut() => served,
            () = requests.last_begun(&self.shutdown) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = served {
            tracing::debug!(%error, "a connection ended early");
        }
    }
}

/// The client of a connection. Each request has it as an extension.
#[derive(Debug, Clone)]
pub(in crate::http) struct Peer {
    pub(in crate::http) address: IpAddr,
    pub(in crate::http) is_over_tls: bool,
    /// The verified certificate of the client, if it presented one.
    pub(in crate::http) certificate: Option<Arc<Certificate>>,
    /// Tells when the client has closed its side.
    pub(in crate::http) disconnect: Disconnect,
}

/// Whether a connection has had a request, and a signal when one begins.
#[derive(Debug, Default)]
struct Requests {
    has_begun: AtomicBool,
    begun: Notify,
}

impl Requests {
    fn begin(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
        self.begun.notify_waiters();
    }

    /// Waits for the shutdown, and then a while for one more request.
    ///
    /// If the server closed the connection at once, a request that the client has just sent would be lost.
    async fn last_begun(&self, shutdown: &CancellationToken) {
        shutdown.cancelled().await;
        let next = self.begun.notified();
        let wait = if self.has_begun.load(Ordering::Relaxed) { NEXT_REQUEST_WAIT } else { FIRST_REQUEST_WAIT };
        let _ = tokio::time::timeout(wait, next).await;
    }
}

/// Adds the [`Peer`] of a connection to each request, and records its beginning.
struct FromPeer<S> {
    service: S,
    peer: Peer,
    requests: Arc<Requests>,
}

impl<S> FromPeer<S> {
    fn new(service: S, peer: Peer) -> Self {
        Self { service, peer, requests: Arc::default() }
    }
}

impl<S: Service<Request<Incoming>>> Service<Request<Incoming>> for FromPeer<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        self.requests.begin();
        request.extensions_mut().insert(self.peer.clone());
        self.service.call(request)
    }
}
