//! One token floods, another is served.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tidegauge::telemetry::Limit;

use super::{ingest, limited, readings, setup};
use crate::harness::Server;

const FLOODERS: usize = 32;
const MEASURED: usize = 600;
/// The p99 latency of the other token stays below the larger of these bounds: a ratio to its p99 without the
/// flood, and a time for machines on which that is tiny.
const MAX_RATIO: u32 = 20;
const MAX_P99: Duration = Duration::from_millis(500);

/// Closed loop on 32 connections, a thousand readings a request, whatever the answers say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_from_one_token_leaves_another_be() {
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
    let p99 = MEASURED * 99 / 100;
    let refused = refused.into_inner();
    assert!(refused > 0, "the flood reached the limit");
    let bound = MAX_P99.max(MAX_RATIO * quiet[p99]);
    assert!(flooded[p99] < bound, "the p99 of the other token grew from {:?} to {:?}", quiet[p99], flooded[p99]);
    assert!(limited(&server.metrics().await, Limit::TokenReadings) >= refused);
}

/// How long single readings of the other token take, ascending. Each of them is accepted.
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
