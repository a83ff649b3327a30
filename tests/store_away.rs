//! An unavailable store: the server accepts readings, queries return partial answers marked as such, and
//! operators can see the state.

use bson::doc;
use serde_json::{Value, json};

use crate::harness::{Database, Mongod, Server, Setup, mongod, wait_until};

const START_MS: i64 = 1_713_621_600_000; // 2024-04-20T14:00:00Z
const RANGE: &str = "from=2024-04-20T00:00:00Z&to=2024-04-21T00:00:00Z";

async fn send(server: &Server, device: &str, at: i64) {
    let reading = json!({ "deviceId": device, "ts": START_MS + at * 1_000, "value": at });
    assert_eq!(server.ingest(&reading).await.status, 200);
}

async fn wait_for_status(server: &Server, status: &str) -> Value {
    wait_until(&format!("/readyz says {status}"), async || {
        let ready = server.get_json("/readyz").await;
        (ready["status"] == status).then_some(ready)
    })
    .await
}

/// `down` makes the store unavailable, `up` available again.
async fn away_and_back(kill: bool) {
    let mut mongod = Mongod::start();
    let database = Database::on(&mongod);
    let setup = Setup::mongodb(&database).set("mongodb.timeout", "10s").set("query.timeout", "2s");
    let server = Server::start(setup).await;
    send(&server, "stored", 0).await;
    send(&server, "both", 0).await;
    server.settled().await;
    assert_eq!(server.get_json("/readyz").await["status"], "ok");

    if kill {
        mongod.kill9();
    } else {
        mongod.freeze();
    }
    send(&server, "both", 5).await;
    send(&server, "pending", 5).await;
    let ready = wait_for_status(&server, "degraded").await;
    assert!(ready["reason"].as_str().is_some_and(|why| why.starts_with("the store is away: ")), "{ready}");
    assert!(ready["storeAwaySeconds"].is_u64() && ready["logUsed"].is_f64(), "{ready}");
    assert_eq!(ready["pendingReadings"], 2);

    for query in ["latest", &format!("rollups?{RANGE}"), &format!("readings?{RANGE}")] {
        for device in ["both", "pending"] {
            let partial = server.get_json(&format!("/v1/devices/{device}/{query}")).await;
            assert_eq!(partial["partial"], true, "{device} {query}: {partial}");
            assert!(partial.to_string().contains('5'), "{partial}");
        }
        let none = server.get(&format!("/v1/devices/stored/{query}")).await;
        assert_eq!((none.status, none.json()["code"].as_str()), (503, Some("store_unavailable")), "{query}");
        assert!(!none.header("retry-after").is_empty());
    }
    let counted = server.send(server.request(reqwest::Method::DELETE, "/v1/devices/both?dry_run=true")).await;
    assert_eq!((counted.status, counted.json()["code"].as_str()), (503, Some("store_unavailable")));
    let listed = server.get_json("/v1/devices").await;
    assert_eq!((&listed["partial"], listed["devices"].as_array().map(Vec::len)), (&json!(true), Some(2)));

    if kill {
        tokio::task::block_in_place(|| mongod.start_again());
    } else {
        mongod.thaw();
    }
    wait_for_status(&server, "ok").await;
    server.settled().await;
    let whole = server.get_json(&format!("/v1/devices/both/readings?{RANGE}")).await;
    assert_eq!((whole["readings"].as_array().map(Vec::len), whole.get("partial")), (Some(2), None), "{whole}");
    let log = server.logged("the store is back").await;
    assert_eq!(log.matches("the store is away; readings wait in the log").count(), 1, "{log}");
    assert_eq!(log.matches("the store is back").count(), 1, "{log}");
    let counted = database.aggregate("buckets", vec![doc! { "$count": "n" }]).await;
    assert_eq!(counted, [doc! { "n": 3 }]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_begin_and_end_of_a_full_log_and_its_cause_are_logged() {
    let mut mongod = Mongod::start();
    let database = Database::on(&mongod);
    let setup = Setup::mongodb(&database).set("mongodb.timeout", "1s");
    let setup = setup.set("log.segment_bytes", "64KiB").set("log.max_bytes", "128KiB");
    let server = Server::start(setup).await;
    mongod.kill9();
    let readings: Vec<_> = (0..300).map(|at| json!({ "ts": START_MS + at, "value": at })).collect();
    let batch = json!({ "deviceId": "d", "readings": readings });
    wait_until("the log is full", async || (server.ingest(&batch).await.status == 503).then_some(())).await;
    assert_eq!(server.ingest(&batch).await.status, 503);
    let ready = wait_until("the store is said to be away", async || {
        let ready = server.get("/readyz").await.json();
        ready["storeAwaySeconds"].is_u64().then_some(ready)
    })
    .await;
    assert_eq!(ready["status"], "overloaded", "{ready}");
    let reason = ready["reason"].as_str().expect("a reason");
    assert!(reason.starts_with("the log is ") && reason.contains("full") && reason.contains("; the store is away: "));
    let full = "the log is full (log.max_bytes)";
    assert_eq!(server.logged(full).await.matches(full).count(), 1, "{}", server.log());
    tokio::task::block_in_place(|| mongod.start_again());
    server.logged("the log has room again").await;
    wait_for_status(&server, "ok").await;
    assert_eq!(server.log().matches(full).count(), 1, "{}", server.log());
    server.settled().await;
}

#[tokio::test]
async fn a_stop_during_an_outage_logs_the_number_of_unstored_readings() {
    let uri = format!("mongodb://127.0.0.1:{}", mongod::free_port());
    let setup = Setup::sqlite().set("mongodb.uri", uri).set("server.shutdown_grace", "200ms");
    let mut server = Server::start(setup.clone()).await;
    send(&server, "a", 0).await;
    send(&server, "b", 0).await;
    wait_for_status(&server, "degraded").await;
    assert!(server.terminate().await.success());
    let log = server.logged("the log for the next start").await;
    let waits: Vec<&str> = log.lines().filter(|line| line.contains("the log for the next start")).collect();
    assert!(waits.len() == 1 && waits[0].contains("readings=2") && waits[0].contains("the store is away"), "{log}");
}

/// The store answers until the stop begins, and takes longer than the grace for the pending readings.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_with_its_grace_and_the_next_start_stores_the_rest() {
    let mongod = Mongod::start();
    let database = Database::on(&mongod);
    let setup = Setup::mongodb(&database).set("server.shutdown_grace", "1s").set("flush.max_age", "1h");
    let mut server = Server::start(setup.set("mongodb.timeout", "1m")).await;
    send(&server, "a", 0).await;
    send(&server, "b", 0).await;
    send(&server, "b", 1).await;
    mongod.freeze();
    assert!(server.terminate().await.success(), "{}", server.log());
    let log = server.logged("the log for the next start").await;
    let line = log.lines().find(|line| line.contains("the store did not take all readings before the stop"));
    assert!(line.is_some_and(|line| line.contains("readings=3")), "{log}");
    mongod.thaw();
    server.start_again().await;
    assert_eq!(server.metrics().await.count("tidegauge_readings_pending"), 3);
    assert_eq!(server.readings("b").await.as_array().map(Vec::len), Some(2));
    assert!(server.terminate().await.success(), "{}", server.log());
    assert_eq!(database.aggregate("buckets", vec![]).await.len(), 2);
}

#[tokio::test]
async fn no_reading_is_lost_when_the_database_file_is_removed() {
    let mut server = Server::start(Setup::sqlite()).await;
    send(&server, "before", 0).await;
    server.settled().await;
    let file = server.data_dir().join("tidegauge.sqlite");
    let aside = server.data_dir().join("aside.sqlite");
    std::fs::rename(&file, &aside).expect("the file is there");
    send(&server, "meanwhile", 1).await;
    let ready = wait_for_status(&server, "degraded").await;
    assert!(ready["reason"].as_str().is_some_and(|why| why.contains("tidegauge.sqlite was removed while")), "{ready}");
    assert_eq!(server.metrics().await.count("tidegauge_readings_pending"), 1);
    std::fs::rename(&aside, &file).expect("it comes back");
    wait_for_status(&server, "ok").await;
    server.settled().await;

    std::fs::remove_file(&file).expect("the file is there");
    send(&server, "after", 2).await;
    wait_for_status(&server, "degraded").await;
    assert_eq!(server.metrics().await.count("tidegauge_readings_pending"), 1);
    server.kill9();
    server.start_again().await;
    server.settled().await;
    assert_eq!(server.readings("after").await.as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_server_without_its_log_ends_and_does_not_say_that_readings_wait_there() {
    let mut server = Server::start(Setup::sqlite().all_pending()).await;
    send(&server, "lost", 0).await;
    // The query makes the reader of the log open the segment, before it is removed.
    assert_eq!(server.readings("lost").await.as_array().map(Vec::len), Some(1));
    std::fs::remove_file(server.data_dir().join("tidegauge.sqlite")).expect("the file is there");
    for entry in std::fs::read_dir(server.data_dir().join("log")).expect("the log is there") {
        std::fs::remove_file(entry.expect("an entry").path()).expect("the file is there");
    }
    let log = server.logged("the store has not taken these readings: they are lost").await;
    assert!(log.contains("the log has failed: ") && log.contains("was removed while it is in use"), "{log}");
    assert!(!log.contains("in the log for the next start"), "{log}");
    server.kill9(); // it has ended, or is about to
}

#[tokio::test]
async fn a_store_that_only_refuses_writes_answers_queries() {
    let server = Server::start(Setup::sqlite()).await;
    send(&server, "stored", 0).await;
    send(&server, "both", 0).await;
    server.settled().await;
    let file = rusqlite::Connection::open(server.data_dir().join("tidegauge.sqlite")).expect("the file of the server");
    file.execute_batch("PRAGMA busy_timeout = 60000; BEGIN IMMEDIATE").expect("nobody else writes for long");
    send(&server, "both", 5).await;
    wait_for_status(&server, "degraded").await;
    for (device, readings) in [("stored", 1), ("both", 2)] {
        let answer = server.get_json(&format!("/v1/devices/{device}/readings?{RANGE}")).await;
        let found = answer["readings"].as_array().map(Vec::len);
        assert_eq!((found, answer.get("partial")), (Some(readings), None), "{answer}");
    }
    assert_eq!(server.get_json("/readyz").await["status"], "degraded", "the file still takes no writes");
    file.execute_batch("ROLLBACK").expect("it has begun");
    wait_for_status(&server, "ok").await;
    server.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusing_store_is_reported_and_queries_answer_pending() {
    away_and_back(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_store_is_reported_and_queries_answer_pending() {
    away_and_back(false).await;
}
