//! HTTP answers.

use bytes::Bytes;
use reqwest::header::HeaderMap;
use serde_json::Value;

/// An HTTP answer with its whole body.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The status code.
    pub(crate) status: u16,
    /// The headers.
    pub(crate) headers: HeaderMap,
    /// The body.
    pub(crate) body: Bytes,
}

impl Answer {
    /// Reads the whole body.
    pub(crate) async fn of(response: Result<reqwest::Response, reqwest::Error>) -> Result<Self, reqwest::Error> {
        let response = response?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Self { status, headers, body: response.bytes().await? })
    }

    /// Makes the answers `store_unavailable` and `overloaded` errors, with their text.
    ///
    /// After them, a client should try again.
    pub(crate) fn unless_unavailable(self) -> Result<Self, String> {
        let is_code = |code: &Value| code == "store_unavailable" || code == "overloaded";
        let is_unavailable = self.status == 503 && is_code(&self.json()["code"]);
        if is_unavailable { Err(self.text().to_owned()) } else { Ok(self) }
    }

    /// The body as text.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("UTF-8")
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.text()))
    }

    /// A header; empty if it is missing.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("ASCII"))
    }
}
