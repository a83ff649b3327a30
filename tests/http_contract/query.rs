//! The queries: the same answers while readings are pending and when they are stored, in every store.

use serde_json::{Value, json};

use super::problem;
use crate::harness::{Database, Server, Setup};

const HOUR_MS: i64 = 3_600_000;
const START_MS: i64 = 1_713_621_600_000; // 2024-04-20T14:00:00Z
const RANGE: &str = "from=2024-04-20T00:00:00Z&to=2024-04-21T00:00:00Z";

#[tokio::test]
async fn pending_readings_answer_every_query() {
    let server = Server::start(Setup::sqlite().all_pending()).await;
    ingest_two_devices(&server).await;
    assert_answers(&server).await;
}

#[tokio::test]
async fn readings_stored_in_sqlite_answer_every_query() {
    let server = Server::start(Setup::sqlite()).await;
    ingest_two_devices(&server).await;
    server.settled().await;
    assert_answers(&server).await;
}

#[tokio::test]
async fn readings_stored_in_mongodb_answer_every_query() {
    let database = Database::new();
    let server = Server::start(Setup::mongodb(&database)).await;
    ingest_two_devices(&server).await;
    server.settled().await;
    assert_answers(&server).await;
}

#[tokio::test]
async fn readings_stored_in_a_time_series_answer_every_query() {
    let database = Database::new();
    let server = Server::start(Setup::timeseries(&database)).await;
    ingest_two_devices(&server).await;
    server.settled().await;
    assert_answers(&server).await;
}

/// LIGHT-1 has three readings of `lux` and one of `temp` over two hours, LIGHT-2 has one reading.
async fn ingest_two_devices(server: &Server) {
    let readings = json!([
        { "ts": START_MS, "values": { "lux": 310, "temp": 21.5 } },
        { "ts": START_MS + 10_000, "values": { "lux": 322 } },
        { "ts": START_MS + HOUR_MS, "values": { "lux": 5 } },
    ]);
    let one = json!({ "deviceId": "LIGHT-1", "metadata": { "floor": 2 }, "readings": readings });
    let two = json!({ "deviceId": "LIGHT-2", "ts": START_MS, "value": 1 });
    assert_eq!(server.ingest(&json!([one, two])).await.json(), json!({ "accepted": 4 }));
}

async fn assert_answers(server: &Server) {
    assert_rollups(server).await;
    assert_rollups_of_devices(server).await;
    assert_readings(server).await;
    assert_devices(server).await;
}

async fn assert_rollups(server: &Server) {
    let rollups = server.get_json(&format!("/v1/devices/LIGHT-1/rollups?{RANGE}&step=1h")).await;
    assert_eq!((&rollups["deviceId"], &rollups["step"]), (&json!("LIGHT-1"), &json!("1h")));
    let lux = [
        point("2024-04-20T14:00:00.000Z", 2, 310.0, 322.0, 632.0),
        point("2024-04-20T15:00:00.000Z", 1, 5.0, 5.0, 5.0),
    ];
    assert_eq!(numbers(&rollups["metrics"]["lux"]), numbers(&json!(lux)));
    let temp = [point("2024-04-20T14:00:00.000Z", 1, 21.5, 21.5, 21.5)];
    assert_eq!(numbers(&rollups["metrics"]["temp"]), numbers(&json!(temp)));

    let lux_only = server.get_json(&format!("/v1/devices/LIGHT-1/rollups?{RANGE}&metric=lux&step=1d")).await;
    let day = [point("2024-04-20T00:00:00.000Z", 3, 5.0, 322.0, 637.0)];
    assert_eq!(numbers(&lux_only["metrics"]["lux"]), numbers(&json!(day)));
    assert!(lux_only["metrics"].get("temp").is_none(), "{lux_only}");

    let path = format!("/v1/devices/LIGHT-1/rollups?{RANGE}&metric=lux&step=1d");
    let asked = server.get_json(&format!("{path}&fn=last,count&fn=max")).await;
    let last = json!({ "ts": "2024-04-20T15:00:00.000Z", "value": 5.0 });
    let day = json!({ "ts": "2024-04-20T00:00:00.000Z", "count": 3, "max": 322.0, "last": last });
    assert_eq!(asked["metrics"]["lux"], json!([day]));

    let path = format!("/v1/devices/LIGHT-1/rollups?{RANGE}&metric=lux");
    let filled =
        server.get_json(&format!("{path}&step=6h&fn=count,max,increase&fill=previous&tz=Asia/Kathmandu")).await;
    let quarters = [
        local_point("2024-04-19T18:15:00.000Z", "2024-04-20T00:00:00.000+05:45", 0, None, None),
        local_point("2024-04-20T00:15:00.000Z", "2024-04-20T06:00:00.000+05:45", 0, None, None),
        local_point("2024-04-20T06:15:00.000Z", "2024-04-20T12:00:00.000+05:45", 0, None, None),
        local_point("2024-04-20T12:15:00.000Z", "2024-04-20T18:00:00.000+05:45", 3, Some(322.0), Some(17.0)),
        local_point("2024-04-20T18:15:00.000Z", "2024-04-21T00:00:00.000+05:45", 0, Some(322.0), Some(0.0)),
    ];
    assert_eq!(filled["metrics"]["lux"], json!(quarters));
    let filled = server.get_json(&format!("{path}&fn=sum&fill=previous")).await;
    let sums: Vec<&Value> = (13..18_usize).map(|hour| &filled["metrics"]["lux"][hour]["sum"]).collect();
    assert_eq!(json!(sums), json!([null, 632.0, 5.0, 0.0, 0.0]));
    let shifts = server.get_json(&format!("{path}&step=8h&offset=6h&fn=count,increase&tz=Europe/Berlin")).await;
    let (ts, local) = ("2024-04-20T12:00:00.000Z", "2024-04-20T14:00:00.000+02:00");
    let late = json!({ "ts": ts, "local": local, "count": 3, "increase": 17.0 });
    assert_eq!(shifts["metrics"]["lux"], json!([late]));
    let minutes = server.get_json(&format!("{path}&step=1m&fn=count&fill=none")).await;
    assert_eq!(minutes["metrics"]["lux"].as_array().map(Vec::len), Some(2), "{minutes}");
    let none = server.get_json("/v1/devices/LIGHT-1/rollups?from=-24h&to=now&fill=null").await;
    assert_eq!(none["metrics"], json!({}), "a series without readings in the range is not filled");

    let to = START_MS + HOUR_MS; // exclusive
    let first = server.get_json(&format!("/v1/devices/LIGHT-1/rollups?from={START_MS}&to={to}&step=1h")).await;
    assert_eq!(numbers(&first["metrics"]["lux"]), numbers(&json!(lux[..1])));
}

async fn assert_rollups_of_devices(server: &Server) {
    let alone = async |device: &str| server.get_json(&format!("/v1/devices/{device}/rollups?{RANGE}&step=2h")).await;
    let (one, two) = (alone("LIGHT-1").await, alone("LIGHT-2").await);
    let none = json!({ "deviceId": "none", "step": "2h", "metrics": {} });
    let path = format!("/v1/rollups?{RANGE}&step=2h");

    let named = server.get_json(&format!("{path}&device=LIGHT-2&device=none&device=LIGHT-1&device=LIGHT-2")).await;
    assert_eq!(named, json!({ "devices": [two, none, one], "next": null }), "in the order asked for, none twice");
    let listed = server.get_json(&format!("{path}&prefix=LIGHT-")).await;
    assert_eq!(listed, json!({ "devices": [one, two], "next": null }));

    let page = server.get_json(&format!("{path}&limit=1")).await;
    assert_eq!(page, json!({ "devices": [one], "next": "LIGHT-1" }));
    let page = server.get_json(&format!("{path}&limit=1&cursor=LIGHT-1")).await;
    assert_eq!(page, json!({ "devices": [two], "next": null }));

    let combined = server.get_json(&format!("{path}&combine=true")).await;
    let lux = [point("2024-04-20T14:00:00.000Z", 3, 5.0, 322.0, 637.0)];
    assert_eq!((&combined["devices"], numbers(&combined["metrics"]["lux"])), (&json!(2), numbers(&json!(lux))));
    assert_eq!(combined["metrics"]["value"], two["metrics"]["value"]);
    let groups =
        server.get_json(&format!("{path}&combine=by:floor,room,floor&device=LIGHT-2&device=LIGHT-1&device=none")).await;
    let without = group_by_floor(&Value::Null, 2, &two["metrics"]);
    assert_eq!(groups, json!({ "groups": [without, group_by_floor(&json!(2), 1, &one["metrics"])] }));
    assert_eq!(
        server.get_json(&format!("{path}&combine=true&device=LIGHT-1")).await["metrics"],
        one["metrics"],
        "of one device there is nothing to fold"
    );
}

async fn assert_readings(server: &Server) {
    let path = format!("/v1/devices/LIGHT-1/readings?{RANGE}");
    let all = server.get_json(&path).await;
    let expected = json!([
        { "ts": "2024-04-20T14:00:00.000Z", "values": { "lux": 310.0, "temp": 21.5 } },
        { "ts": "2024-04-20T14:00:10.000Z", "values": { "lux": 322.0 } },
        { "ts": "2024-04-20T15:00:00.000Z", "values": { "lux": 5.0 } },
    ]);
    assert_eq!(numbers(&all["readings"]), numbers(&expected));
    assert_eq!(all["next"], Value::Null);

    let mut paged = Vec::new();
    let mut page = server.get_json(&format!("{path}&limit=1")).await;
    loop {
        paged.extend(page["readings"].as_array().expect("readings").iter().cloned());
        let Some(cursor) = page["next"].as_str() else { break };
        page = server.get_json(&format!("{path}&limit=1&cursor={cursor}")).await;
    }
    assert_eq!(numbers(&json!(paged)), numbers(&expected));

    let latest = server.get_json("/v1/devices/LIGHT-1/latest").await.to_string();
    assert!(latest.contains("2024-04-20T15:00:00.000Z") && latest.contains("lux"), "{latest}");
}

async fn assert_devices(server: &Server) {
    let devices = server.get_json("/v1/devices?prefix=LIGHT-").await;
    let listed = devices["devices"].as_array().expect("devices");
    assert_eq!(listed.iter().map(|device| &device["deviceId"]).collect::<Vec<_>>(), ["LIGHT-1", "LIGHT-2"]);
    assert_eq!((&listed[0]["metadata"], &devices["next"]), (&json!({ "floor": 2 }), &Value::Null));
    assert_eq!(listed[0]["firstSeen"], "2024-04-20T14:00:00.000Z");
    assert_eq!(listed[0]["lastSeen"], "2024-04-20T15:00:00.000Z");
    let page = server.get_json("/v1/devices?limit=1").await;
    assert_eq!(page["devices"][0]["deviceId"], "LIGHT-1");
    let cursor = page["next"].as_str().expect("a cursor");
    let page = server.get_json(&format!("/v1/devices?limit=1&cursor={cursor}")).await;
    assert_eq!((&page["devices"][0]["deviceId"], &page["next"]), (&json!("LIGHT-2"), &Value::Null));
    assert_eq!(server.get_json("/v1/devices?prefix=none").await["devices"], json!([]));
}

#[tokio::test]
async fn bad_parameters_are_named_in_a_problem() {
    let server = Server::start(Setup::sqlite()).await;
    for query in [
        "rollups?from=yesterday&to=2024-04-21T00:00:00Z",
        "rollups?from=2024-04-21T00:00:00Z&to=2024-04-20T00:00:00Z",
        &format!("rollups?{RANGE}&step=banana"),
        &format!("rollups?{RANGE}&step=7m"),
        &format!("rollups?{RANGE}&fn=median"),
        &format!("rollups?{RANGE}&tz=Mars/Olympus"),
        &format!("rollups?{RANGE}&offset=6h"),
        &format!("rollups?{RANGE}&step=8h&offset=8h"),
        &format!("rollups?{RANGE}&step=8h&offset=-2h"),
        &format!("rollups?{RANGE}&step=8h&offset=90s"),
        &format!("rollups?{RANGE}&step=8h&offset=6h&offset=6h"),
        &format!("rollups?{RANGE}&step=1mo&offset=28d"),
        &format!("rollups?{RANGE}&fill=linear"),
        &format!("rollups?{RANGE}&combine=by:floor"),
        "rollups?from=-1y",
        "readings?to=tomorrow",
        &format!("rollups?{RANGE}&fn="),
        &format!("readings?{RANGE}&limit=0"),
        &format!("readings?{RANGE}&limit=many"),
        &format!("readings?{RANGE}&cursor=made-up"),
    ] {
        let answer = server.get(&format!("/v1/devices/a/{query}")).await;
        assert!(problem(&answer, 400)["detail"].is_string(), "{query}: {}", answer.text());
    }
}

#[tokio::test]
async fn rollups_that_read_too_many_values_are_refused_or_end_a_page_in_each_store() {
    for stored in [true, false] {
        let databases = [Database::new(), Database::new(), Database::new()];
        for setup in Setup::of_each_store(&databases) {
            let setup = setup.set("query.max_values_read", 4);
            let server = Server::start(if stored { setup } else { setup.all_pending() }).await;
            ingest_two_devices(&server).await;
            if stored {
                server.settled().await;
            }
            rollups_are_refused_or_end_a_page(&server).await;
        }
    }
}

async fn rollups_are_refused_or_end_a_page(server: &Server) {
    let refused = server.get(&format!("/v1/rollups?{RANGE}&step=1m&combine=true")).await;
    let refused = problem(&refused, 400);
    assert_eq!(refused["code"], "too_many_values");
    assert!(refused["detail"].as_str().is_some_and(|detail| detail.contains("5 values")), "{refused}");
    let page = server.get_json(&format!("/v1/rollups?{RANGE}&step=1m")).await;
    assert_eq!((page["devices"].as_array().map(Vec::len), &page["next"]), (Some(1), &json!("LIGHT-1")));
    let page = server.get_json(&format!("/v1/rollups?{RANGE}&step=1m&cursor=LIGHT-1")).await;
    assert_eq!((page["devices"].as_array().map(Vec::len), &page["next"]), (Some(1), &Value::Null));
    let alone = server.get(&format!("/v1/devices/LIGHT-1/rollups?{RANGE}&step=1m&metric=lux&metric=temp")).await;
    assert_eq!(alone.status, 200, "{}", alone.text());
    let long = server.get("/v1/devices/LIGHT-1/rollups?from=-10w&step=1m").await;
    assert_eq!(problem(&long, 400)["code"], "too_many_points");
}

/// The steps of four devices need all values that may be read, and leave none for the earlier steps.
#[tokio::test]
async fn a_comparison_that_reads_too_many_values_ends_a_page() {
    let server = Server::start(Setup::sqlite().set("query.max_values_read", 4)).await;
    let days = |device: &str| {
        let of = |ts: i64| json!({ "deviceId": device, "ts": ts, "value": 1 });
        [of(START_MS), of(START_MS - 24 * HOUR_MS)]
    };
    let readings: Value = ["a", "b", "c", "d"].into_iter().flat_map(days).collect();
    assert_eq!(server.ingest(&readings).await.json(), json!({ "accepted": 8 }));
    let path = format!("/v1/rollups?{RANGE}&step=30m&compare=-1d");
    for (cursor, ids, next) in [("", ["a", "b"], json!("b")), ("&cursor=b", ["c", "d"], Value::Null)] {
        let page = server.get_json(&format!("{path}{cursor}")).await;
        let devices = page["devices"].as_array().expect("devices");
        let found: Vec<&str> = devices.iter().filter_map(|device| device["deviceId"].as_str()).collect();
        assert_eq!((found, &page["next"]), (ids.to_vec(), &next));
        for device in devices {
            let point = &device["metrics"]["value"][0];
            assert_eq!((&point["count"], &point["compared"]["count"]), (&json!(1), &json!(1)), "{device}");
        }
    }
    let refused = server.get(&format!("{path}&combine=true")).await;
    assert_eq!(problem(&refused, 400)["code"], "too_many_values");
}

#[tokio::test]
async fn rollups_of_too_many_devices_are_refused() {
    let server = Server::start(Setup::sqlite().set("query.max_devices", 1)).await;
    ingest_two_devices(&server).await;
    for query in [
        "device=LIGHT-1&device=LIGHT-2",
        "combine=true",
        "limit=2",
        "device=LIGHT-1&prefix=LIGHT-",
        "device=a%00b",
        "combine=perhaps",
        "cursor=%20",
    ] {
        let answer = server.get(&format!("/v1/rollups?{RANGE}&{query}")).await;
        assert_eq!(problem(&answer, 400)["code"], "invalid_parameter", "{query}: {}", answer.text());
    }
}

#[tokio::test]
async fn parameters_that_cannot_be_combined_are_named() {
    let server = Server::start(Setup::sqlite()).await;
    for (query, detail) in [
        ("device=a&prefix=b", "prefix cannot be combined with `device`"),
        ("device=a&limit=3", "limit cannot be combined with `device`"),
        ("device=a&cursor=b", "cursor: is not a `next` of these devices"),
        ("combine=true&limit=3", "limit cannot be combined with `combine`"),
        ("combine=true&device=a&cursor=a", "cursor cannot be combined with `combine`"),
        ("combine=by:", "combine: expected true, false, or by:KEY"),
        ("combine=by:a,b,c,d,e,f,g,h,i", "combine: expected true, false, or by:KEY"),
        ("combine=by:floor&limit=3", "limit cannot be combined with `combine`"),
        ("device=a&colour=3", "colour: this path has no such parameter"),
    ] {
        let answer = server.get(&format!("/v1/rollups?{RANGE}&{query}")).await;
        let told = problem(&answer, 400)["detail"].as_str().unwrap_or_default().replace(": cannot", " cannot");
        assert!(told.contains(detail), "{query}: {told}");
    }
}

#[tokio::test]
async fn a_path_that_holds_no_device_id_is_a_problem() {
    let server = Server::start(Setup::sqlite()).await;
    for device in ["%FF", "%00", "a%20", "a%E2%80%AEb"] {
        let answer = server.get(&format!("/v1/devices/{device}/latest")).await;
        assert_eq!(problem(&answer, 400)["code"], "invalid_parameter", "{device}");
    }
}

fn point(ts: &str, count: u64, min: f64, max: f64, sum: f64) -> Value {
    json!({ "ts": ts, "count": count, "min": min, "max": max, "avg": sum / count as f64, "sum": sum })
}

/// The same value with every number as a float: `310` and `310.0` are the same number in JSON.
fn numbers(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.iter().map(numbers).collect(),
        Value::Object(members) => members.iter().map(|(key, member)| (key.clone(), numbers(member))).collect(),
        other => other.clone(),
    }
}

fn local_point(ts: &str, local: &str, count: u32, max: Option<f64>, increase: Option<f64>) -> Value {
    json!({ "ts": ts, "local": local, "count": count, "max": max, "increase": increase })
}

fn group_by_floor(floor: &Value, devices: u32, metrics: &Value) -> Value {
    json!({ "by": { "floor": floor, "room": null }, "devices": devices, "step": "2h", "metrics": metrics })
}
