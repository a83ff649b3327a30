//! Rollups: always derived from the readings, and kept after the readings are gone.

use std::collections::BTreeMap;

use bson::{Document, doc};
use serde_json::{Value, json};

use crate::harness::{Database, Server, Setup, now_ms, wait_until};

const HOUR_MS: i64 = 3_600_000;
const START_MS: i64 = 1_713_621_600_000; // 2024-04-20T14:00:00Z
const HOURS: i64 = 60;

/// Count, minimum, maximum and sum by device and start of the hour.
type Stats = BTreeMap<(String, i64), (i64, f64, f64, f64)>;

/// The sent values by device and instant.
#[derive(Default)]
struct Sent(BTreeMap<(String, i64), f64>);

impl Sent {
    /// Sends every `step`th of the readings of each hour of a device, from the `first` on.
    async fn send(&mut self, server: &Server, device: &str, first: i64, step: usize) {
        let instants = (0..HOURS).flat_map(|hour| (first..12).step_by(step).map(move |at| (hour, at)));
        let readings: Vec<Value> = instants
            .map(|(hour, at)| {
                let (ts, value) = (START_MS + hour * HOUR_MS + at * 300_000, f64::from((hour * 7 + at) as i32) / 4.0);
                self.0.insert((device.to_owned(), ts), value);
                json!({ "ts": ts, "values": { "t.c": value } })
            })
            .collect();
        assert_eq!(server.ingest(&json!({ "deviceId": device, "readings": readings })).await.status, 200);
    }

    fn stats(&self) -> Stats {
        let mut stats = Stats::new();
        for ((device, ts), &value) in &self.0 {
            let hour = stats.entry((device.clone(), ts - ts % HOUR_MS)).or_insert((0, value, value, 0.0));
            *hour = (hour.0 + 1, hour.1.min(value), hour.2.max(value), hour.3 + value);
        }
        stats
    }
}

/// The contents of the `rollups` collection.
async fn to_stored_id(database: &Database) -> Stats {
    let mut stats = Stats::new();
    for day in database.aggregate("rollups", vec![doc! { "$match": {} }]).await {
        let start_ms = day.get_datetime("day").expect("a day").timestamp_millis();
        for (hour, entry) in day.get_document("hours").expect("hours") {
            let of = entry.as_document().and_then(|entry| entry.get_document("stats").ok());
            let of = of.and_then(|of| of.get_document("t\u{FF0E}c").ok()).expect("the stats of the metric");
            let number = |key: &str| of.get_f64(key).expect("a number");
            let hour_ms = start_ms + hour.parse::<i64>().expect("an hour of the day") * HOUR_MS;
            let device = day.get_str("deviceId").expect("a device").to_owned();
            let count = of.get_i64("count").expect("a count");
            stats.insert((device, hour_ms), (count, number("min"), number("max"), number("sum")));
        }
    }
    stats
}

/// The answer of a query.
async fn answered(server: &Server, devices: &[&str]) -> Stats {
    let mut stats = Stats::new();
    for device in devices {
        let range = format!("from={START_MS}&to={}", START_MS + HOURS * HOUR_MS);
        let rollups = server.get_json(&format!("/v1/devices/{device}/rollups?{range}")).await;
        for point in rollups["metrics"]["t.c"].as_array().expect("a series") {
            let number = |key: &str| point[key].as_f64().expect("a number");
            let ts: bson::DateTime =
                bson::DateTime::parse_rfc3339_str(point["ts"].as_str().expect("a time")).expect("RFC 3339");
            let hour = (number("count") as i64, number("min"), number("max"), number("sum"));
            stats.insert(((*device).to_owned(), ts.timestamp_millis()), hour);
        }
    }
    stats
}

fn setup(database: &Database) -> Setup {
    Setup::mongodb(database).set("mongodb.max_readings_per_document", 5).set("flush.max_readings", 4)
}

async fn delete_all(database: &Database, collection: &str) {
    database.handle().await.collection::<Document>(collection).delete_many(doc! {}).await.expect("deleted");
}

#[tokio::test]
async fn rollups_survive_kills_and_outlive_their_readings() {
    let database = Database::new();
    let devices = ["a", "b", "c"];
    let mut server = Server::start(setup(&database)).await;
    let mut sent = Sent::default();
    for (round, (first, step)) in [(0, 3), (5, 2), (0, 1), (1, 4)].into_iter().enumerate() {
        for device in devices {
            sent.send(&server, device, first, step).await;
        }
        assert_eq!(answered(&server, &devices).await, sent.stats(), "what is pending counts, round {round}");
        let some = wait_until("some of it is on its way", async || {
            let metrics = server.metrics().await;
            (metrics.count("tidegauge_readings_stored_total") + metrics.count("tidegauge_readings_duplicate_total") > 0)
                .then_some(())
        });
        some.await;
        server.kill9();
        server.start_again().await;
        assert_eq!(answered(&server, &devices).await, sent.stats(), "after the kill of round {round}");
    }
    server.settled().await;
    assert_eq!(to_stored_id(&database).await, sent.stats());
    assert_eq!(answered(&server, &devices).await, sent.stats());
    wait_until("all hours are rolled up", async || {
        (server.metrics().await.value("tidegauge_rollup_lag_seconds") == Some(0.0)).then_some(())
    })
    .await;

    delete_all(&database, "buckets").await;
    assert_eq!(answered(&server, &devices).await, sent.stats(), "without any readings");
    let path = format!("/v1/devices/a/rollups?from={START_MS}&to={}", START_MS + HOURS * HOUR_MS);
    for parameters in ["step=1d&tz=Asia/Kathmandu", "fn=increase", "step=5m&fn=increase"] {
        let refused = server.get(&format!("{path}&{parameters}")).await;
        assert_eq!((refused.status, &refused.json()["code"]), (400, &json!("readings_expired")), "{parameters}");
    }
    assert_eq!(server.get_json(&format!("{path}&step=5m")).await["metrics"], json!({}), "no reading is left");
}

#[tokio::test]
async fn lost_rollups_are_derived_again_at_the_next_start() {
    let database = Database::new();
    derived_again(setup(&database), &database).await;
}

#[tokio::test]
async fn lost_rollups_of_a_time_series_are_derived_at_the_next_start() {
    let database = Database::new();
    derived_again(Setup::timeseries(&database), &database).await;
}

async fn derived_again(setup: Setup, database: &Database) {
    let mut server = Server::start(setup).await;
    let mut sent = Sent::default();
    sent.send(&server, "a", 0, 1).await;
    sent.send(&server, "b", 2, 1).await;
    server.settled().await;
    let mark = server.data_dir().join("rollups.json");
    wait_until("the mark is written", async || mark.exists().then_some(())).await;
    for drops in [false, true] {
        server.kill9();
        if drops {
            database.handle().await.collection::<Document>("rollups").drop().await.expect("dropped");
        } else {
            delete_all(database, "rollups").await;
            std::fs::remove_file(&mark).expect("it is there");
        }
        server.start_again().await;
        wait_until("all is rolled up", async || (to_stored_id(database).await == sent.stats()).then_some(())).await;
        wait_until("the mark is written", async || mark.exists().then_some(())).await;
        assert_eq!(answered(&server, &["a", "b"]).await, sent.stats());
    }
}

#[tokio::test]
async fn dropped_collections_are_recreated_without_a_restart() {
    let database = Database::new();
    let server = Server::start(setup(&database).set("retention.readings", "20000d")).await;
    let mut sent = Sent::default();
    sent.send(&server, "a", 0, 1).await;
    sent.send(&server, "b", 2, 1).await;
    server.settled().await;
    let all_rolled_up = async || (to_stored_id(&database).await == sent.stats()).then_some(());
    wait_until("all is rolled up", all_rolled_up).await;
    let handle = database.handle().await;
    handle.collection::<Document>("rollups").drop().await.expect("dropped");
    wait_until("all is rolled up anew", all_rolled_up).await;
    server.logged("the collections were dropped or replaced: all stored days").await;
    server.logged("rolled up the closed hours of a day").await;
    assert_eq!(answered(&server, &["a", "b"]).await, sent.stats());

    let indexes = async || {
        let names = handle.collection::<Document>("buckets").list_index_names().await;
        names.map(|mut names| {
            names.sort_unstable();
            names
        })
    };
    let before = indexes().await.expect("indexes");
    handle.collection::<Document>("buckets").drop().await.expect("dropped");
    wait_until("the indexes are there again", async || (indexes().await.ok()? == before).then_some(())).await;
    let log = server.logged("collections were dropped or replaced").await;
    assert_eq!(log.matches("collections were dropped or replaced;").count(), 2, "one line for each drop: {log}");
    sent.send(&server, "a", 0, 1).await;
    server.settled().await;
    assert_eq!(answered(&server, &["a", "b"]).await, sent.stats());
}

/// The day turns while the service is down: the next start rolls up what the last one has stored.
#[tokio::test]
async fn a_day_is_rolled_up_once_it_has_ended() {
    let database = Database::new();
    let mut server = Server::start_with_clock(setup(&database)).await;
    let now = json!([{ "deviceId": "a", "values": { "t.c": 1.5 } }, { "deviceId": "b", "values": { "t.c": 2.5 } }]);
    assert_eq!(server.ingest(&now).await.status, 200);
    server.settled().await;
    let query = "/v1/rollups?prefix=&from=2026-01-01T00:00:00Z&to=2036-01-01T00:00:00Z";
    let before = server.get_json(query).await;
    assert_eq!(before["devices"].as_array().map(Vec::len), Some(2), "{before}");
    let start = wait_until("the roller has looked", async || {
        let progress = std::fs::read_to_string(server.data_dir().join("rollups.json")).ok()?;
        serde_json::from_str::<Value>(&progress).ok()?["before"].as_str().map(str::to_owned)
    })
    .await;
    assert!(start.ends_with("T00:00:00Z"), "{start}");
    assert_eq!(to_stored_id(&database).await, Stats::new(), "the day has not ended");

    server.kill9();
    server.clock().set(25 * 3_600);
    server.start_again().await;
    wait_until("the day is rolled up", async || (to_stored_id(&database).await.len() == 2).then_some(())).await;
    delete_all(&database, "buckets").await;
    let after = server.get_json(query).await;
    assert_eq!(after["devices"], before["devices"]);
}

/// A reading is accepted just before its hour expires, and is pending over a crash until after that.
#[tokio::test]
async fn the_rollup_of_an_hour_that_expires_has_the_readings_that_were_pending() {
    let setup = Setup::sqlite().set("retention.readings", "1h").set("retention.rollups", "5d");
    let mut server = Server::start_with_clock(setup.clone()).await;
    let hour_ms = (now_ms() / HOUR_MS + 30) * HOUR_MS;
    // Sets the clock to this time after the end of the hour, in seconds.
    let set_clock = |server: &Server, seconds: i64| {
        server.clock().set((hour_ms + HOUR_MS - now_ms()) / 1_000 + seconds);
    };
    let reading = |ts: i64, value: i64| json!({ "deviceId": "d", "ts": ts, "values": { "v": value } });

    set_clock(&server, 40 * 60);
    assert_eq!(server.ingest(&reading(hour_ms + 56 * 60_000, 1)).await.status, 200);
    server.settled().await;
    server.start_again_after_stop(setup.clone().all_pending()).await;
    set_clock(&server, 59 * 60 + 30);
    assert_eq!(server.ingest(&reading(hour_ms + HOUR_MS - 10_000, 100)).await.status, 200);
    server.kill9();
    set_clock(&server, 62 * 60);
    server.start_again_with(setup.clone()).await;
    server.settled().await;
    server.start_again_after_stop(setup).await;
    let range = format!("from={hour_ms}&to={}", hour_ms + HOUR_MS);
    wait_until("the hour expires", async || {
        let answer = server.get_json(&format!("/v1/devices/d/readings?{range}")).await;
        answer["readings"].as_array()?.is_empty().then_some(())
    })
    .await;
    let answer = server.get_json(&format!("/v1/devices/d/rollups?{range}&fn=count,sum")).await;
    let hour = &answer["metrics"]["v"][0];
    assert_eq!((&hour["count"], &hour["sum"]), (&json!(2), &json!(101.0)), "{answer}");
}
