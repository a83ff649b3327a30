//! Tenants are separate, in every store, pending and stored.

use reqwest::Method;
use serde_json::{Value, json};

use super::{RANGE, devices, get, get_json, ingest, post, reading, refused, setup};
use crate::harness::{Database, Server, Setup, secret_of};

/// IDs that have a meaning elsewhere.
const TRICKS: [&str; 7] = ["../acme/d", "acme/d", "/d", "...", "/", "blue:", "d"];

fn tenants(setup: Setup) -> Setup {
    setup
        .token("operator", "scopes = ['admin', 'query', 'ingest']")
        .token("acme", "scopes = ['ingest', 'query']\ndevice_prefix = 'acme/'")
        .token("acme-reader", "scopes = ['query']\ndevice_prefix = 'acme/'\ndevices = ['d', 'LIGHT-*']")
        .token("blue", "scopes = ['ingest', 'query']\ndevice_prefix = 'blue:'")
}

#[tokio::test]
async fn tenants_are_separate_while_readings_are_pending() {
    let server = Server::start(tenants(Setup::sqlite().all_pending())).await;
    assert_apart(&server).await;
}

#[tokio::test]
async fn tenants_do_not_meet_in_sqlite() {
    let server = Server::start(tenants(Setup::sqlite())).await;
    write_all(&server).await;
    server.settled().await;
    assert_apart(&server).await;
}

#[tokio::test]
async fn tenants_are_separate_in_mongodb() {
    let database = Database::new();
    let server = Server::start(tenants(Setup::mongodb(&database))).await;
    write_all(&server).await;
    server.settled().await;
    assert_apart(&server).await;
}

#[tokio::test]
async fn tenants_are_separate_in_a_timeseries_collection() {
    let database = Database::new();
    let server = Server::start(tenants(Setup::timeseries(&database))).await;
    write_all(&server).await;
    server.settled().await;
    assert_apart(&server).await;
}

/// The same IDs of both tenants, with different values.
async fn write_all(server: &Server) {
    for (tenant, value) in [("acme", 1.0), ("blue", 2.0)] {
        let readings: Vec<Value> = TRICKS.iter().map(|device| reading(device, value)).collect();
        let answer = ingest(server, tenant, &json!(readings)).await;
        assert_eq!((answer.status, answer.json()), (200, json!({ "accepted": TRICKS.len() })));
    }
}

async fn assert_apart(server: &Server) {
    write_all(server).await;
    let mut own = TRICKS.map(str::to_owned);
    own.sort();
    for (tenant, prefix, value) in [("acme", "acme/", 1.0), ("blue", "blue:", 2.0)] {
        assert_eq!(devices(server, tenant, "").await, own);
        for device in TRICKS {
            let path = device.replace('/', "%2F");
            let latest = get_json(server, tenant, &format!("/v1/devices/{path}/latest")).await;
            assert_eq!((&latest["deviceId"], &latest["metrics"]["value"]["value"]), (&json!(device), &json!(value)));
            let rollups = get_json(server, tenant, &format!("/v1/devices/{path}/rollups?{RANGE}")).await;
            assert_eq!((&rollups["deviceId"], &rollups["metrics"]["value"][0]["max"]), (&json!(device), &json!(value)));
            let readings = get_json(server, tenant, &format!("/v1/devices/{path}/readings?{RANGE}")).await;
            assert_eq!(readings["readings"][0]["values"], json!({ "value": value }));
            let several = get_json(server, tenant, &format!("/v1/rollups?device={path}&{RANGE}")).await;
            assert_eq!(several["devices"][0]["deviceId"], device);
        }
        let metrics = get(server, tenant, "/metrics/latest").await;
        let samples = metrics.text().lines().filter(|line| line.starts_with("tidegauge_latest_value{"));
        let own_ids: Vec<String> = samples.map(|line| line.split('"').nth(1).unwrap_or_default().to_owned()).collect();
        assert_eq!(own_ids, own, "{tenant}: {}", metrics.text());
        let combined = get_json(server, tenant, &format!("/v1/rollups?combine=true&{RANGE}")).await;
        let point = &combined["metrics"]["value"][0];
        assert_eq!((&combined["devices"], &point["min"], &point["max"]), (&json!(7), &json!(value), &json!(value)));
        assert_no_way_out(server, tenant, prefix).await;
    }
    let mut kept: Vec<_> =
        ["acme/", "blue:"].iter().flat_map(|tenant| TRICKS.map(|id| format!("{tenant}{id}"))).collect();
    kept.sort();
    assert_eq!(devices(server, "operator", "").await, kept, "without a prefix, all are seen as they are kept");
    assert_eq!(devices(server, "acme-reader", "").await, ["d"], "patterns are about the ids behind the prefix");
    refused(&get(server, "acme-reader", "/v1/devices/acme%2Fd/latest").await, 403, "device_forbidden");
}

/// Queries with the IDs, prefixes and cursors of another tenant find the tenant's own devices or none.
async fn assert_no_way_out(server: &Server, tenant: &str, prefix: &str) {
    let other = if tenant == "acme" { "blue:" } else { "acme/" };
    for id in [format!("{other}d1"), format!("../{other}e"), format!("{prefix}{prefix}d")] {
        let path = format!("/v1/devices/{}/latest", id.replace('/', "%2F"));
        refused(&get(server, tenant, &path).await, 404, "unknown_device");
        let answer = get(server, tenant, &path).await;
        assert!(answer.text().contains(&id) && !answer.text().contains(&format!("{prefix}{id}")), "{}", answer.text());
    }
    for start in ["a", "b", "acme/", "blue:", "..", "../"] {
        let found = devices(server, tenant, &format!("prefix={}", start.replace('/', "%2F"))).await;
        let expected: Vec<_> = TRICKS.iter().filter(|id| id.starts_with(start)).collect();
        assert_eq!(found.len(), expected.len(), "{tenant} {start}: {found:?}");
    }
    // Any cursor is a place among the tenant's own devices.
    for cursor in ["A", "acme/", "blue:", "a", "-", "zzz", prefix, other] {
        let page = devices(server, tenant, &format!("cursor={}", cursor.replace('/', "%2F"))).await;
        let mut expected: Vec<_> = TRICKS.into_iter().filter(|id| *id > cursor).collect();
        expected.sort_unstable();
        assert_eq!(page, expected, "{tenant} {cursor}");
    }
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = get_json(server, tenant, &format!("/v1/devices?limit=2{cursor}")).await;
        found.extend(super::ids(&page));
        let Some(next) = page["next"].as_str() else { break };
        assert!(TRICKS.contains(&next), "{next}");
        cursor = format!("&cursor={}", next.replace('/', "%2F"));
    }
    assert_eq!(found.len(), TRICKS.len(), "{found:?}");
}

#[tokio::test]
async fn every_format_writes_behind_the_prefix() {
    let server = Server::start(tenants(Setup::sqlite())).await;
    let line = "m,device=lp v=1 1713621610000000000";
    for (path, content_type, body) in [
        ("/v1/readings", "application/json", reading("json", 1.0).to_string()),
        ("/v1/readings", "application/x-ndjson", reading("ndjson", 1.0).to_string()),
        ("/v1/readings", "application/senml+json", json!([{ "n": "senml/x", "v": 1 }]).to_string()),
        ("/write", "text/plain", line.replace("lp", "lp1")),
        ("/api/v2/write", "text/plain", line.replace("lp", "lp2")),
        ("/api/v3/write_lp", "text/plain", line.replace("lp", "lp3")),
    ] {
        let answer = post(&server, "acme", path, content_type, body).await;
        assert!(answer.status < 300, "{path}: {}", answer.text());
    }
    let ids = ["json", "lp1", "lp2", "lp3", "ndjson", "senml"];
    assert_eq!(devices(&server, "acme", "").await, ids);
    assert_eq!(devices(&server, "operator", "").await, ids.map(|id| format!("acme/{id}")));
    assert!(devices(&server, "blue", "").await.is_empty());
}

#[tokio::test]
async fn the_length_limit_of_an_id_includes_its_prefix() {
    let server = Server::start(tenants(Setup::sqlite())).await;
    let (fits, long) = ("x".repeat(123), "x".repeat(124));
    assert_eq!(ingest(&server, "acme", &reading(&fits, 1.0)).await.status, 200);
    assert_eq!(devices(&server, "acme", "").await, [fits]);
    let answer = ingest(&server, "acme", &reading(&long, 1.0)).await;
    assert_eq!((answer.status, &answer.json()["errors"][0]["code"]), (400, &json!("invalid_device_id")));
    refused(&get(&server, "acme", &format!("/v1/devices/{long}/latest")).await, 400, "invalid_parameter");
}

#[tokio::test]
async fn metrics_labels_and_errors_reveal_no_other_tenant() {
    let server = Server::start(tenants(Setup::sqlite())).await;
    write_all(&server).await;
    for tenant in ["acme", "blue"] {
        refused(&get(&server, tenant, "/metrics").await, 403, "forbidden");
    }
    let metrics = get(&server, "operator", "/metrics").await;
    for trace in ["acme", "blue", &secret_of("acme")] {
        assert!(!metrics.text().contains(trace), "{trace} in:\n{}", metrics.text());
    }
    let bad = ingest(&server, "acme", &json!([reading("a ", 1.0), reading("d", 1.0), { "deviceId": "d" }])).await;
    assert_eq!(bad.status, 400);
    assert!(!bad.text().contains("acme"), "{}", bad.text());
}

#[tokio::test]
async fn patterns_and_prefixes_follow_the_case_of_device_ids() {
    let lower = setup().set("ingest.device_id_case", "lower");
    let token = "scopes = ['ingest', 'query']\ndevice_prefix = 'Acme/'\ndevices = ['LIGHT-*']";
    let server = Server::start(lower.token("acme", token).token("all", "scopes = ['query']")).await;
    assert_eq!(ingest(&server, "acme", &reading("Light-1", 1.0)).await.status, 200);
    let pump = ingest(&server, "acme", &reading("Pump-1", 1.0)).await;
    assert_eq!(pump.json()["errors"][0]["code"], "device_forbidden");
    assert_eq!(devices(&server, "acme", "prefix=LIGHT").await, ["light-1"]);
    assert_eq!(devices(&server, "all", "").await, ["acme/light-1"]);
    let all = server.request(Method::GET, "/v1/devices/ACME%2FLIGHT-1/latest").bearer_auth(secret_of("all"));
    assert_eq!(server.send(all).await.status, 200);
}
