//! One connection: the TLS handshake, its requests, and its end at a shutdown.

use std::convert::Infallible;
use std::net::IpAddr;
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
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;

use super::client_disconnect::{Disconnect, WatchedStream};
use crate::access::Certificate;
use crate::common::lingering_close::LingeringClose;
use crate::http::Limits;
use crate::telemetry::{Metrics, RefusalEntry, RefusalLog, Sender, What};
use crate::tls::Tls;

/// The buffer of a connection: the largest head of a request, and read of a body.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// How long after a shutdown a connection may send its first request.
const FIRST_REQUEST_WAIT: Duration = Duration::from_secs(1);

/// How long after a shutdown a connection may send a further request.
const NEXT_REQUEST_WAIT: Duration = Duration::from_millis(50);

/// The answer to plain HTTP on a TLS port.
const PLAIN_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\
    Content-Length: 37\r\n\r\nThis address speaks HTTPS, not HTTP.\n";

/// The parts that all connections share.
#[derive(Clone)]
pub(super) struct Connections {
    pub(super) limits: Limits,
    pub(super) metrics: Arc<Metrics>,
    pub(super) refusals: Arc<RefusalLog>,
    pub(super) router: Router,
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) shutdown: CancellationToken,
}

impl Connections {
    /// Logs a connection that the server did not accept.
    pub(super) fn log_refused_connection(&self, sender: Sender, code: &'static str, example: String) {
        self.refusals.record(sender, RefusalEntry { what: What::Connections, code, count: 1, example }, None);
    }

    /// Serves a connection until its end. The TLS handshake is first, if there is TLS.
    pub(super) async fn serve(&self, stream: TcpStream, address: IpAddr) {
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

/// Records that requests of a connection begin.
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
    /// Closed at once, the connection would lose a request that its client has just sent.
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
