//! `tidegauge check --ready`: asks the running server whether it accepts readings.
//!
//! It is the health check of a container, which has neither a shell nor curl. It takes the address of the
//! server from the same flags, variables and file as the server itself.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::StatusCode;
use tidegauge::config::Http;

use crate::cli::client::answer::{MAX_ANSWER_BYTES, read_at_most};
use crate::cli::client::{any_certificate, local_url, plain_http};

/// How long the server may take to answer. An orchestrator asks every few seconds.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Prints `ready` if `/readyz` of the server with this configuration answers 200, else fails with the reason.
pub(super) async fn check(http: &Http, out: &mut impl Write) -> anyhow::Result<()> {
    let url = format!("{}/readyz", local_url(http)?);
    let client = if http.tls.is_on() { any_certificate() } else { plain_http() };
    let client = client.timeout(TIMEOUT).no_proxy().build().context("the HTTP client")?;
    let answer = client.get(&url).send().await.with_context(|| format!("{url} does not answer"))?;
    match answer.status() {
        StatusCode::OK => Ok(writeln!(out, "ready")?),
        status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            bail!("{url} answered {status}: the check has no token, so it needs auth.health = \"open\"")
        }
        status => {
            let said = read_at_most(MAX_ANSWER_BYTES, answer).await.unwrap_or_default();
            bail!("{url} answered {status}: {}", String::from_utf8_lossy(&said))
        }
    }
}
