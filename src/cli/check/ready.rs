//! `tidegauge check --ready`: asks the running server whether it accepts readings.
//!
//! It is the health check of a container, which has neither a shell nor curl. It takes the address of the
//! server from the same flags, variables and file as the server itself.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail};
use tidegauge::client::{Client, Options, TimeLimit};
use tidegauge::config::Http;

use crate::cli::client::local_url;

/// How long the server may take to answer. An orchestrator asks every few seconds.
const TIMEOUT: TimeLimit = TimeLimit::Whole(Duration::from_secs(5));

/// Prints `ready` if the server with this configuration is ready.
///
/// It is ready if `/readyz` answers 200. Otherwise this fails with the reason.
pub(super) async fn check(http: &Http, out: &mut impl Write) -> anyhow::Result<()> {
    let url = local_url(http)?;
    let client = Client::new(Options { time_limit: TIMEOUT, is_local: true, ..Options::new(&url) })?;
    match client.get("/readyz", &[]).await {
        Ok(_) => Ok(writeln!(out, "ready")?),
        Err(trouble) if trouble.reason == "unauthorized" => {
            bail!("{trouble}; the check has no token, so it needs auth.health = \"open\"")
        }
        Err(trouble) if trouble.is_answer() => Err(trouble.into()),
        Err(trouble) => Err(trouble).with_context(|| format!("{url}/readyz does not answer")),
    }
}
