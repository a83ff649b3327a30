//! Deletions over HTTP: pending and stored readings, rollups, the device list, dry runs, kills.

use bson::doc;
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Database, Mongod, Server, Setup, in_stores, secret_of, wait_until};

const HOUR_MS: i64 = 3_600_000;
/// 2024-04-20T14:00:00Z.
const START_MS: i64 = 1_713_621_600_000;

async fn delete(server: &Server, path: &str) -> (u16, Value) {
    let answer = server.send(server.request(Method::DELETE, path)).await;
    let body = serde_json::from_str(answer.text()).unwrap_or(Value::Null);
    (answer.status, body)
}

/// A reading each minute of three hours, with two metrics.
fn batch(device: &str) -> Value {
    let values = |minute: i64| json!({ "hum": 40, "temp": minute });
    let reading =
        |minute: i64| json!({ "deviceId": device, "ts": START_MS + minute * 60_000, "values": values(minute) });
    json!((0..180).map(reading).collect::<Vec<_>>())
}

async fn count(server: &Server, device: &str, metric: &str) -> u64 {
    let range = "from=2024-04-20T00:00:00Z&to=2024-04-21T00:00:00Z";
    let answer = server.get(&format!("/v1/devices/{device}/rollups?{range}&metric={metric}")).await;
    if answer.status == 404 {
        return 0; // nothing of the device is left
    }
    let rollups = answer.json();
    let steps = rollups["metrics"][metric].as_array().cloned().unwrap_or_default();
    steps.iter().map(|step| step["count"].as_u64().unwrap_or_default()).sum()
}

#[tokio::test]
async fn a_deletion_removes_what_was_acknowledged_before_it_and_nothing_else() {
    removes(Setup::sqlite(), &[false, true]).await;
}

#[tokio::test]
async fn a_deletion_removes_what_mongodb_has_and_what_is_pending() {
    let (readable, packed) = (Database::new(), Database::new());
    tokio::join!(removes(Setup::mongodb(&readable), &[true]), removes(Setup::packed(&packed), &[true, false]));
}

async fn removes(setup: Setup, is_settled: &[bool]) {
    for &is_settled in is_settled {
        let setup = setup.clone();
        let mut server = Server::start(if is_settled { setup } else { setup.all_pending() }).await;
        server.ingest(&batch("S1")).await;
        server.ingest(&batch("S2")).await;
        if is_settled {
            server.settled().await;
        }
        let range = format!("from={}&to={}", START_MS + HOUR_MS / 2, START_MS + 2 * HOUR_MS);
        let path = format!("/v1/devices/S1/readings?{range}");
        let dry = delete(&server, &format!("{path}&dry_run=true")).await;
        assert_eq!(dry, (200, json!({ "deleted": 90, "dryRun": true })));
        assert_eq!(count(&server, "S1", "temp").await, 180, "a dry run deletes nothing");
        assert_eq!(delete(&server, &format!("{path}&metric=temp")).await, (200, json!({ "deleted": 90 })));
        assert_eq!((count(&server, "S1", "temp").await, count(&server, "S1", "hum").await), (90, 180));
        assert_eq!(delete(&server, &path).await, (200, json!({ "deleted": 90 })));
        assert_eq!((count(&server, "S1", "temp").await, count(&server, "S1", "hum").await), (90, 90));
        server.ingest(&batch("S1")).await;
        assert_eq!(count(&server, "S1", "temp").await, 180, "they can be sent again");
        assert_eq!(delete(&server, "/v1/devices/S1").await.0, 200);
        assert_eq!(server.get("/v1/devices/S1/latest").await.status, 404);
        let devices = server.get_json("/v1/devices").await;
        let ids: Vec<&Value> =
            devices["devices"].as_array().expect("a list").iter().map(|device| &device["deviceId"]).collect();
        assert_eq!(ids, ["S2"]);
        assert_eq!(count(&server, "S2", "temp").await, 180);
        assert_eq!(delete(&server, "/v1/devices/S1").await, (200, json!({ "deleted": 0 })));
        server.assert_balanced().await;
        assert!(server.terminate().await.success());
    }
}

#[tokio::test]
async fn a_time_series_collection_deletes_whole_devices_only() {
    let database = Database::new();
    let server = Server::start(Setup::timeseries(&database)).await;
    for device in ["S1", "S2"] {
        server.ingest(&batch(device)).await;
    }
    server.settled().await;
    let (status, body) = delete(&server, "/v1/devices/S1/readings?from=0&to=now").await;
    assert_eq!((status, &body["code"]), (501, &json!("deletion_unsupported")), "{body}");
    assert_eq!(delete(&server, "/v1/devices/S1?dry_run=true").await, (200, json!({ "deleted": 180, "dryRun": true })));
    assert_eq!(delete(&server, "/v1/devices/S1").await, (200, json!({ "deleted": 180 })));
    assert_eq!((count(&server, "S1", "temp").await, count(&server, "S2", "temp").await), (0, 180));
    server.ingest(&batch("S1")).await;
    server.settled().await;
    assert_eq!(count(&server, "S1", "temp").await, 180, "they can be sent again");
    assert_eq!(delete(&server, "/v1/devices/S1/readings?all=true").await, (200, json!({ "deleted": 180 })));
}

/// The second instance has readings of the device in its log, on their way to the store, and in the store.
#[tokio::test]
async fn a_deletion_through_one_instance_removes_what_the_other_one_has() {
    let (readable, packed, timeseries) = (Database::new(), Database::new(), Database::new());
    tokio::join!(
        removes_through_one(Setup::mongodb(&readable)),
        removes_through_one(Setup::packed(&packed)),
        removes_through_one(Setup::timeseries(&timeseries)),
    );
}

async fn removes_through_one(setup: Setup) {
    let (one, other) = tokio::join!(Server::start(setup.clone()), Server::start(setup.all_pending()));
    one.ingest(&batch("S2")).await;
    let later = json!([{ "deviceId": "S1", "ts": START_MS + 5 * HOUR_MS, "values": { "temp": 7 } }]);
    other.ingest(&batch("S1")).await;
    other.ingest(&later).await;
    assert_eq!((count(&one, "S1", "temp").await, count(&other, "S1", "temp").await), (0, 181));
    assert_eq!(delete(&one, "/v1/devices/S1").await, (200, json!({ "deleted": 181 })));
    assert_eq!((count(&one, "S1", "temp").await, count(&other, "S1", "temp").await), (0, 0));
    let log = other.logged("deleted readings").await;
    assert!(log.contains("audit") && log.contains("S1"), "{log}");
    other.ingest(&later).await;
    assert_eq!(count(&other, "S1", "temp").await, 1, "what follows stays");
    assert_eq!(delete(&other, "/v1/devices/S2").await, (200, json!({ "deleted": 180 })));
    assert_eq!((count(&one, "S2", "temp").await, count(&other, "S2", "temp").await), (0, 0));
}

/// It has the readings in its log, which is full, when it comes back. Meanwhile the other one has received
/// them anew.
#[tokio::test]
async fn an_instance_that_was_away_removes_what_it_has_and_nothing_else() {
    let database = Database::new();
    let setup = Setup::mongodb(&database).set("mongodb.timeout", "1s");
    let (one, mut other) = tokio::join!(Server::start(setup.clone()), Server::start(setup.clone().all_pending()));
    other.ingest(&batch("S1")).await;
    wait_until("the log is larger than its later limit", async || {
        for _ in 0..10 {
            other.ingest(&batch("S2")).await;
        }
        (other.metrics().await.count("tidegauge_log_bytes") > 128 << 10).then_some(())
    })
    .await;
    other.kill9();
    let (status, answer) = delete(&one, "/v1/devices/S1").await;
    assert_eq!((status, &answer["pending"]), (202, &json!(true)), "{answer}");
    let waits_for = answer["waitsFor"].as_array().expect("the instances that it waits for").clone();
    wait_until("two instances, and a deletion waits", async || (shared(&one).await == (2, 1)).then_some(())).await;
    let complete = wait_until("the other instance is taken for dead", async || {
        let (status, answer) = delete(&one, "/v1/devices/S1").await;
        (status == 200).then_some(answer)
    })
    .await;
    assert_eq!(complete, json!({ "deleted": 0, "absent": waits_for }));
    wait_until("one instance runs, and nothing waits", async || (shared(&one).await == (1, 0)).then_some(())).await;
    let corrected = json!([{ "deviceId": "S1", "ts": START_MS, "values": { "temp": 5.0 } }]);
    one.ingest(&corrected).await;
    one.settled().await;
    other.start_again_with(setup.set("log.segment_bytes", "64KiB").set("log.max_bytes", "128KiB")).await;
    other.settled().await;
    for server in [&one, &other] {
        assert_eq!(
            server.readings("S1").await,
            json!([{ "ts": "2024-04-20T14:00:00.000Z", "values": { "temp": 5.0 } }])
        );
        assert_eq!(count(server, "S2", "temp").await, 180, "another device");
        let listed = server.get_json("/v1/devices").await["devices"].as_array().expect("a list").len();
        assert_eq!(listed, 2);
    }
    wait_until("no deletion stays noted", async || {
        let left = database.aggregate("buckets_instances", vec![doc! { "$match": { "kind": "deletion" } }]).await;
        left.is_empty().then_some(())
    })
    .await;
    wait_until("both run, and nothing waits", async || (shared(&one).await == (2, 0)).then_some(())).await;
}

/// When it reaches MongoDB, its memory is full of deleted readings, and its log has more of them.
#[tokio::test]
async fn an_instance_that_was_away_stores_nothing_deleted_although_its_memory_is_full_when_it_returns() {
    let mongod = Mongod::start();
    let database = Database::on(&mongod);
    let setup = Setup::mongodb(&database).set("mongodb.timeout", "1s");
    let (one, mut other) = tokio::join!(Server::start(setup.clone()), Server::start(setup.clone().all_pending()));
    let later = json!([{ "deviceId": "S1", "ts": START_MS + 5 * HOUR_MS, "values": { "hum": 40, "temp": 7 } }]);
    for readings in [&batch("S1"), &batch("S2"), &batch("S3"), &batch("S4"), &later] {
        assert_eq!(other.ingest(readings).await.status, 200);
    }
    other.kill9();
    wait_until("the other instance is taken for dead", async || {
        let (status, _) = delete(&one, "/v1/devices/S1/readings?all=true&metric=temp").await;
        (status == 200).then_some(())
    })
    .await;
    mongod.freeze();
    other.start_again_with(setup.set("pending.max_bytes", "1KiB")).await;
    other.logged("pending is full").await;
    mongod.thaw();
    other.settled().await;
    wait_until("both run, and nothing waits", async || (shared(&one).await == (2, 0)).then_some(())).await;
    for server in [&one, &other] {
        assert_eq!((count(server, "S1", "temp").await, count(server, "S1", "hum").await), (0, 181));
        assert_eq!(count(server, "S4", "temp").await, 180, "another device");
    }
}

/// The instances that run, and the deletions that wait for one, as an instance counts them.
async fn shared(server: &Server) -> (u64, u64) {
    let metrics = server.metrics().await;
    (metrics.count("tidegauge_instances"), metrics.count("tidegauge_deletions_waiting"))
}

#[tokio::test]
async fn an_instance_that_ends_with_nothing_left_is_not_waited_for() {
    let database = Database::new();
    let setup = Setup::mongodb(&database);
    let (one, mut other) = tokio::join!(Server::start(setup.clone()), Server::start(setup));
    other.ingest(&batch("S1")).await;
    assert!(other.terminate().await.success());
    assert_eq!(delete(&one, "/v1/devices/S1").await, (200, json!({ "deleted": 180 })));
}

#[tokio::test]
async fn an_instance_that_ends_with_letters_of_a_failed_retry_misses_no_deletion() {
    tokio::join!(
        misses_no_deletion_with_letters_in("dead-letters.retrying.ndjson"),
        misses_no_deletion_with_letters_in("forward-dead-letters.ndjson"),
        misses_no_deletion_with_letters_in("forward-dead-letters.retrying.ndjson"),
    );
}

async fn misses_no_deletion_with_letters_in(file: &str) {
    let database = Database::new();
    let setup = Setup::mongodb(&database).set("mongodb.timeout", "1s");
    let (one, mut other) = tokio::join!(Server::start(setup.clone()), Server::start(setup));
    let path = other.data_dir().join(file);
    let mut letter = json!({ "refusedAt": "2024-04-20T14:00:00.000Z", "reason": "validation", "detail": "" });
    letter["deviceId"] = json!("S1");
    letter["readings"] = json!([{ "ts": START_MS, "values": { "temp": 7 } }]);
    std::fs::write(&path, format!("{letter}\n")).expect("our folder");
    assert!(other.terminate().await.success());
    let complete = wait_until("the other instance is taken for dead", async || {
        let (status, answer) = delete(&one, "/v1/devices/S1").await;
        (status == 200).then_some(answer)
    })
    .await;
    assert_eq!(complete["absent"].as_array().map(Vec::len), Some(1), "{file}: {complete}");
    other.start_again().await;
    wait_until("the letter is deleted", async || {
        std::fs::read_to_string(&path).expect("the file stays").is_empty().then_some(())
    })
    .await;
}

/// Sends the same twelve instants again and again. Each counts once.
async fn counts_each_reading_once(setup: Setup, deletes_ranges: bool) {
    let mut server = Server::start(setup.clone().all_pending()).await;
    let send = async |server: &Server, metric: &str, times: u32| {
        for value in 0..times {
            let reading =
                |nth: i64| json!({ "deviceId": "S1", "ts": START_MS + nth * HOUR_MS / 4, "values": { metric: value } });
            server.accepts(&json!((0..12).map(reading).collect::<Vec<_>>())).await;
        }
    };
    let parts = [("", 12), ("?from=2024-04-20T14:10:00Z&to=2024-04-20T16:00:00Z", 7)];
    for (range, expected) in parts.into_iter().take(if deletes_ranges { 2 } else { 1 }) {
        let of_a: &[(&str, u32)] = &[("a", 7)];
        for (step, sent) in [
            ("pending", of_a),
            ("stored", &[("a", 7), ("", 0)]),
            ("both", &[("a", 7), ("a", 3)]),
            ("other metrics pending", &[("a", 1), ("b", 2)]),
            ("other metrics stored", &[("a", 1), ("b", 2), ("a", 0)]),
        ] {
            for (nth, (metric, times)) in sent.iter().enumerate() {
                if nth > 0 {
                    assert!(server.terminate().await.success(), "everything is stored");
                    server.start_again_with(setup.clone().all_pending()).await;
                }
                send(&server, metric, *times).await;
            }
            let path = if range.is_empty() { "/v1/devices/S1?" } else { &format!("/v1/devices/S1/readings{range}&") };
            let dry = delete(&server, &format!("{path}dry_run=true")).await;
            assert_eq!(dry, (200, json!({ "deleted": expected, "dryRun": true })), "{range}, {step}");
            assert_eq!(delete(&server, path).await, (200, json!({ "deleted": expected })), "{range}, {step}");
            assert_eq!(delete(&server, path).await, (200, json!({ "deleted": 0 })), "{range}, {step}");
            server.assert_balanced().await;
        }
    }
}

in_stores!(counts_each_reading_once, [sqlite(true), mongodb(true), packed(true), timeseries(false)]);

#[tokio::test]
async fn a_dead_letter_counts_in_a_dry_run_too() {
    let database = Database::new();
    let server = Server::start(Setup::mongodb(&database)).await;
    server.ingest(&batch("S1")).await;
    server.settled().await;
    let validator = doc! { "deviceId": { "$ne": "S2" } };
    let command = doc! { "collMod": "buckets", "validator": validator };
    database.handle().await.run_command(command).await.expect("the collection is there");
    server.ingest(&batch("S2")).await;
    let metrics = server.settled().await;
    assert_eq!(metrics.count("tidegauge_readings_dead_lettered_total"), 180);
    let path = format!("/v1/devices/S2/readings?from={START_MS}&to={}", START_MS + HOUR_MS);
    for expected in [60, 0] {
        let dry = delete(&server, &format!("{path}&dry_run=true")).await;
        assert_eq!(dry, (200, json!({ "deleted": expected, "dryRun": true })));
        assert_eq!(delete(&server, &path).await, (200, json!({ "deleted": expected })));
    }
}

#[tokio::test]
async fn a_deletion_names_its_range() {
    let server = Server::start(Setup::sqlite()).await;
    for query in ["", "?from=0", "?to=9", "?from=9&to=9", "?all=true&from=0", "?all=false", "?from=0&to=1&x=1"] {
        let (status, body) = delete(&server, &format!("/v1/devices/S1/readings{query}")).await;
        assert_eq!((status, &body["code"]), (400, &json!("invalid_parameter")), "{query}: {body}");
    }
    assert_eq!(delete(&server, "/v1/devices/S1/readings?all=true&metric=a").await, (200, json!({ "deleted": 0 })));
}

#[tokio::test]
async fn only_an_administrator_deletes_and_only_in_its_own_tenant_and_it_is_audited() {
    let setup = Setup::sqlite()
        .token("operator", "scopes = [\"admin\"]")
        .token("writer", "scopes = [\"ingest\", \"query\"]")
        .token("ops", "scopes = [\"admin\"]\ndevice_prefix = \"t1-\"");
    let server = Server::start(setup).await;
    let delete_as = async |name: &str, device: &str| {
        let request = server.request(Method::DELETE, &format!("/v1/devices/{device}"));
        server.send(request.bearer_auth(secret_of(name))).await.status
    };
    let sent = server.request(Method::POST, "/v1/readings").bearer_auth(secret_of("writer"));
    let sent = sent.body(json!([{ "deviceId": "S1", "ts": START_MS, "value": 1 }]).to_string());
    assert_eq!(server.send(sent).await.status, 200);
    assert_eq!((delete_as("writer", "S1").await, delete_as("ops", "S1").await), (403, 200));
    let latest = server.request(Method::GET, "/v1/devices/S1/latest").bearer_auth(secret_of("writer"));
    assert_eq!(server.send(latest).await.status, 200, "the device of another tenant is still there");
    let log = server.logged("deleted readings").await;
    assert!(log.contains("audit") && log.contains("ops") && log.contains("t1-S1"), "{log}");
}

#[tokio::test]
async fn a_kill_brings_nothing_back_and_loses_nothing() {
    for is_settled in [false, true] {
        let setup = Setup::sqlite();
        let mut server = Server::start(if is_settled { setup } else { setup.all_pending() }).await;
        server.ingest(&batch("S1")).await;
        if is_settled {
            server.settled().await;
        }
        let range = format!("from={START_MS}&to={}", START_MS + HOUR_MS);
        assert_eq!(delete(&server, &format!("/v1/devices/S1/readings?{range}")).await.0, 200);
        server.ingest(&json!([{ "deviceId": "S1", "ts": START_MS, "values": { "temp": 7 } }])).await;
        server.kill9();
        server.start_again_with(Setup::sqlite()).await;
        assert_eq!(count(&server, "S1", "temp").await, 121);
        server.settled().await;
        assert_eq!((count(&server, "S1", "temp").await, count(&server, "S1", "hum").await), (121, 120));
    }
}
