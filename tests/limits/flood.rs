//! One token floods, another is served.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tidegauge::telemetry::Limit;

use super::{ingest, limited, readings, setup};
use crate::harness::Server;

const FLOODERS: usize = 32;
const MEASURED: usize = 600;

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
    let ratio = |at: usize| flooded[at].as_secs_f64() / quiet[at].as_secs_f64();
    let (p50, p99) = (MEASURED / 2, MEASURED * 99 / 100);
    println!("p50 {:?} -> {:?} ({:.2})", quiet[p50], flooded[p50], ratio(p50));
    println!("p99 {:?} -> {:?} ({:.2})", quiet[p99], flooded[p99], ratio(p99));
    println!("max {:?} -> {:?}", quiet[MEASURED - 1], flooded[MEASURED - 1]);
    let refused = refused.into_inner();
    assert!(refused > 0, "the flood reached the limit");
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
