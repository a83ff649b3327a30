//! Connections to a broker: TCP, and TLS with rustls.

use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::Verifier;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::MqttError;
use crate::config::Mqtt;
use crate::tls::{PemFile, TlsError};

/// The time limit of the TCP connection, and again of the TLS handshake after it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Makes connections to one broker.
#[derive(Clone)]
pub struct Connector {
    url: String,
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// A connection to a broker, with or without TLS.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.url)
    }
}

impl Connector {
    /// Makes a connector for a broker. With TLS, reads the files that its table names.
    ///
    /// These are the certificate authorities, and this client's certificate and private key.
    ///
    /// # Errors
    /// A file cannot be used, or TLS cannot check the host of the URL.
    pub fn new(broker: &Mqtt) -> Result<Self, TlsError> {
        let url = &broker.url;
        let tls = if url.is_tls {
            let name = ServerName::try_from(url.host.clone()).map_err(|_| TlsError::Host(url.host.clone()))?;
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

    /// Connects to the broker, with TLS if its URL says so.
    pub(super) async fn connect(&self) -> Result<Box<dyn Stream>, MqttError> {
        let connected = TcpStream::connect((self.host.as_str(), self.port));
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, connected).await;
        let stream = connected.map_err(|_| MqttError::Timeout("answer the connection"))??;
        stream.set_nodelay(true)?;
        let Some((connector, name)) = &self.tls else { return Ok(Box::new(stream)) };
        let secured = tokio::time::timeout(CONNECT_TIMEOUT, connector.connect(name.clone(), stream)).await;
        Ok(Box::new(secured.map_err(|_| MqttError::Timeout("answer the handshake of TLS"))??))
    }
}

fn client_config(broker: &Mqtt) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_protocol_versions(&[&TLS13, &TLS12]).map_err(TlsError::Rustls)?;
    let builder = if let Some(file) = &broker.ca_file {
        let ca = PemFile::read("mqtt.ca_file", file)?;
        let mut roots = RootCertStore::empty();
        for certificate in ca.all("certificate")? {
            roots.add(certificate).map_err(|error| ca.unusable(format!("holds a bad certificate: {error}")))?;
        }
        builder.with_root_certificates(roots)
    } else {
        let verifier = Verifier::new(provider).map_err(TlsError::Rustls)?;
        builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
    };
    let (Some(cert), Some(key)) = (&broker.cert_file, &broker.key_file) else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = PemFile::read("mqtt.cert_file", cert)?.all("certificate")?;
    let key = PemFile::read("mqtt.key_file", key)?;
    let config = builder.with_client_auth_cert(chain, key.private_key()?);
    config.map_err(|error| key.unusable(format!("does not fit mqtt.cert_file: {error}")))
}
