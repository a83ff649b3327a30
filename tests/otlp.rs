//! OTLP over HTTP: the answers that its specification demands. `clients` has the real exporter.

use prost::Message;
use serde_json::{Value, json};

use crate::harness::{Answer, Server, Setup, secret_of};

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/x-protobuf";
const TS_NS: &str = "1713621610000000000";
const TS: &str = "2024-04-20T14:00:10.000Z";

/// An `ExportMetricsServiceResponse`.
#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_data_points: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

/// A `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

/// A request of one resource with these attributes and metrics.
fn request(attributes: &[(&str, &str)], metrics: &Value) -> Value {
    let attribute = |(key, value): &(&str, &str)| json!({ "key": key, "value": { "stringValue": value } });
    let attributes: Vec<_> = attributes.iter().map(attribute).collect();
    let scope_metrics = json!([{ "scope": { "name": "" }, "metrics": metrics }]);
    json!({ "resourceMetrics": [{ "resource": { "attributes": attributes }, "scopeMetrics": scope_metrics }] })
}

async fn export(server: &Server, request: &Value) -> Answer {
    server.post("/v1/metrics", JSON, request.to_string()).await
}

#[tokio::test]
async fn gauges_and_sums_become_readings() {
    let server = Server::start(Setup::sqlite()).await;
    let state = json!([{ "key": "state", "value": { "stringValue": "used" } }]);
    let metrics = json!([
        { "name": "system.memory.usage", "unit": "By",
          "sum": { "isMonotonic": false, "aggregationTemporality": 2,
                   "dataPoints": [{ "asInt": "1024", "timeUnixNano": TS_NS, "attributes": state }] } },
        { "name": "temp", "gauge": { "dataPoints": [{ "asDouble": 22.5, "timeUnixNano": TS_NS }] } },
    ]);
    let resource = [("host.name", "node-1"), ("service.name", "agent"), ("os.type", "linux")];
    let answer = export(&server, &request(&resource, &metrics)).await;
    assert_eq!((answer.status, answer.header("content-type"), answer.text()), (200, JSON, "{}"));
    let values =
        json!({ "system.memory.usage{service.name=agent,state=used}": 1024.0, "temp{service.name=agent}": 22.5 });
    assert_eq!(server.readings("node-1").await, json!([{ "ts": TS, "values": values }]));
    let device = server.get_json("/v1/devices").await["devices"][0].take();
    assert_eq!(device["metadata"], json!({ "os.type": "linux" }));
    let metrics = server.metrics().await;
    assert_eq!(metrics.count_where("tidegauge_readings_accepted_total", &[("protocol", "otlp")]), 1);
}

#[tokio::test]
async fn data_points_that_are_not_stored_are_a_partial_success() {
    let server = Server::start(Setup::sqlite()).await;
    let metrics = json!([
        { "name": "temp",
          "gauge": { "dataPoints": [{ "asDouble": 22.5, "timeUnixNano": TS_NS }, { "timeUnixNano": TS_NS }] } },
        { "name": "idle", "histogram": { "dataPoints": [{ "timeUnixNano": TS_NS }] } },
        { "name": "quiet", "summary": { "dataPoints": [{ "timeUnixNano": TS_NS }] } },
        { "name": "latency", "histogram": { "dataPoints": [
            { "count": "3", "sum": 4.5, "bucketCounts": ["1", "2"], "explicitBounds": [1], "timeUnixNano": TS_NS },
            {}] } },
    ]);
    let answer = export(&server, &request(&[("device.id", "d")], &metrics)).await;
    let message = "2 of 6 samples are rejected, the others are stored: device d: a data point of \"temp\" has no \
                   value; a data point of \"latency\" has no value";
    let partial_success = json!({ "rejectedDataPoints": "2", "errorMessage": message });
    assert_eq!((answer.status, answer.json()), (200, json!({ "partialSuccess": partial_success })));
    let values = json!({
        "idle_count": 0.0, "latency_count": 3.0, "latency_sum": 4.5, "quiet_count": 0.0, "quiet_sum": 0.0, "temp": 22.5,
    });
    assert_eq!(server.readings("d").await, json!([{ "ts": TS, "values": values }]));
    let ignored = [("protocol", "otlp"), ("reason", "histogram")];
    assert_eq!(server.metrics().await.count_where("tidegauge_fields_ignored_total", &ignored), 1, "the buckets");
}

#[tokio::test]
async fn a_histogram_is_one_data_point_whatever_the_number_of_its_values() {
    let server = Server::start(Setup::sqlite()).await;
    let histogram = |sum: &Value, ts: &str| {
        let point = json!({ "count": "3", "sum": sum, "min": 1, "max": 2, "timeUnixNano": ts });
        json!({ "name": "latency", "histogram": { "dataPoints": [point] } })
    };
    let gauge = json!({ "name": "temp", "gauge": { "dataPoints": [{ "asDouble": 22.5, "timeUnixNano": TS_NS }] } });
    let in_2100 = histogram(&json!(4.5), "4102444800000000000");
    let answer = export(&server, &request(&[("device.id", "d")], &json!([gauge, in_2100]))).await;
    let partial = &answer.json()["partialSuccess"];
    assert_eq!((answer.status, &partial["rejectedDataPoints"]), (200, &json!("1")), "{}", answer.text());
    assert!(answer.text().contains("1 of 2 samples are rejected"), "{}", answer.text());
    let infinite = histogram(&json!("Infinity"), TS_NS);
    let answer = export(&server, &request(&[("device.id", "d")], &json!([gauge, infinite]))).await;
    assert!(answer.text().contains("1 of 2 samples are rejected"), "{}", answer.text());
    let answer = export(&server, &request(&[("device.id", "d")], &json!([infinite]))).await;
    let partial = &answer.json()["partialSuccess"];
    assert_eq!((answer.status, &partial["rejectedDataPoints"]), (200, &json!("1")), "its other values are stored");
}

#[tokio::test]
async fn a_request_of_which_nothing_is_stored_is_an_error() {
    let server = Server::start(Setup::sqlite()).await;
    let metrics = json!([{ "name": "temp", "gauge": { "dataPoints": [{ "asInt": 1 }] } }]);
    let answer = export(&server, &request(&[("os.type", "linux")], &metrics)).await;
    let message = "1 of 1 samples are rejected: no attribute of the resource names the device (looked for device.id, \
                   host.name, service.instance.id, service.name)";
    assert_eq!((answer.status, answer.json()), (400, json!({ "code": 3, "message": message })));
}

#[tokio::test]
async fn answers_have_the_encoding_of_the_request() {
    let tokens = Setup::sqlite().token("operator", "scopes = ['admin']").token("writer", "scopes = ['ingest']");
    let server = Server::start(tokens).await;
    let send = async |content_type: &str, body: &[u8], token: &str| {
        let request = server.request(reqwest::Method::POST, "/v1/metrics").header("content-type", content_type);
        server.send(request.bearer_auth(secret_of(token)).body(body.to_vec())).await
    };
    let answer = send(PROTOBUF, &[0x0A, 0x00], "writer").await;
    assert_eq!((answer.status, answer.header("content-type"), answer.body.len()), (200, PROTOBUF, 0));
    // A resource with one scope, one gauge and one data point, without a device.
    let nameless = [0x0A, 0x0B, 0x12, 0x09, 0x12, 0x07, 0x2A, 0x05, 0x0A, 0x03, 0x40, 0x80, 0x00];
    let answer = send(PROTOBUF, &nameless, "writer").await;
    let status = Status::decode(answer.body.clone()).expect("a status");
    assert_eq!((answer.status, status.code, status.message.starts_with("1 of 1 samples are")), (400, 3, true));
    // The device `d1` with a gauge `m` of two data points, of which one has a value.
    let some = b"\x0A\x2D\x0A\x13\x0A\x11\x0A\x09\x64\x65\x76\x69\x63\x65\x2E\x69\x64\x12\x04\x0A\x02\x64\x31\x12\
                 \x16\x12\x14\x0A\x01\x6D\x2A\x0F\x0A\x09\x21\x00\x00\x00\x00\x00\x00\xF0\x3F\x0A\x02\x40\x00";
    let answer = send(PROTOBUF, &some[..], "writer").await;
    let partial = Response::decode(answer.body.clone()).expect("a response").partial_success.expect("a partial one");
    assert_eq!((answer.status, partial.rejected_data_points), (200, 1));
    for (content_type, body, token, status, code) in [
        (PROTOBUF, &b"{}"[..], "writer", 400, 3),
        (PROTOBUF, b"{}", "nobody", 401, 16),
        (JSON, b"[]", "writer", 400, 3),
        (JSON, b"{}", "operator", 403, 7),
        ("text/plain", b"{}", "writer", 415, 3),
    ] {
        let answer = send(content_type, body, token).await;
        assert_eq!(answer.status, status, "{content_type} {token}");
        let found = if content_type == JSON {
            answer.json()["code"].take()
        } else {
            assert_eq!(answer.header("content-type"), PROTOBUF);
            json!(Status::decode(answer.body.clone()).expect("a status").code)
        };
        assert_eq!(found, code, "{content_type} {token}");
    }
}

#[tokio::test]
async fn the_attributes_that_name_the_device_are_configurable() {
    let names = toml::Value::from(vec!["plant.unit", "service.name"]);
    let section: toml::Table = [("device_attributes".to_owned(), names)].into_iter().collect();
    let server = Server::start(Setup::sqlite().set("ingest.otlp", section)).await;
    let metrics = json!([{ "name": "temp", "gauge": { "dataPoints": [{ "asInt": 1, "timeUnixNano": TS_NS }] } }]);
    let resource = [("host.name", "h"), ("plant.unit", "u7"), ("service.name", "s")];
    assert_eq!(export(&server, &request(&resource, &metrics)).await.status, 200);
    assert_eq!(server.readings("u7").await[0]["values"], json!({ "temp{service.name=s}": 1.0 }));
    let device = server.get_json("/v1/devices").await["devices"][0].take();
    assert_eq!(device["metadata"], json!({ "host.name": "h" }));
}
