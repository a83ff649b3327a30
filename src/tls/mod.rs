//! TLS of the servers for HTTP and MQTT, with rustls.
//!
//! [`Tls::accept`] makes the handshake of a connection and returns the certificate of the client. `files`
//! reads the certificates and keys. They can be replaced while the server runs; open connections keep the old
//! ones.
//!
//! Promises:
//! - The server speaks only TLS 1.2 and 1.3.
//! - A handshake has a time limit. A client that fails or stalls does not delay others.
//! - If a new file cannot be used, the server keeps the old settings. Errors name the file and never quote
//!   its content.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::access::Certificate;
use crate::common::clock::Clock;
use crate::common::lingering_close::LingeringClose;
use crate::config;
use crate::telemetry::Metrics;

mod files;
pub(crate) mod names;

pub use files::TlsError;
use files::Usable;
pub(crate) use files::{PemFile, private_key};

/// The first byte of a TLS handshake (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 22;

/// The TLS settings of the server, which can be replaced.
#[derive(Debug)]
pub struct Tls(RwLock<Usable>);

impl Tls {
    /// Reads the files of `[http.tls]`; `None` if TLS is off.
    ///
    /// Logs warnings, for example about an expired certificate.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn load(tls: &config::Tls, clock: &Clock) -> Result<Option<Self>, TlsError> {
        Ok(Usable::load(tls, clock.now_ms())?.map(|usable| Self(RwLock::new(usable))))
    }

    /// Replaces the settings. They apply to all handshakes from now on.
    pub fn replace(&self, with: Self) {
        let usable = with.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = usable;
    }

    /// The instant at which the server's certificate expires, in Unix milliseconds.
    #[must_use]
    pub fn not_after_ms(&self) -> i64 {
        self.0.read().unwrap_or_else(PoisonError::into_inner).not_after_ms
    }

    /// Sets the metric `tidegauge_tls_certificate_expiry_timestamp_seconds`.
    pub fn record_expiry(&self, metrics: &Metrics) {
        let not_after_ms = self.not_after_ms();
        metrics.tls_certificate_expiry_timestamp_seconds.set(not_after_ms as f64 / 1e3);
    }

    fn current(&self) -> (Arc<ServerConfig>, Duration) {
        let usable = self.0.read().unwrap_or_else(PoisonError::into_inner);
        (Arc::clone(&usable.config), usable.handshake_timeout)
    }

    /// Makes the TLS handshake of a connection.
    ///
    /// Returns the stream, and the verified client certificate if the client has presented one.
    ///
    /// A client that fails the handshake gets a TLS alert; a client that takes too long gets nothing. A
    /// client whose first byte is a capital letter, as in `GET / HTTP/1.1`, gets the answer `to_plain_text`.
    /// `stop` is cancelled when the server stops.
    ///
    /// # Errors
    /// The reason why the handshake failed.
    pub async fn accept(
        &self,
        stream: TcpStream,
        stop: &CancellationToken,
        to_plain_text: &[u8],
    ) -> Result<(TlsStream<TcpStream>, Option<Arc<Certificate>>), Failure> {
        let (config, handshake_timeout) = self.current();
        let made = tokio::time::timeout(handshake_timeout, handshake(config, stream, to_plain_text)).await;
        let (why, stream) = match made {
            Ok(Ok(stream)) => {
                let client = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                let certificate = client.map(names::certificate).map(Arc::new);
                return Ok((stream, certificate));
            }
            Ok(Err(refused)) => refused,
            Err(_) => return Err(Failure::TimedOut),
        };
        let _ = LingeringClose::new(stream, stop.clone()).shutdown().await; // so that the alert arrives
        Err(why)
    }
}

/// Why a TLS handshake failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Failure {
    #[error("the handshake took longer than http.tls.handshake_timeout")]
    TimedOut,
    #[error("the client closed the connection")]
    Closed,
    #[error("the client does not speak TLS")]
    NotTls,
    #[error("no valid client certificate: {0}")]
    Certificate(rustls::Error),
    #[error("{0}")]
    Protocol(io::Error),
}

impl Failure {
    /// All values that [`Self::reason`] returns.
    pub const REASONS: [&'static str; 5] = ["timeout", "closed", "foreign", "certificate", "protocol"];

    /// The value of the label `reason` in the metric of failed handshakes.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::TimedOut => "timeout",
            Self::Closed => "closed",
            Self::NotTls => "foreign",
            Self::Certificate(_) => "certificate",
            Self::Protocol(_) => "protocol",
        }
    }

    fn of(error: io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(why @ (rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented)) => {
                Self::Certificate(why.clone())
            }
            Some(_) => Self::Protocol(error),
            None => Self::Closed,
        }
    }
}

async fn handshake(
    config: Arc<ServerConfig>,
    mut stream: TcpStream,
    to_plain_text: &[u8],
) -> Result<TlsStream<TcpStream>, (Failure, TcpStream)> {
    let mut first = [0];
    match stream.peek(&mut first).await {
        Ok(1) => {}
        _ => return Err((Failure::Closed, stream)),
    }
    if first[0].is_ascii_uppercase() {
        let _ = stream.write_all(to_plain_text).await; // best effort
    }
    if first[0] != HANDSHAKE {
        return Err((Failure::NotTls, stream));
    }
    let accepted = TlsAcceptor::from(config).accept(stream).into_fallible().await;
    accepted.map_err(|(error, stream)| (Failure::of(error), stream))
}
