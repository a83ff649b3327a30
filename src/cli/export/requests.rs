//! The requests of an export to the server.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use reqwest::{Client, ClientBuilder, RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;
use serde_json::value::RawValue;
use tidegauge::common::backoff::Backoff;

use super::super::Usage;
use super::super::client::ClientArgs;
use super::super::client::answer::{MAX_ANSWER_BYTES, is_temporary, read_at_most, refusal_text, retry_after};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest silence of the server, longer than it gives one slice of a file.
const READ_TIMEOUT: Duration = Duration::from_secs(120);

const FIRST_WAIT: Duration = Duration::from_millis(200);
const LAST_WAIT: Duration = Duration::from_secs(10);

/// The most bytes of a page of devices, with their metadata.
const MAX_PAGE_BYTES: usize = 64 << 20;

/// How often a request is sent to a server that refuses it for the moment.
const ATTEMPTS: u32 = 20;

/// Sends requests to one server.
pub(in crate::cli) struct Requests {
    client: Client,
    url: String,
    token: Option<String>,
}

/// The server refuses a request.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(in crate::cli) struct Refusal {
    pub(in crate::cli) status: StatusCode,
    /// The code of the problem; empty without one.
    code: String,
    text: String,
}

/// A page of devices.
#[derive(Debug, Deserialize)]
pub(in crate::cli) struct Page {
    pub(super) devices: Vec<Listed>,
    /// The cursor of the next page.
    pub(super) next: Option<String>,
    /// The store did not answer.
    #[serde(default)]
    partial: bool,
}

/// A device of a page.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Listed {
    pub(super) device_id: String,
    /// The newest metadata: a JSON object in one line.
    pub(super) metadata: Option<Box<RawValue>>,
}

impl Requests {
    pub(super) fn to(server: &ClientArgs) -> anyhow::Result<Self> {
        Self::new(server.http()?, server.url(), server.token()?)
    }

    /// Requests to the server with this URL.
    pub(in crate::cli) fn new(http: ClientBuilder, url: &str, token: Option<String>) -> anyhow::Result<Self> {
        let client = http.connect_timeout(CONNECT_TIMEOUT).read_timeout(READ_TIMEOUT).build()?;
        Ok(Self { client, url: url.trim_end_matches('/').to_owned(), token })
    }

    /// A page of the devices that `selection` selects, in the order of their IDs.
    pub(in crate::cli) async fn devices(
        &self,
        selection: &[(&str, &str)],
        after: Option<&str>,
    ) -> anyhow::Result<Page> {
        let params = selection.iter().copied().chain(after.map(|after| ("cursor", after)));
        let answer = self.get("/v1/devices", &params.collect::<Vec<_>>()).await?;
        let body = read_at_most(MAX_PAGE_BYTES, answer).await?;
        ensure!(
            body.len() <= MAX_PAGE_BYTES,
            "the server answers with a list of devices of more than {MAX_PAGE_BYTES} bytes"
        );
        let page: Page = serde_json::from_slice(&body).context("the list of devices")?;
        if page.partial {
            bail!("the store of the server does not answer, so the list of devices is not complete");
        }
        Ok(page)
    }

    /// The answer to a request. It is repeated while the server refuses it for the moment.
    pub(in crate::cli) async fn get(&self, path: &str, params: &[(&str, &str)]) -> anyhow::Result<Response> {
        let mut backoff = Backoff::new(FIRST_WAIT..=LAST_WAIT);
        for attempt in 1.. {
            let url = Url::parse_with_params(&format!("{}{path}", self.url), params)?;
            let request = self.token.iter().fold(self.client.get(url), RequestBuilder::bearer_auth);
            let answer = request.send().await.with_context(|| format!("ask {}{path}", self.url))?;
            let status = answer.status();
            if status.is_success() {
                return Ok(answer);
            }
            let wait = retry_after(&answer).unwrap_or_else(|| backoff.next_wait());
            let body = read_at_most(MAX_ANSWER_BYTES, answer).await.unwrap_or_default();
            let refusal = Refusal::of(&format!("{}{path}", self.url), status, &body);
            if !is_temporary(status) || attempt == ATTEMPTS {
                let is_usage = status == StatusCode::BAD_REQUEST && !refusal.is_too_long();
                return Err(if is_usage { Usage(refusal.text).into() } else { refusal.into() });
            }
            if attempt == 1 {
                eprintln!("tidegauge: {}; trying again", refusal.text);
            }
            tokio::time::sleep(wait.min(LAST_WAIT)).await;
        }
        unreachable!("the last attempt returns")
    }
}

impl Refusal {
    /// Whether the request asks for too many hours at once.
    pub(in crate::cli) fn is_too_long(&self) -> bool {
        ["range_too_long", "too_many_points"].contains(&&*self.code)
    }

    fn of(url: &str, status: StatusCode, body: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Problem {
            code: String,
        }
        let code = serde_json::from_slice(body).map(|Problem { code }| code).unwrap_or_default();
        Self { status, code, text: refusal_text(url, status, body) }
    }
}
