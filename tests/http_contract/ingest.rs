//! `POST /v1/readings`.

use std::io::Write;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use reqwest::Method;
use serde_json::{Value, json};

use super::problem;
use crate::harness::{Answer, Server, Setup};

const TS: &str = "2024-04-20T14:00:10.000Z";
const TS_MS: i64 = 1_713_621_610_000;

#[tokio::test]
async fn every_documented_shape_is_taken() {
    let server = Server::start(Setup::sqlite()).await;
    let single = json!({ "deviceId": "a", "ts": TS, "value": 320 });
    let several = json!({ "deviceId": "b", "ts": TS_MS, "values": { "temp": 22.4, "hum": 40 } });
    let batch = json!({ "deviceId": "c", "metadata": { "floor": 2 },
        "readings": [{ "ts": TS, "value": 1 }, { "ts": TS_MS + 1, "values": { "temp": 2 } }] });
    let without_ts = json!({ "deviceId": "d", "value": 1 });
    for (body, accepted) in [
        (single.clone(), 1),
        (several.clone(), 1),
        (batch.clone(), 2),
        (without_ts.clone(), 1),
        (json!([single, several, batch, without_ts]), 5),
        (json!([]), 0),
    ] {
        let answer = server.ingest(&body).await;
        assert_eq!((answer.status, answer.json()), (200, json!({ "accepted": accepted })), "{body}");
        assert_eq!(answer.header("content-type"), "application/json");
    }
    let lines = format!("{single}\n{several}\n\n{batch}\n");
    let answer = server.post("/v1/readings", "application/x-ndjson", lines).await;
    assert_eq!((answer.status, answer.json()), (200, json!({ "accepted": 4 })));
}

#[tokio::test]
async fn the_good_readings_of_a_partly_bad_request_are_kept() {
    let server = Server::start(Setup::sqlite()).await;
    let answer = server.ingest(&partly_bad()).await;
    let problem = problem(&answer, 400);
    assert_eq!(problem["code"], "partially_rejected");
    assert_eq!((&problem["accepted"], &problem["rejected"]), (&json!(2), &json!(6)));
    let errors = problem["errors"].as_array().expect("errors");
    let found: Vec<(u64, &str)> = errors.iter().map(index_and_code).collect();
    let expected = [
        (1, "timestamp_in_future"),
        (2, "missing_device_id"),
        (3, "invalid_device_id"),
        (4, "missing_values"),
        (5, "invalid_value"),
        (6, "invalid_timestamp"),
    ];
    assert_eq!(found, expected);
    assert!(errors.iter().all(|error| error["detail"].is_string()), "{errors:?}");
    let readings = server.get_json("/v1/devices/ok/readings?from=2024-01-01T00:00:00Z&to=2025-01-01T00:00:00Z").await;
    assert_eq!(readings["readings"].as_array().expect("readings").len(), 2);
    let metrics = server.metrics().await;
    let rejected = metrics.count_where("tidegauge_readings_rejected_total", &[("reason", "missing_device_id")]);
    assert_eq!(rejected, 1);
}

#[tokio::test]
async fn with_partial_false_a_request_is_all_or_nothing() {
    let server = Server::start(Setup::sqlite()).await;
    let body = partly_bad().to_string();
    let answer = server.post("/v1/readings?partial=false", "application/json", body).await;
    assert_eq!(problem(&answer, 400)["accepted"], 0);
    assert_eq!(server.metrics().await.count("tidegauge_readings_accepted_total"), 0);
    let good = json!({ "deviceId": "ok", "ts": TS, "value": 1 }).to_string();
    assert_eq!(server.post("/v1/readings?partial=false", "application/json", good).await.status, 200);
}

#[tokio::test]
async fn a_reading_older_than_the_retention_is_refused() {
    let server = Server::start(Setup::sqlite().set("retention.readings", "30d")).await;
    let answer = server.ingest(&json!({ "deviceId": "ok", "ts": "2001-01-01T00:00:00Z", "value": 1 })).await;
    assert_eq!(index_and_code(&problem(&answer, 400)["errors"][0]), (0, "timestamp_too_old"));
}

#[tokio::test]
async fn at_most_a_hundred_errors_are_listed() {
    let server = Server::start(Setup::sqlite()).await;
    let bad: Vec<Value> = (0..150).map(|_| json!({ "deviceId": "ok", "ts": TS, "value": "high" })).collect();
    let problem = problem(&server.ingest(&json!(bad)).await, 400);
    assert_eq!((&problem["accepted"], &problem["rejected"]), (&json!(0), &json!(150)));
    assert_eq!(problem["errors"].as_array().expect("errors").len(), 100);
}

#[tokio::test]
async fn bodies_may_be_compressed() {
    let server = Server::start(Setup::sqlite()).await;
    let body = json!({ "deviceId": "a", "ts": TS, "value": 1 }).to_string().into_bytes();
    for (encoding, compressed) in
        [("gzip", gzip(&body)), ("deflate", zlib(&body)), ("zstd", zstd::encode_all(&*body, 0).expect("memory"))]
    {
        let answer = post_encoded(&server, encoding, compressed).await;
        assert_eq!((answer.status, answer.json()), (200, json!({ "accepted": 1 })), "{encoding}");
    }
    problem(&post_encoded(&server, "gzip", b"not gzip".to_vec()).await, 400);
    problem(&post_encoded(&server, "br", body).await, 415);
}

#[tokio::test]
async fn a_body_that_is_or_becomes_too_large_is_refused() {
    let server = Server::start(Setup::sqlite().set("http.max_body_bytes", "64KiB")).await;
    let large = vec![b' '; 1 << 20];
    let bombs =
        [("gzip", gzip(&large)), ("deflate", zlib(&large)), ("zstd", zstd::encode_all(&*large, 0).expect("memory"))];
    for (encoding, bomb) in bombs {
        assert!(bomb.len() < 8 << 10, "small on the wire");
        let answer = post_encoded(&server, encoding, bomb).await;
        assert_eq!(problem(&answer, 413)["code"], "body_too_large", "{encoding}");
    }
    let answer = server.post("/v1/readings", "application/json", vec![b' '; 65 << 10]).await;
    assert_eq!(problem(&answer, 413)["code"], "body_too_large");
}

#[tokio::test]
async fn other_media_types_and_broken_json_are_refused() {
    let server = Server::start(Setup::sqlite()).await;
    let answer = server.post("/v1/readings", "text/xml", "<reading/>").await;
    assert_eq!(problem(&answer, 415)["code"], "unsupported_media_type");
    let answer = server.post("/v1/readings", "application/json; charset=utf-8", r#"{"deviceId":"a","value":1}"#).await;
    assert_eq!(answer.status, 200, "parameters of the media type do not matter");
    let answer = server.post("/v1/readings", "application/json", r#"{"deviceId":"a","val"#).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.text().contains("invalid_json"), "{}", answer.text());
}

#[tokio::test]
async fn the_next_query_sees_an_acknowledged_reading() {
    let server = Server::start(Setup::sqlite().all_pending()).await;
    for at in 1..=50 {
        let ts = TS_MS + at;
        assert_eq!(server.ingest(&json!({ "deviceId": "a", "ts": ts, "value": at })).await.status, 200);
        let rollups =
            server.get_json(&format!("/v1/devices/a/rollups?from={TS_MS}&to={}&step=1h", TS_MS + 1_000)).await;
        let hour = &rollups["metrics"]["value"][0];
        assert_eq!((&hour["count"], hour["max"].as_f64()), (&json!(at), Some(at as f64)));
        let latest = server.get("/v1/devices/a/latest").await.text().to_owned();
        assert!(latest.contains(&format!(":{at}")), "{latest}");
    }
}

fn partly_bad() -> Value {
    json!([
        { "deviceId": "ok", "ts": TS, "value": 1 },
        { "deviceId": "ok", "ts": "2999-01-01T00:00:00Z", "value": 2 },
        { "ts": TS, "value": 3 },
        { "deviceId": " not ok", "ts": TS, "value": 4 },
        { "deviceId": "ok", "ts": TS },
        { "deviceId": "ok", "ts": TS, "value": "high" },
        { "deviceId": "ok", "ts": "yesterday", "value": 7 },
        { "deviceId": "ok", "ts": TS_MS + 1_000, "value": 8 },
    ])
}

fn index_and_code(error: &Value) -> (u64, &str) {
    (error["index"].as_u64().expect("an index"), error["code"].as_str().expect("a code"))
}

async fn post_encoded(server: &Server, encoding: &str, body: Vec<u8>) -> Answer {
    let request = server.request(Method::POST, "/v1/readings").header("content-type", "application/json");
    server.send(request.header("content-encoding", encoding).body(body)).await
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(body).and_then(|()| encoder.finish()).expect("memory")
}

/// The `deflate` encoding of HTTP.
fn zlib(body: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(body).and_then(|()| encoder.finish()).expect("memory")
}
