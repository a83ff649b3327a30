//! The flags of commands that are clients of a running server: its address, and TLS and token of the client.

pub(super) mod answer;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use reqwest::{Certificate, Client, ClientBuilder, Identity};
use tidegauge::common::small_file::{read_small_file, read_small_text};
use tidegauge::config::Http;

/// The server of a configuration without `http.listen`.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

#[derive(Debug, Args)]
pub(super) struct ClientArgs {
    #[arg(
        long,
        value_parser = parse_url,
        help = "The server [default: http://127.0.0.1:8080; of dead-letters retry, the address of http.listen]"
    )]
    url: Option<String>,
    #[command(flatten)]
    credentials: Credentials,
}

/// The flags for the token and the certificates of a client.
#[derive(Debug, Args)]
pub(super) struct Credentials {
    #[arg(
        long,
        value_name = "FILE",
        help = "The file with the token for the server [default: the variable TIDEGAUGE_TOKEN, if it is set]"
    )]
    token_file: Option<PathBuf>,
    #[arg(
        long,
        value_name = "FILE",
        help = "With https://: the file with the certificate authorities of the server, PEM \
                [default: those of the system]"
    )]
    ca_file: Option<PathBuf>,
    /// With https://: the file with the certificate of the client, PEM
    #[arg(long, value_name = "FILE", requires = "client_key")]
    client_cert: Option<PathBuf>,
    /// The file with the private key of that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
}

impl ClientArgs {
    /// The URL of the server.
    pub(super) fn url(&self) -> &str {
        self.url.as_deref().unwrap_or(DEFAULT_URL)
    }

    /// Takes the server with this configuration, unless a flag names one.
    pub(super) fn or_server_of(mut self, http: &Http) -> anyhow::Result<Self> {
        if self.url.is_none() {
            if http.tls.is_on() {
                let port = http.listen.port();
                bail!("name the server with --url https://NAME:{port}: its certificate has a name, and no address");
            }
            self.url = Some(local_url(http)?);
        }
        Ok(self)
    }

    /// An HTTP client with the certificates of these flags.
    pub(super) fn http(&self) -> anyhow::Result<ClientBuilder> {
        self.credentials.http(self.url())
    }

    /// The token.
    pub(super) fn token(&self) -> anyhow::Result<Option<String>> {
        self.credentials.token()
    }
}

impl Credentials {
    /// An HTTP client for the server at a URL, with the certificates of these flags.
    pub(super) fn http(&self, url: &str) -> anyhow::Result<ClientBuilder> {
        if !url.starts_with("https:") {
            if self.ca_file.is_some() || self.client_cert.is_some() {
                bail!("--ca-file and --client-cert are for https://, and the server is {url}");
            }
            return Ok(plain_http());
        }
        let mut builder = match &self.ca_file {
            Some(file) => trusting(file, "--ca-file")?,
            None => trusting_the_system(),
        };
        if let (Some(cert), Some(key)) = (&self.client_cert, &self.client_key) {
            let both = [read(key, "--client-key")?, read(cert, "--client-cert")?].join(&b'\n');
            let (cert, key) = (cert.display(), key.display());
            let named =
                || format!("{cert} (--client-cert) and {key} (--client-key) are no certificate and its key as PEM");
            builder = builder.identity(Identity::from_pem(&both).ok().with_context(named)?);
        }
        Ok(builder)
    }

    /// The token. It is not an argument, because the list of processes shows these.
    pub(super) fn token(&self) -> anyhow::Result<Option<String>> {
        let text = match &self.token_file {
            Some(file) => {
                let text = read_small_text(file);
                Some(text.with_context(|| format!("{} (--token-file)", file.display()))?)
            }
            None => std::env::var("TIDEGAUGE_TOKEN").ok(),
        };
        Ok(text.map(|text| text.trim().to_owned()).filter(|token| !token.is_empty()))
    }
}

/// The URL under which this machine reaches the server with this configuration.
pub(super) fn local_url(http: &Http) -> anyhow::Result<String> {
    let ip = match http.listen.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let (scheme, port) = (if http.tls.is_on() { "https" } else { "http" }, http.listen.port());
    if port == 0 {
        bail!("http.listen = \"{}\" has no fixed port, so the server cannot be found", http.listen);
    }
    Ok(format!("{scheme}://{}", SocketAddr::new(ip, port)))
}

/// A client for plain HTTP, which needs no certificate authorities: a system may have none.
pub(super) fn plain_http() -> ClientBuilder {
    with_provider().tls_certs_only([])
}

/// A client for HTTPS that trusts the certificate authorities of the system.
pub(super) fn trusting_the_system() -> ClientBuilder {
    with_provider()
}

/// A client for HTTPS that trusts the certificate authorities in this file only. `name` says who names it.
pub(super) fn trusting(file: &Path, name: &str) -> anyhow::Result<ClientBuilder> {
    let authorities = Certificate::from_pem_bundle(&read(file, name)?).ok().filter(|all| !all.is_empty());
    let named = || format!("{} ({name}) holds no certificate as PEM", file.display());
    Ok(with_provider().tls_certs_only(authorities.with_context(named)?))
}

/// A client for HTTPS to this machine itself, which accepts any certificate: that of the server names the
/// host, not the address. It is not for requests with a secret.
pub(super) fn any_certificate() -> ClientBuilder {
    plain_http().tls_danger_accept_invalid_certs(true)
}

/// A builder with the cryptography of the process: reqwest has none of its own.
fn with_provider() -> ClientBuilder {
    let _ = rustls::crypto::ring::default_provider().install_default(); // fails if there is one already
    Client::builder()
}

fn read(file: &Path, flag: &str) -> anyhow::Result<Vec<u8>> {
    read_small_file(file).with_context(|| format!("{} ({flag})", file.display()))
}

/// Checks a URL. The scheme is required: a wrong guess could send a token in plain text.
pub(super) fn parse_url(text: &str) -> anyhow::Result<String> {
    if !text.contains("://") {
        bail!("http:// or https:// is missing: write http://{text}, or https://{text} if the server has a certificate");
    }
    match reqwest::Url::parse(text)?.scheme() {
        "http" | "https" => Ok(text.to_owned()),
        other => bail!("{other}:// is not supported, only http:// and https://"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_on_all_addresses_is_reached_on_loopback() {
        for (listen, reached) in [
            ("0.0.0.0:8080", "http://127.0.0.1:8080"),
            ("[::]:8080", "http://[::1]:8080"),
            ("192.0.2.7:443", "http://192.0.2.7:443"),
            ("127.0.0.1:1", "http://127.0.0.1:1"),
        ] {
            let http = Http { listen: listen.parse().expect("an address"), ..Http::default() };
            assert_eq!(local_url(&http).expect("a URL"), reached, "{listen}");
        }
        assert_eq!(local_url(&Http::default()).expect("a URL"), DEFAULT_URL);
    }
}
