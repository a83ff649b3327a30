//! Connections to a broker: TCP, and TLS with rustls.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::Verifier;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::MqttError;
use crate::common::small_file::read_small_regular_file;
use crate::config::Mqtt;

/// The time for a connection, and for the handshake of TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the files of `[[mqtt]]` cannot be used. It contains nothing of their content.
#[derive(Debug, thiserror::Error)]
pub enum MqttTlsError {
    /// A file cannot be read.
    #[error("{} ({key}): {error}", path.display())]
    Read {
        /// The configuration key of the file.
        key: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The content of a file cannot be used.
    #[error("{} ({key}) {problem}", path.display())]
    Unusable {
        /// The configuration key of the file.
        key: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The fault, such as "holds no certificate as PEM".
        problem: String,
    },
    /// rustls does not accept the settings.
    #[error("TLS to the broker cannot be set up: {0}")]
    Rustls(rustls::Error),
    /// The host is no name that a certificate can have.
    #[error("mqtt.url names a host that no certificate can have: {0}")]
    Host(String),
}

/// Makes connections to one broker.
#[derive(Clone)]
pub struct Connector {
    url: String,
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// A connection.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.url)
    }
}

impl Connector {
    /// Reads the files of a broker.
    ///
    /// # Errors
    /// When a file cannot be used.
    pub fn new(broker: &Mqtt) -> Result<Self, MqttTlsError> {
        let url = &broker.url;
        let tls = if url.is_tls {
            let name = ServerName::try_from(url.host.clone()).map_err(|_| MqttTlsError::Host(url.host.clone()))?;
            Some((TlsConnector::from(Arc::new(client_config(broker)?)), name))
        } else {
            None
        };
        Ok(Self { url: url.as_str().to_owned(), host: url.host.clone(), port: url.port, tls })
    }

    /// The URL of the broker.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Connects.
    pub(super) async fn connect(&self) -> Result<Box<dyn Stream>, MqttError> {
        let connected = TcpStream::connect((self.host.as_str(), self.port));
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, connected).await;
        let stream = connected.map_err(|_| MqttError::Timeout("the connection"))??;
        stream.set_nodelay(true)?;
        let Some((connector, name)) = &self.tls else { return Ok(Box::new(stream)) };
        let secured = tokio::time::timeout(CONNECT_TIMEOUT, connector.connect(name.clone(), stream)).await;
        Ok(Box::new(secured.map_err(|_| MqttError::Timeout("the handshake of TLS"))??))
    }
}

fn client_config(broker: &Mqtt) -> Result<ClientConfig, MqttTlsError> {
    let provider = Arc::new(default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_protocol_versions(&[&TLS13, &TLS12]).map_err(MqttTlsError::Rustls)?;
    let builder = if let Some(file) = &broker.ca_file {
        let mut roots = RootCertStore::empty();
        for certificate in certificates("mqtt.ca_file", file)? {
            let added = roots.add(certificate);
            added.map_err(|error| unusable("mqtt.ca_file", file, format!("holds a bad certificate: {error}")))?;
        }
        builder.with_root_certificates(roots)
    } else {
        let verifier = Verifier::new(provider).map_err(MqttTlsError::Rustls)?;
        builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
    };
    let (Some(cert), Some(key)) = (&broker.cert_file, &broker.key_file) else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates("mqtt.cert_file", cert)?;
    let pem = read("mqtt.key_file", key)?;
    let private = PrivateKeyDer::from_pem_slice(&pem);
    let private = private.map_err(|_| unusable("mqtt.key_file", key, "holds no private key as PEM".to_owned()))?;
    let config = builder.with_client_auth_cert(chain, private);
    config.map_err(|error| unusable("mqtt.key_file", key, format!("does not fit mqtt.cert_file: {error}")))
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, MqttTlsError> {
    let pem = read(key, path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let all = all.ok().filter(|all| !all.is_empty());
    all.ok_or_else(|| unusable(key, path, "holds no certificate as PEM".to_owned()))
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, MqttTlsError> {
    read_small_regular_file(path).map_err(|error| MqttTlsError::Read { key, path: path.to_owned(), error })
}

fn unusable(key: &'static str, path: &Path, problem: String) -> MqttTlsError {
    MqttTlsError::Unusable { key, path: path.to_owned(), problem }
}
