//! Selecting devices by ID, metadata and silence: against a plain model, in every store, pending and stored.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::harness::{Server, Setup, in_stores, wait_until};

const HOUR_MS: i64 = 3_600_000;
const START_MS: i64 = 1_713_571_200_000; // 2024-04-20T00:00:00Z
const DAY: &str = "from=2024-04-20T00:00:00Z&to=2024-04-21T00:00:00Z";

/// The metadata of each device.
type Fleet = BTreeMap<String, Value>;

fn fleet(random: &mut StdRng) -> Fleet {
    let device = |nth: usize| {
        let zone = ["Zone 1", "Zone 22", "Hall*", "Hall"][nth % 4];
        let mut metadata = json!({ "zone": zone });
        match random.random_range(0..4) {
            0 => {}
            1 => metadata["floor"] = json!(2.0),
            floor => metadata["floor"] = json!(floor),
        }
        if nth.is_multiple_of(3) {
            metadata["at"] = json!({ "city": if nth.is_multiple_of(2) { "Graz" } else { "Linz" } });
        }
        let metadata = if nth % 7 == 6 { Value::Null } else { metadata };
        (format!("{}-{nth:02}", ["LIGHT", "PUMP"][nth % 2]), metadata)
    };
    (0..40).map(device).collect()
}

async fn ingest(server: &Server, fleet: &Fleet) {
    let reading = |(nth, (device, metadata)): (usize, (&String, &Value))| {
        let ts = START_MS + i64::try_from(nth).expect("as the test expects") * HOUR_MS / 2;
        let mut reading = json!({ "deviceId": device, "ts": ts, "values": { "temp": nth } });
        if !metadata.is_null() {
            reading["metadata"] = metadata.clone();
        }
        reading
    };
    let readings: Vec<Value> = fleet.iter().enumerate().map(reading).collect();
    assert_eq!(server.ingest(&json!(readings)).await.status, 200);
}

/// Readings of the hours around now, of some devices and one of two series, and one of a late hour.
async fn ingest_recent(server: &Server, fleet: &Fleet) {
    let now_ms = bson::DateTime::now().timestamp_millis();
    let reading = |(nth, device): (usize, &String)| {
        let ts = match nth % 4 {
            0 => now_ms - 5_000,
            1 => now_ms - HOUR_MS - 1_000,
            2 => now_ms - 30 * HOUR_MS,
            _ => START_MS + 3_000,
        };
        let values = if nth.is_multiple_of(3) { json!({ "temp": -1 }) } else { json!({ "hum": nth, "temp": 7 }) };
        json!({ "deviceId": device, "ts": ts, "values": values })
    };
    let readings: Vec<Value> = fleet.keys().enumerate().filter(|(nth, _)| nth % 5 > 0).map(reading).collect();
    assert_eq!(server.ingest(&json!(readings)).await.status, 200);
}

/// A condition as a parameter, and what it means.
type Condition = (&'static str, fn(&Value) -> bool);

const CONDITIONS: [Condition; 10] = [
    ("meta.floor=2", |of| of["floor"].as_f64() == Some(2.0)),
    ("meta.floor=3&meta.floor=2", |of| of["floor"].is_number()),
    ("meta.floor!=2", |of| of["floor"].as_f64() != Some(2.0)),
    ("meta.floor=*", |of| of["floor"].is_number()),
    ("meta.zone=Zone%201", |of| of["zone"] == "Zone 1"),
    ("meta.zone=Zone*", |of| of["zone"].as_str().is_some_and(|zone| zone.starts_with("Zone"))),
    ("meta.zone=Hall%5C*", |of| of["zone"] == "Hall*"),
    ("meta.zone!=Hall*", |of| !of["zone"].as_str().is_some_and(|zone| zone.starts_with("Hall"))),
    ("meta.at.city=Graz", |of| of["at"]["city"] == "Graz"),
    ("meta.at.city!=*", |of| of["at"]["city"].is_null()),
];

/// The latest values of all devices are those of each device.
async fn expect_latest(server: &Server, fleet: &Fleet) {
    for query in
        ["limit=1000", "limit=9&metric=temp", "limit=1000&meta.floor=2", "limit=1000&metric=none&device=PUMP-01"]
    {
        let (mut found, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = server.get_json(&format!("/v1/latest?{query}{cursor}")).await;
            found.extend(page["devices"].as_array().expect("a list").clone());
            let Some(next) = page["next"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        let selected = listed(
            server,
            &format!(
                "/v1/devices?{}",
                query
                    .split_once('&')
                    .map_or("", |(_, rest)| rest)
                    .replace("metric=temp", "")
                    .replace("metric=none&", "")
            ),
        )
        .await;
        assert_eq!(found.len(), selected.len());
        for (of_list, device) in found.iter().zip(selected) {
            let metric = query.split('&').find(|part| part.starts_with("metric=")).unwrap_or_default();
            assert_eq!(*of_list, server.get_json(&format!("/v1/devices/{device}/latest?{metric}")).await, "{query}");
        }
    }
    assert_eq!(
        server.get_json("/v1/latest?limit=1000").await["devices"].as_array().expect("as the test expects").len(),
        fleet.len()
    );
}

/// All devices of a list, from its pages.
async fn listed(server: &Server, path: &str) -> Vec<String> {
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get_json(&format!("{path}&limit=7{cursor}")).await;
        let devices = page["devices"].as_array().expect("a list");
        found.extend(devices.iter().map(|device| device["deviceId"].as_str().expect("an ID").to_owned()));
        assert!(devices.len() <= 7);
        let Some(next) = page["next"].as_str() else { return found };
        cursor = format!("&cursor={next}");
    }
}

async fn expect_selected(server: &Server, fleet: &Fleet, random: &mut StdRng) {
    for nth in 0..25 {
        let conditions = [CONDITIONS[nth % CONDITIONS.len()], CONDITIONS[random.random_range(0..CONDITIONS.len())]];
        let conditions = if nth < CONDITIONS.len() { &conditions[..1] } else { &conditions[..] };
        let same_key = |text: &str| text.split('=').next().expect("as the test expects").to_owned();
        if conditions.len() == 2 && same_key(conditions[0].0) == same_key(conditions[1].0) {
            continue; // values of one key are alternatives
        }
        let query = conditions.iter().map(|(text, _)| *text).collect::<Vec<_>>().join("&");
        let is_met = |metadata: &Value| conditions.iter().all(|(_, is_met)| is_met(metadata));
        let named: Vec<&String> = fleet.keys().filter(|_| random.random_range(0..3) > 0).collect();
        let ids = named.iter().map(|id| format!("device={id}")).chain(["device=unknown".to_owned()]);
        for (by_id, is_wanted) in
            [(String::new(), (|_| true) as fn(&str) -> bool), ("prefix=PUMP".to_owned(), |id| id.starts_with("PUMP"))]
        {
            let matching = fleet.iter().filter(|(id, metadata)| is_wanted(id) && is_met(metadata));
            let expected: Vec<String> = matching.map(|(id, _)| id.clone()).collect();
            assert_eq!(listed(server, &format!("/v1/devices?{by_id}&{query}")).await, expected, "{by_id} {query}");
            assert_eq!(
                listed(server, &format!("/v1/rollups?{DAY}&{by_id}&{query}")).await,
                expected,
                "{by_id} {query}"
            );
        }
        let ids = ids.collect::<Vec<_>>().join("&");
        let expected: Vec<&String> = named.into_iter().filter(|id| is_met(&fleet[*id])).collect();
        let found = listed(server, &format!("/v1/devices?{ids}&{query}")).await;
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{ids} {query}");
        assert_eq!(listed(server, &format!("/v1/rollups?{DAY}&{ids}&{query}")).await, found);
        let combined = server.get_json(&format!("/v1/rollups?{DAY}&{ids}&{query}&combine=true")).await;
        assert_eq!(combined["devices"], found.len());
    }
}

async fn expect_silent(server: &Server, fleet: &Fleet) {
    for (nth, (device, metadata)) in fleet.iter().enumerate() {
        let one = server.get_json(&format!("/v1/devices/{device}")).await;
        let seen = server.get_json(&format!("/v1/devices?prefix={device}")).await["devices"][0].take();
        assert_eq!(one, seen);
        assert_eq!(&one["metadata"], metadata);
        let ms = START_MS + i64::try_from(nth).expect("as the test expects") * HOUR_MS / 2;
        let last: bson::DateTime =
            bson::DateTime::parse_rfc3339_str(one["lastSeen"].as_str().expect("as the test expects"))
                .expect("as the test expects");
        assert_eq!(last.timestamp_millis(), ms);
        // Half an hour lies between two devices, so a quarter more or less decides.
        let silent = async |after_ms: i64| {
            let for_ms = bson::DateTime::now().timestamp_millis() - ms + after_ms;
            listed(server, &format!("/v1/devices?silent_for={for_ms}ms")).await
        };
        if nth.is_multiple_of(9) {
            let expected: Vec<&String> = fleet.keys().take(nth + 1).collect();
            assert_eq!(silent(-HOUR_MS / 4).await.iter().collect::<Vec<_>>(), expected, "{nth}");
            assert_eq!(silent(HOUR_MS / 4).await.iter().collect::<Vec<_>>(), expected[..nth], "{nth}");
        }
    }
    let of_both = listed(server, "/v1/devices?silent_for=1d&meta.floor=2").await;
    assert_eq!(of_both, listed(server, "/v1/devices?meta.floor=2").await);
    assert_eq!(server.get("/v1/devices/nobody").await.json()["code"], "unknown_device");
}

async fn devices_are_selected(setup: Setup, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let fleet = fleet(&mut random);
    let mut server = Server::start(setup.clone().all_pending()).await;
    ingest(&server, &fleet).await;
    let mut server = if seed.is_multiple_of(2) {
        expect_selected(&server, &fleet, &mut random).await;
        expect_silent(&server, &fleet).await;
        assert!(server.terminate().await.success());
        server.start_again_with(setup).await;
        server
    } else {
        assert!(server.terminate().await.success());
        server.start_again_with(setup).await;
        server
    };
    if seed == 0 {
        wait_until("the silent devices are counted", async || {
            (server.metrics().await.count("tidegauge_devices_silent") == fleet.len() as u64).then_some(())
        })
        .await;
    }
    server.settled().await;
    expect_selected(&server, &fleet, &mut random).await;
    expect_silent(&server, &fleet).await;
    expect_latest(&server, &fleet).await;
    ingest_recent(&server, &fleet).await;
    expect_latest(&server, &fleet).await;
    server.settled().await;
    expect_latest(&server, &fleet).await;
    // A device that sends again is not silent; its new metadata is pending and counts.
    let (device, _) = fleet.iter().next().expect("as the test expects");
    let again = json!({ "deviceId": device, "metadata": { "floor": "new" }, "value": 1 });
    assert_eq!(server.ingest(&again).await.status, 200);
    assert_eq!(listed(&server, "/v1/devices?meta.floor=new").await, std::slice::from_ref(device));
    assert!(!listed(&server, "/v1/devices?silent_for=1h").await.contains(device));
    assert!(server.terminate().await.success());
}

in_stores!(devices_are_selected, [sqlite(0), mongodb(1), packed(3), timeseries(5)]);

#[tokio::test]
async fn selections_that_are_none_are_refused() {
    let server = Server::start(Setup::sqlite()).await;
    let many = (0..65).map(|nth| format!("meta.a={nth}")).collect::<Vec<_>>().join("&");
    for (query, detail) in [
        ("meta.=1", "meta: names no key of the metadata; write meta.KEY=VALUE"),
        (
            "meta.a=x*y",
            "meta: a `*` stands for any rest, so it must be the last character; write \\* for the character itself",
        ),
        (&*many, "meta: a query may have 64 values for metadata, this one has 65"),
        ("silent_for=x", "silent_for: "),
        ("device=a&prefix=a", "prefix: cannot be combined with `device`"),
        ("meta=1", "meta: this path has no such parameter"),
    ] {
        let refused = server.get(&format!("/v1/devices?{query}")).await;
        assert_eq!(refused.status, 400, "{query}");
        let problem = refused.json();
        assert!(problem["detail"].as_str().expect("as the test expects").starts_with(detail), "{problem}");
    }
}
