//! Latest values, first and last readings, silence and limits against a plain map: whatever was deleted,
//! refused or has expired, in every store, over restarts, and with two instances.

use std::collections::{BTreeMap, BTreeSet};

use bson::{DateTime, doc};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Database, Server, Setup, after_noon_s, now_ms, wait_until};

const DAY_MS: i64 = 86_400_000;
const DEVICES: [&str; 3] = ["d0", "d1", "d2"];
const METRICS: [&str; 3] = ["a", "b", "c{k=v}"];
/// The newest readings of a day are this old: none is close to the limits that the test asks for.
const NEWEST_MS: i64 = 7 * 3_600_000;
/// Half of the readings of the last day are of so many hours around now.
const RECENT_HOURS: i64 = 3;
/// Readings are of so many days. MongoDB refuses those of one of them.
const DAYS: i64 = 12;
const REFUSED_DAY: i64 = 2;

/// The limits of each device.
fn limits_of(device: &str) -> Value {
    match device {
        "d0" => json!({ "a": { "max": 700 }, "c": { "min": 300 } }),
        "d1" => json!({ "b": { "min": 200, "max": 800 }, "never-sent": { "max": 0 } }),
        _ => json!({ "never-sent": { "max": 0 } }),
    }
}

/// The limit that a value is beyond.
fn beyond(device: &str, metric: &str, value: f64) -> Option<&'static str> {
    match (device, metric) {
        ("d0", "a") if value > 700.0 => Some("max"),
        ("d0", "c{k=v}") if value < 300.0 => Some("min"),
        ("d1", "b") if value > 800.0 => Some("max"),
        ("d1", "b") if value < 200.0 => Some("min"),
        _ => None,
    }
}

/// The expected contents of the store and of pending.
#[derive(Default)]
struct Model {
    /// Each value by device, metric and time.
    values: BTreeMap<(&'static str, &'static str, i64), f64>,
    /// The first instant of each device that was accepted and is not deleted.
    first: BTreeMap<&'static str, i64>,
    /// The readings before this instant have expired. Their rollups are kept.
    expired_before: i64,
}

impl Model {
    fn add(&mut self, device: &'static str, metric: &'static str, ts: i64, value: f64) {
        self.values.insert((device, metric, ts), value);
        self.note(device, ts);
    }

    fn note(&mut self, device: &'static str, ts: i64) {
        let first = self.first.entry(device).or_insert(ts);
        *first = ts.min(*first);
    }

    fn delete(&mut self, device: &'static str, metric: Option<&str>, range: Option<(i64, i64)>) {
        let is_in_range = |ts: i64| range.is_none_or(|(from, to)| from <= ts && ts < to);
        let is_named = |of: &str| metric.is_none_or(|name| of.split('{').next() == Some(name));
        self.values.retain(|(of, name, ts), _| *of != device || !is_named(name) || !is_in_range(*ts));
        let left = self.values.keys().filter(|(of, ..)| *of == device).map(|(.., ts)| *ts).min();
        match left {
            None => drop(self.first.remove(device)),
            Some(left) if self.first.get(device).is_some_and(|first| is_in_range(*first)) => {
                self.first.insert(device, left);
            }
            Some(_) => {}
        }
    }

    /// The last value of each metric of a device, as JSON; with those whose readings have expired, or
    /// without.
    fn latest(&self, device: &str, with_expired: bool) -> Value {
        let mut latest = json!({});
        for ((of, metric, ts), value) in &self.values {
            if *of == device && (with_expired || *ts >= self.expired_before) {
                latest[*metric] = json!({ "ts": rfc3339(*ts), "value": value }); // ascending by time
                if let Some(bound) = beyond(device, metric, *value) {
                    latest[*metric]["beyond"] = json!(bound);
                }
            }
        }
        latest
    }

    /// The last instant of each device.
    fn last(&self) -> BTreeMap<&str, i64> {
        let mut last = BTreeMap::new();
        for (device, _, ts) in self.values.keys() {
            let known = last.entry(*device).or_insert(*ts);
            *known = (*ts).max(*known);
        }
        last
    }

    /// Compares all answers of a server.
    async fn check(&self, server: &Server, place: &str) {
        let last = self.last();
        let list = server.get_json("/v1/latest?limit=100").await;
        let devices = server.get_json("/v1/devices?limit=100").await;
        let ids = |list: &Value| {
            let devices = list["devices"].as_array().expect("a list").iter();
            devices.map(|device| device["deviceId"].as_str().expect("an ID").to_owned()).collect::<BTreeSet<_>>()
        };
        let expected: BTreeSet<String> = last.keys().map(|device| (*device).to_owned()).collect();
        assert_eq!((ids(&list), ids(&devices)), (expected.clone(), expected), "{place}");
        for (nth, (device, last)) in last.iter().enumerate() {
            assert_eq!(list["devices"][nth]["metrics"], self.latest(device, true), "{place}: {device} in /v1/latest");
            let known = &devices["devices"][nth];
            let span = (rfc3339(self.first[device]), rfc3339(*last));
            assert_eq!(
                (&known["firstSeen"], &known["lastSeen"]),
                (&json!(span.0), &json!(span.1)),
                "{place}: {device}"
            );
            let one = server.get_json(&format!("/v1/devices/{device}")).await;
            assert_eq!(one, *known, "{place}: {device}");
            let latest = server.get_json(&format!("/v1/devices/{device}/latest")).await;
            assert_eq!(latest["metrics"], self.latest(device, false), "{place}: /latest of {device}");
            self.check_influxql(server, device, place).await;
        }
        for days in [1, 2, 3, 5, 8] {
            let silent = server.get_json(&format!("/v1/devices?silent_for={days}d&limit=100")).await;
            let since = now_ms() - days * DAY_MS;
            let expected = last.iter().filter(|(_, last)| **last < since).map(|(device, _)| (*device).to_owned());
            assert_eq!(ids(&silent), expected.collect(), "{place}: silent for {days} days");
        }
        let is_beyond = |device: &str| {
            let latest = self.latest(device, true);
            latest.as_object().expect("values").values().any(|value| value.get("beyond").is_some())
        };
        let expected: BTreeSet<String> = last.keys().filter(|id| is_beyond(id)).map(|id| (*id).to_owned()).collect();
        for path in ["/v1/devices", "/v1/latest"] {
            let found = server.get_json(&format!("{path}?beyond=limits&limit=100")).await;
            assert_eq!(ids(&found), expected, "{place}: {path} beyond the limits");
        }
    }

    async fn check_influxql(&self, server: &Server, device: &str, place: &str) {
        let expected = self.latest(device, true);
        for (metric, measurement) in METRICS.into_iter().zip(["a", "b", "c"]) {
            let statement = format!("SELECT last(value) FROM {measurement} WHERE device_id = '{device}'");
            let mut query = form_urlencoded::Serializer::new(String::new());
            query.extend_pairs([("epoch", "ms"), ("q", &*statement)]);
            let answer = server.get_json(&format!("/query?{}", query.finish())).await;
            let row = &answer["results"][0]["series"][0]["values"][0];
            let found = row[0].as_i64().map(|ts| json!({ "ts": rfc3339(ts), "value": row[1].as_f64() }));
            let expected = expected.get(metric).map(|of| json!({ "ts": of["ts"], "value": of["value"] }));
            assert_eq!(found, expected, "{place}: {statement}: {answer}");
        }
    }
}

fn rfc3339(ms: i64) -> String {
    let at = jiff::Timestamp::from_millisecond(ms).expect("an instant of these years");
    at.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

/// The rules of a run, which always sends readings, deletes devices and restarts instances.
#[derive(Clone, Copy)]
struct Rules {
    /// It deletes ranges and series.
    deletes_ranges: bool,
    /// The store refuses a day.
    refuses: bool,
    seed: u64,
}

/// A random run on one or more instances.
struct Run<'a> {
    servers: Vec<Server>,
    database: Option<&'a Database>,
    model: Model,
    random: StdRng,
    /// The end of the newest day of the run.
    end: i64,
    /// Each reading has an instant of its own.
    sent: i64,
}

impl Run<'_> {
    /// An instant of a day that is `days` before the last one.
    fn instant(&mut self, days: i64) -> i64 {
        self.sent += 1;
        if days == 0 && self.random.random() {
            return self.end - self.random.random_range(0..RECENT_HOURS) * 3_600_000 + self.sent;
        }
        self.end - NEWEST_MS - days * DAY_MS - self.random.random_range(0..10) * 3_600_000 + self.sent
    }

    fn server(&mut self) -> usize {
        self.random.random_range(0..self.servers.len())
    }

    /// Sends some readings to one instance. With several, the others know of them once they are stored.
    async fn ingest(&mut self, refuses: bool) {
        let server = self.server();
        let (mut readings, mut is_refused) = (Vec::new(), false);
        for _ in 0..self.random.random_range(1..5) {
            let device = DEVICES[self.random.random_range(0..3)];
            let days = if self.random.random_range(0..3) == 0 { 0 } else { self.random.random_range(0..DAYS) };
            let has_values = self.model.first.contains_key(device);
            let mut ts = self.instant(days);
            if refuses && !has_values && self.is_refused(ts) {
                ts -= DAY_MS; // or the device would have an entry and no reading
            }
            let value = f64::from(self.random.random_range(0..1_000_u16));
            let metrics = &METRICS[self.random.random_range(0..3)..];
            let metrics = &metrics[..self.random.random_range(1..=metrics.len())];
            let values: serde_json::Map<_, _> = metrics.iter().map(|name| ((*name).to_owned(), json!(value))).collect();
            readings.push(json!({ "deviceId": device, "ts": ts, "values": values }));
            if refuses && self.is_refused(ts) {
                is_refused = true;
                self.model.note(device, ts);
            } else {
                for metric in metrics {
                    self.model.add(device, metric, ts, value);
                }
            }
        }
        let answer = self.servers[server].ingest(&json!(readings)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        if is_refused || self.servers.len() > 1 {
            self.servers[server].settled().await;
        }
    }

    /// The UTC day of which the validator refuses all buckets.
    fn refused_day(&self) -> i64 {
        (self.end - NEWEST_MS).div_euclid(DAY_MS) - REFUSED_DAY
    }

    fn is_refused(&self, ts: i64) -> bool {
        ts.div_euclid(DAY_MS) == self.refused_day()
    }

    async fn refuse_a_day(&self) {
        let [from, to] = [0, 1].map(|day| DateTime::from_millis((self.refused_day() + day) * DAY_MS));
        let validator = doc! { "$nor": [{ "bucket": { "$gte": from, "$lt": to } }] };
        let database = self.database.expect("only MongoDB refuses readings").handle().await;
        let command = doc! { "collMod": "buckets", "validator": validator };
        wait_until("the collection is there", async || database.run_command(command.clone()).await.ok()).await;
    }

    async fn delete(&mut self, of_range: bool) {
        let device = DEVICES[self.random.random_range(0..3)];
        let (mut metric, mut range, mut path) = (None, None, format!("/v1/devices/{device}"));
        if of_range {
            path += "/readings?";
            if self.random.random_range(0..6) == 0 {
                path += "all=true";
            } else {
                let newest = self.random.random_range(-1..DAYS);
                let from = self.end - NEWEST_MS - (newest + self.random.random_range(0..4)) * DAY_MS;
                let to = self.end - newest * DAY_MS;
                range = Some((from, to));
                path = format!("{path}from={from}&to={to}");
            }
            if self.random.random_range(0..4) > 0 {
                let name = ["a", "b", "c"][self.random.random_range(0..3)];
                metric = Some(name);
                path = format!("{path}&metric={name}");
            }
        }
        let server = self.server();
        let answer = {
            let server = &self.servers[server];
            server.send(server.request(Method::DELETE, &path)).await
        };
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        self.model.delete(device, metric, range);
    }

    async fn restart(&mut self) {
        let at = self.server();
        let server = &mut self.servers[at];
        if self.random.random() {
            assert!(server.terminate().await.success());
        } else {
            server.kill9();
        }
        server.start_again().await;
        if self.servers.len() > 1 {
            self.servers[at].settled().await;
        }
    }

    /// The readings before some day expire, and their rollups stay.
    async fn expire(&mut self, days: i64, setup: Setup) {
        for server in &self.servers {
            server.settled().await;
        }
        let day = (self.end - NEWEST_MS).div_euclid(DAY_MS) - days;
        self.model.expired_before = day * DAY_MS;
        let Some(database) = self.database else {
            let retention = (now_ms() - self.model.expired_before) / 3_600_000;
            assert!(self.servers[0].terminate().await.success());
            self.servers[0].start_again_with(setup.set("retention.readings", format!("{retention}h"))).await;
            self.servers[0].logged("deleted everything older than retention.readings").await;
            return;
        };
        wait_until("past days are rolled up", async || {
            let metrics = self.servers[0].metrics().await;
            (metrics.value("tidegauge_rollup_lag_seconds") == Some(0.0)).then_some(())
        })
        .await;
        let buckets = database.handle().await.collection::<bson::Document>("buckets");
        let expired = doc! { "bucket": { "$lt": DateTime::from_millis(self.model.expired_before) } };
        buckets.delete_many(expired).await.expect("as the server does by itself");
    }
}

async fn run(setup: Setup, database: Option<&Database>, instances: usize, rules: Rules) {
    let Rules { deletes_ranges, refuses, seed } = rules;
    println!("seed {seed}");
    let mut servers = Vec::new();
    for _ in 0..instances {
        servers.push(Server::start(setup.clone()).await);
    }
    for device in DEVICES {
        let body = json!({ "limits": limits_of(device) }).to_string();
        let request = servers[0].request(Method::PUT, &format!("/v1/devices/{device}/metadata"));
        let answer = servers[0].send(request.header("content-type", "application/json").body(body)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    for server in &servers {
        wait_until("each instance knows the limits", async || {
            let metadata = server.get_json("/v1/devices/d2/metadata").await;
            (metadata["setByOperators"] != json!({})).then_some(())
        })
        .await;
    }
    let end = now_ms();
    let mut run = Run { servers, database, model: Model::default(), random: StdRng::seed_from_u64(seed), end, sent: 0 };
    if refuses {
        run.refuse_a_day().await;
    }
    for step in 0..30 {
        match run.random.random_range(0..20) {
            0..10 => run.ingest(refuses).await,
            10..17 if deletes_ranges => run.delete(true).await,
            10..12 | 17 => run.delete(false).await,
            18 => run.restart().await,
            _ => {
                let server = run.server();
                run.servers[server].settled().await;
            }
        }
        for (nth, server) in run.servers.iter().enumerate() {
            run.model.check(server, &format!("seed {seed}, step {step}, instance {nth}")).await;
        }
    }
    if database.is_none() || !refuses && deletes_ranges {
        run.expire(DAYS / 2, setup).await;
        for (nth, server) in run.servers.iter().enumerate() {
            run.model.check(server, &format!("seed {seed}, expired, instance {nth}")).await;
        }
    }
}

const ALL: Rules = Rules { deletes_ranges: true, refuses: false, seed: 0 };

#[tokio::test]
async fn sqlite_answers_as_a_map_would() {
    for seed in [1, 2] {
        run(Setup::sqlite(), None, 1, Rules { seed, ..ALL }).await;
    }
}

#[tokio::test]
async fn mongodb_answers_as_a_map_would() {
    let (readable, packed) = (Database::new(), Database::new());
    tokio::join!(
        run(Setup::mongodb(&readable), Some(&readable), 1, Rules { seed: 11, ..ALL }),
        run(Setup::packed(&packed), Some(&packed), 1, Rules { seed: 12, ..ALL }),
    );
}

#[tokio::test]
async fn mongodb_answers_as_a_map_would_while_it_refuses_readings() {
    let (readable, packed) = (Database::new(), Database::new());
    let refuses = Rules { refuses: true, ..ALL };
    tokio::join!(
        run(Setup::mongodb(&readable), Some(&readable), 1, Rules { seed: 21, ..refuses }),
        run(Setup::packed(&packed), Some(&packed), 1, Rules { seed: 22, ..refuses }),
    );
}

#[tokio::test]
async fn a_time_series_answers_as_a_map_would() {
    let database = Database::new();
    let rules = Rules { seed: 31, deletes_ranges: false, ..ALL };
    run(Setup::timeseries(&database), Some(&database), 1, rules).await;
}

#[tokio::test]
async fn two_instances_answer_as_a_map_would() {
    let (readable, packed) = (Database::new(), Database::new());
    tokio::join!(
        run(Setup::mongodb(&readable), Some(&readable), 2, Rules { seed: 41, ..ALL }),
        run(Setup::packed(&packed), Some(&packed), 2, Rules { seed: 42, refuses: true, ..ALL }),
    );
}

/// The exact steps of a cleaned-up mistake: the values of some days of one metric are deleted, and an older
/// value stays. Then an even older one arrives late.
async fn what_is_left_of_a_metric_is_its_latest_value(setup: Setup) {
    let mut server = Server::start(setup).await;
    let now = now_ms();
    let ts = |days: i64| now - days * DAY_MS;
    let of =
        |days: i64, metric: &str, value: f64| json!({ "deviceId": "D", "ts": ts(days), "values": { metric: value } });
    let sent = json!([of(5, "b", 10.0), of(3, "b", 20.0), of(1, "a", 3.0)]);
    assert_eq!(server.ingest(&sent).await.status, 200);
    server.settled().await;
    let path = format!("/v1/devices/D/readings?from={}&to={}&metric=b", ts(4), ts(2));
    assert_eq!(server.send(server.request(Method::DELETE, &path)).await.json(), json!({ "deleted": 1 }));
    let expected = json!({
        "a": { "ts": rfc3339(ts(1)), "value": 3.0 },
        "b": { "ts": rfc3339(ts(5)), "value": 10.0 },
    });
    for step in ["after the deletion", "after a restart", "while an older value is pending"] {
        assert_eq!(server.get_json("/v1/devices/D/latest").await["metrics"], expected, "{step}");
        assert_eq!(server.get_json("/v1/latest").await["devices"][0]["metrics"], expected, "{step}");
        if step == "after the deletion" {
            assert!(server.terminate().await.success());
            server.start_again().await;
        } else {
            assert_eq!(server.ingest(&json!([of(8, "b", 5.0)])).await.status, 200);
        }
    }
}

#[tokio::test]
async fn sqlite_keeps_the_value_before_a_deleted_one() {
    what_is_left_of_a_metric_is_its_latest_value(Setup::sqlite()).await;
}

#[tokio::test]
async fn mongodb_keeps_the_value_before_a_deleted_one() {
    let (readable, packed) = (Database::new(), Database::new());
    what_is_left_of_a_metric_is_its_latest_value(Setup::mongodb(&readable)).await;
    what_is_left_of_a_metric_is_its_latest_value(Setup::packed(&packed)).await;
}

/// The queries of a page of 600 devices, each with a metric that has been silent for three days, by
/// collection.
async fn queries_of_a_page(server: &Server, database: &Database, silent: &Value) -> BTreeMap<String, usize> {
    let handle = database.handle().await;
    let profile = async |level: i32| handle.run_command(doc! { "profile": level }).await.expect("it has a profiler");
    // The default size drops the first of some large commands.
    let large = doc! { "create": "system.profile", "capped": true, "size": 64 << 20 };
    handle.run_command(large).await.expect("it has no profile yet");
    profile(2).await;
    let page = server.get_json("/v1/latest?limit=1000").await;
    profile(0).await;
    assert_eq!(page["devices"].as_array().map(Vec::len), Some(600));
    for device in page["devices"].as_array().expect("a list") {
        assert!(device["metrics"]["a"].is_object(), "{device}");
        let expected = if device["deviceId"] == "f-007" { silent } else { &json!(-7.0) };
        assert_eq!(device["metrics"]["b"]["value"], *expected, "{device}");
    }
    let found = database.aggregate("system.profile", vec![doc! { "$match": { "op": "query" } }]).await;
    database.handle().await.collection::<bson::Document>("system.profile").drop().await.expect("it is off");
    let mut queries = BTreeMap::new();
    for query in found {
        let collection = query.get_str("ns").expect("a namespace").rsplit('.').next().unwrap_or_default();
        let is_seek = query.get_document("command").expect("a command").to_string().contains("createdAt");
        if ["buckets", "rollups", "devices"].contains(&collection) && !is_seek {
            *queries.entry(collection.to_owned()).or_default() += 1;
        }
    }
    queries
}

#[tokio::test]
async fn only_a_device_whose_last_readings_were_deleted_takes_more_queries() {
    let database = Database::new();
    let setup = Setup::mongodb(&database).set("devices.silent_after", "0s");
    let server = Server::start_at(setup, after_noon_s()).await;
    let now = server.clock().now_ms();
    let of = |nth: i64, days: i64, metric: &str, value: f64| {
        let ts = now - days * DAY_MS;
        json!({ "deviceId": format!("f-{nth:03}"), "ts": ts, "values": { metric: value } })
    };
    let mut readings = vec![of(7, 6, "b", -6.0)];
    readings.extend((0..600).flat_map(|nth| [of(nth, 0, "a", 1.0), of(nth, 3, "b", -7.0)]));
    for some in readings.chunks(500) {
        assert_eq!(server.ingest(&json!(some)).await.status, 200);
    }
    server.settled().await;
    wait_until("past days are rolled up", async || {
        (server.metrics().await.value("tidegauge_rollup_lag_seconds") == Some(0.0)).then_some(())
    })
    .await;
    let of_all = queries_of_a_page(&server, &database, &json!(-7.0)).await;
    // One query of the index, and one for the mark that says whether it has all devices. The buckets of this
    // hour, of the hour before, and of the hours after noon of the past day, of 500 devices and of 100.
    let expected = BTreeMap::from([("buckets", 4), ("devices", 2), ("rollups", 2)]);
    let found: BTreeMap<&str, usize> = of_all.iter().map(|(name, count)| (name.as_str(), *count)).collect();
    assert_eq!(found, expected);
    let path = format!("/v1/devices/f-007/readings?from={}&to={}", now - 4 * DAY_MS, now - 2 * DAY_MS);
    assert_eq!(server.send(server.request(Method::DELETE, &path)).await.json(), json!({ "deleted": 1 }));
    let after = queries_of_a_page(&server, &database, &json!(-6.0)).await;
    let more: usize = after.values().sum::<usize>() - of_all.values().sum::<usize>();
    assert!((1..=4).contains(&more), "a search, and the day that it has found: {after:?}");
}
