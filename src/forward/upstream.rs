//! The other server: single requests, within the bandwidth.

use std::error::Error;
use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE};
use reqwest::{Client, RequestBuilder, StatusCode};

use super::answer::{INTERNAL, Verdict, is_failure, retry_after, text_of, verdict};
use crate::limits::{Limiter, Rate};

/// The level of zstd: the size of an answer falls little beyond it, and the work grows.
const LEVEL: i32 = 3;

/// The most bytes of an answer that are read. The list of a hundred rejections takes a fraction of it.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// The other server.
#[derive(Debug)]
pub struct Upstream {
    client: Client,
    url: String,
    token: Option<String>,
    bandwidth: Option<Limiter>,
}

/// A compressed body, with the number of its readings.
#[derive(Debug)]
pub struct Body {
    bytes: Bytes,
    readings: usize,
}

/// A request without a verdict on its readings.
#[derive(Debug)]
pub struct Trouble {
    /// One of [`Self::REASONS`].
    pub reason: &'static str,
    /// The error, or the words of the server.
    pub detail: String,
    /// The wait that the server asks for.
    pub retry_after: Option<Duration>,
    /// Whether no retry mends it, until a person changes the token, the certificates or the URL.
    pub is_for_good: bool,
}

/// The verdict of the other server on the readings of a request.
#[derive(Debug)]
pub struct Answer {
    pub(super) verdict: Verdict,
    /// The wait before readings that are refused for now may be sent again.
    pub retry_after: Option<Duration>,
}

impl Trouble {
    /// The reasons: no connection, no answer in time, no rights, too many readings, a server that cannot take
    /// any, one that fails on this request, or an answer of something else.
    pub const REASONS: [&'static str; 7] =
        ["connection", "timeout", "unauthorized", "rate_limited", "unavailable", INTERNAL, "unexpected"];

    /// Whether the server has failed on this request. A retry, or other readings, may have no trouble.
    pub(super) fn is_failure(&self) -> bool {
        self.reason == INTERNAL
    }

    fn of_error(error: reqwest::Error) -> Self {
        let reason = if error.is_timeout() { "timeout" } else { "connection" };
        let is_for_good = error.is_builder() || is_untrusted(&error);
        let error = error.without_url();
        let causes = std::iter::successors(error.source(), |&cause| cause.source());
        let detail = causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
        Self { reason, detail, retry_after: None, is_for_good }
    }

    fn of_status(status: StatusCode, body: &[u8], retry_after: Option<Duration>) -> Self {
        let reason = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "unauthorized",
            StatusCode::TOO_MANY_REQUESTS => "rate_limited",
            StatusCode::REQUEST_TIMEOUT => "timeout",
            _ if is_failure(status, body) => INTERNAL,
            _ if status.is_server_error() => "unavailable",
            _ => "unexpected",
        };
        let is_for_good = matches!(reason, "unauthorized" | "unexpected");
        Self { reason, detail: format!("{status}: {}", text_of(body)), retry_after, is_for_good }
    }
}

impl Body {
    /// Compresses NDJSON with this number of readings.
    pub(super) fn of(text: &[u8], readings: usize) -> Self {
        let bytes = zstd::bulk::compress(text, LEVEL).expect("a body in memory is compressed");
        Self { bytes: bytes.into(), readings }
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes.len()
    }
}

impl Upstream {
    /// The server with this URL, such as `https://centre.example.com`, the token for it, and the most bytes of
    /// compressed bodies a second. The client follows no redirects, and has a timeout.
    #[must_use]
    pub fn new(client: Client, url: &str, token: Option<String>, bandwidth: Option<Rate>) -> Self {
        let url = format!("{}/v1/readings", url.trim_end_matches('/'));
        Self { client, url, token, bandwidth: bandwidth.map(|rate| Limiter::new(rate, Instant::now())) }
    }

    /// The URL of the requests.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Charges a body to the bandwidth.
    ///
    /// # Errors
    /// The wait until there is room for it.
    pub fn charge(&self, body: &Body) -> Result<(), Duration> {
        let Some(bandwidth) = &self.bandwidth else { return Ok(()) };
        let now = Instant::now();
        bandwidth.take(now)?;
        bandwidth.owe((body.bytes.len() as u64).saturating_sub(1), now);
        Ok(())
    }

    /// Sends a body once.
    ///
    /// # Errors
    /// When there is no verdict on its readings. The same body can be sent again, safely.
    pub async fn post(&self, body: &Body) -> Result<Answer, Trouble> {
        let request = self.client.post(&self.url).header(CONTENT_TYPE, "application/x-ndjson");
        let request = request.header(CONTENT_ENCODING, "zstd").body(body.bytes.clone());
        let request = self.token.iter().fold(request, RequestBuilder::bearer_auth);
        let mut response = request.send().await.map_err(Trouble::of_error)?;
        let (status, retry_after) = (response.status(), retry_after(response.headers()));
        let mut answer = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(Trouble::of_error)? {
            answer.extend_from_slice(&piece);
            if answer.len() > MAX_ANSWER_BYTES {
                break;
            }
        }
        match verdict(status, &answer, body.readings) {
            Some(verdict) => Ok(Answer { verdict, retry_after }),
            None => Err(Trouble::of_status(status, &answer, retry_after)),
        }
    }
}

/// Whether the certificate of the server is not trusted.
#[must_use]
pub fn is_untrusted(error: &reqwest::Error) -> bool {
    let mut causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.any(|cause| {
        let of_tls = cause.downcast_ref().and_then(of_tls);
        matches!(of_tls, Some(rustls::Error::InvalidCertificate(_)))
    })
}

/// The TLS error inside an error of a connection, at any depth.
fn of_tls(error: &io::Error) -> Option<&rustls::Error> {
    let inner = error.get_ref()?;
    inner.downcast_ref().or_else(|| inner.downcast_ref().and_then(of_tls))
}
