//! `[limits]`: limits of one token and of one device, which protect the others.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::check::within;
use super::{Bytes, ConfigError, Period};

/// The highest rate that can be configured.
pub(super) const MAX_RATE: u64 = 10_000_000;

/// Limits of one token and of one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// The readings per second with one token or one key. 0 to 10,000,000; 0: no limit.
    pub token_readings_per_second: u64,
    /// The requests per second with one token. 0 to 10,000,000; 0: no limit.
    pub token_requests_per_second: u64,
    /// The part of `http.max_bytes_in_flight` for one token. At least `http.max_body_bytes`.
    ///
    /// `None`: half of it, or `http.max_body_bytes` if that is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_bytes_in_flight: Option<Bytes>,
    /// The readings per second of one device. 0 to 10,000,000; 0: no limit.
    pub device_readings_per_second: u64,
    /// How many readings or requests may arrive at once after a quiet time: as many as their rate allows in
    /// this time. 1s to 1h.
    pub burst: Period,
    /// The number of different series of one device within an hour; a text of more than 128 bytes counts as
    /// several. 0 to 65,535; 0: no limit.
    pub device_metrics_per_hour: usize,
    /// The new devices per minute, with a burst of ten minutes. 0 to 10,000,000; 0: no limit.
    pub new_devices_per_minute: u64,
    /// The time after a start in which up to `known_devices` devices are not counted as new. 0ms to 1d.
    ///
    /// After a start the server knows no device, so that every device looks new.
    pub start_grace: Period,
    /// The number of devices that the server remembers, the most recent ones. It asks the store about others.
    /// 1,000 to 100,000,000.
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
    /// The burst of `new_devices_per_minute`, for a fleet that is switched on at once.
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
