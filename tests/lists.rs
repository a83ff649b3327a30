//! Lists of devices and rollups of many: the same in every store, before and after a flush, and in pages.

use std::collections::{BTreeMap, BTreeSet};

use bson::{Document, doc};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::harness::{Database, Server, Setup, after_noon_s, in_stores, wait_until};

const HOUR_MS: i64 = 3_600_000;
const START_MS: i64 = 1_713_571_200_000; // 2024-04-20T00:00:00Z
const DAY: &str = "from=2024-04-20T00:00:00Z&to=2024-04-21T00:00:00Z";
/// A range that includes [`DAY`], of so many hours that a query asks the store for one device at a time.
const YEAR: &str = "from=2023-06-01T00:00:00Z&to=2024-05-31T00:00:00Z";

fn rfc3339(ms: i64) -> String {
    let text = bson::DateTime::from_millis(ms - ms.rem_euclid(1_000)).try_to_rfc3339_string();
    text.expect("a year of four digits").replace('Z', &format!(".{:03}Z", ms.rem_euclid(1_000)))
}

/// The exact steps of a display on the wall: `temp` and `battery` with metadata, and after the turn of the
/// hour `temp` alone.
async fn a_display_forgets_nothing_at_the_turn_of_the_hour(setup: Setup) {
    let mut server = Server::start(setup).await;
    let hour = START_MS + 20 * HOUR_MS;
    let before = json!({
        "deviceId": "room", "metadata": { "floor": 2 }, "ts": hour + 50 * 60_000,
        "values": { "temp": 21.5, "battery": 87 },
    });
    let after = json!({ "deviceId": "room", "ts": hour + HOUR_MS + 5_000, "values": { "temp": 21.75 } });
    let latest = json!({ "deviceId": "room", "metrics": {
        "battery": { "ts": "2024-04-20T20:50:00.000Z", "value": 87.0 },
        "temp": { "ts": "2024-04-20T21:00:05.000Z", "value": 21.75 },
    } });
    let listed = json!({ "devices": [{
        "deviceId": "room", "metadata": { "floor": 2 }, "metrics": ["battery", "temp"],
        "firstSeen": "2024-04-20T20:50:00.000Z", "lastSeen": "2024-04-20T21:00:05.000Z",
    }], "next": null });
    assert_eq!(server.ingest(&before).await.status, 200);
    assert_eq!(server.ingest(&after).await.status, 200);
    for step in ["pending", "stored", "after a restart"] {
        assert_eq!(server.get_json("/v1/devices/room/latest").await, latest, "{step}");
        assert_eq!(server.get_json("/v1/devices").await, listed, "{step}");
        if step == "pending" {
            server.settled().await;
        } else {
            assert!(server.terminate().await.success());
            server.start_again().await;
        }
    }
}

in_stores!(a_display_forgets_nothing_at_the_turn_of_the_hour, [sqlite, mongodb, timeseries]);

#[tokio::test]
async fn the_latest_values_of_a_page_take_one_seek_for_later_hours() {
    let database = Database::new();
    let server = Server::start_at(Setup::mongodb(&database), after_noon_s()).await;
    let now = bson::DateTime::from_millis(server.clock().now_ms());
    let readings = (0..600).map(|device| json!({ "deviceId": format!("f-{device:03}"), "value": device }));
    assert_eq!(server.ingest(&readings.collect()).await.status, 200);
    server.settled().await;
    let profile = async |level: i32| {
        let handle = database.handle().await;
        handle.run_command(doc! { "profile": level }).await.expect("the server has a profiler")
    };
    profile(2).await;
    let page = server.get_json("/v1/latest?limit=1000").await;
    profile(0).await;
    assert_eq!(page["devices"].as_array().map(Vec::len), Some(600));
    assert_eq!(page["devices"][599]["metrics"]["value"]["value"], json!(599.0));
    let finds = database.aggregate("system.profile", vec![doc! { "$match": { "command.find": "buckets" } }]).await;
    let filter_of = |find: &Document| find.get_document("command").ok()?.get_document("filter").ok().cloned();
    // The roller seeks too, from an hour in the past.
    let is_of_future = |of: &Document| of.get_datetime("$gte").is_ok_and(|from| *from > now);
    let filters = finds.iter().filter_map(filter_of);
    let seeks = filters.filter(|of| of.get_document("createdAt").is_ok_and(is_of_future)).count();
    assert_eq!(seeks, 1, "{} finds", finds.len());
}

async fn get_problem(server: &Server, path: &str, status: u16, code: &str) -> String {
    let answer = server.get(path).await;
    let problem = answer.json();
    assert_eq!((answer.status, &problem["code"]), (status, &json!(code)), "{path}: {}", answer.text());
    problem["detail"].as_str().expect("a detail").to_owned()
}

in_stores!(a_flush_does_not_change_the_device_list, [sqlite, mongodb, timeseries]);

/// The expected entry of a device: its metrics, its metadata by hour, and its instants.
#[derive(Default)]
struct Device {
    metrics: BTreeSet<&'static str>,
    metadata: BTreeMap<i64, Value>,
    instants: Vec<i64>,
    /// The last reading of each metric: its instant and its value.
    latest: BTreeMap<&'static str, (i64, f64)>,
}

async fn a_flush_does_not_change_the_device_list(setup: Setup) {
    let mut server = Server::start(setup.all_pending()).await;
    let mut random = StdRng::seed_from_u64(5);
    let mut model: BTreeMap<String, Device> = BTreeMap::new();
    for round in 0..6 {
        for request in 0..8 {
            let device = format!("d{}", random.random_range(0..4));
            let hour = [0, 1, 2, 23, 24, 50][random.random_range(0..6)];
            let metric = ["a", "b", "c", "d{k=v}"][random.random_range(0..4)];
            let at_ms = random.random_range(0..HOUR_MS / 1_000) * 1_000 + round * 8 + request;
            let ts = START_MS + hour * HOUR_MS + at_ms;
            let value = ts as f64 / 8.0;
            let mut reading = json!({ "deviceId": device, "ts": ts, "values": { metric: value } });
            let known = model.entry(device).or_default();
            known.instants.push(ts);
            known.metrics.insert(metric);
            let latest = known.latest.entry(metric).or_insert((ts, value));
            *latest = if ts > latest.0 { (ts, value) } else { *latest };
            if random.random_bool(0.3) {
                let metadata = json!({ "round": round, "request": request });
                reading["metadata"] = metadata.clone();
                known.metadata.insert(hour, metadata);
            }
            assert_eq!(server.ingest(&reading).await.status, 200);
        }
        let before = server.get_json("/v1/devices").await;
        let listed = before["devices"].as_array().expect("devices");
        assert_eq!(listed.len(), model.len());
        for (listed, (id, device)) in listed.iter().zip(&model) {
            let listed_as = (&listed["deviceId"], &listed["metrics"]);
            assert_eq!(listed_as, (&json!(id), &json!(device.metrics)), "round {round}");
            let newest = device.metadata.last_key_value().map_or(&Value::Null, |(_, metadata)| metadata);
            assert_eq!(&listed["metadata"], newest, "{id}, round {round}");
            let seen = |key: &str| bson::DateTime::parse_rfc3339_str(listed[key].as_str().expect("a time"));
            let seen = ["firstSeen", "lastSeen"].map(|key| seen(key).expect("RFC 3339").timestamp_millis());
            let expected = [device.instants.iter().min(), device.instants.iter().max()].map(|ts| *ts.expect("one"));
            assert_eq!(seen, expected, "{id}, round {round}");
            let latest = server.get_json(&format!("/v1/devices/{id}/latest")).await;
            let of = |(ts, value): &(i64, f64)| json!({ "ts": rfc3339(*ts), "value": value });
            let expected: BTreeMap<_, _> = device.latest.iter().map(|(metric, last)| (metric, of(last))).collect();
            assert_eq!(latest["metrics"], json!(expected), "{id}, round {round}");
        }
        if random.random_bool(0.7) {
            assert!(server.terminate().await.success(), "it stores what is pending before it ends");
            server.start_again().await;
            assert_eq!(server.get_json("/v1/devices").await, before, "round {round}");
        }
    }
}

#[tokio::test]
async fn totals_keep_devices_whose_readings_expired_in_sqlite() {
    let mut server = Server::start(Setup::sqlite()).await;
    let before = totals_of_a_fleet(&server).await;
    assert!(server.terminate().await.success());
    server.start_again_with(Setup::sqlite().set("retention.readings", "1d")).await;
    assert_totals_after_expiry(&server, &before).await;
}

#[tokio::test]
async fn totals_keep_devices_whose_readings_expired_in_mongodb() {
    let database = Database::new();
    totals_survive_deletion(&database, Setup::mongodb(&database), "buckets", "deviceId").await;
}

#[tokio::test]
async fn totals_keep_devices_whose_readings_expired_in_a_time_series() {
    let database = Database::new();
    totals_survive_deletion(&database, Setup::timeseries(&database), "readings", "meta.deviceId").await;
}

async fn totals_survive_deletion(database: &Database, setup: Setup, collection: &str, device_field: &str) {
    let server = Server::start(setup).await;
    let before = totals_of_a_fleet(&server).await;
    expire(&server, database, collection, doc! { device_field: { "$in": ["old-1", "old-2"] } }).await;
    assert_totals_after_expiry(&server, &before).await;
}

/// Deletes readings as the server's expiry does, once their hours are rolled up.
async fn expire(server: &Server, database: &Database, collection: &str, filter: Document) {
    wait_until("all hours are rolled up", async || {
        let lag = server.metrics().await.value("tidegauge_rollup_lag_seconds");
        let days = database.aggregate("rollups", vec![doc! { "$match": {} }]).await;
        (lag == Some(0.0) && days.len() >= 2).then_some(())
    })
    .await;
    database.handle().await.collection::<Document>(collection).delete_many(filter).await.expect("deleted");
}

/// Two devices that report no more, and one that does.
async fn totals_of_a_fleet(server: &Server) -> Value {
    for device in ["old-1", "old-2"] {
        let readings: Vec<Value> =
            (0..50).map(|at| json!({ "ts": START_MS + at * 300_000, "values": { "t": at } })).collect();
        let metadata = json!({ "floor": 1 });
        let body = json!({ "deviceId": device, "metadata": metadata, "readings": readings });
        assert_eq!(server.ingest(&body).await.status, 200);
    }
    assert_eq!(server.ingest(&json!({ "deviceId": "new", "values": { "t": 1 } })).await.status, 200);
    server.settled().await;
    let total = server.get_json(&format!("/v1/rollups?{DAY}&step=1d&combine=true")).await;
    assert_eq!((&total["devices"], &total["metrics"]["t"][0]["count"]), (&json!(3), &json!(100)));
    total
}

async fn assert_totals_after_expiry(server: &Server, before: &Value) {
    wait_until("the readings have expired", async || {
        let latest = async |device: &str| server.get_json(&format!("/v1/devices/{device}/latest")).await;
        let found = [latest("old-1").await, latest("old-2").await];
        found.iter().all(|latest| latest["metrics"] == json!({})).then_some(())
    })
    .await;
    assert_eq!(&server.get_json(&format!("/v1/rollups?{DAY}&step=1d&combine=true")).await, before);
    let listed = server.get_json("/v1/devices?prefix=old").await;
    let device = |id: &str| {
        json!({
            "deviceId": id, "metadata": { "floor": 1 }, "metrics": ["t"],
            "firstSeen": "2024-04-20T00:00:00.000Z", "lastSeen": "2024-04-20T04:05:00.000Z",
        })
    };
    assert_eq!(listed, json!({ "devices": [device("old-1"), device("old-2")], "next": null }));
}

/// Devices with 1 to 24 hours of one to three metrics.
async fn ingest_fleet(server: &Server) {
    let mut body = Vec::new();
    for device in 0..20 {
        for hour in 0..=(device * 7 % 24) {
            let values: BTreeMap<_, _> = ["a", "b", "c"].iter().take(1 + device as usize % 3).zip(1..).collect();
            body.push(
                json!({ "deviceId": format!("f-{device:02}"), "ts": START_MS + hour * HOUR_MS, "values": values }),
            );
        }
    }
    assert_eq!(server.ingest(&json!(body)).await.status, 200);
}

/// All devices of an answer in pages.
async fn follow(server: &Server, path: &str, max_points: usize) -> (Vec<Value>, usize) {
    let (mut devices, mut pages, mut cursor) = (Vec::new(), 0, String::new());
    loop {
        let page = server.get_json(&format!("{path}{cursor}")).await;
        let of_page = page["devices"].as_array().expect("devices").clone();
        let series = of_page.iter().flat_map(|device| device["metrics"].as_object().expect("metrics").values());
        let points: usize = series.map(|series| series.as_array().expect("a series").len()).sum();
        assert!(points <= max_points, "{points} points in a page");
        assert!(!of_page.is_empty() || page["next"].is_null(), "a page has at least one device");
        devices.extend(of_page);
        pages += 1;
        let Some(next) = page["next"].as_str() else { return (devices, pages) };
        cursor = format!("&cursor={next}");
    }
}

in_stores!(rollups_come_in_pages_that_add_up, [sqlite, mongodb]);

async fn rollups_come_in_pages_that_add_up(setup: Setup) {
    let mut server = Server::start(setup.clone()).await;
    ingest_fleet(&server).await;
    server.settled().await;
    let path = format!("/v1/rollups?{DAY}");
    let (all, pages) = follow(&server, &path, usize::MAX).await;
    assert_eq!((all.len(), pages), (20, 1));
    let combined = server.get_json(&format!("{path}&combine=true")).await;
    // The store is asked for each device by itself, and for several at the same time.
    assert_eq!(follow(&server, &format!("/v1/rollups?{YEAR}"), usize::MAX).await, (all.clone(), 1));
    assert_eq!(server.get_json(&format!("/v1/rollups?{YEAR}&combine=true")).await, combined);

    assert!(server.terminate().await.success());
    // 72 points: the answer of `combine`, and that of the largest device.
    server.start_again_with(setup.set("query.max_points", 72)).await;
    for query in ["", "&prefix=f-", "&limit=7", "&metric=a"] {
        let (paged, pages) = follow(&server, &format!("{path}{query}"), 72).await;
        assert!(pages > 2, "{query}: {pages} pages");
        if query != "&metric=a" {
            assert_eq!(paged, all, "{query}");
        }
    }
    let named: Vec<String> = (0..20).rev().map(|device| format!("device=f-{device:02}")).collect();
    let named = format!("&{}", named.join("&"));
    let (paged, pages) = follow(&server, &format!("{path}{named}"), 72).await;
    assert!(pages > 2 && paged.iter().eq(all.iter().rev()), "{pages} pages");
    assert_eq!(server.get_json(&format!("{path}&combine=true")).await, combined, "the limit is about the answer");
    assert!(server.terminate().await.success());

    let small = Setup::sqlite().set("query.max_points", 71);
    let server = Server::start(small).await;
    ingest_fleet(&server).await;
    for query in
        [format!("{path}&combine=true"), format!("/v1/devices/f-17/rollups?{DAY}"), format!("{path}&device=f-17")]
    {
        let told = get_problem(&server, &query, 400, "too_many_points").await;
        assert!(told.contains("72 points or more") && told.contains("at most 71"), "{told}");
    }
    let before = follow(&server, &format!("{path}&prefix=f-0"), 71).await.0.len();
    assert_eq!(before, 10, "devices that fit are answered");
}

#[tokio::test]
async fn a_range_includes_its_first_and_last_step_completely() {
    let server = Server::start(Setup::sqlite()).await;
    let two_days = (0..48).map(|hour| json!({ "deviceId": "d", "ts": START_MS + hour * HOUR_MS, "value": hour }));
    assert_eq!(server.ingest(&two_days.collect()).await.status, 200);
    let counts = async |query: &str| {
        let rollups = server.get_json(&format!("/v1/devices/d/rollups?{query}")).await;
        let series = rollups["metrics"]["value"].as_array().cloned().unwrap_or_default();
        series.iter().map(|point| point["count"].as_u64().expect("a count")).collect::<Vec<_>>()
    };
    let (noon, end) = (START_MS + 12 * HOUR_MS, START_MS + 36 * HOUR_MS);
    assert_eq!(counts(&format!("from={noon}&to={end}&step=1d")).await, [24, 24]);
    assert_eq!(counts(&format!("from={noon}&to={}&step=1d", noon + 1)).await, [24]);
    assert_eq!(counts(&format!("from={}&to={}&step=6h", noon - 1, noon + 1)).await, [6, 6]);
    assert_eq!(counts(&format!("from={noon}&to={}", noon + 1)).await, [1]);
    assert_eq!(counts(&format!("to={end}&step=1d")).await, [24, 24], "30 days before");
    assert_eq!(counts(&format!("to={}&step=1d", START_MS + 31 * 24 * HOUR_MS)).await, [24]);
    assert_eq!(counts(&format!("to={}", START_MS + 48 * HOUR_MS)).await, [1; 24], "a day before");
    assert_eq!(counts(&format!("to={}&step=12h", START_MS + 13 * 24 * HOUR_MS)).await, [12, 12], "24 steps before");
    for query in ["step=1d&metric=other", &format!("{DAY}&metric=Value")] {
        let rollups = server.get_json(&format!("/v1/devices/d/rollups?{query}")).await;
        assert_eq!(rollups["metrics"], json!({}), "a device that exists is not unknown: {query}");
    }
}

#[tokio::test]
async fn an_unknown_device_differs_from_an_empty_answer() {
    let server = Server::start(Setup::sqlite()).await;
    let ingested = json!({ "deviceId": "room-1", "ts": START_MS, "value": 1 });
    assert_eq!(server.ingest(&ingested).await.status, 200);
    for device in ["room", "room-10", "Room-1", "z"] {
        get_problem(&server, &format!("/v1/devices/{device}/rollups?{DAY}"), 404, "unknown_device").await;
    }
    for when in ["pending", "stored"] {
        let empty =
            server.get_json("/v1/devices/room-1/rollups?from=2024-01-01T00:00:00Z&to=2024-01-02T00:00:00Z").await;
        assert_eq!(empty["metrics"], json!({}), "{when}");
        server.settled().await;
    }
    get_problem(&server, "/v1/devices?prefix=%20room", 400, "invalid_parameter").await;
}
