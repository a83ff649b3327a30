//! The clock of the world jumps, forward and back, while readings come in. It decides how readings without a
//! time are dated, and nothing else: flushes and retries go by a clock that only goes forward.

use std::sync::Arc;

use serde_json::json;

use super::siege::Siege;
use super::store::Store;
use super::workload::Sent;
use crate::harness::{Database, Server};

const HOUR_S: i64 = 3_600;

/// Where the clock is set, in seconds from the right time.
const OFFSETS_S: [i64; 5] = [HOUR_S, -2 * HOUR_S, 24 * HOUR_S, 23 * HOUR_S, 0];

#[tokio::test]
async fn the_clock_jumps_with_sqlite() {
    jumping(Store::Sqlite).await;
}

#[tokio::test]
async fn the_clock_jumps_with_mongodb() {
    jumping(Store::Mongodb(&Database::new())).await;
}

#[tokio::test]
async fn the_clock_jumps_with_mongodb_timeseries() {
    jumping(Store::Timeseries(&Database::new())).await;
}

async fn jumping(store: Store<'_>) {
    // The devices' own clocks are right, so that the furthest back that the server's goes, their readings are
    // of the future.
    let server = Server::start_with_clock(store.setup().set("ingest.max_future", "1d")).await;
    let mut siege = Siege::begin_with("the clock jumps", store, store.rule(), vec![server]);
    let mut jumps = 0;
    while siege.goes_on(2 * OFFSETS_S.len() as u64) {
        siege.some_acked(300).await;
        siege.servers[0].clock().set(OFFSETS_S[jumps % OFFSETS_S.len()]);
        jumps += 1;
        send_without_a_time(&mut siege, jumps).await;
        siege.stored_something().await;
        let ready = siege.servers[0].get("/readyz").await;
        assert_eq!(ready.status, 200, "after jump {jumps}: {}", ready.text());
        if jumps % 4 == 3 {
            siege.kill_and_restart(0).await;
        }
    }
    siege.audit().await;
}

/// A reading without a time of its own is dated by the clock as it stands.
async fn send_without_a_time(siege: &mut Siege<'_>, jumps: usize) {
    let device: Arc<str> = format!("without-a-time/{jumps}").into();
    let server = &siege.servers[0];
    let before_ms = server.clock().now_ms();
    let answer = server.ingest(&json!({ "deviceId": &*device, "values": { "a": jumps } })).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let after_ms = server.clock().now_ms();
    let readings = server.readings(&device).await;
    let ts: jiff::Timestamp = readings[0]["ts"].as_str().expect("one reading").parse().expect("RFC 3339");
    let ts_ms = ts.as_millisecond();
    assert!((before_ms..=after_ms).contains(&ts_ms), "{ts_ms} is not from {before_ms} to {after_ms}");
    siege.acked_beside(Sent { device, ts_ms, values: vec![jumps as f64], bad: false });
}
