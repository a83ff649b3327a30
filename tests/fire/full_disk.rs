//! The disk of the log is full, mostly in the middle of a record, and has space again later. What finds no space is refused,
//! and does not come back, even when tidegauge is killed while the disk is full.

use std::time::{Duration, Instant};

use serde_json::json;

use super::siege::Siege;
use super::store::Store;
use crate::harness::{Database, Server, Setup, wait_until};

const DISK_MEBIBYTES: usize = 8;

const START_MS: i64 = 1_713_621_600_000; // 2024-04-20T14:00:00Z

#[tokio::test]
async fn the_disk_of_the_log_is_full_with_sqlite() {
    filled(Store::Sqlite).await;
}

#[tokio::test]
async fn the_disk_of_the_log_is_full_with_mongodb() {
    filled(Store::Mongodb(&Database::new())).await;
}

#[tokio::test]
async fn a_log_that_has_filled_its_disk_gives_it_back_once_all_is_stored() {
    let setup = Setup::sqlite().set("flush.max_age", "1h").set("flush.max_readings", 100_000);
    let mut server = Server::start_with_disk_of_log(setup.set("log.segment_bytes", "64KiB"), DISK_MEBIBYTES).await;
    let (mut accepted, mut refusals) = (0, 0);
    while refusals < 20 {
        let count = if refusals == 0 { 10_000 } else { 1 }; // then the last bytes too
        let readings: Vec<_> = (0..count)
            .map(|nth| json!({ "deviceId": "d", "ts": START_MS + (accepted + nth) * 1_000, "value": 1 }))
            .collect();
        let answer = server.ingest(&json!(readings)).await;
        match answer.status {
            200 => accepted += count,
            503 => refusals += 1,
            _ => panic!("{}", answer.text()),
        }
    }
    server.kill9();
    server.start_again().await;
    let metrics = server.metrics().await;
    assert_eq!(metrics.count("tidegauge_readings_recovered_total"), accepted as u64);
    assert!(server.terminate().await.success(), "{}", server.log());
    server.start_again().await;
    assert_eq!(server.metrics().await.count("tidegauge_readings_recovered_total"), 0);
    let answer = server.ingest(&json!({ "deviceId": "d", "ts": START_MS - 1, "value": 1 })).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let week = server.get_json("/v1/devices/d/rollups?from=2024-04-20T14:00:00Z&to=2024-04-27T14:00:00Z").await;
    let hours = week["metrics"]["value"].as_array().expect("hours");
    assert_eq!(hours.iter().filter_map(|hour| hour["count"].as_i64()).sum::<i64>(), accepted);
}

async fn filled(store: Store<'_>) {
    let server = Server::start_with_disk_of_log(store.setup(), DISK_MEBIBYTES).await;
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
