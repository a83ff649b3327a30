//! The configuration values that an instance needs, where the defaults do not suit the fleet. Pure.

use serde::Serialize;
use tidegauge::config::{Bytes, Config, Limits};

use super::model::Load;

/// The share of each limit that the fleet uses at its peak.
///
/// The service flushes early when the log or pending is above three quarters of its limit. The other limits
/// leave the same share free, for devices that reconnect.
const USABLE_SHARE: f64 = 0.75;

/// The largest values that the configuration takes.
const MAX_PENDING_BYTES: f64 = (1_u64 << 40) as f64;
pub(super) const MAX_CONNECTIONS: f64 = 1e6;
const MAX_KNOWN_DEVICES: f64 = 1e8;
const MAX_RATE: f64 = 1e7;

/// The configuration values that one instance needs.
///
/// Each is named after its key: `log_max_bytes` is for `log.max_bytes`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Settings {
    /// Enough for an outage of the store at the peak.
    pub(super) log_max_bytes: f64,
    pub(super) pending_max_bytes: f64,
    /// The default, or less on a small node.
    ///
    /// Its memory must be enough for the case that all limits are reached at once.
    pub(super) http_max_bytes_in_flight: f64,
    pub(super) query_max_bytes_in_flight: f64,
    /// Enough for the connections that senders keep open.
    pub(super) http_max_connections: f64,
    pub(super) limits_known_devices: f64,
    /// Enough for all devices to be new at once: the burst of this limit admits them.
    pub(super) limits_new_devices_per_minute: f64,
}

/// A key to set, because its default does not suit the fleet.
pub(super) struct Setting {
    pub(super) key: &'static str,
    /// The value, as in a configuration file.
    pub(super) value: String,
    pub(super) reason: &'static str,
}

/// The limit to set so that `used` is the share [`USABLE_SHARE`] of the limit.
pub(super) fn with_room(used: f64) -> f64 {
    used / USABLE_SHARE
}

impl Settings {
    /// The values for each of the `instances` that share a fleet.
    ///
    /// `share_of_limits` is the part of the default limits that a node has memory for.
    pub(super) fn of(load: &Load, instances: f64, log_bytes: f64, pending_bytes: f64, share_of_limits: f64) -> Self {
        let devices = load.devices / instances;
        let Config { pending, http, query, .. } = Config::default();
        let share_of = |limit: Bytes| limit.0 as f64 * share_of_limits;
        let gathered = with_room(pending_bytes / instances).min(MAX_PENDING_BYTES);
        let burst_minutes = Limits::NEW_DEVICES_BURST.as_secs_f64() / 60.0;
        Self {
            log_max_bytes: with_room(log_bytes / instances),
            pending_max_bytes: if share_of_limits < 1.0 { gathered.max(share_of(pending.max_bytes)) } else { gathered },
            http_max_bytes_in_flight: share_of(http.max_bytes_in_flight),
            query_max_bytes_in_flight: share_of(query.max_bytes_in_flight),
            http_max_connections: with_room(load.connections / instances).min(MAX_CONNECTIONS),
            limits_known_devices: devices.min(MAX_KNOWN_DEVICES),
            limits_new_devices_per_minute: (devices / burst_minutes).min(MAX_RATE),
        }
    }

    /// The keys to set: those whose defaults do not suit.
    pub(super) fn to_set(self) -> Vec<Setting> {
        const SMALL: &str = "with this, a small node has memory for all limits at once";
        let Config { log, pending, http, limits, .. } = Config::default();
        let is_small = self.http_max_bytes_in_flight < http.max_bytes_in_flight.0 as f64;
        let smaller = |key, bytes: f64| is_small.then(|| Setting { key, value: size_below(bytes), reason: SMALL });
        let size = |key, needed: f64, default: Bytes, reason| {
            (needed > default.0 as f64).then(|| Setting { key, value: size(needed), reason })
        };
        let number = |key, needed: f64, default: f64, reason| {
            (needed > default).then(|| Setting { key, value: rounded_up(needed).to_string(), reason })
        };
        [
            size("log.max_bytes", self.log_max_bytes, log.max_bytes, "an hour without the store, at the peak"),
            size("pending.max_bytes", self.pending_max_bytes, pending.max_bytes, "what gathers for flush.max_age")
                .or_else(|| smaller("pending.max_bytes", self.pending_max_bytes)),
            smaller("http.max_bytes_in_flight", self.http_max_bytes_in_flight),
            smaller("query.max_bytes_in_flight", self.query_max_bytes_in_flight),
            number(
                "http.max_connections",
                self.http_max_connections,
                http.max_connections as f64,
                "senders keep theirs open for http.header_timeout; more get 503",
            ),
            number(
                "limits.known_devices",
                self.limits_known_devices,
                limits.known_devices as f64,
                "a device beyond them costs a query of the store",
            ),
            number(
                "limits.new_devices_per_minute",
                self.limits_new_devices_per_minute,
                limits.new_devices_per_minute as f64,
                "the whole fleet may be new within ten minutes; more get 429",
            ),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// A size as a value of the configuration, rounded up: `"8GiB"`.
pub(super) fn size(bytes: f64) -> String {
    let (of, unit) = if bytes >= 1e9 { ((1_u64 << 30) as f64, "GiB") } else { ((1_u64 << 20) as f64, "MiB") };
    format!("\"{}{unit}\"", (bytes / of).ceil().max(1.0))
}

/// A size as a value of the configuration, rounded down.
fn size_below(bytes: f64) -> String {
    format!("\"{}MiB\"", (bytes / (1_u64 << 20) as f64).floor().max(1.0))
}

/// A number rounded up to two significant digits: 1234 is 1300.
fn rounded_up(number: f64) -> u64 {
    let unit = 10_f64.powf((number.max(1.0).log10().floor() - 1.0).max(0.0));
    ((number / unit).ceil() * unit) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_rounded_up() {
        assert_eq!((size(5e9), size(1.0)), ("\"5GiB\"".into(), "\"1MiB\"".into()));
        let numbers = [7.0, 66_666.7, 10_000.0, 10_000_001.0].map(rounded_up);
        assert_eq!(numbers, [7, 67_000, 10_000, 11_000_000]);
    }
}
