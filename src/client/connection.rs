//! The options of a client: URL, token, certificates, time limits and bandwidth.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use reqwest::redirect::Policy;
use reqwest::{Certificate, ClientBuilder, Identity, Url};

use super::trouble::Hints;
use super::{Client, FORWARDER, OWN_NAME};
use crate::common::small_file::{read_small_file, without_byte_order_mark};
use crate::limits::{Limiter, Rate};
use crate::tls::private_key;

/// The time limit of making a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The default time limit of a request, from its start to the end of the answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The options of a client: the server, and how to reach it.
#[derive(Debug, Clone)]
pub struct Options {
    /// The URL of the server, such as `https://centre.example.com`. Errors name it, so it has no password.
    pub url: String,
    /// The token for the server.
    pub token: Option<String>,
    /// The PEM file of the certificate authorities of the server.
    ///
    /// `None`: the authorities of the system.
    pub ca_file: Option<PathBuf>,
    /// The flag or configuration key that sets `ca_file`, for errors.
    pub ca_key: &'static str,
    /// The PEM files of this client's certificate and of its private key.
    pub identity: Option<[PathBuf; 2]>,
    /// The time limit of a request.
    pub time_limit: TimeLimit,
    /// The most bytes of request bodies per second. `None`: no limit.
    pub bandwidth: Option<Rate>,
    /// Whether the client forwards.
    ///
    /// Its requests then name this process, so that this process can refuse them if the URL leads back to it.
    /// Such a client follows no redirects.
    pub forwards: bool,
    /// Whether the URL is an address of this machine.
    ///
    /// Then the server's certificate is not checked, because it names the host and not the address. So such a
    /// client must not have a token.
    pub is_local: bool,
}

/// The time limit of a request.
#[derive(Debug, Clone, Copy)]
pub enum TimeLimit {
    /// The limit from the start of the request to the end of the answer.
    Whole(Duration),
    /// The limit between two parts of the answer, which may have any length.
    Silence(Duration),
}

/// The options of a client cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct BadOptions {
    what: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl Options {
    /// The default options for this URL: no token, redirects are followed, a request may take a minute.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            token: None,
            ca_file: None,
            ca_key: "--ca-file",
            identity: None,
            time_limit: TimeLimit::Whole(REQUEST_TIMEOUT),
            bandwidth: None,
            forwards: false,
            is_local: false,
        }
    }
}

impl Client {
    /// Makes a client of a server. It does not connect yet.
    ///
    /// # Errors
    /// When a file of the options cannot be used.
    pub fn new(options: Options) -> Result<Self, BadOptions> {
        let http = trusting(&options)?.connect_timeout(CONNECT_TIMEOUT);
        let http = match options.time_limit {
            TimeLimit::Whole(time) => http.timeout(time),
            TimeLimit::Silence(time) => http.read_timeout(time),
        };
        let http = if options.forwards { http.redirect(Policy::none()) } else { http };
        let http = if options.is_local { http.no_proxy().tls_danger_accept_invalid_certs(true) } else { http };
        let name = options.forwards.then(|| (FORWARDER, OWN_NAME.clone()));
        let http = http.default_headers(name.into_iter().collect());
        let http = http.user_agent(concat!("tidegauge/", env!("CARGO_PKG_VERSION")));
        let Options { url, token, ca_file, ca_key, identity, bandwidth, forwards, .. } = options;
        let http = http.build().map_err(|error| bad(format!("the client of {url}"), Some(error.into())))?;
        let authority = match ca_file {
            Some(file) => format!("the authority that issued it is not in {} ({ca_key})", file.display()),
            None => format!("if its authority is a private one, name the file with its certificate with {ca_key}"),
        };
        let identity = match identity {
            Some([certificate, _]) => format!("the server does not accept {} (--client-cert)", certificate.display()),
            None if forwards => "the server wants a client certificate, which [forward] does not have".to_owned(),
            None => "the server wants a client certificate: name it with --client-cert and --client-key".to_owned(),
        };
        let bandwidth = bandwidth.map(|rate| Limiter::new(rate, Instant::now()));
        let (url, hints) = (url.trim_end_matches('/').to_owned(), Hints { authority, identity });
        Ok(Self { http, url, token, hints, bandwidth, has_answered: AtomicBool::new(false) })
    }
}

/// Makes a builder that has the certificates of the options.
///
/// reqwest is built without a cryptographic library, so it uses the one that is installed here.
fn trusting(options: &Options) -> Result<ClientBuilder, BadOptions> {
    let _ = rustls::crypto::ring::default_provider().install_default(); // fails if there is one already
    let http = reqwest::Client::builder();
    if options.is_local || !options.url.starts_with("https:") {
        return Ok(http.tls_certs_only([])); // not those of the system, which may have none
    }
    let http = match &options.ca_file {
        Some(file) => {
            let found = Certificate::from_pem_bundle(&read(file, options.ca_key)?).unwrap_or_default();
            if found.is_empty() {
                let what = format!("{} ({}) holds no certificate as PEM", file.display(), options.ca_key);
                return Err(bad(what, None));
            }
            http.tls_certs_only(found)
        }
        None => http,
    };
    let Some([certificate, key]) = &options.identity else { return Ok(http) };
    let (of_key, of_certificate) = (read(key, "--client-key")?, read(certificate, "--client-cert")?);
    if let Err(problem) = private_key(&of_key) {
        return Err(bad(format!("{} (--client-key) {problem}", key.display()), None));
    }
    let both = [of_key, of_certificate].join(&b'\n');
    let (certificate, key) = (certificate.display(), key.display());
    let what =
        || format!("{certificate} (--client-cert) and {key} (--client-key) are no certificate and its key as PEM");
    Ok(http.identity(Identity::from_pem(&both).map_err(|_| bad(what(), None))?))
}

fn read(file: &Path, key: &str) -> Result<Vec<u8>, BadOptions> {
    let pem = read_small_file(file).map_err(|error| bad(format!("{} ({key})", file.display()), Some(error.into())))?;
    Ok(without_byte_order_mark(pem))
}

fn bad(what: String, source: Option<Box<dyn Error + Send + Sync>>) -> BadOptions {
    BadOptions { what, source }
}

/// Checks the URL of a server.
///
/// The scheme is required, because a wrong guess could send a token in plain text.
///
/// # Errors
/// A text for people: what the URL lacks, or which scheme is not supported.
pub fn check_url(text: &str) -> Result<(), String> {
    if !text.contains("://") {
        return Err(format!(
            "http:// or https:// is missing: write http://{text}, or https://{text} if the server has a certificate"
        ));
    }
    match Url::parse(text).map_err(|error| error.to_string())?.scheme() {
        "http" | "https" => Ok(()),
        other => Err(format!("{other}:// is not supported, only http:// and https://")),
    }
}
