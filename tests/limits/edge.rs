//! Limits of connections, of requests and of the log.

use serde_json::{Value, json};
use tidegauge::telemetry::Limit;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::{first_code, ingest, limited, readings, refused, setup, wait_for_retry_after};
use crate::harness::mongod::deadline::deadline;
use crate::harness::{Server, Setup, now_ms, wait_until};

#[tokio::test]
async fn connections() {
    let server = Server::start(setup().set("http.max_connections", 3)).await;
    let address = server.url().strip_prefix("http://").expect("http").to_owned();
    let connect = async || TcpStream::connect(&address).await.expect("it listens");
    let held = [connect().await, connect().await, connect().await];
    let (mut fourth, mut refusal) = (connect().await, String::new());
    let told = tokio::time::timeout(deadline(60), fourth.read_to_string(&mut refusal));
    told.await.expect("the fourth is refused").expect("an answer");
    assert!(refusal.starts_with("HTTP/1.1 503 ") && refusal.contains("\r\nretry-after: 1\r\n"), "{refusal}");
    let (_, body) = refusal.split_once("\r\n\r\n").expect("a body");
    let body: Value = serde_json::from_str(body).expect("JSON");
    assert_eq!((&body["code"], &body["status"]), (&json!("too_many_connections"), &json!(503)));
    drop(held);
    wait_until("there is room again", async || {
        let request = server.request(reqwest::Method::GET, "/healthz").send().await;
        request.is_ok_and(|answer| answer.status() == 200).then_some(())
    })
    .await;
    let metrics = server.metrics().await;
    assert!(limited(&metrics, Limit::Connections) >= 1);
    assert_eq!(limited(&metrics, Limit::Connections), metrics.count("tidegauge_http_connections_refused_total"));
}

#[tokio::test]
async fn what_one_request_and_one_reading_may_have() {
    let setup = setup()
        .set("http.max_body_bytes", "64KiB")
        .set("ingest.max_readings_per_request", 10)
        .set("ingest.max_metrics_per_reading", 2)
        .set("ingest.max_metadata_bytes", "20B");
    let server = Server::start(setup).await;
    let long = json!({ "deviceId": "d", "value": 1, "metadata": { "text": "x".repeat(70_000) } });
    refused(&ingest(&server, "greedy", &long).await, 413, "body_too_large");
    refused(&ingest(&server, "greedy", &readings("d", 11)).await, 413, "too_many_readings");
    let wide = json!({ "deviceId": "d", "values": { "a": 1, "b": 1, "c": 1 } });
    let fat = json!({ "deviceId": "d", "value": 1, "metadata": { "text": "x".repeat(20) } });
    for (body, code, limit) in
        [(&wide, "too_many_metrics", Limit::MetricsPerReading), (&fat, "metadata_too_large", Limit::MetadataBytes)]
    {
        let answer = ingest(&server, "greedy", body).await;
        assert_eq!(first_code(&answer), code);
        assert!(answer.text().contains(limit.key()), "{}", answer.text());
    }
    assert_eq!(ingest(&server, "greedy", &readings("d", 10)).await.status, 200);
    let metrics = server.metrics().await;
    for limit in [Limit::BodyBytes, Limit::ReadingsPerRequest, Limit::MetricsPerReading, Limit::MetadataBytes] {
        assert_eq!(limited(&metrics, limit), 1, "{limit:?}");
    }
}

#[tokio::test]
async fn the_size_of_the_log() {
    let setup = Setup::sqlite().set("log.max_bytes", "192KiB").set("log.segment_bytes", "64KiB");
    let server = Server::start(setup.set("flush.max_age", "2s")).await;
    let answer = loop {
        let answer = server.ingest(&readings("d", 5_000)).await; // two of them fill it, however slow the machine is
        if answer.status != 200 {
            break answer;
        }
    };
    refused(&answer, 503, "overloaded");
    assert_eq!(answer.header("retry-after"), "1");
    wait_until("there is room again", async || (server.ingest(&readings("d", 200)).await.status == 200).then_some(()))
        .await;
    assert!(limited(&server.metrics().await, Limit::LogBytes) >= 1);
    wait_for_retry_after(&answer).await;
    assert_eq!(server.ingest(&readings("d", 1)).await.status, 200);
}

#[tokio::test]
async fn a_request_that_no_record_can_hold_leaves_no_remarks() {
    let setup = Setup::sqlite().set("log.max_bytes", "192KiB").set("log.segment_bytes", "64KiB");
    let server = Server::start(setup).await;
    let now_ms = now_ms();
    // All of them are of one instant, and one value of each is rejected.
    let reading = |value: u32| json!({ "ts": now_ms, "values": { "a": value, "b": "text" } });
    let body = |count: u32| json!({ "deviceId": "d", "readings": (0..count).map(reading).collect::<Vec<_>>() });
    refused(&server.ingest(&body(30_000)).await, 413, "request_too_large");
    let metrics = server.metrics().await;
    let remarks = ["readings_overwritten", "values_rejected", "fields_ignored"];
    assert_eq!(remarks.map(|name| metrics.count(&format!("tidegauge_{name}_total"))), [0; 3]);
    assert_eq!(server.ingest(&body(3)).await.json()["overwritten"], 2);
    let metrics = server.metrics().await;
    assert_eq!(remarks.map(|name| metrics.count(&format!("tidegauge_{name}_total"))), [2, 3, 0]);
}
