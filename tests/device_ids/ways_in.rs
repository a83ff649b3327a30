//! JSON, line protocol, remote write, OTLP, webhooks, UDP and MQTT take hostile IDs, and refuse bad ones.

use serde_json::{Value, json};

use super::{START_MS, ids};
use crate::harness::{Broker, Server, Setup, encoded, wait_until};
use crate::remote_write;
use crate::udp::Sender;

/// The devices that have the metric.
async fn devices(server: &Server, metric: &str) -> Vec<String> {
    let page = server.get_json(&format!("/v1/latest?limit=1000&metric={metric}")).await;
    let devices = page["devices"].as_array().expect("a list").iter();
    let devices = devices.filter(|device| !device["metrics"][metric].is_null());
    devices.map(|device| device["deviceId"].as_str().expect("an ID").to_owned()).collect()
}

/// An ID as the value of a tag.
fn in_line_protocol(id: &str) -> String {
    let mut tag = String::new();
    for char in id.chars() {
        if " ,=".contains(char) {
            tag.push('\\');
        }
        tag.push(char);
    }
    tag
}

fn otlp(id: &str) -> Value {
    let point = json!({ "asInt": 1, "timeUnixNano": format!("{START_MS}000000") });
    json!({
        "resource": { "attributes": [{ "key": "device.id", "value": { "stringValue": id } }] },
        "scopeMetrics": [{ "metrics": [{ "name": "otlp", "gauge": { "dataPoints": [point] } }] }],
    })
}

#[tokio::test]
async fn every_protocol_over_http_and_udp_takes_hostile_ids() {
    let hooks = [
        "path = '/hooks/body'\ndevice = 'id'",
        "path = '/hooks/query'\ndevice = '?id'",
        "path = '/hooks/{deviceId}/x'",
    ];
    let hook = |setup: Setup, keys: &str| setup.webhook(&format!("{keys}\nmetrics = '*'"));
    let server = Server::start(hooks.into_iter().fold(Setup::sqlite(), hook)).await;
    let ids = ids();
    let accepted = async |path: &str, content_type: &str, body: String| {
        let answer = server.post(path, content_type, body).await;
        assert!([200, 204].contains(&answer.status), "{path}: {}", answer.text());
    };
    let sender = Sender::to(server.udp_addr());
    // Line protocol has no way to write a backslash at the end of a tag.
    let in_lines: Vec<&String> = ids.iter().filter(|id| !id.ends_with('\\')).collect();
    for id in &ids {
        accepted(
            "/v1/readings",
            "application/x-ndjson",
            json!({ "deviceId": id, "values": { "json": 1 } }).to_string(),
        )
        .await;
        accepted("/hooks/body", "application/json", json!({ "id": id, "body": 1 }).to_string()).await;
        accepted(&format!("/hooks/query?id={}", encoded(id)), "application/json", json!({ "query": 1 }).to_string())
            .await;
        accepted(&format!("/hooks/{}/x", encoded(id)), "application/json", json!({ "path": 1 }).to_string()).await;
        sender.send(json!({ "deviceId": id, "values": { "udp": 1 } }).to_string());
    }
    let lines: Vec<String> =
        in_lines.iter().map(|id| format!("line,device={} value=1", in_line_protocol(id))).collect();
    accepted("/api/v2/write", "text/plain", lines.join("\n")).await;
    accepted(
        "/v1/metrics",
        "application/json",
        json!({ "resourceMetrics": ids.iter().map(|id| otlp(id)).collect::<Vec<_>>() }).to_string(),
    )
    .await;
    remote_write::of_devices(&server, "remote", &ids).await;
    for metric in ["json", "body", "query", "path", "otlp", "remote"] {
        assert_eq!(devices(&server, metric).await, ids, "{metric}");
    }
    assert_eq!(devices(&server, "line").await, in_lines.into_iter().cloned().collect::<Vec<_>>());
    wait_until("all datagrams are readings", async || (devices(&server, "udp").await == ids).then_some(())).await;
}

#[tokio::test]
async fn a_level_of_an_mqtt_topic_is_the_device_as_it_is_written() {
    let broker = Broker::start().await;
    let topics = "[[topics]]\ntopic = 'in/{deviceId}/{metric}'\n";
    let server = Server::start(broker.subscribed(Setup::sqlite(), topics)).await;
    wait_until("the client is connected", async || {
        (server.metrics().await.count("tidegauge_mqtt_connected") == 1).then_some(())
    })
    .await;
    let ids: Vec<String> =
        ids().into_iter().filter(|id| !id.contains(['/', '+', '#', '\u{FFFF}', '\u{10FFFF}'])).collect();
    let messages: Vec<(String, String)> = ids.iter().map(|id| (format!("in/{id}/mqtt"), "1".to_owned())).collect();
    broker.publish_all(&messages).expect("the broker takes them");
    broker.publish("in/ a/mqtt", "1");
    wait_until("the messages are readings", async || (devices(&server, "mqtt").await == ids).then_some(())).await;
    let refused = server.logged("must not begin or end with a space").await;
    assert!(refused.contains("invalid_device_id"), "{refused}");
}

#[tokio::test]
async fn small_letters_are_those_of_ascii() {
    let server = Server::start(Setup::sqlite().set("ingest.device_id_case", "lower")).await;
    for id in ["KÜCHE", "küche", "kÜche", "\u{212A}ÜCHE"] {
        assert_eq!(server.ingest(&json!({ "deviceId": id, "values": { "m": 1 } })).await.status, 200);
    }
    assert_eq!(devices(&server, "m").await, ["kÜche", "küche", "\u{212A}Üche"]);
    assert_eq!(server.get(&format!("/v1/devices/{}/latest", encoded("KÜche"))).await.status, 200);
}
