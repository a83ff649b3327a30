//! `SenML` (RFC 8428) over HTTP: the examples of the RFC arrive as rollups and readings.

use serde_json::{Value, json};

use crate::harness::{Answer, Server, Setup};

const JSON: &str = "application/senml+json";
const CBOR: &str = "application/senml+cbor";

async fn post(server: &Server, content_type: &str, body: impl Into<bytes::Bytes>) -> Answer {
    server.post("/v1/readings", content_type, body).await
}

async fn rollups_of_2010(server: &Server, device: &str) -> Value {
    let range = "from=2010-06-08T00:00:00Z&to=2010-06-09T00:00:00Z";
    server.get_json(&format!("/v1/devices/{device}/rollups?{range}")).await["metrics"].take()
}

fn voltage_and_current() -> Value {
    let hour = "2010-06-08T18:00:00.000Z";
    json!({
        "voltage": [{ "ts": hour, "count": 1, "min": 120.1, "max": 120.1, "avg": 120.1, "sum": 120.1 }],
        "current": [{ "ts": hour, "count": 6, "min": 1.2, "max": 1.7, "avg": 1.45, "sum": 8.7 }],
    })
}

#[tokio::test]
async fn the_example_of_several_data_points_becomes_rollups() {
    let server = Server::start(Setup::sqlite()).await;
    let pack = r#"[
        {"bn":"urn:dev:ow:10e2073a0108006:","bt":1.276020076001e+09,"bu":"A","bver":5,"n":"voltage","u":"V","v":120.1},
        {"n":"current","t":-5,"v":1.2}, {"n":"current","t":-4,"v":1.3}, {"n":"current","t":-3,"v":1.4},
        {"n":"current","t":-2,"v":1.5}, {"n":"current","t":-1,"v":1.6}, {"n":"current","v":1.7}]"#;
    let answer = post(&server, JSON, pack).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let device = "urn:dev:ow:10e2073a0108006";
    assert_eq!(rollups_of_2010(&server, device).await, voltage_and_current());
    server.settled().await;
    assert_eq!(rollups_of_2010(&server, device).await, voltage_and_current());
    let found = server.get_json(&format!("/v1/devices?prefix={device}")).await["devices"][0].take();
    assert_eq!(found["metadata"], json!({ "units": { "current": "A", "voltage": "V" } }));
    let metrics = server.metrics().await;
    assert!(metrics.count_where("tidegauge_readings_accepted_total", &[("protocol", "senml")]) > 0);
}

#[tokio::test]
async fn the_same_in_cbor_is_the_same() {
    let server = Server::start(Setup::sqlite()).await;
    let pack = EXAMPLE_IN_CBOR.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).expect("hex"));
    let answer = post(&server, CBOR, pack.collect::<Vec<_>>()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(rollups_of_2010(&server, "urn:dev:ow:10e2073a0108006").await, voltage_and_current());
}

/// Section 6 of the RFC.
const EXAMPLE_IN_CBOR: &str = "
    87 a7 21 78 1b 75 72 6e 3a 64 65 76 3a 6f 77 3a 31 30 65 32 30 37 33 61 30 31 30 38 30 30 36 3a 22 fb 41 d3 03 a1
    5b 00 10 62 23 61 41 20 05 00 67 76 6f 6c 74 61 67 65 01 61 56 02 fb 40 5e 06 66 66 66 66 66 a3 00 67 63 75 72 72
    65 6e 74 06 24 02 fb 3f f3 33 33 33 33 33 33 a3 00 67 63 75 72 72 65 6e 74 06 23 02 fb 3f f4 cc cc cc cc cc cd a3
    00 67 63 75 72 72 65 6e 74 06 22 02 fb 3f f6 66 66 66 66 66 66 a3 00 67 63 75 72 72 65 6e 74 06 21 02 f9 3e 00 a3
    00 67 63 75 72 72 65 6e 74 06 20 02 fb 3f f9 99 99 99 99 99 9a a3 00 67 63 75 72 72 65 6e 74 06 00 02 fb 3f fb 33
    33 33 33 33 33";

#[tokio::test]
async fn times_may_be_relative_to_now() {
    let server = Server::start(Setup::sqlite()).await;
    let answer = post(&server, JSON, r#"[{"bn":"pump/","n":"temp","t":-90,"v":20},{"n":"temp","v":21}]"#).await;
    assert_eq!(answer.json(), json!({ "accepted": 2 }));
    let latest = server.get_json("/v1/devices/pump/latest").await;
    assert_eq!(latest["metrics"]["temp"]["value"], 21.0, "{latest}");
}

#[tokio::test]
async fn a_bad_record_is_reported_and_the_others_are_kept() {
    let server = Server::start(Setup::sqlite()).await;
    let pack = r#"[{"bn":"pump/","bt":1713621610,"n":"temp","v":20},{"n":"mode","vs":"on"},{"n":"temp","t":1,"v":21}]"#;
    let answer = post(&server, JSON, pack).await;
    assert_eq!(answer.status, 400);
    let problem = answer.json();
    assert_eq!((&problem["code"], &problem["accepted"]), (&json!("partially_rejected"), &json!(2)), "{problem}");
    assert_eq!(problem["errors"][0]["code"], "invalid_value", "{problem}");
    assert_eq!(server.readings("pump").await.as_array().expect("readings").len(), 2);
    let answer = server.post("/v1/readings?partial=false", JSON, pack).await;
    assert_eq!(answer.json()["accepted"], 0);
}

#[tokio::test]
async fn a_body_that_is_no_supported_pack_is_refused() {
    let server = Server::start(Setup::sqlite()).await;
    for (content_type, body, code) in [
        (JSON, "{", "invalid_senml"),
        (JSON, "{}", "invalid_senml"),
        (CBOR, "\u{1}", "invalid_senml"),
        (JSON, r#"[{"bver":11,"n":"a","v":1}]"#, "unsupported_senml"),
        (JSON, r#"[{"n":"a","v":1,"must_":1}]"#, "unsupported_senml"),
    ] {
        let answer = post(&server, content_type, body).await;
        assert_eq!((answer.status, &answer.json()["code"]), (400, &json!(code)), "{body}");
        assert_eq!(answer.header("content-type"), "application/problem+json");
    }
    let metrics = server.metrics().await;
    for (reason, count) in [("invalid_senml", 3), ("unsupported_senml", 2)] {
        let labels = [("protocol", "senml"), ("reason", reason)];
        assert_eq!(metrics.count_where("tidegauge_readings_rejected_total", &labels), count);
    }
}

#[tokio::test]
async fn where_names_are_cut_is_a_choice() {
    let separators: toml::Table = [("separators".to_owned(), ".".into())].into_iter().collect();
    let server = Server::start(Setup::sqlite().set("ingest.senml", separators)).await;
    assert_eq!(post(&server, JSON, r#"[{"n":"site/pump.temp","t":1713621610,"v":20}]"#).await.status, 200);
    assert_eq!(server.readings("site/pump").await[0]["values"], json!({ "temp": 20.0 }));
}

#[tokio::test]
async fn with_lower_case_device_ids_capitals_make_no_difference() {
    let server = Server::start(Setup::sqlite().set("ingest.device_id_case", "lower")).await;
    assert_eq!(post(&server, JSON, r#"[{"n":"PUMP/temp","t":1713621610,"v":20}]"#).await.status, 200);
    let body = json!({ "deviceId": "Pump", "ts": 1_713_621_610_000_i64, "values": { "temp": 21 } });
    assert_eq!(server.ingest(&body).await.status, 200);
    let line = "hum,device=pump value=40 1713621610000000000";
    assert_eq!(server.post("/write", "text/plain", line).await.status, 204);
    let expected = json!([{ "ts": "2024-04-20T14:00:10.000Z", "values": { "hum": 40.0, "temp": 21.0 } }]);
    for asked in ["pump", "Pump", "PUMP"] {
        assert_eq!(server.readings(asked).await, expected, "{asked}");
        let devices = server.get_json(&format!("/v1/devices?prefix={asked}")).await["devices"].take();
        assert_eq!((devices.as_array().map(Vec::len), &devices[0]["deviceId"]), (Some(1), &json!("pump")), "{asked}");
        assert_eq!(server.get_json(&format!("/v1/devices/{asked}/latest")).await["deviceId"], "pump");
    }
}
