//! The options and the start of forwarding.

use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use tidegauge::client::{self, Client, TimeLimit, check_url};
use tidegauge::common::clock::Clock;
use tidegauge::config::{self, Config};
use tidegauge::flush::DeadLetters;
use tidegauge::forward::{Forwarding, Options};
use tidegauge::limits::Rate;
use tidegauge::log::{Log, Position};
use tidegauge::telemetry::Metrics;

use super::super::Usage;
use super::super::data_dir::{self, DataDir};

/// About how many times larger a batch of JSON is than its compressed body.
///
/// With a limited bandwidth, a batch is so small that sending its body takes at most about a second.
const USUAL_COMPRESSION: u64 = 10;

/// The options of forwarding; `None` if forwarding is off.
///
/// An error is a mistake in the configuration.
pub(in super::super) fn options(config: &Config, clock: &Clock) -> anyhow::Result<Option<Options>> {
    try_options(config, clock).map_err(|error| Usage(format!("{error:#}")).into())
}

fn try_options(config: &Config, clock: &Clock) -> anyhow::Result<Option<Options>> {
    let config::Forward { url, token, ca_file, max_bytes_per_second, max_batch_bytes, timeout } = &config.forward;
    let Some(url) = url else { return Ok(None) };
    check_url(url).map_err(|why| anyhow!("{url} (forward.url): {why}"))?;
    let a_second = Duration::from_secs(1);
    let bandwidth = Rate::new(max_bytes_per_second.0, a_second, a_second);
    let at_once = bandwidth.map_or(u64::MAX, |_| max_bytes_per_second.0.saturating_mul(USUAL_COMPRESSION));
    let client = Client::new(client::Options {
        token: token.as_ref().map(|token| token.expose().to_owned()),
        ca_file: ca_file.clone(),
        ca_key: "forward.ca_file",
        time_limit: TimeLimit::Whole(timeout.as_duration()),
        bandwidth,
        forwards: true,
        ..client::Options::new(url)
    })?;
    let max_batch_bytes = max_batch_bytes.as_usize().min(usize::try_from(at_once).unwrap_or(usize::MAX));
    Ok(Some(Options { client, max_batch_bytes, clock: clock.clone() }))
}

/// The dead letters of forwarding. There may be some although forwarding is off.
pub(super) fn dead_letters(config: &Config, data: &DataDir, clock: &Clock) -> DeadLetters {
    let max_bytes = config.flush.max_dead_letter_bytes.0;
    DeadLetters::new(data_dir::forward_dead_letters(data.path()), max_bytes, clock.clone())
}

/// Starts to forward the log if that is configured.
///
/// Otherwise the log no longer keeps records for a forwarder.
pub(super) fn start(
    options: Option<Options>,
    (log, new_from): (&Arc<Log>, Position),
    dead_letters: DeadLetters,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<Option<Forwarding>> {
    let Some(options) = options else {
        if let Some(bytes) = log.end_follower()?.filter(|&bytes| bytes > 0) {
            tracing::warn!(bytes, "forward.url is no longer set: these bytes of the log were not forwarded");
        }
        return Ok(None);
    };
    tracing::info!(url = options.client.url(), "accepted readings are forwarded");
    Ok(Some(Forwarding::start(options, Arc::clone(log), new_from, dead_letters, Arc::clone(metrics))?))
}
