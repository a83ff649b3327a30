//! Reads the PEM files of `[http.tls]` and `[[mqtt]]`.
//!
//! `Usable` has the settings of the server, made from the files of `[http.tls]`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use memchr::memmem;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::crypto::ring::{Ticketer, default_provider};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{CertificateError, RootCertStore, ServerConfig};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use super::names::not_after_ms;
use crate::common::small_file::{read_small_regular_file, rights_of_others, without_byte_order_mark};
use crate::config::{self, ClientCertificates};

/// The files of `[http.tls]` or `[[mqtt]]` cannot be used.
///
/// The text quotes nothing of their content, which may be a private key.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{} ({key}): {error}", path.display())]
    Read {
        /// The configuration key of the file.
        key: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The content of a file is wrong.
    #[error("{} ({key}) {problem}", path.display())]
    Unusable {
        /// The configuration key of the file.
        key: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The problem of the content, such as "holds no certificate as PEM".
        problem: String,
    },
    /// The host in `mqtt.url` is not a valid name for a certificate.
    #[error("mqtt.url names a host that no certificate can have: {0}")]
    Host(String),
    /// rustls does not accept the settings of this program.
    #[error("TLS cannot be set up: {0}")]
    Rustls(rustls::Error),
}

/// The settings of handshakes as a server, made from the files of `[http.tls]`.
#[derive(Debug)]
pub(super) struct Usable {
    pub(super) config: Arc<ServerConfig>,
    pub(super) handshake_timeout: Duration,
    /// The instant at which the server's certificate expires, in Unix milliseconds.
    pub(super) not_after_ms: i64,
}

impl Usable {
    /// Reads the files; `None` if no certificate is configured.
    pub(super) fn load(tls: &config::Tls, now_ms: i64) -> Result<Option<Self>, TlsError> {
        let (Some(cert), Some(key)) = (&tls.cert_file, &tls.key_file) else { return Ok(None) };
        let cert = PemFile::read("http.tls.cert_file", cert)?;
        let key = PemFile::read("http.tls.key_file", key)?;
        let chain: Vec<CertificateDer<'static>> = cert.all("certificate")?;
        let not_after_ms = cert.not_after_ms(&chain[0], now_ms)?;
        key.warn_if_public();
        let private = key.private_key()?;
        let provider = Arc::new(default_provider());
        let clients = match &tls.client_ca_file {
            Some(file) => verifier(tls, &PemFile::read("http.tls.client_ca_file", file)?, &provider, now_ms)?,
            None => WebPkiClientVerifier::no_client_auth(),
        };
        let config = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13, &TLS12]);
        let config = config.map_err(TlsError::Rustls)?;
        let config = config.with_client_cert_verifier(clients).with_single_cert(chain, private);
        let mut config = config.map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => key.unusable(format!(
                "is not the key of the first certificate in {}, which must be that of the server",
                cert.path.display()
            )),
            rustls::Error::InvalidCertificate(why) => cert.unusable(format!("holds a bad certificate: {why}")),
            other => key.unusable(format!("cannot be used: {other}")),
        })?;
        // The HTTP and the MQTT server share these settings. A client offers the protocol that it speaks, or
        // none.
        config.alpn_protocols = vec![b"http/1.1".to_vec(), b"mqtt".to_vec()];
        if tls.client_crl_file.is_some() {
            // A resumed session would skip the check against the revocation list. So there are no sessions to
            // resume.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        } else {
            // With tickets, devices that reconnect for each reading resume their session, and the server
            // keeps no state for them.
            config.ticketer = Ticketer::new().map_err(TlsError::Rustls)?;
        }
        let handshake_timeout = tls.handshake_timeout.as_duration();
        Ok(Some(Self { config: Arc::new(config), handshake_timeout, not_after_ms }))
    }
}

fn verifier(
    tls: &config::Tls,
    ca: &PemFile<'_>,
    provider: &Arc<CryptoProvider>,
    now_ms: i64,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in ca.all::<CertificateDer<'static>>("certificate")? {
        roots.add(certificate).map_err(|error| {
            ca.unusable(match error {
                rustls::Error::InvalidCertificate(CertificateError::BadEncoding) => {
                    "holds a certificate that cannot be decoded".to_owned()
                }
                other => format!("holds a certificate that cannot sign others: {other}"),
            })
        })?;
    }
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    if tls.client_certificates == ClientCertificates::Optional {
        builder = builder.allow_unauthenticated();
    }
    let Some(crl) = &tls.client_crl_file else { return builder.build().map_err(|error| unverifiable(ca, &error)) };
    let crl = PemFile::read("http.tls.client_crl_file", crl)?;
    let lists: Vec<CertificateRevocationListDer<'static>> = crl.all("revocation list")?;
    if lists.iter().any(is_of_version_1) {
        let needed = "version 2 is needed, which `openssl ca` makes if its configuration has crlnumber";
        return Err(crl.unusable(format!("holds a revocation list of version 1: {needed}")));
    }
    if lists.iter().any(|list| is_outdated(list, now_ms)) {
        let file = crl.path.display();
        tracing::warn!(%file, "a revocation list is past its next update: replace it, or its clients stay refused");
    }
    builder = builder.with_crls(lists).enforce_revocation_expiration();
    builder.build().map_err(|error| unverifiable(&crl, &error))
}

/// Whether a list does not say its version.
fn is_of_version_1(list: &CertificateRevocationListDer<'_>) -> bool {
    CertificateRevocationList::from_der(list).is_ok_and(|(_, list)| list.version().is_none())
}

fn is_outdated(list: &CertificateRevocationListDer<'_>, now_ms: i64) -> bool {
    let next_update = CertificateRevocationList::from_der(list).ok().and_then(|(_, list)| list.next_update());
    next_update.is_some_and(|then| then.timestamp().saturating_mul(1_000) < now_ms)
}

fn unverifiable(file: &PemFile<'_>, error: &VerifierBuilderError) -> TlsError {
    file.unusable(format!("cannot be used: {error}"))
}

/// A PEM file that a configuration key names.
pub(crate) struct PemFile<'a> {
    key: &'static str,
    path: &'a Path,
    pem: Vec<u8>,
}

impl<'a> PemFile<'a> {
    pub(crate) fn read(key: &'static str, path: &'a Path) -> Result<Self, TlsError> {
        let pem = read_small_regular_file(path);
        let pem = pem.map_err(|error| TlsError::Read { key, path: path.to_owned(), error })?;
        Ok(Self { key, path, pem: without_byte_order_mark(pem) })
    }

    /// Returns all items of type `T` in the file, such as its certificates.
    ///
    /// A file without such an item is an error. `what` names the type in errors.
    pub(crate) fn all<T: PemObject>(&self, what: &str) -> Result<Vec<T>, TlsError> {
        let all: Result<Vec<T>, _> = T::pem_slice_iter(&self.pem).collect();
        let all = all.map_err(|error| self.unusable(no_pem(what, &error)))?;
        if all.is_empty() { Err(self.unusable(no_pem(what, &pem::Error::NoItemsFound))) } else { Ok(all) }
    }

    /// The first private key in the file.
    pub(crate) fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        private_key(&self.pem).map_err(|problem| self.unusable(problem))
    }

    /// Returns when the server's certificate expires, in Unix milliseconds.
    ///
    /// Logs a warning if the certificate has expired, is not valid yet, or has no names. None of these is an
    /// error, so that a restart does not stop a working service.
    fn not_after_ms(&self, der: &CertificateDer<'_>, now_ms: i64) -> Result<i64, TlsError> {
        let (_, certificate) = X509Certificate::from_der(der)
            .map_err(|error| self.unusable(format!("holds a bad certificate: {error}")))?;
        let (file, validity) = (self.path.display(), certificate.validity());
        if not_after_ms(&certificate) < now_ms {
            tracing::warn!(%file, not_after = %validity.not_after, "the server's certificate has expired");
        } else if validity.not_before.timestamp().saturating_mul(1_000) > now_ms {
            tracing::warn!(%file, not_before = %validity.not_before, "the server's certificate is not valid yet");
        }
        if !matches!(certificate.subject_alternative_name(), Ok(Some(_))) {
            tracing::warn!(%file, "the server's certificate has no names (subjectAltName): clients refuse it");
        }
        Ok(not_after_ms(&certificate))
    }

    fn warn_if_public(&self) {
        if rights_of_others(self.path) != 0 {
            let file = self.path.display();
            tracing::warn!(
                %file,
                "other users of this machine can access the private key of the server: let the service own it, or \
                 read it by its group, then chmod o= it"
            );
        }
    }

    /// The error for a file with this problem, such as "holds no certificate as PEM".
    pub(crate) fn unusable(&self, problem: String) -> TlsError {
        TlsError::Unusable { key: self.key, path: self.path.to_owned(), problem }
    }
}

/// Returns the first private key in a PEM file, if it is of a kind that TLS can use here.
///
/// # Errors
/// The problem of the file, as it follows the name of the file.
pub(crate) fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    let is_encrypted = || {
        let marks = [b"BEGIN ENCRYPTED PRIVATE KEY".as_slice(), b"Proc-Type: 4,ENCRYPTED"];
        marks.iter().any(|mark| memmem::find(pem, mark).is_some())
    };
    match PrivateKeyDer::from_pem_slice(pem) {
        Ok(key) if any_supported_type(&key).is_ok() => Ok(key),
        Ok(_) => {
            Err("holds no private key of a supported kind: P-256, P-384, Ed25519, or RSA of 2048 to 4096 bits".into())
        }
        Err(_) if is_encrypted() => {
            Err("holds an encrypted private key: decrypt it with openssl pkey -in KEY -out PLAIN".into())
        }
        Err(error) => Err(no_pem("private key", &error)),
    }
}

/// The problem of a file that is not PEM.
///
/// It quotes no line of the file, which may belong to a private key.
fn no_pem(what: &str, error: &pem::Error) -> String {
    match error {
        pem::Error::NoItemsFound => format!("holds no {what} as PEM"),
        pem::Error::MissingSectionEnd { .. } => format!("is no PEM with a {what}: a section has no end"),
        _ => format!("is no PEM with a {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_P_521: &str = "-----BEGIN PRIVATE KEY-----
MIHuAgEAMBAGByqGSM49AgEGBSuBBAAjBIHWMIHTAgEBBEIBtBqnwvnxLS1me1Ob
zwfZDlr/hQRY5NL2FSHfHw42oTZhAdCAPgEKPn9Fot4RnOh2ypkacporBkAIRfcd
kK6yJuOhgYkDgYYABAChiHKaEeKw1SkUkdp+u75qZCR2sSbo79MmIjDNTgo/5I2H
bZvgrov5FdZ5wMYAzyQCDjmTr7guUjBILvbIbn05DgG4b47x8BLRb/A/ftXHa5DO
2PlslAhUBj8yf9E0Wt+Ob58C6f9mM/eedwQOwQ4EInSbSx1mFywVCDezZyB5kUcc
sg==
-----END PRIVATE KEY-----
";

    #[test]
    fn a_key_that_cannot_be_used_says_why() {
        let good = rcgen::KeyPair::generate().unwrap().serialize_pem();
        assert!(private_key(good.as_bytes()).is_ok());
        for (pem, said) in [
            (OF_P_521, "no private key of a supported kind"),
            (
                "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
                "openssl pkey -in KEY -out PLAIN",
            ),
            (
                "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n-----END EC PRIVATE KEY-----\n",
                "openssl pkey -in KEY -out PLAIN",
            ),
            ("", "holds no private key as PEM"),
        ] {
            let problem = private_key(pem.as_bytes()).unwrap_err();
            assert!(problem.contains(said), "{problem}");
        }
    }
}
