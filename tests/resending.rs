//! Resent readings are stored once, with every protocol.

use serde_json::json;

use crate::harness::{Database, Server, Setup};

/// A device per protocol, with two readings: 1 at 14:00:10 and 3 at 14:00:20 on 2024-04-20.
fn batches() -> Vec<(&'static str, &'static str, &'static str, Vec<u8>)> {
    let json = r#"{"deviceId":"json","readings":[{"ts":1713621610000,"value":1},{"ts":1713621620000,"value":3}]}"#;
    let lines = "{\"deviceId\":\"ndjson\",\"ts\":1713621610000,\"value\":1}\n\
                 {\"deviceId\":\"ndjson\",\"ts\":1713621620000,\"value\":3}\n";
    let influx = |device| {
        format!(
            "value,device={device} value=1 1713621610000000000\nvalue,device={device} value=3 1713621620000000000\n"
        )
    };
    let senml = r#"[{"bn":"senml-json/","bt":1713621610,"n":"value","v":1},{"n":"value","t":10,"v":3}]"#;
    // The same with device "senml-cbor".
    let cbor = [
        b"\x82\xa4\x21\x6bsenml-cbor/\x22\x1a\x66\x23\xca\x6a\x00\x65value\x02\x01",
        &b"\xa3\x00\x65value\x06\x0a\x02\x03"[..],
    ]
    .concat();
    vec![
        ("json", "/v1/readings", "application/json", json.into()),
        ("ndjson", "/v1/readings", "application/x-ndjson", lines.into()),
        ("influx1", "/write?db=x", "text/plain", influx("influx1").into()),
        ("influx2", "/api/v2/write?org=x&bucket=x", "text/plain", influx("influx2").into()),
        ("influx3", "/api/v3/write_lp?db=x", "text/plain", influx("influx3").into()),
        ("senml-json", "/v1/readings", "application/senml+json", senml.into()),
        ("senml-cbor", "/v1/readings", "application/senml+cbor", cbor),
    ]
}

#[tokio::test]
async fn every_protocol_stores_a_resent_batch_once() {
    let server = Server::start(Setup::sqlite()).await;
    let batches = batches();
    for (device, path, content_type, body) in &batches {
        for _ in 0..2 {
            let answer = server.post(path, content_type, body.clone()).await;
            assert!(matches!(answer.status, 200 | 204), "{device}: {} {}", answer.status, answer.text());
        }
    }
    server.settled().await; // from here on, what comes again is in the store already
    for (_, path, content_type, body) in &batches {
        server.post(path, content_type, body.clone()).await;
    }
    let metrics = server.settled().await;
    let readings = 2 * batches.len() as u64;
    assert_eq!(metrics.count("tidegauge_readings_accepted_total"), 3 * readings);
    assert_eq!(metrics.count("tidegauge_readings_stored_total"), readings);
    assert_eq!(metrics.count("tidegauge_readings_duplicate_total"), 2 * readings);
    for (device, ..) in batches {
        let range = "from=2024-04-20T00:00:00Z&to=2024-04-21T00:00:00Z";
        let rollups = server.get_json(&format!("/v1/devices/{device}/rollups?{range}")).await;
        let hour =
            json!([{ "ts": "2024-04-20T14:00:00.000Z", "count": 2, "min": 1.0, "max": 3.0, "avg": 2.0, "sum": 4.0 }]);
        assert_eq!(rollups["metrics"], json!({ "value": hour }), "{device}");
    }
}

const RANGE: &str = "from=2024-04-20T00:00:00Z&to=2024-04-21T00:00:00Z";

/// Sends a value for the same instant.
async fn send_value(server: &Server, value: u32) {
    let reading = json!({ "deviceId": "d", "ts": 1_713_621_610_000_i64, "value": value });
    assert_eq!(server.ingest(&reading).await.status, 200);
}

/// The value of that instant, which must be the same in each query.
async fn value_of(server: &Server) -> Option<f64> {
    let latest = server.get_json("/v1/devices/d/latest").await["metrics"]["value"]["value"].as_f64();
    let reading =
        server.get_json(&format!("/v1/devices/d/readings?{RANGE}")).await["readings"][0]["values"]["value"].as_f64();
    let rollup = server.get_json(&format!("/v1/devices/d/rollups?{RANGE}")).await["metrics"]["value"][0].take();
    assert_eq!((latest, rollup["count"].as_u64(), rollup["sum"].as_f64()), (reading, Some(1), reading));
    reading
}

#[tokio::test]
async fn of_values_from_two_instances_the_last_flushed_stays() {
    let database = Database::new();
    let mut early = Server::start(Setup::mongodb(&database).all_pending()).await;
    let late = Server::start(Setup::mongodb(&database)).await;
    send_value(&early, 1).await;
    send_value(&late, 2).await;
    late.settled().await;
    assert_eq!(
        (value_of(&late).await, value_of(&early).await),
        (Some(2.0), Some(1.0)),
        "what is pending lies over what is stored"
    );
    assert!(early.terminate().await.success());
    assert_eq!(value_of(&late).await, Some(1.0), "it was flushed last");
    send_value(&late, 1).await; // the same value again is safe whatever the order
    late.settled().await;
    assert_eq!(value_of(&late).await, Some(1.0));
}

#[tokio::test]
async fn a_time_series_keeps_the_first_value_of_an_instant() {
    let database = Database::new();
    let mut server = Server::start(Setup::timeseries(&database).all_pending()).await;
    for value in [1, 2] {
        send_value(&server, value).await;
        assert_eq!(value_of(&server).await, Some(1.0));
    }
    assert!(server.terminate().await.success());
    server.start_again().await;
    assert_eq!(value_of(&server).await, Some(1.0), "flushed");
    send_value(&server, 3).await;
    assert_eq!(value_of(&server).await, Some(1.0), "stored and pending");
    assert!(server.terminate().await.success());
    server.start_again_with(Setup::timeseries(&database)).await;
    assert_eq!(value_of(&server).await, Some(1.0), "flushed again");
}
