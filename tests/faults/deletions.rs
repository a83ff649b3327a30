//! Readings, deletions, and `kill -9` in the middle of either, against a plain map.
//!
//! One client sends one request after the other. A request that a kill interrupts is sent again after the
//! restart, as a client does that got no answer. The value of a reading follows from its identity, so that it
//! does not matter which of two writes stays.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::Method;
use serde_json::{Value, json};

use super::fault_test::seed;
use super::store::{Store, on_stores};
use crate::harness::Server;

on_stores!(kill_9_among_deletions, super::killed, [sqlite, mongodb, packed, timeseries]);

pub(super) const DEVICES: [&str; 3] = ["d", "d1", "d-1"];
pub(super) const METRICS: [&str; 2] = ["hum", "temp"];
/// 2024-04-20T22:00:00Z. The days have ended, so there are rollups.
const START_MS: i64 = 1_713_650_400_000;
const MINUTES: i64 = 4 * 60;
const KILLS: u32 = 4;
const REQUESTS_PER_LIFE: u32 = 12;

/// The identities that are stored: device, minute, metric.
pub(super) type Model = BTreeMap<(&'static str, i64, &'static str), f64>;

pub(super) struct Deletion {
    pub(super) device: &'static str,
    /// In minutes; `None`: the whole device.
    pub(super) range: Option<Range<i64>>,
    pub(super) metric: Option<&'static str>,
}

async fn killed(store: Store<'_>) {
    let seed = seed();
    let mut random = StdRng::seed_from_u64(seed);
    let mut server = Server::start(store.setup()).await;
    let mut model = Model::new();
    for life in 0..=KILLS {
        for request in 0..REQUESTS_PER_LIFE {
            let is_killed = life < KILLS && request + 1 == REQUESTS_PER_LIFE;
            let kill_after = is_killed.then(|| Duration::from_millis(random.random_range(0..30)));
            if random.random_range(0..3) == 0 {
                let deletion = random_deletion(&mut random, store);
                send(&mut server, kill_after, |server| deletion.request(server)).await;
                model.retain(|identity, _| !deletion.selects(identity));
            } else {
                let batch = random_batch(&mut random);
                let body: Vec<Value> = batch.iter().map(reading).collect();
                let body = json!(body).to_string();
                send(&mut server, kill_after, |server| server.request(Method::POST, "/v1/readings").body(body.clone()))
                    .await;
                for (device, minute, metrics) in batch {
                    model.extend(metrics.iter().map(|metric| ((device, minute, *metric), value(minute))));
                }
            }
        }
        if life == KILLS || random.random() {
            // Deletions are executed in their order, so this one follows all others.
            let last = Deletion { device: "none", range: None, metric: None };
            assert_eq!(server.send(last.request(&server)).await.status, 200, "seed {seed}");
            server.settled().await;
            compare(&server, &model, seed).await;
        }
    }
    server.assert_balanced().await;
}

/// Sends a request until it is answered. If it is to be killed, the server ends meanwhile and starts again.
async fn send(server: &mut Server, kill_after: Option<Duration>, request: impl Fn(&Server) -> reqwest::RequestBuilder) {
    if let Some(wait) = kill_after {
        let interrupted = tokio::spawn(request(server).send());
        tokio::time::sleep(wait).await;
        server.kill9();
        let _ = interrupted.await;
        server.start_again().await;
    }
    let answer = server.send(request(server)).await;
    assert!((200..300).contains(&answer.status), "{}: {}", answer.status, answer.text());
}

impl Deletion {
    pub(super) fn request(&self, server: &Server) -> reqwest::RequestBuilder {
        let path = match &self.range {
            None => format!("/v1/devices/{}", self.device),
            Some(range) => {
                let [from, to] = [range.start, range.end].map(ts_ms);
                let metric = self.metric.map(|metric| format!("&metric={metric}")).unwrap_or_default();
                format!("/v1/devices/{}/readings?from={from}&to={to}{metric}", self.device)
            }
        };
        server.request(Method::DELETE, &path)
    }

    pub(super) fn selects(&self, (device, minute, metric): &(&str, i64, &str)) -> bool {
        *device == self.device
            && self.range.as_ref().is_none_or(|range| range.contains(minute))
            && self.metric.is_none_or(|of| of == *metric)
    }
}

pub(super) fn random_deletion(random: &mut StdRng, store: Store<'_>) -> Deletion {
    let device = DEVICES[random.random_range(0..DEVICES.len())];
    if matches!(store, Store::Timeseries(_)) || random.random_range(0..5) == 0 {
        return Deletion { device, range: None, metric: None };
    }
    let from = random.random_range(0..MINUTES);
    let range = match random.random_range(0..2) {
        0 => from / 60 * 60..(from / 60 + 1) * 60,
        _ => from..from + random.random_range(1..120),
    };
    let metric = random.random::<bool>().then(|| METRICS[random.random_range(0..2)]);
    Deletion { device, range: Some(range), metric }
}

pub(super) fn random_batch(random: &mut StdRng) -> Vec<(&'static str, i64, &'static [&'static str])> {
    let device = DEVICES[random.random_range(0..DEVICES.len())];
    let from = random.random_range(0..MINUTES);
    let minutes = from..(from + random.random_range(1..90)).min(MINUTES);
    minutes.map(|minute| (device, minute, &METRICS[random.random_range(0..2)..])).collect()
}

pub(super) fn reading((device, minute, metrics): &(&str, i64, &[&str])) -> Value {
    let values: BTreeMap<&str, f64> = metrics.iter().map(|metric| (*metric, value(*minute))).collect();
    json!({ "deviceId": device, "ts": ts_ms(*minute), "values": values })
}

const fn ts_ms(minute: i64) -> i64 {
    START_MS + minute * 60_000
}

pub(super) const fn value(minute: i64) -> f64 {
    minute as f64
}

/// Compares readings, rollups and the device list with the model.
pub(super) async fn compare(server: &Server, model: &Model, seed: u64) {
    let range = "from=2024-04-20T00:00:00Z&to=2024-04-23T00:00:00Z";
    let mut listed = Vec::new();
    for device in DEVICES {
        let mut expected: BTreeMap<i64, BTreeMap<&str, f64>> = BTreeMap::new();
        let mut hours: BTreeMap<&str, BTreeMap<i64, (u64, f64)>> = BTreeMap::new();
        for (&(_, minute, metric), &value) in model.iter().filter(|((of, ..), _)| *of == device) {
            expected.entry(minute).or_default().insert(metric, value);
            let (count, sum) = hours.entry(metric).or_default().entry(minute / 60).or_default();
            (*count, *sum) = (*count + 1, *sum + value);
        }
        if !expected.is_empty() {
            listed.push(device);
        }
        let found: Vec<Value> = server.readings(device).await.as_array().cloned().unwrap_or_default();
        let values: Vec<&Value> = found.iter().map(|reading| &reading["values"]).collect();
        assert_eq!(json!(values), json!(expected.values().collect::<Vec<_>>()), "seed {seed}: {device}");
        let rollups = server.get(&format!("/v1/devices/{device}/rollups?{range}&step=1h")).await;
        let rollups = if rollups.status == 404 { Value::Null } else { rollups.json() };
        for metric in METRICS {
            let steps = rollups["metrics"][metric].as_array().cloned().unwrap_or_default();
            let folds: Vec<(u64, f64)> = steps
                .iter()
                .map(|step| (step["count"].as_u64().expect("a count"), step["sum"].as_f64().expect("a sum")))
                .collect();
            let expected: Vec<(u64, f64)> =
                hours.get(metric).map(|hours| hours.values().copied().collect()).unwrap_or_default();
            assert_eq!(folds, expected, "seed {seed}: {device} {metric}");
        }
    }
    let devices = server.get_json("/v1/devices").await;
    let mut found: Vec<&str> =
        devices["devices"].as_array().into_iter().flatten().filter_map(|device| device["deviceId"].as_str()).collect();
    found.sort_unstable();
    listed.sort_unstable();
    assert_eq!(found, listed, "seed {seed}: the device list");
}
