//! Metadata is the same in every store: the server refuses whatever one of them would refuse or alter, and
//! loses no readings by it.

mod operators;

use serde_json::{Value, json};

use crate::harness::{Server, Setup, in_stores};

/// Metadata that every store refuses.
const REFUSED: [&str; 8] = [
    r#"{"x":1e400}"#,
    r#"{"x":{"y":[-1e400]}}"#,
    r#"{"x":18446744073709551615}"#,
    r#"{"a\u0000b":1}"#,
    "{\"a\u{FF0E}b\":1}",
    r#"{"":1}"#,
    r#"{"deviceId":"other"}"#,
    r#"{"x":[[[[[[[[1]]]]]]]]}"#,
];

/// Metadata that is returned unchanged.
const KEPT: [&str; 4] = [
    r#"{"$a.b":{"c.d":[1,null,{"deviceId":true}]},"ts":"a\u0000b"}"#,
    r#"{"large":9223372036854775807,"small":-9223372036854775808,"float":1.7976931348623157e308}"#,
    r#"{"a":[[[[[[[1]]]]]]],"long":"0123456789012345678901234567890123456789"}"#,
    r#"{"_id":1,"0":{"1":[]},"with space":{},"\n":"\u2028"}"#,
];

in_stores!(keeps_what_is_not_refused, [sqlite, mongodb, timeseries]);

async fn keeps_what_is_not_refused(setup: Setup) {
    let server = Server::start(setup).await;
    let post = async |device: &str, metadata: &str| {
        let body = format!(r#"{{"deviceId":"{device}","ts":1776693610000,"value":1,"metadata":{metadata}}}"#);
        server.post("/v1/readings", "application/json", body).await
    };
    for metadata in REFUSED {
        let answer = post("innocent", metadata).await;
        let error: Value = serde_json::from_str(answer.text()).expect("JSON");
        assert_eq!((answer.status, &error["errors"][0]["code"]), (400, &json!("invalid_metadata")), "{metadata}");
    }
    for (number, metadata) in KEPT.into_iter().enumerate() {
        let answer = post(&format!("kept-{number}"), metadata).await;
        assert_eq!(answer.status, 200, "{metadata}: {}", answer.text());
    }
    assert_eq!(post("innocent", "{}").await.status, 200);
    server.settled().await;
    let metrics = server.metrics().await;
    assert_eq!(metrics.count("tidegauge_readings_dead_lettered_total"), 0, "no store refuses any of them");
    for (number, metadata) in KEPT.into_iter().enumerate() {
        let found = server.get_json(&format!("/v1/devices?prefix=kept-{number}")).await["devices"][0].take();
        let sent: Value = serde_json::from_str(metadata).expect("JSON");
        assert_eq!(found["metadata"], sent);
    }
    let latest = server.get_json("/v1/devices/innocent/latest").await;
    assert!(latest.to_string().contains("2026-04-20T14:00:10.000Z"), "{latest}");
}
