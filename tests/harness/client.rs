//! HTTP clients.

use reqwest::{Certificate, ClientBuilder};

/// A client without a proxy that trusts these certificate authorities (PEM) only, or none.
pub(crate) fn client(authorities: Option<&[u8]>) -> ClientBuilder {
    // reqwest uses the crypto provider of the process; another test may have installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let authorities = authorities.map(|pem| Certificate::from_pem_bundle(pem).expect("certificates"));
    reqwest::Client::builder().no_proxy().tls_certs_only(authorities.unwrap_or_default())
}
