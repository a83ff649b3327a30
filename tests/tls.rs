//! HTTP over TLS: handshakes, client certificates, and changed files.

pub(crate) mod authority;
mod commands;
mod devices;
mod files;
mod forward;
mod handshakes;
mod peers;

use std::io;
use std::path::Path;
use std::sync::Arc;

use reqwest::Method;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::harness::{Connection, Server, Setup};
use authority::{Authority, Issued};

pub(crate) const BOTH: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];
const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// A folder of certificates for a server, and their authority.
pub(crate) struct Folder {
    authority: Authority,
    folder: TempDir,
}

impl Folder {
    pub(crate) fn new() -> Self {
        let (authority, folder) = (Authority::new(), tempfile::tempdir().expect("a temporary folder"));
        authority.write_server(folder.path());
        Self { authority, folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The path of a file in it, as TOML takes it.
    fn file(&self, name: &str) -> String {
        self.path().join(name).display().to_string()
    }

    /// A server with these certificates; more keys of `[http.tls]` follow.
    pub(crate) fn setup(&self, keys: &str) -> Setup {
        Setup::sqlite().tls(self.path(), keys)
    }

    /// The same, but clients may present certificates of the same authority.
    fn with_clients(&self, keys: &str) -> Setup {
        self.setup(&format!("client_ca_file = '{}'\n{keys}", self.file("ca.pem")))
    }

    /// The configuration of a client that trusts this authority, with these versions and this certificate.
    pub(crate) fn client(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        shown: Option<&Issued>,
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority.pem()).expect("PEM")).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).expect("versions");
        let builder = builder.with_root_certificates(roots);
        let mut config = match shown {
            None => builder.with_no_client_auth(),
            Some(shown) => {
                let chain = vec![CertificateDer::from_pem_slice(shown.certificate.as_bytes()).expect("PEM")];
                let key = PrivateKeyDer::from_pem_slice(shown.key.as_bytes()).expect("PEM");
                builder.with_client_auth_cert(chain, key).expect("they go together")
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    }
}

async fn connect(server: &Server, client: &Arc<ClientConfig>) -> io::Result<TlsStream<TcpStream>> {
    secured(TcpStream::connect(server.http_addr()).await?, client).await
}

/// Makes the handshake on a connection.
pub(crate) async fn secured(stream: TcpStream, client: &Arc<ClientConfig>) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from("localhost").expect("a name");
    TlsConnector::from(Arc::clone(client)).connect(name, stream).await
}

/// Whether a client gets an answer. With TLS 1.3 a refusal arrives after the client's part of the handshake.
async fn health(server: &Server, client: &Arc<ClientConfig>) -> io::Result<()> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = connect(server, client).await?;
    stream.write_all(HEALTH).await?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await?;
    assert_eq!(&answer, b"HTTP/1.1 200");
    Ok(())
}

/// The certificate that the server shows now.
async fn shown_by(server: &Server, folder: &Folder) -> Vec<u8> {
    let stream = connect(server, &folder.client(&BOTH, None)).await.expect("a connection");
    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    shown.expect("a certificate").to_vec()
}

/// The number of handshakes that failed for this reason.
async fn failed(server: &Server, reason: &str) -> u64 {
    server.metrics().await.count_where("tidegauge_tls_handshakes_failed_total", &[("reason", reason)])
}

/// A reqwest client that presents this certificate.
fn reqwest_client(folder: &Folder, shown: &Issued) -> reqwest::Client {
    let identity = reqwest::Identity::from_pem(shown.both().as_bytes()).expect("a certificate and its key");
    crate::harness::client(Some(folder.authority.pem())).identity(identity).build().expect("a client")
}

/// `POST`s a body with a client, and a token if there is one.
async fn post(
    (client, server, token): (&reqwest::Client, &Server, Option<&str>),
    path: &str,
    content_type: &str,
    body: String,
) -> crate::harness::Answer {
    let request = client.request(Method::POST, format!("{}{path}", server.url())).header("content-type", content_type);
    let request = token.into_iter().fold(request, |request, name| request.bearer_auth(crate::harness::secret_of(name)));
    server.send(request.body(body)).await
}

/// Speaks HTTP as it is written over TLS.
async fn open(server: &Server, client: &Arc<ClientConfig>) -> Connection<TlsStream<TcpStream>> {
    Connection::over(connect(server, client).await.expect("a connection"))
}
