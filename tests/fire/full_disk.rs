//! A full disk: that of the log alone, mostly in the middle of a record, and one that log and SQLite share.
//! What finds no space is refused, and does not come back, even when tidegauge is killed while the disk is
//! full. Once there is space, everything goes on by itself; and the log leaves enough of the disk that SQLite
//! can make that space.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::siege::Siege;
use super::store::Store;
use crate::harness::{Answer, Database, Server, Setup, wait_until};

const DISK_MEBIBYTES: usize = 8;

const START_MS: i64 = 1_713_621_600_000; // 2024-04-20T14:00:00Z

#[tokio::test]
async fn the_disk_of_the_log_is_full_with_sqlite() {
    filled(Store::Sqlite, Store::Sqlite.setup().set("log.min_free_bytes", 0)).await;
}

#[tokio::test]
async fn the_disk_of_the_log_is_full_with_mongodb() {
    let database = Database::new();
    let store = Store::Mongodb(&database);
    filled(store, store.setup()).await;
}

#[tokio::test]
async fn log_and_sqlite_share_a_full_disk() {
    const MEBIBYTES: usize = 24;
    let store = Store::Sqlite;
    let server = Server::start_with_disk_of_data(store.setup(), MEBIBYTES).await;
    let mut siege = Siege::begin_with("log and SQLite on one full disk", store, store.rule(), vec![server]);
    while siege.goes_on(4) {
        siege.some_acked(300).await;
        let refused = siege.totals().refused_requests;
        // Of the half that the log leaves free, SQLite has a part, or next to nothing.
        let spare = if siege.one_of(2) == 0 { MEBIBYTES << 18 } else { siege.one_of(40_000) };
        siege.servers[0].disk().fill(spare as u64);
        wait_until("requests are refused", async || (siege.totals().refused_requests > refused + 5).then_some(()))
            .await;
        let is_killed = siege.one_of(2) == 0;
        if is_killed {
            siege.kill(0);
        }
        if siege.one_of(2) == 0 {
            siege.servers[0].disk().free();
        } else {
            siege.servers[0].disk().resize(4 * MEBIBYTES);
            siege.servers[0].disk().free();
            siege.servers[0].disk().resize(MEBIBYTES);
        }
        if is_killed {
            siege.restart(0).await;
        }
    }
    siege.audit().await;
}

#[tokio::test]
async fn a_full_disk_of_24_mebibytes_heals_by_itself() {
    heals(24).await;
}

#[tokio::test]
async fn a_full_disk_of_48_mebibytes_heals_by_itself() {
    heals(48).await;
}

#[tokio::test]
async fn a_full_disk_of_96_mebibytes_heals_by_itself() {
    heals(96).await;
}

/// Readings that would be stored in an hour, on a disk that log and SQLite share.
async fn patient_server(mebibytes: usize) -> Server {
    let setup = Setup::sqlite().set("flush.max_age", "1h").set("flush.max_readings", 100_000);
    Server::start_with_disk_of_data(setup, mebibytes).await
}

const READINGS: i64 = 1_000;
const METRICS: usize = 20;

/// Sends an hour of a device of its own.
async fn send(server: &Server, device: usize) -> Answer {
    let values = |at: i64| (0..METRICS).map(move |metric| (format!("m{metric}"), json!(at * 7 + metric as i64)));
    let reading = |at: i64| json!({ "ts": START_MS + at * 1_000, "values": values(at).collect::<Value>() });
    let readings: Vec<_> = (0..READINGS).map(reading).collect();
    server.ingest(&json!({ "deviceId": format!("d{device}"), "readings": readings })).await
}

/// Waits until the hour of a device that was refused is taken.
async fn taken_again(server: &Server, device: usize) {
    wait_until("readings are taken again", async || (send(server, device).await.status == 200).then_some(())).await;
}

/// Of each device that was accepted, all is in the store. What is pending gets there by a stop.
async fn all_is_stored(mut server: Server, devices: usize) {
    assert!(server.terminate().await.success(), "{}", server.log());
    server.start_again().await;
    assert_eq!(server.metrics().await.count("tidegauge_readings_recovered_total"), 0);
    for device in 0..devices {
        let path = format!("/v1/devices/d{device}/rollups?from=2024-04-20T14:00:00Z&to=2024-04-20T15:00:00Z");
        let hours = server.get_json(&path).await;
        for metric in 0..METRICS {
            let count = &hours["metrics"][format!("m{metric}")][0]["count"];
            assert_eq!(*count, READINGS, "metric {metric} of device {device} of {devices}");
        }
    }
}

/// The log fills a disk that it shares with SQLite up to its reserve, twice; the second time tidegauge is
/// killed.
async fn heals(mebibytes: usize) {
    const ROOM_MEBIBYTES: usize = 16;
    let mut server = patient_server(mebibytes).await;
    let reserve = mebibytes / 2;
    server.disk().fill(((reserve + ROOM_MEBIBYTES.min(reserve)) << 20) as u64);
    let mut accepted = 0;
    for round in 0..2 {
        let before = accepted;
        let refused = loop {
            let answer = send(&server, accepted).await;
            if answer.status != 200 {
                break answer;
            }
            accepted += 1;
        };
        assert!(accepted >= before + 10, "{} hours fit in round {round}", accepted - before);
        assert_eq!((refused.status, refused.json()["code"].as_str()), (503, Some("overloaded")), "{}", refused.text());
        let detail = refused.json()["detail"].as_str().expect("a detail").to_owned();
        assert!(detail.contains("disk of the log is full") && !detail.contains('/'), "{detail}");
        assert!(!refused.header("retry-after").is_empty());
        let ready = server.get("/readyz").await;
        assert_eq!((ready.status, &ready.json()["status"]), (503, &json!("overloaded")), "{}", ready.text());
        if round == 1 {
            server.kill9();
            server.start_again().await;
        }
        taken_again(&server, accepted).await;
        accepted += 1;
    }
    let full = "the disk of the log is nearly full";
    let log = server.logged(full).await;
    assert!(log.matches(full).count() <= 3, "once each time: {log}");
    all_is_stored(server, accepted).await;
}

#[tokio::test]
async fn a_log_that_has_filled_its_disk_gives_it_back_once_all_is_stored() {
    let setup = Setup::sqlite().set("flush.max_age", "1h").set("flush.max_readings", 100_000);
    let setup = setup.set("log.segment_bytes", "64KiB").set("log.min_free_bytes", 0);
    let mut server = Server::start_with_disk_of_log(setup, DISK_MEBIBYTES).await;
    let mut accepted = 0;
    while send(&server, accepted).await.status == 200 {
        accepted += 1;
    }
    server.kill9();
    server.start_again().await;
    taken_again(&server, accepted).await;
    all_is_stored(server, accepted + 1).await;
}

#[tokio::test]
async fn a_server_without_file_descriptors_refuses_and_goes_on_once_it_has_some() {
    let server = Server::start(Setup::sqlite().set("log.segment_bytes", "64KiB")).await;
    let mut accepted = 0;
    assert_eq!(send(&server, accepted).await.status, 200);
    server.limit_files(3);
    let refused = loop {
        accepted += 1;
        let answer = send(&server, accepted).await;
        if answer.status != 200 {
            break answer;
        }
    };
    assert_eq!((refused.status, refused.json()["code"].as_str()), (503, Some("overloaded")), "{}", refused.text());
    assert_eq!(server.get("/healthz").await.status, 200);
    server.logged("too many open files").await;
    server.limit_files(1_024);
    taken_again(&server, accepted).await;
    all_is_stored(server, accepted + 1).await;
}

async fn filled(store: Store<'_>, setup: Setup) {
    let server = Server::start_with_disk_of_log(setup, DISK_MEBIBYTES).await;
    let mut siege = Siege::begin_with("disk of the log full", store, store.rule(), vec![server]);
    while siege.goes_on(4) {
        siege.some_acked(300).await;
        let refused = siege.totals().refused_requests;
        let spare = siege.one_of(40_000) as u64;
        siege.servers[0].disk().fill(spare);
        let filled = Instant::now();
        wait_until("requests are refused", async || {
            if filled.elapsed() > Duration::from_secs(2) {
                siege.servers[0].disk().fill_up(); // slow clients never get ahead of the log's cuts
            }
            (siege.totals().refused_requests > refused + 5).then_some(())
        })
        .await;
        if siege.one_of(2) == 0 {
            siege.kill(0);
            siege.servers[0].disk().free();
            siege.restart(0).await;
        } else {
            siege.servers[0].disk().free();
        }
    }
    siege.audit().await;
}
