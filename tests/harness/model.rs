//! A plain model of stored readings, and its comparison with the answers of a server.

use std::collections::{BTreeMap, BTreeSet};

use super::{Server, encoded};

const HOUR_MS: i64 = 3_600_000;

/// The values of a reading by series.
pub(crate) type Values = BTreeMap<String, f64>;

/// The expected values by device, instant and series. All instants are in the first half of 2026.
#[derive(Debug, Default)]
pub(crate) struct Model(BTreeMap<String, BTreeMap<i64, Values>>);

impl Model {
    /// Adds values to the reading of a device at an instant.
    pub(crate) fn insert(&mut self, device: &str, ts: i64, values: Values) {
        self.0.entry(device.to_owned()).or_default().entry(ts).or_default().extend(values);
    }

    /// The IDs of the devices.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Checks the readings and the rollups that a server answers with.
    pub(crate) async fn check(&self, server: &Server) {
        for (device, readings) in &self.0 {
            let found = server.readings(device).await;
            let found = found.as_array().expect("a list");
            assert_eq!(found.len(), readings.len(), "{device}");
            for (found, (ts, values)) in found.iter().zip(readings) {
                let found_values: Values = serde_json::from_value(found["values"].clone()).expect("numbers");
                let bits = |values: &Values| {
                    values.iter().map(|(series, value)| (series.clone(), value.to_bits())).collect::<Vec<_>>()
                };
                assert_eq!(
                    (found["ts"].as_str(), bits(&found_values)),
                    (Some(&*rfc3339(*ts)), bits(values)),
                    "{device}"
                );
            }
            let path = format!("/v1/devices/{}", encoded(device));
            let range = "from=2026-01-01T00:00:00Z&to=2026-07-01T00:00:00Z";
            let found = server.get_json(&format!("{path}/rollups?{range}")).await;
            for series in readings.values().flat_map(BTreeMap::keys).collect::<BTreeSet<_>>() {
                let expected = hours(readings, series);
                let found = found["metrics"][series].as_array().expect("hours");
                assert_eq!(found.len(), expected.len(), "{device} {series}");
                for (found, (hour_ms, values)) in found.iter().zip(expected) {
                    let number = |key: &str| found[key].as_f64().expect("a number");
                    let fold = |with: fn(f64, f64) -> f64| values.iter().copied().reduce(with).expect("not empty");
                    assert_eq!(found["ts"].as_str(), Some(&*rfc3339(hour_ms)), "{device} {series}");
                    assert_eq!(found["count"].as_u64(), Some(values.len() as u64), "{device} {series} {found}");
                    assert_eq!((number("min"), number("max")), (fold(f64::min), fold(f64::max)), "{device} {series}");
                    assert!((number("sum") - fold(|sum, value| sum + value)).abs() < 1e-9, "{device} {series} {found}");
                }
            }
        }
    }
}

/// The values of a series by hour.
fn hours(readings: &BTreeMap<i64, Values>, series: &str) -> Vec<(i64, Vec<f64>)> {
    let mut hours: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
    for (ts, values) in readings {
        if let Some(value) = values.get(series) {
            hours.entry(ts.div_euclid(HOUR_MS) * HOUR_MS).or_default().push(*value);
        }
    }
    hours.into_iter().collect()
}

fn rfc3339(ts_ms: i64) -> String {
    tidegauge::common::clock::rfc3339(ts_ms)
}
