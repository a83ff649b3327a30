//! The options and the start of forwarding, and the server that `tidegauge move` sends to.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use reqwest::ClientBuilder;
use tidegauge::common::clock::Clock;
use tidegauge::config::{self, Config};
use tidegauge::flush::DeadLetters;
use tidegauge::forward::{Forwarding, Options, Upstream};
use tidegauge::limits::Rate;
use tidegauge::log::{Log, Position};
use tidegauge::telemetry::Metrics;

use super::super::Usage;
use super::super::client::{plain_http, trusting, trusting_the_system};
use super::super::data_dir::DataDir;

/// The time for a connection to the server at `forward.url`.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A batch of JSON is about so many times as large as its compressed body. With a bandwidth, a body takes
/// about a second.
const USUAL_COMPRESSION: u64 = 10;

/// The options of forwarding; `None` if it is off. An error is one of the configuration.
pub(in super::super) fn options(config: &Config, clock: &Clock) -> anyhow::Result<Option<Options>> {
    try_options(config, clock).map_err(|error| Usage(format!("{error:#}")).into())
}

fn try_options(config: &Config, clock: &Clock) -> anyhow::Result<Option<Options>> {
    let config::Forward { url, token, ca_file, .. } = &config.forward;
    let Some(url) = url else { return Ok(None) };
    reqwest::Url::parse(url).with_context(|| format!("{url} (forward.url)"))?;
    let client = match ca_file {
        _ if url.starts_with("http:") => plain_http(),
        Some(file) => trusting(file, "forward.ca_file")?,
        None => trusting_the_system(),
    };
    let token = token.as_ref().map(|token| token.expose().to_owned());
    let (upstream, max_batch_bytes) = upstream(client, url, token, &config.forward)?;
    Ok(Some(Options { upstream, max_batch_bytes, clock: clock.clone() }))
}

/// The server to send to, within the limits of the configuration, and the size of its batches.
pub(in super::super) fn upstream(
    client: ClientBuilder,
    url: &str,
    token: Option<String>,
    limits: &config::Forward,
) -> anyhow::Result<(Upstream, usize)> {
    let config::Forward { max_bytes_per_second, max_batch_bytes, timeout, .. } = limits;
    let client = client.timeout(timeout.as_duration()).connect_timeout(CONNECT_TIMEOUT);
    let client =
        client.redirect(reqwest::redirect::Policy::none()).user_agent(concat!("tidegauge/", env!("CARGO_PKG_VERSION")));
    let client = client.build().with_context(|| format!("the client of {url}"))?;
    let a_second = Duration::from_secs(1);
    let bandwidth = Rate::new(max_bytes_per_second.0, a_second, a_second);
    let at_once = bandwidth.map_or(u64::MAX, |_| max_bytes_per_second.0.saturating_mul(USUAL_COMPRESSION));
    let max_batch_bytes = max_batch_bytes.as_usize().min(usize::try_from(at_once).unwrap_or(usize::MAX));
    Ok((Upstream::new(client, url, token, bandwidth), max_batch_bytes))
}

/// Starts to forward the log if that is configured. Otherwise no part of the log is held back for it.
pub(super) fn start(
    config: &Config,
    data: &DataDir,
    options: Option<Options>,
    (log, new_from): (&Arc<Log>, Position),
    clock: &Clock,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<Option<Forwarding>> {
    let Some(options) = options else {
        if let Some(bytes) = log.end_follower()?.filter(|&bytes| bytes > 0) {
            tracing::warn!(bytes, "forward.url is no longer set: these bytes of the log were not forwarded");
        }
        return Ok(None);
    };
    let max_bytes = config.flush.max_dead_letter_bytes.0;
    let dead_letters = DeadLetters::new(data.forward_dead_letters(), max_bytes, clock.clone());
    tracing::info!(url = options.upstream.url(), "accepted readings are forwarded");
    Ok(Some(Forwarding::start(options, Arc::clone(log), new_from, dead_letters, Arc::clone(metrics))?))
}
