//! The audit: compares the stored values with the history.
//!
//! It reads them twice: through the API, which merges by identity and so hides duplicates; and directly from
//! the store, value by value, with its own decoders ([`sqlite`], [`mongodb`]).

mod chunk;
mod corrupt;
mod mongodb;
mod sqlite;
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::history::{History, Identity, METRICS};
use super::store::Store;
use crate::harness::Server;

const HOUR_MS: i64 = 3_600_000;
const RANGE: &str = "from=2023-01-01T00:00:00Z&to=2033-01-01T00:00:00Z";

/// The values in a store, by identity.
type Found = BTreeMap<Identity, f64>;

/// Stats by device, start of the hour, and metric.
type Stats = BTreeMap<Identity, Fold>;

/// The stats of the values of an hour.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Fold {
    count: u64,
    min: f64,
    max: f64,
    sum: f64,
    /// The first and the last instant with their values. The API does not return them.
    ends: Option<[(i64, f64); 2]>,
}

/// The contents of a store.
#[derive(Debug, Default)]
struct Stored {
    readings: Found,
    /// Stats that the store keeps apart from the readings.
    rollups: Stats,
}

/// The results of an audit.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Acknowledged and not stored.
    pub(crate) lost: Vec<Identity>,
    /// Stored more than once.
    pub(crate) duplicated: Vec<Identity>,
    /// All other errors: values that were not acknowledged, stats that are not the fold of the readings.
    pub(crate) wrong: Vec<String>,
}

impl Findings {
    /// # Panics
    /// If there is any finding.
    pub(crate) fn assert_none(&self) {
        self.none().unwrap_or_else(|findings| panic!("{findings}"));
    }

    /// The first findings as an error, if there is any.
    pub(crate) fn none(&self) -> Result<(), String> {
        let Self { lost, duplicated, wrong } = self;
        let first = |of: &[Identity]| format!("{} such as {:?}", of.len(), &of[..of.len().min(5)]);
        match (lost.as_slice(), duplicated.as_slice(), wrong.as_slice()) {
            ([], [], []) => Ok(()),
            ([], [], _) => Err(format!("{} errors, such as {:#?}", wrong.len(), &wrong[..wrong.len().min(5)])),
            ([], ..) => Err(format!("stored more than once: {}", first(duplicated))),
            _ => Err(format!("lost: {}", first(lost))),
        }
    }
}

/// Checks the answers of a server and the contents of its store.
pub(crate) async fn check(
    server: &Server,
    devices: &[Arc<str>],
    history: &History,
    store: Store<'_>,
    findings: &mut Findings,
) {
    let mut found = Found::new();
    let mut rollups = Stats::new();
    let mut known = Vec::new();
    for device in devices {
        if knows(server, device).await {
            known.push(device);
        }
    }
    for device in known {
        read(server, device, &mut found, findings).await;
        read_rollups(server, device, &mut rollups).await;
    }
    compare(&found, history, findings);
    for device in devices {
        check_device(server, device, &found, findings).await;
    }
    let mut folded = fold(&found);
    for fold in folded.values_mut() {
        fold.ends = None;
    }
    if rollups != folded {
        findings.wrong.push(differences("rollups of the API", &rollups, "fold of the readings", &folded));
    }
    let stored = match store {
        Store::Sqlite => {
            // A copy, since SQLite cannot open a file in a mount namespace that only the server is in.
            let copy = tempfile::tempdir().expect("a temporary folder");
            for name in ["tidegauge.sqlite", "tidegauge.sqlite-wal"] {
                std::fs::copy(server.data_dir().join(name), copy.path().join(name))
                    .expect("the server has stored everything");
            }
            sqlite::read(copy.path(), findings)
        }
        Store::Mongodb(database) | Store::Packed(database) => mongodb::in_buckets(database, findings).await,
        Store::Timeseries(database) => mongodb::in_measurements(database, findings).await,
    };
    if stored.readings != found {
        findings.wrong.push(differences("the store", &stored.readings, "the readings of the API", &found));
    }
    let folded = fold(&stored.readings);
    for (hour, rollup) in stored.rollups.iter().filter(|(hour, rollup)| folded.get(*hour) != Some(*rollup)) {
        let fold = folded.get(hour);
        findings.wrong.push(format!("the stored rollup of {hour:?} is {rollup:?}, the fold of its readings {fold:?}"));
    }
}

/// Whether a server has readings of a device. A server to which readings are forwarded may not have them yet.
async fn knows(server: &Server, device: &Arc<str>) -> bool {
    listed(server, device).await["deviceId"].as_str() == Some(device)
}

/// A device in the list of devices.
async fn listed(server: &Server, device: &Arc<str>) -> Value {
    let path = format!("/v1/devices?prefix={}&limit=1", device.replace('/', "%2F"));
    server.get_json(&path).await["devices"].get(0).cloned().unwrap_or_default()
}

fn compare(found: &Found, history: &History, findings: &mut Findings) {
    for identity in history.identities() {
        let (value, allowed) = (found.get(&identity).copied(), history.allowed(&identity));
        if !allowed.contains(&value) {
            match value {
                None => findings.lost.push(identity),
                Some(_) => findings.wrong.push(format!("{identity:?} is {value:?}, allowed are {allowed:?}")),
            }
        }
    }
    for identity in found.keys() {
        if history.allowed(identity) == [None] {
            findings.wrong.push(format!("{identity:?} is stored, but was refused or never sent"));
        }
    }
}

/// All readings of a device, page by page.
async fn read(server: &Server, device: &Arc<str>, found: &mut Found, findings: &mut Findings) {
    let path = format!("/v1/devices/{}/readings?{RANGE}&limit=500", device.replace('/', "%2F"));
    let mut page = server.get_json(&path).await;
    loop {
        for reading in page["readings"].as_array().expect("readings") {
            for (metric, value) in reading["values"].as_object().expect("values") {
                let identity = (Arc::clone(device), ts_ms(reading), known(metric));
                add(identity, value.as_f64().expect("a number"), found, findings);
            }
        }
        let Some(cursor) = page["next"].as_str() else { break };
        page = server.get_json(&format!("{path}&cursor={cursor}")).await;
    }
}

/// Checks the list of devices and the latest values: they are derived from the device index.
async fn check_device(server: &Server, device: &Arc<str>, found: &Found, findings: &mut Findings) {
    let mut latest: BTreeMap<&str, (i64, f64)> = BTreeMap::new();
    let of_device = found.range((Arc::clone(device), i64::MIN, "")..).take_while(|((of, ..), _)| of == device);
    for ((_, ts_ms, metric), value) in of_device {
        latest.insert(metric, (*ts_ms, *value));
    }
    let Some(last_ms) = latest.values().map(|(ts_ms, _)| *ts_ms).max() else { return };
    let listed = &listed(server, device).await;
    let metrics: Vec<&str> = listed["metrics"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let last_seen: Option<jiff::Timestamp> = listed["lastSeen"].as_str().and_then(|seen| seen.parse().ok());
    if latest.keys().any(|metric| !metrics.contains(metric)) {
        findings.wrong.push(format!("{device} is listed with {metrics:?}, and has {latest:?}"));
    }
    if last_seen.map(jiff::Timestamp::as_millisecond) != Some(last_ms) {
        findings.wrong.push(format!("{device} was last seen {last_ms}, and is listed as {listed}"));
    }
    let answered = server.get_json(&format!("/v1/devices/{}/latest", device.replace('/', "%2F"))).await;
    for (metric, (last_ms, value)) in latest {
        let answered = &answered["metrics"][metric];
        if (answered["value"].as_f64(), answered.get("ts").map(|_| ts_ms(answered))) != (Some(value), Some(last_ms)) {
            findings.wrong.push(format!("the latest {metric} of {device} is {value} at {last_ms}, not {answered}"));
        }
    }
}

async fn read_rollups(server: &Server, device: &Arc<str>, stats: &mut Stats) {
    let path = format!("/v1/devices/{}/rollups?{RANGE}", device.replace('/', "%2F"));
    let rollups = server.get_json(&path).await;
    for (metric, points) in rollups["metrics"].as_object().expect("metrics") {
        for point in points.as_array().expect("points") {
            let number = |key: &str| point[key].as_f64().unwrap_or_else(|| panic!("no {key} in {point}"));
            let count = point["count"].as_u64().expect("a count");
            let fold = Fold { count, min: number("min"), max: number("max"), sum: number("sum"), ends: None };
            let twice = stats.insert((Arc::clone(device), ts_ms(point), known(metric)), fold);
            assert_eq!(twice, None, "two points of one hour: {point}");
        }
    }
}

fn add(identity: Identity, value: f64, found: &mut Found, findings: &mut Findings) {
    if found.insert(identity.clone(), value).is_some() {
        findings.duplicated.push(identity);
    }
}

fn fold(found: &Found) -> Stats {
    let mut stats = Stats::new();
    for ((device, ts_ms, metric), &value) in found {
        let hour = (Arc::clone(device), ts_ms - ts_ms.rem_euclid(HOUR_MS), *metric);
        let at = (*ts_ms, value);
        let stats = stats.entry(hour);
        let Fold { count, min, max, sum, ends } =
            stats.or_insert(Fold { count: 0, min: value, max: value, sum: 0.0, ends: None });
        (*count, *min, *max, *sum) = (*count + 1, min.min(value), max.max(value), *sum + value);
        *ends = Some([ends.map_or(at, |[first, _]| first), at]); // identities are in the order of time
    }
    stats
}

fn differences<T: PartialEq + std::fmt::Debug>(
    of_one: &str,
    one: &BTreeMap<Identity, T>,
    of_other: &str,
    other: &BTreeMap<Identity, T>,
) -> String {
    let keys: std::collections::BTreeSet<_> = one.keys().chain(other.keys()).collect();
    let differ: Vec<_> = keys.into_iter().filter(|key| one.get(key) != other.get(key)).collect();
    let shown = differ.iter().take(3).map(|key| format!("{key:?}: {:?}, {:?}", one.get(key), other.get(key)));
    let shown: Vec<_> = shown.collect();
    format!("{of_one} and {of_other} differ in {} places: {}", differ.len(), shown.join("; "))
}

fn known(metric: &str) -> &'static str {
    METRICS.into_iter().find(|known| *known == metric).unwrap_or_else(|| panic!("no client sent the metric {metric}"))
}

fn ts_ms(of: &Value) -> i64 {
    let ts: jiff::Timestamp = of["ts"].as_str().expect("a time").parse().expect("RFC 3339");
    ts.as_millisecond()
}
