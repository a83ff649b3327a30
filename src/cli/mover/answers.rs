//! The answers of another server to queries, as what a store answers.

use std::collections::{BTreeMap, HashMap};

use anyhow::ensure;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use tidegauge::common::clock::rfc3339;
use tidegauge::model::{Contents, Hour, MetricTable, Sample, Stats, ValueAt};
use tidegauge::store::HourStats;

/// A page of rollups.
#[derive(Deserialize)]
pub(super) struct Page {
    pub(super) devices: Vec<OfDevice>,
    pub(super) next: Option<String>,
    /// The store did not answer.
    #[serde(default)]
    partial: bool,
    /// Accepted readings may be missing.
    #[serde(default, rename = "laggingSeconds")]
    lagging_seconds: Option<f64>,
}

/// The rollups of a device.
#[derive(Deserialize)]
pub(super) struct OfDevice {
    metrics: HashMap<String, Vec<Point>>,
}

#[derive(Deserialize)]
struct Point {
    #[serde(rename = "ts", deserialize_with = "instant_in")]
    ts_ms: i64,
    count: u64,
    min: f64,
    max: f64,
    /// `None` if it is beyond the range of a double.
    sum: Option<f64>,
}

/// A row of a file with readings.
#[derive(Deserialize)]
struct Row {
    #[serde(rename = "ts", deserialize_with = "instant_in")]
    ts_ms: i64,
    values: HashMap<String, f64>,
}

/// The version of a server.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Version {
    /// The ID of its store, if it is known there.
    pub(super) store_id: Option<String>,
}

impl Page {
    /// Whether the answer has all readings that the server has accepted.
    pub(super) const fn is_complete(&self) -> bool {
        !self.partial && self.lagging_seconds.is_none()
    }
}

impl OfDevice {
    /// The stats by hour.
    pub(super) fn hours(self) -> Vec<HourStats> {
        let mut hours: BTreeMap<Hour, HourStats> = BTreeMap::new();
        for (series, points) in self.metrics {
            for point in points {
                let hour = Hour::of(point.ts_ms);
                let new = || HourStats { hour, last_ts_ms: hour.end_ms() - 1, stats: Vec::new() };
                hours.entry(hour).or_insert_with(new).stats.push((series.as_str().into(), point.stats()));
            }
        }
        hours.into_values().collect()
    }
}

impl Point {
    fn stats(&self) -> Stats {
        let Self { ts_ms, count, min, max, sum } = *self;
        let unknown = ValueAt::unknown(ts_ms);
        let beyond = if -min > max { f64::NEG_INFINITY } else { f64::INFINITY };
        Stats { count, min, max, sum: sum.unwrap_or(beyond), first: unknown, last: unknown }
    }
}

/// The readings in the rows of a file, all of one device and hour.
pub(super) fn contents_in(rows: &[u8], hour: Hour) -> anyhow::Result<Contents> {
    let (mut metrics, mut samples) = (MetricTable::default(), Vec::new());
    for row in rows.split(|byte| *byte == b'\n').filter(|row| !row.is_empty()) {
        let Row { ts_ms, values } = serde_json::from_slice(row)?;
        ensure!(Hour::of(ts_ms) == hour, "{} is not in the hour that was asked for", rfc3339(ts_ms));
        let offset = Hour::offset_of(ts_ms);
        samples.extend(values.iter().map(|(name, value)| Sample {
            value: *value,
            offset,
            metric: metrics.place_of(name),
        }));
    }
    Ok(Contents::new(metrics.into_metrics(), samples))
}

/// The Unix milliseconds of an instant in an answer.
fn instant_in<'de, D: Deserializer<'de>>(answer: D) -> Result<i64, D::Error> {
    let text = <&str>::deserialize(answer)?;
    text.parse().map(jiff::Timestamp::as_millisecond).map_err(D::Error::custom)
}

/// An instant as a parameter: milliseconds, but a negative number would be a time before now.
pub(super) fn instant(ts_ms: i64) -> String {
    if ts_ms < 0 { rfc3339(ts_ms) } else { ts_ms.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_an_hour_are_its_readings_to_the_bit() {
        let rows =
            b"{\"deviceId\":\"a\",\"ts\":\"1970-01-01T01:00:00.001Z\",\"values\":{\"x{a=1}\":-0.0,\"t\":5e-324}}\n\
                     {\"deviceId\":\"a\",\"ts\":\"1970-01-01T01:59:59.999Z\",\"values\":{\"t\":0.1}}\n";
        let contents = contents_in(rows, Hour(1)).unwrap();
        let found =
            contents.samples().iter().map(|sample| (sample.offset, &**contents.metric_of(sample), sample.value));
        let mut found: Vec<(u32, &str, u64)> = found.map(|(at, name, value)| (at, name, value.to_bits())).collect();
        found.sort_unstable();
        let expected = [(1, "t", 5e-324_f64), (1, "x{a=1}", -0.0), (3_599_999, "t", 0.1)];
        assert_eq!(found, expected.map(|(at, name, value)| (at, name, value.to_bits())));
        assert!(contents_in(b"", Hour(1)).unwrap().is_empty());
        for (rows, hour) in [(&rows[..], Hour(2)), (&b"<html>"[..], Hour(1)), (&rows[..40], Hour(1))] {
            contents_in(rows, hour).unwrap_err();
        }
    }

    #[test]
    fn points_of_all_series_are_stats_by_hour() {
        let json = r#"{"metrics":{"t":[{"ts":"1970-01-01T01:00:00Z","count":2,"min":-1,"max":2,"sum":1.0},
            {"ts":"1970-01-01T02:00:00Z","count":1,"min":-1e308,"max":5,"sum":null}],
            "x":[{"ts":"1970-01-01T02:00:00Z","count":1,"min":1,"max":1,"sum":1}]}}"#;
        let found = serde_json::from_str::<OfDevice>(json).unwrap().hours();
        let shape: Vec<(Hour, usize)> = found.iter().map(|hour| (hour.hour, hour.stats.len())).collect();
        assert_eq!(shape, [(Hour(1), 1), (Hour(2), 2)]);
        let (_, of_t) = found[1].stats.iter().find(|(metric, _)| &**metric == "t").unwrap();
        assert_eq!((of_t.count, of_t.min, of_t.max, of_t.sum), (1, -1e308, 5.0, f64::NEG_INFINITY));
    }

    #[test]
    fn instants_before_1970_are_not_times_before_now() {
        assert_eq!([instant(0), instant(-1)], ["0", "1969-12-31T23:59:59.999Z"]);
    }
}
