//! The client of another tidegauge: the only HTTP client in this program.
//!
//! ```text
//! forward, import, dead-letters retry, demo ──post──┐
//! export, check --ready ──────────────────────get───┴─> Client ──> the other server
//! ```
//!
//! A [`Client`] has the settings of all requests to one server: URL, token, certificates, time limit,
//! bandwidth. [`Client::post`] sends readings and returns an [`Answer`]. [`Client::get`] sends a query and
//! returns a [`Download`]. All failures are a [`Trouble`], which says whether a retry may help. [`retry`]
//! repeats requests of commands. `forward` has retries of its own, because it must be able to stop at once
//! and keeps metrics.
//!
//! Promises:
//! - The other server may be any program. So the size and the time of an answer are limited. Only a file of
//!   readings may have any length; there the silence between two pieces is limited.
//! - Readings count as accepted only if the answer has the form of this API and counts as many readings as
//!   were sent. Any other answer, such as that of a proxy, is a trouble.
//! - Each wait before a retry is random, and at least as long as the header `Retry-After` asks for, up to
//!   five minutes.
//! - An error names the server, and the key or flag that mends it, but never the token.
//!
//! This room knows neither devices, the log, nor the command line.

use std::ops::RangeInclusive;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{RequestBuilder, StatusCode, Url};

mod answer;
mod connection;
mod download;
mod retry;
#[cfg(test)]
mod tests;
mod trouble;

pub use answer::{Answer, Counts, Listed};
pub use connection::{BadOptions, Options, TimeLimit, check_url};
pub use download::{Download, LAGGING_SECONDS};
pub use retry::retry;
pub use trouble::Trouble;

use crate::limits::Limiter;
use download::{MAX_ANSWER_BYTES, read_at_most};
use trouble::{Hints, retry_after};

/// The path to which readings are sent.
pub const READINGS: &str = "/v1/readings";

/// The path to which changes of metadata are sent.
pub const METADATA: &str = "/v1/metadata";

/// The header of forwarded requests, which names the process that sends them.
const FORWARDER: HeaderName = HeaderName::from_static("tidegauge-forwarder");

/// The random name of this process in [`FORWARDER`].
static OWN_NAME: LazyLock<HeaderValue> = LazyLock::new(|| HeaderValue::from(rand::random::<u64>()));

/// The level of zstd. Higher levels cost much more work, and save few bytes.
const LEVEL: i32 = 3;

/// Whether this process itself has forwarded a request with these headers.
#[must_use]
pub fn is_forwarded_by_this_process(headers: &HeaderMap) -> bool {
    headers.get(FORWARDER) == Some(&*OWN_NAME)
}

/// Sends requests to one server.
#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    url: String,
    token: Option<String>,
    hints: Hints,
    bandwidth: Option<Limiter>,
    /// Whether a request had an answer.
    has_answered: AtomicBool,
}

/// The compressed body of a request with readings.
#[derive(Debug)]
pub struct Body {
    bytes: Bytes,
    /// The possible numbers of readings in the body.
    readings: RangeInclusive<u64>,
}

impl Body {
    /// Compresses NDJSON with this number of readings.
    ///
    /// `None`: the number is not known. Then it is at most the number of bytes, and at least 1 if there is an
    /// object: all lines may be empty arrays.
    ///
    /// # Panics
    /// Never: a body in memory can be compressed.
    #[must_use]
    pub fn of(ndjson: &[u8], readings: Option<u64>) -> Self {
        let bytes = zstd::bulk::compress(ndjson, LEVEL).expect("a body in memory is compressed");
        let least = u64::from(memchr::memchr(b'{', ndjson).is_some());
        let readings = readings.map_or(least..=ndjson.len() as u64, |readings| readings..=readings);
        Self { bytes: bytes.into(), readings }
    }

    /// The size of the compressed body, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// The number of readings in the body, or the most that it may have.
    #[must_use]
    pub const fn max_readings(&self) -> u64 {
        *self.readings.end()
    }
}

impl Client {
    /// The URL of the server.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Charges the size of a body to the bandwidth limit.
    ///
    /// # Errors
    /// The wait until the bandwidth limit admits the body.
    pub fn charge(&self, body: &Body) -> Result<(), Duration> {
        let Some(bandwidth) = &self.bandwidth else { return Ok(()) };
        let now = Instant::now();
        bandwidth.take(now)?;
        bandwidth.owe((body.size() as u64).saturating_sub(1), now);
        Ok(())
    }

    /// Sends readings, without retries.
    ///
    /// # Errors
    /// When no answer says of each reading whether it is accepted. The body can safely be sent again.
    pub async fn post(&self, path: &str, body: &Body) -> Result<Answer, Trouble> {
        let url = format!("{}{path}", self.url);
        let request = self.http.post(&url).header(CONTENT_TYPE, "application/x-ndjson");
        let request = request.header(CONTENT_ENCODING, "zstd").body(body.bytes.clone());
        let answer = self.send(&url, request).await?;
        let (status, retry_after) = (answer.status(), retry_after(answer.headers()));
        let text = read_at_most(MAX_ANSWER_BYTES, answer).await;
        let text = text.map_err(|error| Trouble::of_error(&url, error, &self.hints, true))?;
        answer::read(&url, status, &text, &body.readings, retry_after)
    }

    /// Sends a query, without retries.
    ///
    /// # Errors
    /// When the server does not answer `200`.
    pub async fn get(&self, path: &str, params: &[(&str, &str)]) -> Result<Download, Trouble> {
        let url = format!("{}{path}", self.url);
        let with_params = Url::parse_with_params(&url, params).map_err(|error| Trouble::bad_url(&url, error))?;
        let answer = self.send(&url, self.http.get(with_params)).await?;
        let status = answer.status();
        if status == StatusCode::OK {
            return Ok(Download::new(url, answer));
        }
        let retry_after = retry_after(answer.headers());
        let text = read_at_most(MAX_ANSWER_BYTES, answer).await.unwrap_or_default(); // the status tells enough
        Err(Trouble::of_status(&url, status, &text, retry_after))
    }

    async fn send(&self, url: &str, request: RequestBuilder) -> Result<reqwest::Response, Trouble> {
        let request = self.token.iter().fold(request, RequestBuilder::bearer_auth);
        let answer = request.send().await.map_err(|error| {
            let has_answered = self.has_answered.load(Ordering::Relaxed);
            Trouble::of_error(url, error.into(), &self.hints, has_answered)
        })?;
        self.has_answered.store(true, Ordering::Relaxed);
        Ok(answer)
    }
}
