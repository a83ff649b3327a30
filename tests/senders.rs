//! The senders of `docs/senders.md`: each sends what its program sends, and the query of the page shows it.

use serde_json::{Value, json};

use crate::harness::{Answer, Server, Setup};

const PAGE: &str = include_str!("../docs/senders.md");
const TS_MS: i64 = 1_792_852_215_000;

async fn write(server: &Server, path: &str, lines: &str) {
    let answer = server.post(path, "text/plain; charset=utf-8", lines.to_owned()).await;
    assert_eq!(answer.status, 204, "{}", answer.text());
}

fn latest(answer: &Answer) -> Vec<Value> {
    answer.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The configuration of the page, which is the only one with these keys.
fn of_the_page() -> Setup {
    let start = PAGE.find("[ingest.line_protocol]").expect("the section");
    let text = PAGE[start..].split("```").next().expect("the end of the block");
    let table: toml::Table = toml::from_str(text).expect("TOML");
    Setup::sqlite().set("ingest.line_protocol", table["ingest"]["line_protocol"].clone())
}

/// The integration of Home Assistant makes this event a point, and its client for version 1 this line.
#[tokio::test]
async fn an_entity_of_home_assistant_has_its_name_and_unit() {
    let server = Server::start(of_the_page()).await;
    let line = "sensor__temperature,domain=sensor,entity_id=kitchen_window,friendly_name=Küche\\ Fenster,\
                unit_of_measurement=°C state_class_str=\"measurement\",value=21.5 1792852215000000000\n";
    write(&server, "/write?db=home_assistant", line).await;
    let path = "/v1/latest?meta.friendly_name=K%C3%BCche%20Fenster&format=ndjson";
    let found = latest(&server.get(path).await);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].to_string().contains("sensor__temperature{domain=sensor}"), "{found:?}");
    let device = server.get_json("/v1/devices/kitchen_window").await;
    let metadata: Value = serde_json::from_str(&metadata_on("sensor.kitchen_window")).expect("JSON");
    assert_eq!(device["metadata"], metadata);
}

/// The JSON behind `and the metadata` in the paragraph with this text.
fn metadata_on(text: &str) -> String {
    let paragraph = PAGE.split("\n\n").find(|paragraph| paragraph.contains(text)).expect("a paragraph");
    let start = paragraph.find("`{\"").expect("an object") + 1;
    paragraph[start..].split('`').next().expect("its end").to_owned()
}

/// The tags of a point that Telegraf sends: `tags` without those that the input of the page excludes.
fn tags_of_telegraf(input: &str, tags: &[(&str, &str)]) -> String {
    let start = PAGE.find("[[outputs.influxdb_v2]]").expect("the section");
    let text = PAGE[start..].split("```").next().expect("the end of the block");
    let table: toml::Table = toml::from_str(text).expect("TOML");
    let excluded = table["inputs"][input][0]["tagexclude"].as_array().expect("a list");
    let left = tags.iter().filter(|(name, _)| !excluded.iter().any(|excluded| excluded.as_str() == Some(*name)));
    left.map(|(name, value)| format!(",{name}={value}")).collect::<Vec<_>>().concat()
}

/// Telegraf adds the tag `host`, and its plugin for Modbus three others.
#[tokio::test]
async fn telegraf_names_the_device_by_a_tag() {
    let server = Server::start(Setup::sqlite()).await;
    let of_mqtt = tags_of_telegraf("mqtt_consumer", &[("deviceId", "press-1"), ("host", "gateway")]);
    let meter = [
        ("deviceId", "meter-1"),
        ("host", "gateway"),
        ("name", "meter"),
        ("slave_id", "1"),
        ("type", "holding_register"),
    ];
    let of_modbus = tags_of_telegraf("modbus", &meter);
    let lines = format!(
        "climate{of_mqtt} temp=21.5 1792852215000000000\nmodbus{of_modbus} voltage=230.1 1792852215000000000\n"
    );
    write(&server, "/api/v2/write?bucket=any&org=any&precision=ns", &lines).await;
    for (device, metric, value) in [("press-1", "climate_temp", 21.5), ("meter-1", "modbus_voltage", 230.1)] {
        let found = server.get_json(&format!("/v1/devices/{device}/latest")).await;
        assert_eq!(found["metrics"][metric]["value"], json!(value), "{found}");
        assert!(PAGE.contains(&format!("`{metric}`")) && PAGE.contains(&format!("/v1/devices/{device}/")));
    }
}

#[tokio::test]
async fn node_red_and_a_job_of_cron_send_json() {
    let server = Server::start(Setup::sqlite()).await;
    let of_node_red = json!({ "deviceId": "press-2", "ts": TS_MS, "metric": "pressure", "unit": "bar", "value": 4.2 });
    assert_eq!(server.ingest(&of_node_red).await.status, 200);
    let range = format!("from={TS_MS}&to={}", TS_MS + 1);
    let found = server.get_json(&format!("/v1/devices/press-2/readings?metric=pressure&{range}")).await;
    assert_eq!(found["readings"][0]["values"], json!({ "pressure{unit=bar}": 4.2 }), "{found}");

    let of_cron = format!(r#"{{"deviceId": "pi-1", "ts": {TS_MS}, "values": {{"cpu_temp": 48.312}}}}"#);
    assert_eq!(server.post("/v1/readings", "application/json", of_cron).await.status, 200);
    let found = server.get_json(&format!("/v1/devices/pi-1/rollups?step=1h&{range}")).await;
    assert_eq!(found["metrics"]["cpu_temp"][0]["max"], json!(48.312), "{found}");
}
