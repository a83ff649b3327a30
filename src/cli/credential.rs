//! The parts that new tokens and new keys have in common.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::Args;
use jiff::{SignedDuration, Timestamp};
use tidegauge::common::clock::Clock;
use tidegauge::config::{Auth, Config, Expiry, Period};
use tidegauge::model::DevicePattern;

use super::Usage;

const RANDOM_BYTES: usize = 32;

/// The flags for the device scope and the expiry of a token or key.
#[derive(Debug, Args)]
pub(super) struct GrantArgs {
    /// The devices, such as 'LIGHT-*'; separate several with commas, or repeat the flag [default: all]
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    devices: Vec<DevicePattern>,
    /// The tenant prefix, which the server puts before each device ID, such as acme/ [default: none]
    #[arg(long, value_name = "PREFIX")]
    pub(super) device_prefix: Option<String>,
    /// The expiry: RFC 3339, or a period from now, such as 90d [default: never]
    #[arg(long, value_name = "WHEN", value_parser = parse_expiry)]
    pub(super) expires: Option<Expiry>,
}

impl GrantArgs {
    /// The devices of the flag `--devices`, as the configuration has them.
    ///
    /// `None`: all devices.
    pub(super) fn devices(&self) -> Option<Vec<DevicePattern>> {
        (!self.devices.is_empty()).then(|| self.devices.clone())
    }
}

/// Checks a new token or key, the only one in `auth`, like a configuration.
pub(super) fn check(auth: Auth) -> anyhow::Result<()> {
    let alone = Config { auth, ..Config::default() };
    Config::default().reloaded(&alone).map_err(|error| Usage(error.to_string()))?;
    Ok(())
}

/// 32 random bytes as base64url without padding.
pub(super) fn random_secret() -> String {
    URL_SAFE_NO_PAD.encode(rand::random::<[u8; RANDOM_BYTES]>())
}

fn parse_expiry(text: &str) -> Result<Expiry, String> {
    let now_ms = Clock::system().now_ms();
    let from_now = |period: Period| {
        let now = Timestamp::from_millisecond(now_ms).ok()?;
        let seconds = i64::try_from(period.as_duration().as_secs()).ok()?;
        now.checked_add(SignedDuration::from_secs(seconds)).ok()?.round(jiff::Unit::Second).ok()
    };
    let instant = text.parse().ok().or_else(|| text.parse().ok().and_then(from_now));
    let expected = || "expected RFC 3339, or a period from now, such as 90d".to_owned();
    let expiry = instant.map(Expiry::at).ok_or_else(expected)?;
    if expiry.is_over(now_ms) { Err("is in the past".to_owned()) } else { Ok(expiry) }
}
