//! A flood with one token does not slow down another token.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tidegauge::telemetry::Limit;

use super::{ingest, limited, readings, setup};
use crate::harness::Server;
use crate::harness::mongod::deadline::deadline;

const FLOODERS: usize = 32;
const MEASURED: usize = 200;
/// The median latency of the other token must stay below the larger of two bounds: a ratio to its median
/// without the flood, and an absolute time. (The p99 depends on the load of the machine.)
const MAX_RATIO: u32 = 20;
const MAX_MEDIAN: Duration = Duration::from_millis(500);
/// Each request of the other token is answered within this many seconds.
const MAX_SECONDS: u32 = 30;

/// The flood: a closed loop on 32 connections, with a thousand readings per request, after any answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_with_one_token_does_not_slow_another() {
    let server = Server::start(setup().set("limits.token_readings_per_second", 2_000).set("limits.burst", "1s")).await;
    let quiet = latencies(&server).await;
    let (refused, body) = (AtomicU64::new(0), readings("flood", 1_000));
    let flood = async {
        let flooder = async || loop {
            let answer = ingest(&server, "greedy", &body).await;
            refused.fetch_add(u64::from(answer.status == 429), Ordering::Relaxed);
        };
        futures_util::future::join_all((0..FLOODERS).map(|_| flooder())).await;
    };
    let flooded = tokio::select! {
        () = flood => unreachable!("a flood has no end"),
        flooded = latencies(&server) => flooded,
    };
    let median = MEASURED / 2;
    let refused = refused.into_inner();
    assert!(refused > 0, "the flood did not reach the limit");
    let (before, during) = (quiet[median], flooded[median]);
    assert!(during < MAX_MEDIAN.max(MAX_RATIO * before), "the median grew from {before:?} to {during:?}");
    let slowest = flooded[MEASURED - 1];
    assert!(slowest < deadline(MAX_SECONDS), "a request of the other token took {slowest:?}");
    assert!(limited(&server.metrics().await, Limit::TokenReadings) >= refused);
}

/// The latencies of single accepted readings of the other token, ascending.
async fn latencies(server: &Server) -> Vec<Duration> {
    let mut latencies = Vec::new();
    for nth in 0..MEASURED {
        let reading = json!({ "deviceId": "calm", "value": nth });
        let start = Instant::now();
        let answer = ingest(server, "other", &reading).await;
        latencies.push(start.elapsed());
        assert_eq!(answer.status, 200, "{}", answer.text());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    latencies.sort();
    latencies
}
