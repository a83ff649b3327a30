//! JSON and `SenML`.

use reqwest::Method;
use serde_json::{Value, json};

use super::{metadata, stored};
use crate::harness::{Answer, Server, Setup};

/// 2026-04-20T14:00:10Z
const TS_MS: i64 = 1_776_693_610_000;

async fn post(server: &Server, content_type: Option<&str>, body: impl Into<String>) -> Answer {
    let request = server.request(Method::POST, "/v1/readings").body(body.into());
    server.send(content_type.into_iter().fold(request, |request, of| request.header("content-type", of))).await
}

/// Asserts the status and the whole body of the answer to readings in JSON.
async fn assert_answer(server: &Server, body: &Value, status: u16, answer: Value) {
    let found = server.ingest(body).await;
    assert_eq!((found.status, found.json()), (status, answer), "{body}");
}

/// The code and the text of the first error of an answer.
async fn first_error(server: &Server, body: &Value) -> (String, String) {
    let answer = server.ingest(body).await;
    assert_eq!(answer.status, 400, "{body}: {}", answer.text());
    let error = answer.json()["errors"][0].take();
    (error["code"].as_str().expect("a code").to_owned(), error["detail"].as_str().expect("a text").to_owned())
}

#[tokio::test]
async fn a_history_under_other_names_of_the_time_is_stored_whole() {
    let server = Server::start(Setup::sqlite()).await;
    let minutes: Vec<_> =
        (0..1_440).map(|minute| json!({ "timestamp": TS_MS + minute * 60_000, "value": 0 })).collect();
    let body = json!({ "deviceId": "backfill", "readings": minutes });
    assert_answer(&server, &body, 200, json!({ "accepted": 1_440 })).await;
    assert_eq!(stored(&server, "backfill").await.len(), 1_440);
    let objects: Vec<_> = (0..10_000)
        .map(|at| json!({ "deviceId": "objects", "time": TS_MS + at * 1_000, "metric": "temp", "value": at }))
        .collect();
    assert_answer(&server, &json!(objects), 200, json!({ "accepted": 10_000 })).await;
    let found = stored(&server, "objects").await;
    assert_eq!((found.len(), &*found[9_999]), (10_000, "1776703609000 temp=9999.0"));
    for (name, meant) in [("Time", "time"), ("ts_ms", "ts"), ("TimeStamp", "timestamp"), ("datetime", "ts")] {
        let body = json!({ "deviceId": "near", "value": 1, name: TS_MS });
        let (code, detail) = first_error(&server, &body).await;
        assert_eq!(code, "unknown_key", "{name}: {detail}");
        assert!(detail.contains(&format!("\"{name}\" at byte ")), "{detail}");
        assert!(detail.ends_with(&format!("; did you mean \"{meant}\"?")), "{detail}");
    }
    assert_eq!(server.get("/v1/devices/near/latest").await.status, 404);
}

#[tokio::test]
async fn a_value_that_is_none_costs_itself() {
    let server = Server::start(Setup::sqlite()).await;
    assert_answer(
        &server,
        &json!({ "deviceId": "a", "ts": TS_MS, "values": { "t": null, "h": 1 } }),
        200,
        json!({ "accepted": 1 }),
    )
    .await;
    assert_eq!(stored(&server, "a").await, ["1776693610000 h=1.0"]);
    let body = json!({ "deviceId": "b", "ts": TS_MS, "values": { "on": true, "off": false } });
    assert_answer(&server, &body, 200, json!({ "accepted": 1 })).await;
    assert_eq!(stored(&server, "b").await, ["1776693610000 off=0.0 on=1.0"]);
    // As Python prints a missing value, and Arduino with %f.
    for (device, not_finite) in [("c", "NaN"), ("d", "nan"), ("e", "-Infinity"), ("f", "1e999")] {
        let body = format!(r#"[{{"deviceId":"{device}","ts":{TS_MS},"values":{{"h":1,"t":{not_finite},"s":"on"}}}}]"#);
        let answer = post(&server, Some("application/json"), body).await;
        let problem = answer.json();
        assert_eq!((answer.status, &problem["code"]), (400, &json!("partially_rejected")), "{problem}");
        assert_eq!(
            (&problem["accepted"], &problem["rejected"], &problem["rejectedValues"]),
            (&json!(1), &json!(0), &json!(2))
        );
        let mut codes: Vec<_> =
            problem["errors"].as_array().expect("errors").iter().map(|error| &error["code"]).collect();
        codes.sort_by_key(ToString::to_string);
        assert_eq!(codes, ["invalid_value", "non_finite_value"], "{problem}");
        assert!(problem["errors"].as_array().expect("errors").iter().all(|error| error["index"] == 0), "{problem}");
        assert_eq!(stored(&server, device).await, ["1776693610000 h=1.0"]);
    }
    let pack =
        r#"[{"bn":"g/","bt":1776693610,"n":"t","v":null},{"n":"h","v":1},{"n":"on","vb":true},{"n":"s","vs":"x"}]"#;
    let answer = post(&server, Some("application/senml+json"), pack).await;
    assert_eq!((answer.status, &answer.json()["accepted"], &answer.json()["rejected"]), (400, &json!(1), &json!(2)));
    assert_eq!(stored(&server, "g").await, ["1776693610000 h=1.0 on=1.0"]);
}

#[tokio::test]
async fn a_device_without_a_clock_can_say_how_old_its_readings_are() {
    let server = Server::start(Setup::sqlite()).await;
    let body = json!({ "deviceId": "m8", "readings": [{ "value": 1 }, { "value": 2 }] });
    let answer = server.ingest(&body).await.json();
    assert_eq!((&answer["accepted"], &answer["overwritten"]), (&json!(2), &json!(1)), "both have the server's time");
    assert_eq!(answer["overwrittenReadings"][0]["deviceId"], "m8");
    assert_eq!(stored(&server, "m8").await.len(), 1);
    let time = server.get_json("/v1/time").await;
    let now_ms = time["unixMs"].as_i64().expect("a number");
    assert_eq!(
        time["ts"].as_str().expect("a text").parse::<jiff::Timestamp>().expect("a time").as_millisecond(),
        now_ms
    );
    let body = json!({ "deviceId": "aged", "readings": [{ "ageMs": 20_000, "value": 1 }, { "ageMs": 0, "value": 2 }] });
    assert_answer(&server, &body, 200, json!({ "accepted": 2 })).await;
    let found = stored(&server, "aged").await;
    let ms: Vec<i64> =
        found.iter().map(|line| line.split(' ').next().expect("a time").parse().expect("a number")).collect();
    assert!(
        ms.len() == 2 && ms[1] - ms[0] == 20_000 && (now_ms..now_ms + 600_000).contains(&ms[1]),
        "{found:?} {now_ms}"
    );
    let both = json!({ "deviceId": "aged", "ageMs": 1, "ts": TS_MS, "value": 1 });
    assert_eq!(first_error(&server, &both).await.0, "duplicate_key");
    let pack = r#"[{"n":"senml/a","v":1,"t":-10},{"n":"senml/a","v":2}]"#;
    assert_eq!(post(&server, Some("application/senml+json"), pack).await.json(), json!({ "accepted": 2 }));
    assert_eq!(stored(&server, "senml").await.len(), 2);
}

#[tokio::test]
async fn keys_have_a_meaning_where_users_put_them() {
    let server = Server::start(Setup::sqlite()).await;
    let readings = json!([{ "deviceId": "m9", "ts": TS_MS, "value": 1 }, { "ts": TS_MS, "value": 2 }]);
    let body = json!({ "deviceId": "m8", "readings": readings });
    assert_answer(&server, &body, 200, json!({ "accepted": 2 })).await;
    assert_eq!(stored(&server, "m9").await, ["1776693610000 value=1.0"]);
    assert_eq!(stored(&server, "m8").await, ["1776693610000 value=2.0"]);
    let body = json!({ "deviceId": "inner", "readings": [{ "ts": TS_MS, "metadata": { "floor": 2 }, "value": 1 }] });
    assert_answer(&server, &body, 200, json!({ "accepted": 1 })).await;
    assert_eq!(metadata(&server, "inner").await, json!({ "floor": 2 }));
    let tags = json!({ "site": "north" });
    let body = json!({ "deviceId": "tagged", "ts": TS_MS, "tags": tags, "metric": "temp", "unit": "C", "value": 22.4 });
    assert_answer(&server, &body, 200, json!({ "accepted": 1 })).await;
    assert_eq!(stored(&server, "tagged").await, ["1776693610000 temp{unit=C}=22.4"]);
    assert_eq!(metadata(&server, "tagged").await, json!({ "site": "north" }));
    let body = json!({ "deviceId": "meter", "ts": TS_MS, "labels": { "phase": "L1" }, "readings": [
        { "values": { "u": 230 } }, { "labels": { "phase": "L2" }, "values": { "u": 231 } }] });
    assert_answer(&server, &body, 200, json!({ "accepted": 2 })).await;
    assert_eq!(stored(&server, "meter").await, ["1776693610000 u{phase=L1}=230.0 u{phase=L2}=231.0"]);
    let pack = r#"[{"bn":"pack/","bt":1776693610,"n":"u","v":230,"labels":{"phase":"L1"}},
        {"n":"u","v":231,"labels":{"phase":"L2"}}]"#;
    assert_eq!(post(&server, Some("application/senml+json"), pack).await.json(), json!({ "accepted": 1 }));
    assert_eq!(stored(&server, "pack").await, ["1776693610000 u{phase=L1}=230.0 u{phase=L2}=231.0"]);
}

#[tokio::test]
async fn times_are_read_in_the_forms_that_devices_print() {
    let server = Server::start(Setup::sqlite()).await;
    let times = [
        "2026-04-20T14:00:10+0000",
        "2026-04-20T16:00:10+0200",
        "2026-04-20T14:00:10+00",
        "2026-04-20T14:00:10,000Z",
        "1776693610000",
    ];
    for (number, ts) in times.into_iter().enumerate() {
        let device = format!("t{number}");
        assert_answer(&server, &json!({ "deviceId": device, "ts": ts, "value": 1 }), 200, json!({ "accepted": 1 }))
            .await;
        assert_eq!(stored(&server, &device).await, ["1776693610000 value=1.0"], "{ts}");
    }
    let readings =
        server.get_json("/v1/devices/t0/readings?from=2026-04-20T14:00:10%2B0000&to=2026-04-20T14:00:11,5%2B00").await;
    assert_eq!(readings["readings"].as_array().map(Vec::len), Some(1), "in queries too");
    let (code, detail) = first_error(&server, &json!({ "deviceId": "t", "ts": 1_776_693_610.5, "value": 1 })).await;
    assert!(code == "invalid_timestamp" && detail.contains("looks like seconds"), "{detail}");
}

#[tokio::test]
async fn json_needs_no_exact_content_type() {
    let server = Server::start(Setup::sqlite()).await;
    let object = |device: &str| format!(r#"{{"deviceId":"{device}","ts":{TS_MS},"value":1}}"#);
    for content_type in [
        None,
        Some(""),
        Some("text/json"),
        Some("text/plain"),
        Some("text/plain;charset=UTF-8"),
        Some("application/json"),
    ] {
        for body in [object("one"), format!("[{},{}]", object("one"), object("two"))] {
            let answer = post(&server, content_type, &*body).await;
            assert_eq!(answer.status, 200, "{content_type:?} {body}: {}", answer.text());
        }
        let lines = format!("{}\n\n{}\r\n[{}]\n", object("one"), object("two"), object("three"));
        assert_eq!(post(&server, content_type, lines).await.json(), json!({ "accepted": 3 }), "{content_type:?}");
        let broken = format!("{}\n{{\"deviceId\":\"two\",\"value\":}}\n{}", object("one"), object("three"));
        let problem = post(&server, content_type, broken).await.json();
        assert_eq!(
            (&problem["code"], &problem["accepted"]),
            (&json!("partially_rejected"), &json!(2)),
            "{content_type:?}"
        );
        let detail = "expected a value at byte 27 of the line";
        let error = json!({ "index": 1, "line": 2, "code": "invalid_json", "detail": detail });
        assert_eq!(problem["errors"], json!([error]), "{content_type:?}");
        let answer = post(&server, content_type, "temp,host=a value=1").await;
        assert_eq!((answer.status, &answer.json()["code"]), (400, &json!("invalid_json")), "{content_type:?}");
    }
    let answer = post(&server, Some("application/x-www-form-urlencoded"), object("form")).await;
    assert_eq!(answer.status, 415, "{}", answer.text());
    assert!(answer.text().contains("curl --json"), "{}", answer.text());
    assert_eq!(server.get("/v1/devices/form/latest").await.status, 404);
}

#[tokio::test]
async fn the_text_of_a_refusal_is_right() {
    let server = Server::start(Setup::sqlite()).await;
    let answer = server.ingest(&json!({ "deviceId": "a\u{7}b", "value": 1 })).await;
    let problem = answer.json();
    assert_eq!((&problem["detail"], &problem["accepted"]), (&json!("the reading is rejected"), &json!(0)));
    let detail = problem["errors"][0]["detail"].as_str().expect("a text");
    assert!(detail.ends_with("must not contain the control character U+0007"), "{detail}");
    let answer = post(&server, Some("application/json"), "{\"deviceId\" \"a\"}").await;
    assert_eq!(answer.json()["detail"], "expected ':' at byte 13");
    let line = server.post("/write", "text/plain", "m,host=a value=1,").await;
    assert!(line.text().contains("at column 18"), "{}", line.text());
}

#[tokio::test]
async fn the_configuration_may_ignore_unknown_keys() {
    let server = Server::start(Setup::sqlite().set("ingest.json", toml::toml! { unknown_keys = "ignore" })).await;
    let body = json!({ "deviceId": "a", "ts": TS_MS, "value": 1, "rssi": -61, "fw": "1.2" });
    let answer = json!({ "accepted": 1, "ignored": 2, "ignoredFields": ["fw", "rssi"] });
    assert_answer(&server, &body, 200, answer).await;
    assert_eq!(stored(&server, "a").await, ["1776693610000 value=1.0"]);
    let ignored = server.metrics().await.count_where("tidegauge_fields_ignored_total", &[("reason", "unknown_key")]);
    assert_eq!(ignored, 2);
}

#[tokio::test]
async fn flat_objects_are_readings_if_the_configuration_says_so() {
    let server = Server::start(Setup::sqlite().set("ingest.json", toml::toml! { flat = true })).await;
    let body =
        json!({ "deviceId": "a", "time": TS_MS, "temp": 22.4, "on": true, "fw": "1.2", "wifi": { "rssi": -61 } });
    assert_answer(&server, &body, 200, json!({ "accepted": 1, "ignored": 1, "ignoredFields": ["fw"] })).await;
    assert_eq!(stored(&server, "a").await, ["1776693610000 on=1.0 temp=22.4 wifi.rssi=-61.0"]);
    let ignored = server.metrics().await.count_where("tidegauge_fields_ignored_total", &[("reason", "string")]);
    assert_eq!(ignored, 1);
    let strict = Server::start(Setup::sqlite()).await;
    let (code, detail) = first_error(&strict, &json!({ "deviceId": "a", "temp": 22.4 })).await;
    assert!(code == "unknown_key" && detail.contains("\"values\""), "{detail}");
}
