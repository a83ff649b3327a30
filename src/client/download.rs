//! Reads the bodies of answers: short ones as a whole, files piece by piece.

use std::time::Duration;

use bytes::Bytes;
use reqwest::header::HeaderName;

use super::trouble::{Failure, Hints, Trouble};

/// The most bytes of an answer to readings, and of a problem document.
///
/// An answer with a hundred rejections has much less.
pub(super) const MAX_ANSWER_BYTES: usize = 1 << 20;

/// The header for the lag of answers in formats without `laggingSeconds`.
pub const LAGGING_SECONDS: HeaderName = HeaderName::from_static("tidegauge-lagging-seconds");

/// The time limit of reading an answer as a whole.
const ANSWER_WITHIN: Duration = Duration::from_secs(300);

/// The answer to a query, whose body is not read yet.
#[derive(Debug)]
pub struct Download {
    url: String,
    answer: reqwest::Response,
}

impl Download {
    pub(super) const fn new(url: String, answer: reqwest::Response) -> Self {
        Self { url, answer }
    }

    /// The header [`LAGGING_SECONDS`]: readings acknowledged within these seconds may be missing.
    ///
    /// `None`: no reading is missing. An answer in JSON says it in its member `laggingSeconds` instead.
    #[must_use]
    pub fn lagging_seconds(&self) -> Option<f64> {
        self.answer.headers().get(LAGGING_SECONDS)?.to_str().ok()?.parse().ok()
    }

    /// Reads the next piece of the body; `None` at its end.
    ///
    /// # Errors
    /// When the connection ends before the body, or the server is silent for too long.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, Trouble> {
        let piece = self.answer.chunk().await;
        piece.map_err(|error| Trouble::of_error(&self.url, error.into(), &Hints::default(), true))
    }

    /// Reads the whole body.
    ///
    /// # Errors
    /// When the body has more than `max_bytes`, or takes more than five minutes.
    pub async fn whole(self, max_bytes: usize) -> Result<Vec<u8>, Trouble> {
        let Self { url, answer } = self;
        let body = read_at_most(max_bytes, answer).await;
        let body = body.map_err(|error| Trouble::of_error(&url, error, &Hints::default(), true))?;
        if body.len() > max_bytes {
            return Err(Trouble::unexpected(&url, format!("the answer has more than {max_bytes} bytes")));
        }
        Ok(body)
    }
}

/// Reads the body of an answer, and stops after more than `bytes` bytes.
pub(super) async fn read_at_most(bytes: usize, mut answer: reqwest::Response) -> Result<Vec<u8>, Failure> {
    let read = async {
        let mut body = Vec::new();
        while body.len() <= bytes
            && let Some(piece) = answer.chunk().await?
        {
            body.extend_from_slice(&piece);
        }
        Ok(body)
    };
    tokio::time::timeout(ANSWER_WITHIN, read).await.unwrap_or(Err(Failure::Slow))
}
