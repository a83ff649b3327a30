//! `[limits]`: limits per token and per device.
//!
//! They keep one sender from using the whole server.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::check::within;
use super::{Bytes, ConfigError, Period};

/// The highest rate that can be configured, per second or per minute.
pub(super) const MAX_RATE: u64 = 10_000_000;

/// The limits of each token and of each device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// The most readings per second of one token or key. 0 to 10,000,000; 0: no limit.
    pub token_readings_per_second: u64,
    /// The most requests per second of one token. 0 to 10,000,000; 0: no limit.
    pub token_requests_per_second: u64,
    /// The part of `http.max_bytes_in_flight` that one token may use.
    ///
    /// At least `http.max_body_bytes`. `None`: half of `http.max_bytes_in_flight`, or `http.max_body_bytes`
    /// if that is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_bytes_in_flight: Option<Bytes>,
    /// The most readings per second of one device. 0 to 10,000,000; 0: no limit.
    pub device_readings_per_second: u64,
    /// The burst of the three rates above, as a time. 1s to 1h.
    ///
    /// After a quiet time, as many readings or requests may arrive at once as the rate allows in this time:
    /// with 100 readings per second and a burst of 10s, 1,000 readings.
    pub burst: Period,
    /// The most series of one device within an hour. 0 to 65,535; 0: no limit.
    ///
    /// A series counts once for each 128 bytes of its text, rounded up: 300 bytes count as three.
    pub device_metrics_per_hour: usize,
    /// The most new devices per minute. 0 to 10,000,000; 0: no limit.
    ///
    /// Each token and each key has this limit, and all clients without either share one. The burst is
    /// [`Self::NEW_DEVICES_BURST`].
    pub new_devices_per_minute: u64,
    /// The time after a start in which devices do not count as new. 0ms to 1d.
    ///
    /// After a start the server knows no device, so every device looks new. At most `known_devices` devices
    /// are admitted in this way.
    pub start_grace: Period,
    /// The number of devices that the server remembers. 1,000 to 100,000,000.
    ///
    /// It remembers the devices that sent last, and asks the store about others.
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
    /// The burst of `new_devices_per_minute`: ten minutes.
    ///
    /// It allows an operator to switch on a fleet at once.
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
