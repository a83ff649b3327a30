//! Errors have the format of each version, and valid lines are kept.

use reqwest::Method;
use serde_json::json;

use super::{ALL, TS_NS, V1, V2, V3, write};
use crate::harness::{Answer, Server, Setup};

/// A good line, one with a bad value, one without device, a good line.
fn partly_bad(device: &str) -> String {
    let later = TS_NS + 1_000_000_000;
    format!(
        "m,device={device} value=1 {TS_NS}\nm,device={device} mode=on {TS_NS}\n\nm value=3 {TS_NS}\n\
         m,device={device} value=4 {later}\n"
    )
}

const NO_NUMBER: &str = "the value of field \"mode\" is neither a number nor a boolean at column 17";
const NO_DEVICE: &str = "no tag names the device (looked for deviceId, device_id, sensor_id, sensorId, host, device): \
                         the tags end at column 2";

async fn assert_good_lines_are_kept(server: &Server, device: &str) {
    let readings = server.readings(device).await;
    let values: Vec<_> = readings.as_array().expect("readings").iter().map(|reading| &reading["values"]["m"]).collect();
    assert_eq!(values, [&json!(1.0), &json!(4.0)]);
}

#[tokio::test]
async fn version_1_says_what_is_dropped() {
    let server = Server::start(Setup::sqlite()).await;
    let answer = write(&server, V1, partly_bad("d")).await;
    let error = format!("partial write: line 2: {NO_NUMBER}; line 4: {NO_DEVICE} dropped=2");
    assert_eq!((answer.status, answer.json()), (400, json!({ "error": error })));
    assert_eq!((answer.header("x-influxdb-error"), answer.header("content-type")), (&*error, "application/json"));
    assert_good_lines_are_kept(&server, "d").await;
}

#[tokio::test]
async fn version_2_answers_422_if_lines_are_kept_and_400_if_none() {
    let server = Server::start(Setup::sqlite()).await;
    let answer = write(&server, V2, partly_bad("d")).await;
    let message = format!("partial write: line 2: {NO_NUMBER}; line 4: {NO_DEVICE} dropped=2");
    let expected = json!({ "code": "unprocessable entity", "message": message, "line": 2 });
    assert_eq!((answer.status, answer.json()), (422, expected));
    assert_good_lines_are_kept(&server, "d").await;

    let answer = write(&server, V2, format!("\nm value=3 {TS_NS}")).await;
    let message = format!("partial write: line 2: {NO_DEVICE} dropped=1");
    assert_eq!((answer.status, answer.json()), (400, json!({ "code": "invalid", "message": message, "line": 2 })));
}

#[tokio::test]
async fn version_3_shows_the_lines() {
    let server = Server::start(Setup::sqlite()).await;
    let data = json!([
        { "original_line": format!("m,device=d mode=on {TS_NS}"), "line_number": 2, "error_message": NO_NUMBER },
        { "original_line": format!("m value=3 {TS_NS}"), "line_number": 4, "error_message": NO_DEVICE },
    ]);
    let answer = write(&server, V3, partly_bad("d")).await;
    let expected = json!({ "error": "partial write of line protocol occurred", "data": data });
    assert_eq!((answer.status, answer.json()), (400, expected));
    assert_good_lines_are_kept(&server, "d").await;
}

#[tokio::test]
async fn version_3_keeps_nothing_without_partial_writes() {
    let server = Server::start(Setup::sqlite()).await;
    let path = format!("{V3}&accept_partial=false");
    let answer = write(&server, &path, partly_bad("d")).await;
    let line = format!("m,device=d mode=on {TS_NS}");
    let first = json!({ "original_line": line, "line_number": 2, "error_message": NO_NUMBER });
    let expected = json!({ "error": "parsing failed for write_lp endpoint", "data": first });
    assert_eq!((answer.status, answer.json()), (400, expected));
    assert_eq!(server.readings("d").await, json!([]));
    let metrics = server.metrics().await;
    assert_eq!(metrics.count("tidegauge_readings_accepted_total"), 0);
    assert_eq!(metrics.count_where("tidegauge_readings_rejected_total", &[("reason", "not_partial")]), 2);
    assert_eq!(write(&server, &path, format!("m,device=d value=1 {TS_NS}")).await.status, 204);
}

#[tokio::test]
async fn an_expired_line_is_reported_like_a_malformed_one() {
    let server = Server::start(Setup::sqlite().set("retention.readings", "30d")).await;
    let bodies = [write(&server, V1, "m,device=d value=1 1").await, write(&server, V2, "m,device=d value=1 1").await];
    for answer in bodies {
        assert_eq!(answer.status, 400);
        assert!(answer.text().contains("line 1: older than retention.readings allows"), "{}", answer.text());
    }
    let metrics = server.metrics().await;
    let reason = [("protocol", "influx"), ("reason", "timestamp_too_old")];
    assert_eq!(metrics.count_where("tidegauge_readings_rejected_total", &reason), 2);
}

#[tokio::test]
async fn a_large_body_gets_413_in_the_format_of_the_version() {
    let server = Server::start(Setup::sqlite().set("http.max_body_bytes", "1KiB")).await;
    let why = "a body has at most 1024 bytes, decompressed (http.max_body_bytes)";
    let large = "x".repeat(1025);
    for (path, body) in [
        (V1, json!({ "error": why })),
        (V2, json!({ "code": "request too large", "message": why })),
        (V3, json!({ "error": why })),
    ] {
        let answer = write(&server, path, large.as_str()).await;
        assert_eq!((answer.status, answer.json()), (413, body), "{path}");
    }
}

#[tokio::test]
async fn undecodable_bodies_get_400_and_unknown_encodings_415() {
    let server = Server::start(Setup::sqlite()).await;
    for (encoding, status) in [("gzip", 400), ("br", 415)] {
        for (path, key) in ALL.into_iter().zip(["error", "message", "error"]) {
            let request = server.request(Method::POST, path).header("content-encoding", encoding);
            let answer = server.send(request.body("m,device=d value=1")).await;
            assert_eq!(answer.status, status, "{path}");
            assert!(answer.json()[key].is_string(), "{}", answer.text());
        }
    }
}

#[tokio::test]
async fn with_a_full_log_clients_are_asked_to_retry() {
    // The store is away, and the log and pending are small: soon there is no room.
    let server = Server::start(full_soon()).await;
    for (path, expected) in [
        (V1, json!({ "error": "..." })),
        (V2, json!({ "code": "unavailable", "message": "..." })),
        (V3, json!({ "error": "..." })),
    ] {
        let refused = fill(&server, path).await;
        assert_eq!(refused.status, 503, "{path}: {}", refused.text());
        assert_eq!(refused.header("retry-after"), "1", "{path}");
        let mut body = refused.json();
        for key in ["error", "message"] {
            if let Some(text) = body.get_mut(key) {
                assert!(text.as_str().is_some_and(|text| text.contains("the log is full")), "{text}");
                *text = json!("...");
            }
        }
        assert_eq!(body, expected);
    }
}

fn full_soon() -> Setup {
    let log = Setup::sqlite().all_pending().set("log.segment_bytes", "64KiB").set("log.max_bytes", "128KiB");
    log.set("pending.max_bytes", "16KiB")
}

/// Writes until the server refuses a request.
async fn fill(server: &Server, path: &str) -> Answer {
    for batch in 0..10_000 {
        let line = |n: i64| format!("m,device=d{n} value={n} {}\n", TS_NS + batch * 1_000_000);
        let answer = write(server, path, (0..2_000).map(line).collect::<String>()).await;
        if answer.status != 204 {
            return answer;
        }
    }
    panic!("the log never fills");
}
