//! Lists, queries, files, metadata and deletions on every store, and the commands that copy readings.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{START_MS, ids, readings, values};
use crate::forward::{forwarded, to};
use crate::harness::{Answer, Database, Model, Server, Setup, encoded, run};
use crate::moving::{Files, assert_complete, run_move};

const RANGE: &str = "from=2026-02-01T00:00:00Z&to=2026-02-02T00:00:00Z";

/// Checks every way out.
async fn check(server: &Server, ids: &[String], model: &Model) {
    model.check(server).await;
    check_lists(server, ids).await;
    check_files(server, ids).await;
    check_influxql(server, ids).await;
    for (number, id) in ids.iter().enumerate() {
        let path = format!("/v1/devices/{}", encoded(id));
        let device = server.get_json(&path).await;
        assert_eq!((&device["deviceId"], &device["metadata"]["of"]), (&json!(id), &json!(id)));
        let latest = server.get_json(&format!("{path}/latest")).await;
        assert_eq!(latest["metrics"]["t"]["value"], json!(values(number, 2)["t"]), "{id}");
        let found = server.get_json(&format!("/v1/rollups?{RANGE}&device={}", encoded(id))).await;
        assert_eq!(found["devices"][0]["deviceId"], json!(id), "{found}");
    }
}

/// All devices of a list in pages of one, several or all, and those with each prefix.
async fn check_lists(server: &Server, ids: &[String]) {
    for list in ["/v1/devices", "/v1/latest"] {
        for limit in [1, 7, 1_000] {
            assert_eq!(pages(server, &format!("{list}?limit={limit}")).await, ids, "{list} by {limit}");
        }
    }
    assert_eq!(tables(server, "/v1/devices?format=csv&limit=9").await, ids);
    let prefixes: BTreeSet<&str> =
        ids.iter().flat_map(|id| id.char_indices().skip(1).take(3).map(|(end, _)| &id[..end]).chain([&**id])).collect();
    for prefix in prefixes {
        let expected: Vec<String> = ids.iter().filter(|id| id.starts_with(prefix)).cloned().collect();
        assert_eq!(pages(server, &format!("/v1/devices?prefix={}", encoded(prefix))).await, expected, "{prefix:?}");
    }
    let named: Vec<String> = ids.iter().map(|id| format!("device={}", encoded(id))).collect();
    assert_eq!(pages(server, &format!("/v1/devices?limit=1000&{}", named.join("&"))).await, ids);
    let page = server.get(&format!("/metrics/latest?metric=t&{}", named.join("&"))).await;
    for id in ids {
        let escaped = id.replace('\\', r"\\").replace('"', "\\\"");
        let start = format!("tidegauge_latest_value{{device=\"{escaped}\",metric=\"t\"}} ");
        assert_eq!(page.text().lines().filter(|line| line.starts_with(&start)).count(), 1, "{id}: {}", page.text());
    }
}

/// The devices of all pages of a list.
async fn pages(server: &Server, path: &str) -> Vec<String> {
    let (mut found, mut page) = (Vec::new(), server.get_json(path).await);
    loop {
        let devices = page["devices"].as_array().expect("a list");
        found.extend(devices.iter().map(|device| device["deviceId"].as_str().expect("an ID").to_owned()));
        let Some(next) = page["next"].as_str() else { return found };
        page = server.get_json(&format!("{path}&cursor={}", encoded(next))).await;
    }
}

/// The first cells of a table whose pages are linked.
async fn tables(server: &Server, path: &str) -> Vec<String> {
    let (mut found, mut page) = (Vec::new(), server.get(path).await);
    loop {
        found.extend(cells(&page));
        let Some(link) = page.headers.get("link").map(|link| link.to_str().expect("ASCII").to_owned()) else {
            return found;
        };
        page = server.get(link.trim_start_matches('<').split('>').next().expect("an address")).await;
    }
}

fn cells(page: &Answer) -> Vec<String> {
    let mut rows = csv::Reader::from_reader(&page.body[..]);
    rows.records().map(|row| row.expect("a row")[0].to_owned()).collect()
}

/// The readings of all devices as one file.
async fn check_files(server: &Server, ids: &[String]) {
    let expected: Vec<String> = ids.iter().flat_map(|id| vec![id.clone(); 3]).collect();
    let table = server.get(&format!("/v1/readings?{RANGE}&format=csv")).await;
    assert_eq!(cells(&table), expected);
    let lines = server.get(&format!("/v1/readings?{RANGE}&format=ndjson")).await;
    let lines = lines.text().lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let found: Vec<String> = lines.map(|line| line["deviceId"].as_str().expect("an ID").to_owned()).collect();
    assert_eq!(found, expected);
    for id in ids {
        let one = server.get(&format!("/v1/readings?{RANGE}&format=csv&device={}", encoded(id))).await;
        assert_eq!(cells(&one), vec![id.clone(); 3]);
    }
}

/// The device tag, wanted as a text and as the expression that Grafana makes of the text.
async fn check_influxql(server: &Server, ids: &[String]) {
    let ask = async |statement: &str| {
        server.get_json(&format!("/query?db=t&q={}", encoded(statement))).await["results"][0]["series"].take()
    };
    let tags = ask("SHOW TAG VALUES FROM \"t\" WITH KEY = \"device_id\"").await;
    let tags: Vec<&Value> = tags[0]["values"].as_array().expect("tags").iter().map(|row| &row[1]).collect();
    assert_eq!(tags, ids.iter().map(|id| json!(id)).collect::<Vec<_>>().iter().collect::<Vec<_>>());
    for (number, id) in ids.iter().enumerate() {
        let text = id.replace('\\', r"\\").replace('\'', r"\'");
        let expression: String = id.chars().flat_map(|char| in_expression(char).collect::<Vec<_>>()).collect();
        for wanted in [format!("= '{text}'"), format!("=~ /^{expression}$/")] {
            let statement =
                format!("SELECT last(\"value\") FROM \"t\" WHERE \"device_id\" {wanted} GROUP BY device_id");
            let found = ask(&statement).await;
            let expected = (json!({ "device_id": id }), json!(values(number, 2)["t"]));
            assert_eq!((found[0]["tags"].clone(), found[0]["values"][0][1].clone()), expected, "{wanted}: {found}");
        }
    }
}

/// A character in a regular expression of InfluxQL, as Grafana escapes it.
fn in_expression(char: char) -> impl Iterator<Item = char> {
    r"\^$.*+?()[]{}|/".contains(char).then_some('\\').into_iter().chain([char])
}

/// Names devices, and removes the last reading of some, if the store can, and others as a whole.
async fn change(server: &Server, ids: &[String], removes_readings: bool) {
    for (number, id) in ids.iter().enumerate() {
        let path = format!("/v1/devices/{}", encoded(id));
        let body = json!({ "name": id }).to_string();
        let named =
            server.request(Method::PATCH, &format!("{path}/metadata")).header("content-type", "application/json");
        let named = server.send(named.body(body)).await;
        assert_eq!((named.status, &named.json()["metadata"]["name"]), (200, &json!(id)), "{id}: {}", named.text());
        let path = match number % 3 {
            0 => path,
            1 if removes_readings => {
                format!("{path}/readings?from={}&to={}", START_MS + 800_000, START_MS + 900_000)
            }
            _ => continue,
        };
        let answer = server.send(server.request(Method::DELETE, &path)).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
    let mut model = Model::default();
    for (number, id) in ids.iter().enumerate() {
        let kept = [0, if removes_readings { 2 } else { 3 }, 3][number % 3];
        for at in 0..kept {
            model.insert(id, START_MS + at * 400_000, values(number, at));
        }
        if kept == 0 {
            assert_eq!(server.get(&format!("/v1/devices/{}/latest", encoded(id))).await.status, 404, "{id}");
        }
    }
    model.check(server).await;
    let left: Vec<String> =
        ids.iter().enumerate().filter(|(number, _)| number % 3 > 0).map(|(_, id)| id.clone()).collect();
    assert_eq!(pages(server, "/v1/devices?limit=5").await, left);
    let named = server.get("/v1/metadata?limit=1000").await;
    let named = named.text().lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let named: Vec<Value> = named.map(|line| line["deviceId"].clone()).collect();
    assert!(left.iter().all(|id| named.contains(&json!(id))), "{named:?}");
}

#[tokio::test]
async fn every_store_has_hostile_ids_unchanged_and_move_takes_them_along() {
    let databases = [Database::new(), Database::new(), Database::new()];
    let stores = [
        ("sqlite", Setup::sqlite()),
        ("mongodb", Setup::mongodb(&databases[0])),
        ("mongodb", Setup::packed(&databases[1])),
        ("mongodb-timeseries", Setup::timeseries(&databases[2])),
    ];
    let (ids, mut model) = (ids(), Model::default());
    let mut server = Server::start(stores[0].1.clone().all_pending()).await;
    let files = Files::of(&server);
    server.accepts(&readings(&ids, &mut model)).await;
    check(&server, &ids, &model).await;
    server.terminate().await;
    server.start_again_with(stores[0].1.clone()).await;
    server.settled().await;
    check(&server, &ids, &model).await;
    for pair in stores.windows(2) {
        let [(from_kind, from), (to_kind, to)] = pair else { unreachable!("windows of two") };
        server.terminate().await;
        server.start_again_with(to.clone()).await;
        assert_complete(&run_move(&files.args(from, to, [from_kind, to_kind])).await);
        check(&server, &ids, &model).await;
        let rebuilt = server.check(&["--rebuild-device-index"]).await;
        assert_eq!(rebuilt.code, Some(0), "{rebuilt:?}");
        check_lists(&server, &ids).await;
        let full = server.check(&["--full"]).await;
        assert_eq!(full.code, Some(0), "{full:?}");
    }
}

#[tokio::test]
async fn hostile_ids_are_named_and_deleted_in_every_store() {
    for is_settled in [false, true] {
        let [readable, packed, timeseries] = [Database::new(), Database::new(), Database::new()];
        for (setup, removes_readings) in [
            (Setup::sqlite(), true),
            (Setup::mongodb(&readable), true),
            (Setup::packed(&packed), true),
            (Setup::timeseries(&timeseries), false),
        ] {
            let server = Server::start(if is_settled { setup } else { setup.all_pending() }).await;
            let ids = ids();
            server.accepts(&readings(&ids, &mut Model::default())).await;
            if is_settled {
                server.settled().await;
            }
            change(&server, &ids, removes_readings).await;
        }
    }
}

#[tokio::test]
async fn hostile_ids_come_back_from_exports_and_backups_and_arrive_at_the_centre() {
    let centre = Server::start(Setup::sqlite()).await;
    let mut server = Server::start(to(centre.url())).await;
    let (ids, mut model) = (ids(), Model::default());
    server.accepts(&readings(&ids, &mut model)).await;
    forwarded(&server).await;
    centre.settled().await;
    check(&centre, &ids, &model).await;

    let folder = TempDir::new().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let named: Vec<String> = ids.iter().map(|id| format!("--device={id}")).collect();
    for format in ["ndjson", "csv"] {
        let file = path(format);
        let some = vec!["--prefix=a".to_owned()];
        for (selection, selected) in [(&some, ids.iter().filter(|id| id.starts_with('a')).count()), (&named, ids.len())]
        {
            let fixed = ["export", "--url", server.url(), "--format", format, "--output", &file];
            let _ = std::fs::remove_file(&file); // that of the selection before
            let done = run(&fixed.into_iter().chain(selection.iter().map(String::as_str)).collect::<Vec<_>>()).await;
            assert_eq!(done.code, Some(0), "{done:?}");
            assert!(done.stderr.contains(&format!("of {selected} devices written")), "{done:?}");
        }
        let other = Server::start(Setup::sqlite()).await;
        let done = run(&["import", &file, "--url", other.url()]).await;
        assert_eq!(done.code, Some(0), "{done:?}");
        other.settled().await;
        check(&other, &ids, &model).await;
    }

    server.settled().await;
    let config = server.data_dir().with_file_name("config.toml").display().to_string();
    let (data, backup) = (server.data_dir().display().to_string(), path("backup"));
    let done = run(&["backup", "--config", &config, "--data-dir", &data, "--to", &backup]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    server.terminate().await;
    std::fs::remove_dir_all(&data).expect("our folder");
    let done = run(&["restore", "--config", &config, "--data-dir", &data, "--from", &backup]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    server.start_again().await;
    check(&server, &ids, &model).await;
}
