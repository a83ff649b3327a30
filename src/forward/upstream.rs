//! The other server: requests with retries, within the bandwidth.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE};
use reqwest::{Client, RequestBuilder, StatusCode};

use super::Options;
use super::answer::{INTERNAL, Verdict, is_failure, retry_after, text_of, verdict};
use crate::limits::Limiter;
use crate::telemetry::Metrics;

/// The level of zstd: the size of an answer falls little beyond it, and the work grows.
const LEVEL: i32 = 3;

/// The most bytes of an answer that are read. The list of a hundred rejections takes a fraction of it.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// The other server.
pub(super) struct Upstream {
    client: Client,
    url: String,
    token: Option<String>,
    bandwidth: Option<Limiter>,
    metrics: Arc<Metrics>,
}

/// A compressed body, with the number of its readings.
pub(super) struct Body {
    bytes: Bytes,
    readings: usize,
}

/// A failure that a retry may mend.
#[derive(Debug)]
pub(super) struct Trouble {
    /// One of [`Self::REASONS`].
    pub(super) reason: &'static str,
    pub(super) detail: String,
    pub(super) retry_after: Option<Duration>,
}

/// A verdict, and the wait before readings that are refused for now may be sent again.
pub(super) type Answer = (Verdict, Option<Duration>);

impl Trouble {
    /// The reasons: no connection, no answer in time, no rights, too many readings, a server that cannot take
    /// any, one that fails on this request, or an answer of something else.
    pub(super) const REASONS: [&'static str; 7] =
        ["connection", "timeout", "unauthorized", "rate_limited", "unavailable", INTERNAL, "unexpected"];

    /// Whether the server has failed on this request. A retry, or other readings, may have no trouble.
    pub(super) fn is_failure(&self) -> bool {
        self.reason == INTERNAL
    }

    fn of_error(error: reqwest::Error) -> Self {
        let reason = if error.is_timeout() { "timeout" } else { "connection" };
        let error = error.without_url();
        let causes = std::iter::successors(error.source(), |&cause| cause.source());
        let detail = causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
        Self { reason, detail, retry_after: None }
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
        Self { reason, detail: format!("{status}: {}", text_of(body)), retry_after }
    }
}

impl Body {
    /// Compresses NDJSON with this number of readings.
    pub(super) fn of(text: &[u8], readings: usize) -> Self {
        let bytes = zstd::bulk::compress(text, LEVEL).expect("a body in memory is compressed");
        Self { bytes: bytes.into(), readings }
    }
}

impl Upstream {
    pub(super) fn new(options: &Options, metrics: Arc<Metrics>) -> Self {
        Self {
            client: options.client.clone(),
            url: format!("{}/v1/readings", options.url.trim_end_matches('/')),
            token: options.token.clone(),
            bandwidth: options.bandwidth.map(|rate| Limiter::new(rate, Instant::now())),
            metrics,
        }
    }

    /// The URL of the requests.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Charges a body to the bandwidth, or returns the wait until there is room for it.
    pub(super) fn charge(&self, body: &Body) -> Result<(), Duration> {
        let Some(bandwidth) = &self.bandwidth else { return Ok(()) };
        let now = Instant::now();
        bandwidth.take(now)?;
        bandwidth.owe((body.bytes.len() as u64).saturating_sub(1), now);
        Ok(())
    }

    /// Sends a body once.
    pub(super) async fn post(&self, body: &Body) -> Result<Answer, Trouble> {
        self.metrics.forward_bytes_total.increment(body.bytes.len() as u64);
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
            Some(verdict) => Ok((verdict, retry_after)),
            None => Err(Trouble::of_status(status, &answer, retry_after)),
        }
    }
}
