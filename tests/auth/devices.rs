//! Device patterns: every format rejects exactly the readings of other devices, and no query returns them.

use reqwest::Method;
use serde_json::{Value, json};

use super::{RANGE, devices, get, get_json, ids, ingest, post, reading, refused, setup};
use crate::harness::{Answer, Server, Setup, secret_of, wait_until};

const NS: &str = "1713621610000000000";

fn patterns() -> Setup {
    let lights = "scopes = ['ingest', 'query']\ndevices = ['LIGHT-*', 'HALL']";
    setup().token("lights", lights).token("all", "scopes = ['ingest', 'query']")
}

/// Asserts that the answer rejects exactly these readings, by index, because of their devices.
#[track_caller]
fn rejects(answer: &Answer, accepted: u32, indexes: &[u64]) {
    assert_eq!(answer.status, 400, "{}", answer.text());
    let problem = answer.json();
    let code = if accepted == 0 { "rejected" } else { "partially_rejected" };
    assert_eq!((&problem["code"], &problem["accepted"]), (&json!(code), &json!(accepted)), "{problem}");
    let errors = problem["errors"].as_array().expect("errors");
    let of_device: Vec<_> = errors.iter().map(|error| (error["index"].as_u64(), error["code"].as_str())).collect();
    let expected: Vec<_> = indexes.iter().map(|index| (Some(*index), Some("device_forbidden"))).collect();
    assert_eq!(of_device, expected, "{problem}");
}

#[tokio::test]
async fn json_readings_of_forbidden_devices_are_rejected_one_by_one() {
    let server = Server::start(patterns()).await;
    let hidden = json!([
        reading("LIGHT-1", 1.0),
        reading("PUMP-1", 1.0),
        { "deviceId": "PUMP-2", "readings": [{ "ts": super::TS, "value": 1 }, { "ts": super::TS, "value": 2 }] },
        { "readings": [{ "ts": super::TS, "value": 1 }], "deviceId": "PUMP-3" },
        reading("HALL", 1.0),
        reading("light-1", 1.0),
        reading("xLIGHT-1", 1.0),
        reading("HALL-2", 1.0),
    ]);
    let answer = ingest(&server, "lights", &hidden).await;
    rejects(&answer, 2, &[1, 2, 3, 4, 6, 7, 8]);
    assert!(
        answer.text().contains("the token, key or certificate does not cover device \\\"PUMP-1\\\""),
        "{}",
        answer.text()
    );
    let all_or_nothing = json!([reading("LIGHT-9", 1.0), reading("PUMP-1", 1.0)]).to_string();
    let answer = post(&server, "lights", "/v1/readings?partial=false", "application/json", all_or_nothing).await;
    rejects(&answer, 0, &[1]);
    assert_eq!(devices(&server, "all", "").await, ["HALL", "LIGHT-1"]);
}

#[tokio::test]
async fn ndjson_lines_of_forbidden_devices_are_rejected_one_by_one() {
    let server = Server::start(patterns()).await;
    let lines =
        [reading("LIGHT-1", 1.0), reading("PUMP-1", 1.0), json!([reading("PUMP-1", 2.0), reading("HALL", 2.0)])];
    let body = lines.map(|line| line.to_string()).join("\n");
    let answer = post(&server, "lights", "/v1/readings", "application/x-ndjson", body).await;
    let errors = answer.json()["errors"].take();
    assert_eq!((&errors[0]["line"], &errors[0]["code"]), (&json!(2), &json!("device_forbidden")), "{errors}");
    assert_eq!(
        answer.json()["accepted"].as_u64().expect("a number") + errors.as_array().expect("a list").len() as u64,
        server.metrics().await.count("tidegauge_readings_received_total")
    );
    let seen = devices(&server, "all", "").await;
    assert!(seen.contains(&"LIGHT-1".to_owned()) && !seen.contains(&"PUMP-1".to_owned()), "{seen:?}");
}

#[tokio::test]
async fn line_protocol_of_forbidden_devices_is_rejected_by_line() {
    let server = Server::start(patterns()).await;
    // The first configured tag that the line has names the device, in any place of the line.
    let lines = [
        format!("m,device=LIGHT-1 v=1 {NS}"),
        format!("m,device=PUMP-1 v=1 {NS}"),
        format!("m,device=LIGHT-1,deviceId=PUMP-2 v=1 {NS}"),
        format!("m,deviceId=LIGHT-2,device=PUMP-3 v=1 {NS}"),
        format!("m,device=PUMP\\-4 v=1 {NS}"),
    ];
    let body = lines.join("\n");
    let v3 = post(&server, "lights", "/api/v3/write_lp?precision=ns", "text/plain", body.as_str()).await;
    assert_eq!(v3.status, 400, "{}", v3.text());
    let bad: Vec<_> =
        v3.json()["data"].as_array().expect("lines").iter().map(|line| line["line_number"].clone()).collect();
    assert_eq!(bad, [json!(2), json!(3), json!(5)], "{}", v3.text());
    let v2 = post(&server, "lights", "/api/v2/write", "text/plain", body.as_str()).await;
    assert_eq!((v2.status, &v2.json()["line"]), (422, &json!(2)), "{}", v2.text());
    let v1 = post(&server, "lights", "/write", "text/plain", lines[1].as_str()).await;
    assert_eq!(v1.status, 400, "{}", v1.text());
    assert!(
        v1.text().contains("line 1: the token, key or certificate does not cover device \\\"PUMP-1\\\""),
        "{}",
        v1.text()
    );
    assert_eq!(devices(&server, "all", "").await, ["LIGHT-1", "LIGHT-2"]);
    let metrics = server.metrics().await;
    let forbidden = [("protocol", "influx"), ("reason", "device_forbidden")];
    assert_eq!(metrics.count_where("tidegauge_readings_rejected_total", &forbidden), 7, "3 of version 3, 3 and 1");
}

#[tokio::test]
async fn senml_base_names_of_forbidden_devices_are_rejected() {
    let server = Server::start(patterns()).await;
    let pack = json!([
        { "bn": "LIGHT-1/", "bt": 1_713_621_610, "n": "lux", "v": 1 },
        { "bn": "PUMP-1/", "n": "temp", "v": 1 },
        { "n": "hum", "v": 1 },
        { "bn": "LIGHT-", "n": "2/lux", "v": 1 },
        { "bn": "", "n": "PUMP-2/temp", "v": 1 },
    ]);
    let answer = post(&server, "lights", "/v1/readings", "application/senml+json", pack.to_string()).await;
    let problem = answer.json();
    assert_eq!((answer.status, &problem["code"]), (400, &json!("partially_rejected")), "{problem}");
    let errors = problem["errors"].as_array().expect("errors");
    assert!(!errors.is_empty() && errors.iter().all(|error| error["code"] == "device_forbidden"), "{problem}");
    assert_eq!(devices(&server, "all", "").await, ["LIGHT-1", "LIGHT-2"]);

    let cbor: &[u8] = b"\x81\xa3\x21\x67PUMP-3/\x00\x64temp\x02\x01"; // [{-2: "PUMP-3/", 0: "temp", 2: 1}]
    let request = server.request(Method::POST, "/v1/readings").bearer_auth(secret_of("lights"));
    let answer = server.send(request.header("content-type", "application/senml+cbor").body(cbor)).await;
    rejects(&answer, 0, &[0]);
}

#[tokio::test]
async fn no_query_returns_a_forbidden_device() {
    let server = Server::start(patterns()).await;
    let all = ["HALL", "HALL-2", "LIGHT-1", "LIGHT-2", "LIGHT-3", "PUMP-1"];
    let readings: Vec<Value> = all.iter().map(|device| reading(device, 1.0)).collect();
    assert_eq!(ingest(&server, "all", &json!(readings)).await.status, 200);
    for path in ["rollups", "readings", "latest"] {
        for device in ["PUMP-1", "HALL-2", "light-1", "nothing"] {
            refused(&get(&server, "lights", &format!("/v1/devices/{device}/{path}")).await, 403, "device_forbidden");
        }
        assert_eq!(get(&server, "lights", &format!("/v1/devices/HALL/{path}")).await.status, 200);
    }
    for devices in ["device=PUMP-1", "device=LIGHT-1&device=PUMP-1", "device=PUMP-1&combine=true"] {
        refused(&get(&server, "lights", &format!("/v1/rollups?{devices}&{RANGE}")).await, 403, "device_forbidden");
    }
    let seen = ["HALL", "LIGHT-1", "LIGHT-2", "LIGHT-3"];
    assert_eq!(devices(&server, "lights", "").await, seen);
    assert_eq!(ids(&get_json(&server, "lights", &format!("/v1/rollups?{RANGE}")).await), seen);
    let combined = get_json(&server, "lights", &format!("/v1/rollups?combine=true&{RANGE}")).await;
    assert_eq!((&combined["devices"], &combined["metrics"]["value"][0]["count"]), (&json!(4), &json!(4)));
    for (prefix, expected) in [("PUMP", &[][..]), ("HALL-", &[]), ("LIGHT-2", &["LIGHT-2"]), ("H", &["HALL"])] {
        assert_eq!(devices(&server, "lights", &format!("prefix={prefix}")).await, expected, "{prefix}");
    }
}

#[tokio::test]
async fn pages_of_devices_are_full_despite_forbidden_ones_between() {
    let ends = "scopes = ['query']\ndevices = ['*-x', 'd-07*', 'd-999']";
    let server = Server::start(patterns().token("ends", ends)).await;
    let name = |number: u32| format!("d-{number:02}{}", if number.is_multiple_of(10) { "-x" } else { "" });
    let readings: Vec<Value> = (0..60).map(|number| reading(&name(number), 1.0)).collect();
    assert_eq!(ingest(&server, "all", &json!(readings)).await.status, 200);
    let expected = ["d-00-x", "d-07", "d-10-x", "d-20-x", "d-30-x", "d-40-x", "d-50-x"];
    for path in ["/v1/devices", "/v1/rollups"] {
        for limit in 1..=8 {
            assert_eq!(in_pages(&server, "ends", path, limit).await, expected, "{path} {limit}");
        }
    }
}

/// The IDs that a token lists in pages.
async fn in_pages(server: &Server, name: &str, path: &str, limit: usize) -> Vec<String> {
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = get_json(server, name, &format!("{path}?limit={limit}{cursor}")).await;
        let of_page = ids(&page);
        found.extend(of_page.iter().cloned());
        let Some(next) = page["next"].as_str() else { return found };
        assert_eq!(of_page.len(), limit, "a page with a next one is full");
        assert!(of_page.iter().any(|id| id == next), "{next} tells of a device out of reach");
        cursor = format!("&cursor={}", next.replace('/', "%2F"));
    }
}

/// Lists are compared with the IDs that match, while some devices of the tokens have sent nothing, and after.
#[tokio::test]
async fn a_list_has_devices_whose_ids_begin_with_other_ids_of_the_token() {
    let tokens: [&[&str]; 4] =
        [&["a", "a1"], &["a", "a1", "a10*", "b"], &["a1", "a10", "b", "b/*"], &["a", "a1", "a10", "a100", "a2", "b"]];
    let batches: [&[&str]; 2] = [&["a1", "a100", "a11", "b/1", "b/2", "ba"], &["a", "a10", "a2", "b"]];
    let mut setup = patterns();
    for (nth, covered) in tokens.iter().enumerate() {
        setup = setup.token(&format!("token-{nth}"), &format!("scopes = ['query']\ndevices = {covered:?}"));
    }
    let server = Server::start(setup).await;
    let mut sent: Vec<&str> = Vec::new();
    for batch in batches {
        let readings: Vec<Value> = batch.iter().map(|device| reading(device, 1.0)).collect();
        assert_eq!(ingest(&server, "all", &json!(readings)).await.status, 200);
        sent.extend(batch);
        sent.sort_unstable();
        for (nth, covered) in tokens.iter().enumerate() {
            let name = format!("token-{nth}");
            let is_covered = |id: &&str| {
                let covers = |one: &&str| one.strip_suffix('*').map_or(id == one, |start| id.starts_with(start));
                covered.iter().any(covers)
            };
            let expected: Vec<&str> = sent.iter().copied().filter(is_covered).collect();
            for limit in 1..=expected.len() + 1 {
                for path in ["/v1/devices", "/v1/latest", "/v1/rollups"] {
                    let found = in_pages(&server, &name, path, limit).await;
                    assert_eq!(found, expected, "{covered:?}, {path} of {sent:?} by {limit}");
                }
            }
            for cursor in &sent {
                let after: Vec<&str> = expected.iter().copied().filter(|id| id > cursor).collect();
                let found = devices(&server, &name, &format!("cursor={}", cursor.replace('/', "%2F"))).await;
                assert_eq!(found, after, "{covered:?} of {sent:?} after {cursor}");
            }
            let file = get(&server, &name, &format!("/v1/readings?{RANGE}&format=csv")).await;
            let rows: Vec<&str> = file.text().lines().skip(1).filter_map(|row| row.split(',').next()).collect();
            assert_eq!((file.status, rows), (200, expected), "{covered:?}, a file of {sent:?}");
        }
    }
}

#[tokio::test]
async fn a_page_that_scans_too_many_devices_is_refused() {
    let ends = "scopes = ['query']\ndevices = ['*-x', 'one']";
    let setup = patterns().all_pending().set("limits.new_devices_per_minute", 0);
    let server = Server::start(setup.token("ends", ends)).await;
    for thousands in [0..60, 60..102] {
        let ids = (thousands.start * 1_000..thousands.end * 1_000).map(|number| format!("d-{number:06}"));
        let lines: Vec<String> = ids.map(|id| reading(&id, 1.0).to_string()).collect();
        let answer = post(&server, "all", "/v1/readings", "application/x-ndjson", lines.join("\n")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!(ingest(&server, "all", &json!([reading("d-00-x", 1.0), reading("one", 1.0)])).await.status, 200);
    wait_until("all can be seen", async || {
        (server.metrics().await.count("tidegauge_readings_pending") == 102_002).then_some(())
    })
    .await;
    let page = get_json(&server, "ends", "/v1/devices").await;
    assert_eq!((ids(&page), &page["next"]), (vec!["d-00-x".to_owned()], &json!("d-00-x")), "a short page is one");
    refused(&get(&server, "ends", "/v1/devices?cursor=d-00-x").await, 400, "too_many_devices");
    let rollups = format!("rollups?format=csv&{RANGE}");
    for path in ["readings?from=0&format=csv", "devices?format=csv", "latest?format=csv", &rollups] {
        let whole = get(&server, "ends", &format!("/v1/{path}")).await;
        let rows: Vec<&str> = whole.text().lines().skip(1).filter_map(|row| row.split(',').next()).collect();
        assert_eq!((whole.status, rows), (200, vec!["d-00-x", "one"]), "a file looks through all: {path}");
    }
    assert_eq!(devices(&server, "ends", "prefix=one").await, ["one"], "and so is one that a longer prefix narrows");
}
