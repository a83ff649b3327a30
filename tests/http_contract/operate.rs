//! Paths for operators, and unknown paths.

use reqwest::Method;
use serde_json::json;

use super::problem;
use crate::harness::{Server, Setup, wait_until};

#[tokio::test]
async fn unknown_paths_and_methods_are_problems() {
    let server = Server::start(Setup::sqlite()).await;
    for path in ["/v1/nothing", "/nothing", "/v1/devices/a/nothing"] {
        problem(&server.get(path).await, 404);
    }
    let answer = server.send(server.request(Method::PUT, "/v1/readings")).await;
    problem(&answer, 405);
    assert!(["GET", "POST"].iter().all(|method| answer.header("allow").contains(method)), "{:?}", answer.headers);
    problem(&server.send(server.request(Method::DELETE, "/healthz")).await, 405);
}

#[tokio::test]
async fn health_readiness_and_version_answer() {
    let server = Server::start(Setup::sqlite()).await;
    assert_eq!(server.get("/healthz").await.status, 200);
    assert_eq!(server.get("/readyz").await.status, 200);
    let version = server.get("/version").await;
    assert!(version.text().contains(env!("CARGO_PKG_VERSION")), "{}", version.text());
    let id = async || server.get_json("/version").await["storeId"].as_str().map(str::to_owned);
    assert_eq!(wait_until("the ID of the store is known", id).await.len(), 32);
    let line = server.first_line();
    assert!(
        line.starts_with("listening http=127.0.0.1:")
            && line.contains(" udp=127.0.0.1:")
            && line.contains(" mqtt=off store=sqlite data="),
        "{line}"
    );
}

#[tokio::test]
async fn the_metrics_of_the_documentation_are_there_from_the_start() {
    let server = Server::start(Setup::sqlite()).await;
    let metrics = server.metrics().await;
    for name in [
        "tidegauge_readings_received_total",
        "tidegauge_readings_accepted_total",
        "tidegauge_readings_rejected_total",
        "tidegauge_readings_stored_total",
        "tidegauge_readings_duplicate_total",
        "tidegauge_readings_recovered_total",
        "tidegauge_readings_pending",
        "tidegauge_log_bytes",
        "tidegauge_oldest_pending_seconds",
        "tidegauge_store_up",
        "tidegauge_udp_datagrams_total",
        "tidegauge_udp_dropped_total",
        "tidegauge_build_info",
        "tidegauge_readings_dead_lettered_total",
        "tidegauge_flush_retries_total",
        "tidegauge_flush_seconds_count",
    ] {
        assert!(metrics.has(name), "{name} in:\n{}", server.get("/metrics").await.text());
    }
    let refused = |reason| metrics.count_where("tidegauge_readings_dead_lettered_total", &[("reason", reason)]);
    assert_eq!(refused("too_big"), 0);
    let text = server.get("/metrics").await.text().to_owned();
    for never in [
        "dead_lettered_total{reason=\"validation\"",
        "protocol=\"http\",reason=\"bad_signature\"",
        "rollup_retries_total{",
    ] {
        assert!(!text.contains(never), "{never} cannot occur with the embedded store and HTTP:\n{text}");
    }
}

#[tokio::test]
async fn work_shows_in_the_metrics() {
    let server = Server::start(Setup::sqlite()).await;
    let readings = json!([{ "deviceId": "a", "ts": 1_713_621_600_000_i64, "value": 1 }, { "value": 2 }]);
    server.ingest(&readings).await;
    let metrics = server.settled().await;
    let http = [("protocol", "http")];
    for (name, expected) in [("received", 2), ("accepted", 1), ("rejected", 1)] {
        assert_eq!(metrics.count_where(&format!("tidegauge_readings_{name}_total"), &http), expected, "{name}");
    }
    assert_eq!(metrics.count("tidegauge_readings_stored_total"), 1);
    assert_eq!(metrics.count("tidegauge_store_up"), 1);
    for histogram in ["log_sync_seconds", "flush_seconds", "flush_readings_per_bucket", "http_request_seconds"] {
        assert!(metrics.count(&format!("tidegauge_{histogram}_count")) > 0, "{histogram}");
    }
    let route = [("route", "/v1/readings"), ("method", "POST"), ("status", "400")];
    assert_eq!(metrics.count_where("tidegauge_http_request_seconds_count", &route), 1);
    assert!(!server.get("/metrics").await.text().contains("\"a\""), "a device id is never a label");
}
