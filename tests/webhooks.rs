//! Webhooks: the payloads in `tests/webhooks`, which have the forms that platforms document, become readings.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Answer, Server, Setup, binary, secret_of};
use crate::http_contract::problem;

const JSON: &str = "application/json";

fn payload(name: &str) -> String {
    let path = format!("{}/tests/webhooks/{name}.json", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A server with a hook of each preset.
async fn server() -> Server {
    let presets = [
        ("/hooks/tts", "tts"),
        ("/hooks/chirpstack", "chirpstack"),
        ("/hooks/zigbee2mqtt/{deviceId}", "zigbee2mqtt"),
        ("/hooks/tasmota/{deviceId}", "tasmota"),
        ("/hooks/shelly", "shelly"),
        ("/api/v1/{deviceId}/telemetry", "thingsboard"),
    ];
    let hook = |(path, preset)| format!("path = \"{path}\"\npreset = \"{preset}\"");
    Server::start(presets.map(hook).iter().fold(Setup::sqlite(), |setup, hook| setup.webhook(hook))).await
}

/// Posts a payload and expects that so many readings are accepted.
async fn accepted(server: &Server, path: &str, body: impl Into<bytes::Bytes>, count: u32) {
    let answer = server.post(path, JSON, body).await;
    assert_eq!((answer.status, &answer.json()["accepted"]), (200, &json!(count)), "{}", answer.text());
}

async fn metadata(server: &Server, device: &str) -> Value {
    let devices = server.get_json(&format!("/v1/devices?prefix={device}")).await;
    devices["devices"][0]["metadata"].clone()
}

#[tokio::test]
async fn an_uplink_of_the_things_stack_becomes_a_reading() {
    let server = server().await;
    accepted(&server, "/hooks/tts", payload("tts"), 1).await;
    accepted(&server, "/hooks/tts", payload("tts"), 1).await; // the same again is stored once
    let of_join = server.post("/hooks/tts", JSON, payload("tts_join")).await;
    let ignored = json!({ "accepted": 0, "ignored": 1, "ignoredFields": ["event"] });
    assert_eq!((of_join.status, of_join.json()), (200, ignored));
    server.settled().await;
    let values = json!({ "temperature": 22.5, "moisture.depth_10": 31.4, "moisture.depth_30": 28.0,
        "valve_open": 0.0, "battery": 3.21 });
    let reading = json!([{ "ts": "2024-04-20T14:00:10.014Z", "values": values }]);
    assert_eq!(server.readings("soil-17").await, reading);
    let described = json!({ "dev_eui": "70B3D57ED0050A11", "application_id": "orchard" });
    assert_eq!(metadata(&server, "soil-17").await, described);
    let metrics = server.metrics().await;
    let count = |name: &str, labels: &[(&str, &str)]| metrics.count_where(name, labels);
    let ignored = |reason| count("tidegauge_fields_ignored_total", &[("protocol", "webhook"), ("reason", reason)]);
    assert_eq!((ignored("string"), ignored("array"), ignored("event")), (2, 2, 1));
    assert_eq!(count("tidegauge_readings_accepted_total", &[("protocol", "webhook")]), 2);
}

#[tokio::test]
async fn the_events_of_chirpstack_become_readings_or_are_ignored() {
    let server = server().await;
    accepted(&server, "/hooks/chirpstack?event=up", payload("chirpstack"), 1).await;
    accepted(&server, "/hooks/chirpstack?event=%ff", payload("chirpstack"), 1).await; // the same again
    accepted(&server, "/hooks/chirpstack?event=status", payload("chirpstack_status"), 1).await;
    accepted(&server, "/hooks/chirpstack?event=join", payload("chirpstack_join"), 0).await;
    let values = json!({ "TempC_DS": 3.75, "Hum_SHT": 61.0, "Bat.V": 3.06, "Bat.status": 3.0, "door_open": 1.0 });
    let readings = json!([
        { "ts": "2024-04-20T14:00:10.775Z", "values": values },
        { "ts": "2024-04-20T14:05:10.927Z", "values": { "margin": 12.0, "batteryLevel": 88.5 } },
    ]);
    assert_eq!(server.readings("a84041b2c1850d17").await, readings);
    let described = json!({ "deviceName": "Cold room 4", "applicationName": "Cold rooms",
        "tags": { "floor": "2", "hall": "north" } });
    assert_eq!(metadata(&server, "a84041b2c1850d17").await, described);
    // An uplink without a codec has nothing to store. ChirpStack must not take that for a failure.
    let mut without_codec: Value = serde_json::from_str(&payload("chirpstack")).expect("JSON");
    without_codec.as_object_mut().expect("an object").remove("object");
    accepted(&server, "/hooks/chirpstack?event=up", without_codec.to_string(), 0).await;
}

#[tokio::test]
async fn a_message_of_zigbee2mqtt_becomes_a_reading_of_the_device_in_the_path() {
    let server = server().await;
    accepted(&server, "/hooks/zigbee2mqtt/kitchen%2Fwindow", payload("zigbee2mqtt"), 1).await;
    let values = json!({ "battery": 74.0, "humidity": 44.72, "linkquality": 153.0, "occupancy": 1.0,
        "power_outage_count": 3.0, "temperature": 27.34, "voltage": 2985.0 });
    let reading = json!([{ "ts": "2024-04-20T14:00:10.000Z", "values": values }]);
    assert_eq!(server.readings("kitchen/window").await, reading);
    let answer = server.post("/hooks/zigbee2mqtt/kitchen", JSON, r#"{"action":"single"}"#).await;
    assert_eq!(problem(&answer, 400)["errors"][0]["code"], "missing_values");
}

#[tokio::test]
async fn a_message_of_tasmota_gets_the_time_of_the_server() {
    let server = server().await;
    accepted(&server, "/hooks/tasmota/washer", payload("tasmota"), 1).await;
    let readings = server.readings("washer").await;
    let [reading] = readings.as_array().expect("readings").as_slice() else { panic!("{readings}") };
    let values = json!({ "AM2301.Temperature": 22.6, "AM2301.Humidity": 52.4, "AM2301.DewPoint": 12.4,
        "ENERGY.Total": 381.701, "ENERGY.Yesterday": 0.14, "ENERGY.Today": 0.327, "ENERGY.Period": 25.0,
        "ENERGY.Power": 41.0, "ENERGY.ApparentPower": 57.0, "ENERGY.ReactivePower": 40.0, "ENERGY.Factor": 0.72,
        "ENERGY.Voltage": 231.0, "ENERGY.Current": 0.247 });
    assert_eq!(reading["values"], values);
    assert!(reading["ts"].as_str().expect("a time") > "2026", "{reading}");
}

#[tokio::test]
async fn a_status_of_a_shelly_becomes_a_reading_and_an_event_does_not() {
    let server = server().await;
    accepted(&server, "/hooks/shelly", payload("shelly"), 1).await;
    accepted(&server, "/hooks/shelly", payload("shelly_event"), 0).await;
    let values = json!({ "switch:0.output": 1.0, "switch:0.apower": 12.5, "switch:0.voltage": 232.7,
        "switch:0.current": 0.071, "switch:0.aenergy.total": 1840.25, "switch:0.temperature.tC": 39.2,
        "switch:0.temperature.tF": 102.5 });
    let reading = json!([{ "ts": "2024-04-20T14:00:10.040Z", "values": values }]);
    assert_eq!(server.readings("shellyplus1pm-441793cbd2a4").await, reading);
}

#[tokio::test]
async fn telemetry_for_thingsboard_becomes_readings_in_each_of_its_forms() {
    let server = server().await;
    accepted(&server, "/api/v1/boiler/telemetry", payload("thingsboard"), 2).await;
    let one = r#"{"ts":1713621602000,"values":{"temperature":42.6}}"#;
    accepted(&server, "/api/v1/boiler/telemetry", one, 1).await;
    let readings = json!([
        { "ts": "2024-04-20T14:00:00.512Z", "values": { "temperature": 42.2, "humidity": 70.0, "active": 1.0 } },
        { "ts": "2024-04-20T14:00:01.000Z", "values": { "temperature": 42.4, "humidity": 69.0 } },
        { "ts": "2024-04-20T14:00:02.000Z", "values": { "temperature": 42.6 } },
    ]);
    assert_eq!(server.readings("boiler").await, readings);
    accepted(&server, "/api/v1/pump/telemetry", r#"{"temperature":42,"humidity":73}"#, 1).await;
    assert_eq!(server.readings("pump").await[0]["values"], json!({ "temperature": 42.0, "humidity": 73.0 }));
}

const OF_A_PARAMETER: &str = r#"
    path = "/q"
    device = "?dev"
    parameters = ["dev"]
    device_prefix = "site-"
    time = "t"
    time_unit = "s"
    metrics = { temp = "data[0].v" }
    labels = { probe = "p" }"#;

const WITH_OTHER_KEYS: &str = r#"
    path = "/tts"
    preset = "tts"
    time = ""
    when = []
    metadata = []
    metrics = { rssi = "uplink_message.rx_metadata[0].rssi" }"#;

#[tokio::test]
async fn a_hook_of_its_own_names_device_time_metrics_and_labels() {
    let setup = Setup::sqlite().webhook(OF_A_PARAMETER).webhook(WITH_OTHER_KEYS);
    let server = Server::start(setup).await;
    let body = r#"{"t":"1713621610.5","data":[{"v":21.5}],"p":"in"}"#;
    accepted(&server, "/q?dev=7", body, 1).await;
    let reading = json!([{ "ts": "2024-04-20T14:00:10.500Z", "values": { "temp{probe=in}": 21.5 } }]);
    assert_eq!(server.readings("site-7").await, reading);
    let answer = server.post("/q?dev=%ff", JSON, body).await;
    assert_eq!(problem(&answer, 400)["detail"], "dev: is not UTF-8");
    accepted(&server, "/tts", payload("tts"), 1).await;
    let readings = server.readings("soil-17").await;
    assert_eq!(readings[0]["values"], json!({ "rssi": -97.0 }), "keys of the hook override those of the preset");
    assert!(readings[0]["ts"].as_str().expect("a time") > "2026", "{readings}");
    assert_eq!(metadata(&server, "soil-17").await, Value::Null);
}

#[tokio::test]
async fn the_hook_on_the_page_stores_what_the_page_says() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/protocols.md")).expect("the page");
    let between = |start: &str, end: &str| {
        let (_, behind) = page.split_once(start).expect(start);
        behind.split_once(end).expect(end).0.to_owned()
    };
    let keys = between("```toml\n[[webhook]]\npath = \"/hooks/plant\"\n", "```");
    let body = between("/hooks/plant --json '", "'\n```").replace("'$(date +%s)'", "1713621610");
    let server = Server::start(Setup::sqlite().webhook(&format!("path = \"/hooks/plant\"\n{keys}"))).await;
    accepted(&server, "/hooks/plant", body, 1).await;
    let values = json!({ "temp{line=b}": 22.4, "pump.on{line=b}": 1.0, "pump.rpm{line=b}": 1480.0,
        "wind{line=b}": 3.4 });
    let reading = json!([{ "ts": "2024-04-20T14:00:10.000Z", "values": values }]);
    assert_eq!(server.readings("plant-7").await, reading);
    assert_eq!(metadata(&server, "plant-7").await, json!({ "hall": "2", "site": "North" }));
    assert!(page.contains("`{\"hall\":\"2\",\"site\":\"North\"}`"));
    let station = json!({ "id": 8, "site": "South", "line": "c" });
    let press = json!({ "station": station, "measured": 1_713_621_610, "data": { "temp": 1 } });
    accepted(&server, "/hooks/plant", press.to_string(), 1).await;
    assert_eq!(server.readings("Line 3 / Press").await[0]["values"], json!({ "temp{line=c}": 1.0 }));
    assert_eq!(metadata(&server, "Line%203").await, json!({ "hall": "2", "site": "South" }));
}

#[tokio::test]
async fn what_a_hook_does_not_find_is_rejected_with_its_place() {
    let server = server().await;
    let rejection = async |path: &str, body: &str| {
        let answer = server.post(path, JSON, body.to_owned()).await;
        let problem = problem(&answer, 400);
        assert_eq!((&problem["code"], &problem["accepted"]), (&json!("rejected"), &json!(0)));
        let error = &problem["errors"][0];
        format!("{}: {}", error["code"].as_str().expect("a code"), error["detail"].as_str().expect("a detail"))
    };
    assert_eq!(
        rejection("/hooks/tts", r#"{"uplink_message":{"decoded_payload":{"t":1}}}"#).await,
        "missing_device_id: there is no end_device_ids.device_id in the payload"
    );
    assert_eq!(
        rejection("/hooks/tts", r#"{"end_device_ids":{"device_id":"d"},"uplink_message":{"decoded_payload":{}}}"#)
            .await,
        "missing_values: there is no number and no boolean at uplink_message.decoded_payload.*"
    );
    assert!(rejection("/hooks/tasmota/a%20", r#"{"x":1}"#).await.starts_with("invalid_device_id: "));
    let seconds = r#"[{"ts":1713621602,"values":{"t":1}},{"ts":true,"values":{"t":1}}]"#;
    let answer = server.post("/api/v1/d/telemetry?partial=false", JSON, seconds).await;
    let problem_of = problem(&answer, 400);
    assert_eq!(problem_of["errors"][0]["code"], "timestamp_too_old", "seconds that are taken for milliseconds");
    assert_eq!(problem_of["errors"][1]["code"], "invalid_timestamp");
    let answer = server.post("/hooks/tts", JSON, "{").await;
    assert_eq!(problem(&answer, 400)["code"], "invalid_json");
    let answer = server.post("/hooks/tts?event=up", JSON, payload("tts")).await;
    assert_eq!(problem(&answer, 400)["code"], "invalid_parameter");
    let answer = server.send(server.request(Method::GET, "/hooks/tts")).await;
    assert_eq!(problem(&answer, 405)["code"], "method_not_allowed");
    server.assert_balanced().await;
}

#[tokio::test]
async fn a_hook_takes_any_media_type_and_needs_the_scope_of_readings() {
    let setup = Setup::sqlite()
        .webhook("path = \"/hooks/{deviceId}\"\nmetrics = \"*\"")
        .token("writer", "scopes = [\"ingest\"]\ndevices = [\"pump-*\"]")
        .token("reader", "scopes = [\"query\"]")
        .token("operator", "scopes = [\"admin\"]");
    let server = Server::start(setup).await;
    let post = async |device: &str, name: &str| -> Answer {
        let request = server.request(Method::POST, &format!("/hooks/{device}")).body("{\"t\":1}");
        server.send(request.bearer_auth(secret_of(name))).await
    };
    assert_eq!(post("pump-1", "writer").await.status, 200, "without a media type");
    assert_eq!(post("pump-1", "reader").await.status, 403);
    assert_eq!(post("pump-1", "nobody").await.status, 401);
    assert_eq!(problem(&post("boiler", "writer").await, 400)["errors"][0]["code"], "device_forbidden");
    let metrics = server.metrics().await;
    let refused = |reason| {
        metrics.count_where("tidegauge_readings_rejected_total", &[("protocol", "webhook"), ("reason", reason)])
    };
    assert_eq!((refused("forbidden"), refused("unauthorized"), refused("device_forbidden")), (1, 1, 1));
}

#[test]
fn check_shows_a_hook_with_the_keys_of_its_preset() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("tidegauge.toml");
    std::fs::write(&file, "[[webhook]]\npath = \"/hooks/shelly/{deviceId}\"\npreset = \"shelly\"\ntime_unit = \"ms\"")
        .expect("a temporary file");
    let check = || {
        let output = std::process::Command::new(binary()).args(["check", "--config"]).arg(&file).output();
        let output = output.expect("the binary runs");
        (
            output.status.code(),
            String::from_utf8(output.stdout).expect("text") + &String::from_utf8_lossy(&output.stderr),
        )
    };
    let (status, shown) = check();
    assert_eq!(status, Some(0), "{shown}");
    for line in ["[[webhook]]", "time = \"params.ts\"", "time_unit = \"ms\"", "metrics = [\"params.*\"]"] {
        assert!(shown.lines().any(|shown| shown == line), "{line} in\n{shown}");
    }
    assert!(!shown.contains("device = "), "the path has the device\n{shown}");
    std::fs::write(&file, "[[webhook]]\npath = \"/metrics\"\npreset = \"tts\"").expect("a temporary file");
    let (status, shown) = check();
    assert_eq!(status, Some(64), "{shown}");
    assert!(shown.contains(":2:8: ") && shown.contains("/metrics is a path of the server itself"), "{shown}");
}
