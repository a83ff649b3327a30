//! HTTP clients.

use reqwest::{Certificate, ClientBuilder};

/// A client that trusts these authorities, PEM, if any.
pub(crate) fn client(authorities: Option<&[u8]>) -> ClientBuilder {
    // reqwest takes the cryptography that the process has; another test may have been first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let authorities = authorities.map(|pem| Certificate::from_pem_bundle(pem).expect("certificates"));
    reqwest::Client::builder().tls_certs_only(authorities.unwrap_or_default())
}
