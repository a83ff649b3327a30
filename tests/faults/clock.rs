//! The wall clock jumps forward and back while clients send. It dates readings without a time and does
//! nothing else: flushes and retries use the monotonic clock.

use std::sync::Arc;

use serde_json::json;

use super::fault_test::FaultTest;
use super::store::{Store, on_stores};
use super::workload::Sent;
use crate::harness::{Server, wait_until};

const HOUR_S: i64 = 3_600;

/// The offsets to which the test sets the clock, in seconds.
const OFFSETS_S: [i64; 5] = [HOUR_S, -2 * HOUR_S, 24 * HOUR_S, 23 * HOUR_S, 0];

on_stores!(clock_jumps, super::jumping, [sqlite, mongodb, timeseries]);

async fn jumping(store: Store<'_>) {
    // The clocks of the devices are right, so their readings lie in the future of a server clock that was set
    // back.
    let server = Server::start_with_clock(store.setup().set("ingest.max_future", "1d")).await;
    let mut test = FaultTest::start_on("the clock jumps", store, store.rule(), vec![server]);
    let mut jumps = 0;
    while test.next_fault(2 * OFFSETS_S.len() as u64) {
        test.wait_for_some_acks(300).await;
        test.servers[0].clock().set(OFFSETS_S[jumps % OFFSETS_S.len()]);
        jumps += 1;
        send_without_a_time(&mut test, jumps).await;
        test.wait_for_store().await;
        let is_ready = async || (test.servers[0].get("/readyz").await.status == 200).then_some(());
        wait_until(&format!("it is ready after jump {jumps}"), is_ready).await;
        if jumps % 4 == 3 {
            test.kill_and_restart(0).await;
        }
    }
    test.audit().await;
}

/// The server dates a reading without a time by its current clock.
///
/// Once after a jump it may show the time before: a thread that has read the old offset sets it for all
/// (libfaketime).
async fn send_without_a_time(test: &mut FaultTest<'_>, jumps: usize) {
    let mut seen = Vec::new();
    for attempt in 0..10 {
        let device: Arc<str> = format!("without-a-time/{jumps}/{attempt}").into();
        let server = &test.servers[0];
        let before_ms = server.clock().now_ms();
        server.accepts(&json!({ "deviceId": &*device, "values": { "a": jumps } })).await;
        let after_ms = server.clock().now_ms();
        let readings = server.readings(&device).await;
        let ts: jiff::Timestamp = readings[0]["ts"].as_str().expect("one reading").parse().expect("RFC 3339");
        let ts_ms = ts.as_millisecond();
        test.record_acked(Sent { device, ts_ms, values: vec![jumps as f64], bad: false });
        if (before_ms..=after_ms).contains(&ts_ms) {
            return;
        }
        seen.push((before_ms, ts_ms, after_ms));
    }
    panic!("the times of readings are not between those before and after: {seen:?}");
}
