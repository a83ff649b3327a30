//! `[limits]`: how much one token or one device may use, so that the others have enough.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::check::within;
use super::{Bytes, ConfigError, Period};

/// The fastest rate that may be asked for.
pub(super) const MAX_RATE: u64 = 10_000_000;

/// How much one token or one device may use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// How many readings may be sent with one token, or signed with one key of datagrams, per second. 0 to
    /// 10,000,000; 0: no limit.
    pub token_readings_per_second: u64,
    /// How many requests may be sent with one token per second, of any kind. 0 to 10,000,000; 0: no limit.
    pub token_requests_per_second: u64,
    /// How many bytes of `http.max_bytes_in_flight` the requests of one token may take. At least
    /// `http.max_body_bytes`. Without it: half of them, or `http.max_body_bytes` if that is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_bytes_in_flight: Option<Bytes>,
    /// How many readings one device may have per second. 0 to 10,000,000; 0: no limit.
    pub device_readings_per_second: u64,
    /// How much of a rate per second may come at once after a quiet time, as the time in which it would come.
    /// 1s to 1h.
    pub burst: Period,
    /// How many different metrics of one device may arrive within an hour. 0 to 65,535; 0: no limit.
    pub device_metrics_per_hour: usize,
    /// How many devices that are not known may appear per minute, and ten times as many at once. 0 to
    /// 10,000,000; 0: no limit.
    pub new_devices_per_minute: u64,
    /// For how long after a start new devices come without that limit, `known_devices` of them: nobody is
    /// known then. 0ms to 1d.
    pub start_grace: Period,
    /// How many devices are known without asking the store: those heard of last. 1,000 to 100,000,000.
    pub known_devices: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            token_readings_per_second: 0,
            token_requests_per_second: 0,
            token_bytes_in_flight: None,
            device_readings_per_second: 0,
            burst: Period::secs(10),
            device_metrics_per_hour: 2_000,
            new_devices_per_minute: 10_000,
            start_grace: Period::secs(600),
            known_devices: 1_000_000,
        }
    }
}

impl Limits {
    /// The burst of `new_devices_per_minute`: a fleet that is switched on comes at once.
    pub const NEW_DEVICES_BURST: Duration = Duration::from_secs(600);

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        within("limits.token_readings_per_second", self.token_readings_per_second, 0, MAX_RATE)?;
        within("limits.token_requests_per_second", self.token_requests_per_second, 0, MAX_RATE)?;
        within("limits.device_readings_per_second", self.device_readings_per_second, 0, MAX_RATE)?;
        within("limits.burst", self.burst, Period::secs(1), Period::hours(1))?;
        within("limits.device_metrics_per_hour", self.device_metrics_per_hour, 0, 65_535)?;
        within("limits.new_devices_per_minute", self.new_devices_per_minute, 0, MAX_RATE)?;
        within("limits.start_grace", self.start_grace, Period::secs(0), Period::hours(24))?;
        within("limits.known_devices", self.known_devices, 1_000, 100_000_000)
    }
}
