//! `[http.tls]`: TLS of the HTTP server and the MQTT listener.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::check::within;
use super::{ConfigError, Period};

/// TLS of the HTTP server and the MQTT listener.
///
/// TLS is on if `cert_file` is set. Then all connections use TLS.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// The PEM file of the server's certificate, then the intermediate ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert_file: Option<PathBuf>,
    /// The PEM file of the private key of this certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// The PEM file of the certificate authorities of clients.
    ///
    /// `None`: the server asks clients for no certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_ca_file: Option<PathBuf>,
    /// The PEM file of the revocation lists of these authorities.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_crl_file: Option<PathBuf>,
    /// Whether clients need a certificate, if `client_ca_file` is set.
    pub client_certificates: ClientCertificates,
    /// The time limit of a handshake. 1ms to 1h.
    pub handshake_timeout: Period,
}

/// Whether clients need a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientCertificates {
    /// A client may connect without a certificate. An invalid certificate is refused.
    Optional,
    /// A client needs a valid certificate to connect.
    Required,
}

impl Default for Tls {
    fn default() -> Self {
        Self {
            cert_file: None,
            key_file: None,
            client_ca_file: None,
            client_crl_file: None,
            client_certificates: ClientCertificates::Optional,
            handshake_timeout: Period::secs(10),
        }
    }
}

impl Tls {
    /// Whether TLS is on.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.cert_file.is_some()
    }

    /// Whether only clients with a certificate may connect.
    pub(super) fn requires_certificates(&self) -> bool {
        self.client_ca_file.is_some() && self.client_certificates == ClientCertificates::Required
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        within("http.tls.handshake_timeout", self.handshake_timeout, Period::millis(1), Period::hours(1))?;
        let files = [
            ("http.tls.cert_file", &self.cert_file),
            ("http.tls.key_file", &self.key_file),
            ("http.tls.client_ca_file", &self.client_ca_file),
            ("http.tls.client_crl_file", &self.client_crl_file),
        ];
        for (key, file) in files {
            if file.as_deref().is_some_and(|file| file == Path::new("")) {
                return Err(ConfigError::invalid(key, "is empty; remove it if you do not need it"));
            }
        }
        let [cert, key, ca, crl] = files.map(|(_, file)| file.is_some());
        let needs = |key, needed: &str| Err(ConfigError::invalid(key, format!("is set, so {needed} must be set")));
        if cert && !key {
            return needs("http.tls.cert_file", "http.tls.key_file");
        }
        if key && !cert {
            return needs("http.tls.key_file", "http.tls.cert_file");
        }
        if ca && !cert {
            return needs("http.tls.client_ca_file", "http.tls.cert_file");
        }
        if crl && !ca {
            return needs("http.tls.client_crl_file", "http.tls.client_ca_file");
        }
        if self.client_certificates == ClientCertificates::Required && !ca {
            let problem = "is \"required\", so http.tls.client_ca_file must be set";
            return Err(ConfigError::invalid("http.tls.client_certificates", problem));
        }
        Ok(())
    }
}
