//! The kinds of systems under load, and the paths of their requests.

use clap::ValueEnum;

use crate::format::{Format, device_id};

/// A kind of system, by its API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Target {
    Tidegauge,
    VictoriaMetrics,
    /// `InfluxDB` 1.x, with a database named loadtest
    Influxdb,
    /// The service of `loadtest naive`
    Naive,
    /// The service of `loadtest bare`
    Bare,
}

impl Target {
    /// The path to which messages in this format are sent.
    pub(crate) const fn write_path(self, format: Format) -> &'static str {
        match (self, format) {
            (Self::Tidegauge | Self::Naive | Self::Bare, Format::Json | Format::Ndjson) => "/v1/readings",
            (Self::Tidegauge, Format::Lines) => "/api/v2/write",
            (_, _) => "/write?db=loadtest",
        }
    }

    /// Whether the system accepts the format.
    pub(crate) const fn reads(self, format: Format) -> bool {
        match self {
            Self::Tidegauge => true,
            Self::Naive | Self::Bare => matches!(format, Format::Json),
            Self::VictoriaMetrics | Self::Influxdb => matches!(format, Format::Lines),
        }
    }

    /// The path of a query for hourly rollups of these devices.
    ///
    /// The rollups have count, minimum, maximum and mean. `None`: the system has no queries.
    pub(crate) fn rollup_path(self, devices: &[u64], from_ms: u64, to_ms: u64) -> Option<String> {
        let ids: Vec<String> = devices.iter().map(|&device| device_id(device)).collect();
        Some(match self {
            Self::Naive | Self::Bare => return None,
            Self::Tidegauge => match &ids[..] {
                [id] => format!("/v1/devices/{id}/rollups?from={from_ms}&to={to_ms}"),
                ids => format!("/v1/rollups?device={}&from={from_ms}&to={to_ms}", ids.join("&device=")),
            },
            Self::VictoriaMetrics => {
                let of = format!("temp_value{{deviceId=~\"{}\"}}[1h]", ids.join("|"));
                let each = ["count", "min", "max", "avg"]
                    .map(|fold| format!("label_set({fold}_over_time({of}),\"fold\",\"{fold}\")"));
                let query = encode(&format!("union({})", each.join(",")));
                let (start, end) = (from_ms / 1_000 + 3_600, to_ms / 1_000); // the time of a step is its end
                format!("/api/v1/query_range?query={query}&start={start}&end={end}&step=3600&nocache=1")
            }
            Self::Influxdb => influxql_path(&ids, from_ms, to_ms),
        })
    }

    /// The path of a query for the latest values of a thousand devices.
    ///
    /// The first of them is the device `1_000 * nth`. `None`: the system has no such query.
    pub(crate) fn latest_path(self, nth: u64) -> Option<String> {
        let first = device_id(1_000 * nth);
        (self == Self::Tidegauge).then(|| format!("/v1/latest?prefix={}&limit=1000", &first[..first.len() - 3]))
    }

    /// The path of the query of [`Self::rollup_path`] in `InfluxQL`.
    ///
    /// `None`: the system has no `InfluxQL`, or [`Self::rollup_path`] uses it already.
    pub(crate) fn influxql_path(self, devices: &[u64], from_ms: u64, to_ms: u64) -> Option<String> {
        let ids: Vec<String> = devices.iter().map(|&device| device_id(device)).collect();
        (self == Self::Tidegauge).then(|| influxql_path(&ids, from_ms, to_ms))
    }
}

fn influxql_path(ids: &[String], from_ms: u64, to_ms: u64) -> String {
    let which: Vec<String> = ids.iter().map(|id| format!("deviceId='{id}'")).collect();
    let query = format!(
        "SELECT count(value),min(value),max(value),mean(value) FROM temp WHERE ({}) AND time>={from_ms}ms AND \
         time<{to_ms}ms GROUP BY time(1h),deviceId",
        which.join(" OR ")
    );
    format!("/query?db=loadtest&q={}", encode(&query))
}

/// Percent-encodes a text for a query string.
fn encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_system_with_rollups_is_asked_about_the_same_hours() {
        let (from_ms, to_ms) = (7_200_000, 14_400_000);
        let ask = |target: Target| target.rollup_path(&[3, 4], from_ms, to_ms);
        let ours = "/v1/rollups?device=device-00000003&device=device-00000004&from=7200000&to=14400000";
        assert_eq!(ask(Target::Tidegauge).as_deref(), Some(ours));
        assert!(ask(Target::VictoriaMetrics).is_some_and(|path| path.contains("&start=10800&end=14400&step=3600")));
        assert!(
            ask(Target::Influxdb).is_some_and(|path| path.contains("time%3E%3D7200000ms%20AND%20time%3C14400000ms"))
        );
        assert_eq!((ask(Target::Naive), ask(Target::Bare)), (None, None));
        assert_eq!(Target::Tidegauge.influxql_path(&[3, 4], from_ms, to_ms), ask(Target::Influxdb));
        assert_eq!(Target::Influxdb.influxql_path(&[3, 4], from_ms, to_ms), None);
        assert_eq!(Target::Tidegauge.latest_path(12).as_deref(), Some("/v1/latest?prefix=device-00012&limit=1000"));
    }
}
