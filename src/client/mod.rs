//! Requests to another tidegauge. It is the only HTTP client of this program.
//!
//! ```text
//! forward, import, dead-letters retry, demo ──post──┐
//! export, check --ready ──────────────────────get───┴─> Client ──> the other server
//! ```
//!
//! [`Client`] has what all requests to one server share: URL, token, certificates, time limit, bandwidth.
//! The answer to readings is an [`Answer`] (`answer.rs`), that to a query a [`Download`] (`download.rs`).
//! Everything else is a [`Trouble`], which says why, and whether a retry may mend it (`trouble.rs`).
//! [`retry`] repeats a request for commands. `forward` repeats in its own way, because it must stop at once
//! and keep its metrics.
//!
//! Promises:
//! - The other server may be any program. Its answers are read up to a number of bytes and a time. Only a
//!   file of readings may have any length; there each silence has a limit.
//! - Readings count as accepted only if an answer in the form of this API counts as many as were sent. Any
//!   other answer, such as that of a proxy, is a trouble.
//! - Each wait before a retry is random, and at least as long as `Retry-After` asks for, up to five minutes.
//! - An error names the server, and the key or flag that mends it, but never the token.
//!
//! This room knows neither devices, the log, nor the command line.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE};
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
pub use download::Download;
pub use retry::retry;
pub use trouble::Trouble;

use crate::limits::Limiter;
use download::{MAX_ANSWER_BYTES, read_at_most};
use trouble::retry_after;

/// The path to which readings are sent.
pub const READINGS: &str = "/v1/readings";

/// The path to which changes of metadata are sent.
pub const METADATA: &str = "/v1/metadata";

/// The level of zstd: the size of a body falls little beyond it, and the work grows.
const LEVEL: i32 = 3;

/// Sends requests to one server.
#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    url: String,
    token: Option<String>,
    /// How to make the authority of the server known, for errors.
    authority_hint: String,
    bandwidth: Option<Limiter>,
}

/// The compressed body of a request with readings.
#[derive(Debug)]
pub struct Body {
    bytes: Bytes,
    /// How many readings it may have.
    readings: RangeInclusive<u64>,
}

impl Body {
    /// Compresses NDJSON with this number of readings. `None`: the number is not known, at least 1.
    ///
    /// # Panics
    /// Never: a body in memory can be compressed.
    #[must_use]
    pub fn of(ndjson: &[u8], readings: Option<u64>) -> Self {
        let bytes = zstd::bulk::compress(ndjson, LEVEL).expect("a body in memory is compressed");
        let readings = readings.map_or(1..=ndjson.len() as u64, |readings| readings..=readings);
        Self { bytes: bytes.into(), readings }
    }

    /// The size of the compressed body, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// The number of its readings, or the most that it may have.
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

    /// Charges a body to the bandwidth.
    ///
    /// # Errors
    /// The wait until the bandwidth allows the body.
    pub fn charge(&self, body: &Body) -> Result<(), Duration> {
        let Some(bandwidth) = &self.bandwidth else { return Ok(()) };
        let now = Instant::now();
        bandwidth.take(now)?;
        bandwidth.owe((body.size() as u64).saturating_sub(1), now);
        Ok(())
    }

    /// Sends readings once.
    ///
    /// # Errors
    /// When the answer does not say of each reading whether it is accepted. The same body can be sent again,
    /// safely.
    pub async fn post(&self, path: &str, body: &Body) -> Result<Answer, Trouble> {
        let url = format!("{}{path}", self.url);
        let request = self.http.post(&url).header(CONTENT_TYPE, "application/x-ndjson");
        let request = request.header(CONTENT_ENCODING, "zstd").body(body.bytes.clone());
        let answer = self.send(&url, request).await?;
        let (status, retry_after) = (answer.status(), retry_after(answer.headers()));
        let text = read_at_most(MAX_ANSWER_BYTES, answer).await;
        let text = text.map_err(|error| Trouble::of_error(&url, error, &self.authority_hint))?;
        answer::read(&url, status, &text, &body.readings, retry_after)
    }

    /// Sends a query once.
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
        request.send().await.map_err(|error| Trouble::of_error(url, error.into(), &self.authority_hint))
    }
}
