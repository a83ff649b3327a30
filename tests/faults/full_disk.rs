//! A full disk: one for the log alone, mostly full in the middle of a record, and one for log and SQLite.
//! Readings without space are refused and never stored, even after a kill while the disk is full. When space
//! is free again, the server recovers by itself; and the log leaves enough of the disk for SQLite to free
//! that space.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use serde_json::json;

use super::fault_test::FaultTest;
use super::forwarding::audit_both;
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
async fn the_disk_of_the_log_is_full_while_it_is_forwarded() {
    let centre = Server::start(Store::Sqlite.setup()).await;
    let setup = Store::Sqlite.setup().set("log.min_free_bytes", 0).set("forward.url", centre.url());
    let server = Server::start_with_disk_of_log(setup.set("forward.max_batch_bytes", "4KiB"), DISK_MEBIBYTES).await;
    let what = "disk of the log full, forwarding";
    let mut test = FaultTest::start_on(what, Store::Sqlite, Store::Sqlite.rule(), vec![server]);
    while test.next_fault(6) {
        fill_and_heal(&mut test).await;
    }
    audit_both(test, &centre, Store::Sqlite).await;
}

#[tokio::test]
async fn log_and_sqlite_share_a_full_disk() {
    const MEBIBYTES: usize = 24;
    let store = Store::Sqlite;
    let server = Server::start_with_disk_of_data(store.setup(), MEBIBYTES).await;
    let mut test = FaultTest::start_on("log and SQLite on one full disk", store, store.rule(), vec![server]);
    while test.next_fault(4) {
        test.wait_for_some_acks(300).await;
        let refused = test.totals().refused_requests;
        // SQLite has a quarter of the disk left, or next to nothing.
        let spare = if test.random_below(2) == 0 { MEBIBYTES << 18 } else { test.random_below(40_000) };
        test.servers[0].disk().fill(spare as u64);
        wait_until("requests are refused", async || (test.totals().refused_requests > refused + 5).then_some(())).await;
        let is_killed = test.random_below(2) == 0;
        if is_killed {
            test.kill(0);
        }
        if test.random_below(2) == 0 {
            test.servers[0].disk().free();
        } else {
            test.servers[0].disk().resize(4 * MEBIBYTES);
            test.servers[0].disk().free();
            test.servers[0].disk().resize(MEBIBYTES);
        }
        if is_killed {
            test.restart(0).await;
        }
    }
    test.audit().await;
}

#[tokio::test]
async fn a_full_disk_of_24_mebibytes_recovers() {
    recovers(24).await;
}

#[tokio::test]
async fn a_full_disk_of_48_mebibytes_recovers() {
    recovers(48).await;
}

#[tokio::test]
async fn a_full_disk_of_96_mebibytes_recovers() {
    recovers(96).await;
}

/// A server that flushes after an hour, with log and SQLite on one disk.
async fn slow_flush_server(mebibytes: usize) -> Server {
    let setup = Setup::sqlite().set("flush.max_age", "1h").set("flush.max_readings", 100_000);
    Server::start_with_disk_of_data(setup, mebibytes).await
}

/// Keeps SQLite from accepting writes until the connection is dropped, so that the log fills.
fn stall(server: &Server) -> Connection {
    let sqlite = Connection::open(server.data_dir().join("tidegauge.sqlite")).expect("the file of the server");
    sqlite.execute_batch("PRAGMA busy_timeout = 60000; BEGIN IMMEDIATE").expect("nobody else writes for long");
    sqlite
}

const READINGS: i64 = 1_000;
const METRICS: usize = 20;

/// The readings of an hour, as a list of JSON. The tests send it hundreds of times.
static HOUR: LazyLock<String> = LazyLock::new(|| {
    let value = |at: i64, metric: i64| format!("\"m{metric}\":{}", at * 7 + metric);
    let values = |at: i64| (0..METRICS as i64).map(|metric| value(at, metric)).collect::<Vec<_>>().join(",");
    let reading = |at: i64| format!("{{\"ts\":{},\"values\":{{{}}}}}", START_MS + at * 1_000, values(at));
    format!("[{}]", (0..READINGS).map(reading).collect::<Vec<_>>().join(","))
});

/// Sends an hour of readings of one device.
async fn send(server: &Server, device: usize) -> Answer {
    let body = format!("{{\"deviceId\":\"d{device}\",\"readings\":{}}}", *HOUR);
    server.post("/v1/readings", "application/json", body).await
}

/// Sends the refused hour of a device until the server accepts it.
async fn accepted_again(server: &Server, device: usize) {
    wait_until("the server accepts readings again", async || (send(server, device).await.status == 200).then_some(()))
        .await;
}

/// Asserts that all readings of the accepted devices are stored after a clean stop.
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

/// The log fills a disk that it shares with SQLite up to its reserve, twice; the test kills tidegauge the
/// second time.
async fn recovers(mebibytes: usize) {
    const FREE_MEBIBYTES: usize = 16;
    let mut server = slow_flush_server(mebibytes).await;
    let reserve = mebibytes / 2;
    server.disk().fill(((reserve + FREE_MEBIBYTES.min(reserve)) << 20) as u64);
    let mut accepted = 0;
    for round in 0..2 {
        let (before, stalled) = (accepted, stall(&server));
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
        drop(stalled);
        if round == 1 {
            server.kill9();
            server.start_again().await;
        }
        accepted_again(&server, accepted).await;
        accepted += 1;
    }
    let full = "the disk of the log is nearly full";
    let log = server.logged(full).await;
    assert!(log.matches(full).count() <= 3, "one line each time: {log}");
    all_is_stored(server, accepted).await;
}

#[tokio::test]
async fn a_log_that_has_filled_its_disk_shrinks_after_the_flush() {
    let setup = Setup::sqlite().set("flush.max_age", "1h").set("flush.max_readings", 100_000);
    let setup = setup.set("log.segment_bytes", "64KiB").set("log.min_free_bytes", 0);
    let mut server = Server::start_with_disk_of_log(setup, DISK_MEBIBYTES).await;
    let (mut accepted, stalled) = (0, stall(&server));
    while send(&server, accepted).await.status == 200 {
        accepted += 1;
    }
    drop(stalled);
    server.kill9();
    server.start_again().await;
    accepted_again(&server, accepted).await;
    all_is_stored(server, accepted + 1).await;
}

#[tokio::test]
async fn without_file_descriptors_the_server_refuses_and_recovers() {
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
    accepted_again(&server, accepted).await;
    all_is_stored(server, accepted + 1).await;
}

async fn filled(store: Store<'_>, setup: Setup) {
    let server = Server::start_with_disk_of_log(setup, DISK_MEBIBYTES).await;
    let mut test = FaultTest::start_on("disk of the log full", store, store.rule(), vec![server]);
    while test.next_fault(6) {
        fill_and_heal(&mut test).await;
    }
    test.audit().await;
}

/// Fills the disk of the log and frees it. The server is killed while the disk is full, or when it accepts
/// readings again, or it goes on.
async fn fill_and_heal(test: &mut FaultTest<'_>) {
    test.wait_for_some_acks(300).await;
    let refused = test.totals().refused_requests;
    let spare = test.random_below(40_000) as u64;
    test.servers[0].disk().fill(spare);
    let filled = Instant::now();
    wait_until("requests are refused", async || {
        if filled.elapsed() > Duration::from_secs(2) {
            test.servers[0].disk().fill_up(); // slow clients may not outpace the removal of segments
        }
        (test.totals().refused_requests > refused + 5).then_some(())
    })
    .await;
    // The disk stays full for up to two seconds: in each second, the log tries to end its segment.
    for _ in 0..test.random_below(20) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        test.servers[0].disk().fill_up();
    }
    match test.random_below(3) {
        0 => {
            test.kill(0);
            test.servers[0].disk().free();
            test.restart(0).await;
        }
        1 => {
            test.servers[0].disk().free();
            test.wait_for_some_acks(300).await;
            test.kill_and_restart(0).await;
        }
        _ => test.servers[0].disk().free(),
    }
}
