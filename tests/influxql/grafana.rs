//! The requests of Grafana for the dashboards of `deploy/grafana`.
//!
//! Grafana itself does not run here. The requests are made as its public source makes them: the frontend
//! replaces the variables, the backend the macros, and posts the statement as a form, with `db` and
//! `epoch=ms` in the query string (`pkg/tsdb/influxdb` of grafana/grafana).

use std::fs;
use std::io::Read;

use flate2::read::GzDecoder;
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Server, Setup, secret_of};

const START_MS: i64 = 1_774_656_000_000; // the first instant of the data
const END_MS: i64 = START_MS + 48 * 3_600_000;

fn in_grafana(path: &str) -> String {
    let path = format!("{}/deploy/grafana/{path}", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The statement that Grafana sends for a query.
fn statement(query: &str, interval: &str, variables: &[(&str, &str)]) -> String {
    let mut statement = query.to_owned();
    for (name, value) in variables {
        statement = statement.replace(&format!("${name}"), value);
    }
    let filter = format!("time >= {START_MS}ms and time <= {END_MS}ms");
    statement.replace("$timeFilter", &filter).replace("$__interval", interval)
}

/// Sends a statement as the data source does in one of its modes. Asserts that it succeeds.
async fn send(server: &Server, mode: &Method, statement: &str) -> Value {
    let encode = |pairs: &[(&str, &str)]| form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
    let common = ("db", "tidegauge");
    let request = if *mode == Method::GET {
        server.request(Method::GET, &format!("/query?{}", encode(&[common, ("epoch", "ms"), ("q", statement)])))
    } else {
        let path = format!("/query?{}", encode(&[common, ("epoch", "ms")]));
        let request = server.request(Method::POST, &path).body(encode(&[("q", statement)]));
        request.header("content-type", "application/x-www-form-urlencoded")
    };
    let request = request.header("user-agent", "Grafana/13.2.1").header("accept-encoding", "gzip");
    let answer = server.send(request.basic_auth("grafana", Some(secret_of("grafana")))).await;
    let mut body = Vec::new();
    if answer.header("content-encoding") == "gzip" {
        GzDecoder::new(&answer.body[..]).read_to_end(&mut body).expect("gzip");
    } else {
        body.extend_from_slice(&answer.body);
    }
    assert_eq!(answer.status, 200, "{statement}: {}", String::from_utf8_lossy(&body));
    let mut document: Value = serde_json::from_slice(&body).expect("JSON");
    let result = document["results"][0].take();
    assert!(result["error"].is_null(), "{statement}: {result}");
    result
}

/// The choices of a variable: the last column of each row.
async fn choices(server: &Server, query: &str) -> Vec<String> {
    let result = send(server, &Method::POST, query).await;
    let rows = result["series"].as_array().into_iter().flatten().filter_map(|series| series["values"].as_array());
    // The value of a tag is the second column, the name of a field the first.
    let choice =
        |row: &Value| row[usize::from(query.starts_with("SHOW TAG VALUES"))].as_str().expect("a text").to_owned();
    rows.flatten().map(choice).collect()
}

#[tokio::test]
async fn each_panel_of_the_dashboards_has_data() {
    let setup = Setup::sqlite().token("writer", "scopes = ['ingest']").token("grafana", "scopes = ['query']");
    let setup = setup.token("operator", "scopes = ['admin']");
    let server = Server::start(setup).await;
    super::envelope::write(&server, Some("writer"), super::data::LINES).await;
    assert!(!send(&server, &Method::POST, "SHOW measurements").await["series"].is_null(), "the test of a data source");
    for (file, devices) in [("fleet", "(S1|S2|S3|S4)"), ("device", "S1")] {
        let dashboard: Value = serde_json::from_str(&in_grafana(&format!("dashboards/{file}.json"))).expect("JSON");
        let mut variables: Vec<(&str, &str)> = vec![("measurement", "climate")];
        for variable in dashboard["templating"]["list"].as_array().expect("variables") {
            let query = variable["query"].as_str().expect("a query");
            let found = choices(&server, &statement(query, "1m", &variables)).await;
            let (name, chosen) = match variable["name"].as_str().expect("a name") {
                "measurement" => ("measurement", "climate"),
                "field" => ("field", "temp"),
                _ => ("device", devices),
            };
            let is_there = chosen.trim_matches(['(', ')']).split('|').all(|one| found.iter().any(|found| found == one));
            assert!(is_there, "{file}: {query} has {found:?}");
            variables.push((name, chosen));
        }
        for panel in dashboard["panels"].as_array().expect("panels") {
            let title = panel["title"].as_str().expect("a title");
            assert_eq!(panel["datasource"]["uid"], "tidegauge", "{title}");
            for target in panel["targets"].as_array().expect("targets") {
                let query = target["query"].as_str().expect("a query");
                let is_by_all_tags = query.contains(", * fill");
                assert!(!is_by_all_tags || target["alias"].is_null(), "{title}: without an alias, a name has all tags");
                let (mut expected, mut intervals) = (None, vec!["1h", "5m", "30s"]);
                if panel["interval"] == "1h" {
                    intervals.truncate(1);
                }
                for interval in intervals {
                    let statement = statement(query, interval, &variables);
                    let is_left = statement.split('$').skip(1).any(|rest| rest.starts_with(char::is_alphabetic));
                    assert!(!is_left, "{title}: {statement}");
                    let result = send(&server, &Method::POST, &statement).await;
                    let series = result["series"].as_array().unwrap_or_else(|| panic!("{title} is empty: {statement}"));
                    assert!(series.iter().all(|series| series["values"][0][0].is_i64()), "{title}: {result}");
                    expected = Some((statement, result));
                }
                let (statement, result) = expected.expect("an interval");
                assert_eq!(send(&server, &Method::GET, &statement).await, result, "{title}");
            }
        }
    }
}

/// Grafana sends "All" as the `allValue` of the variable, and other choices as a list.
#[tokio::test]
async fn the_dashboard_of_a_fleet_takes_some_hundred_devices() {
    let setup = Setup::sqlite().token("writer", "scopes = ['ingest']").token("grafana", "scopes = ['query']");
    let server = Server::start(setup.token("operator", "scopes = ['admin']")).await;
    let ids: Vec<String> = (0..300).map(|nth| format!("greenhouse-{nth:04}")).collect();
    let line = |id: &String| format!("climate,device_id={id} temp=20 {}", START_MS * 1_000_000);
    super::envelope::write(&server, Some("writer"), &ids.iter().map(line).collect::<Vec<_>>().join("\n")).await;
    let dashboard: Value = serde_json::from_str(&in_grafana("dashboards/fleet.json")).expect("JSON");
    let mut variables = dashboard["templating"]["list"].as_array().expect("variables").iter();
    let device = variables.find(|variable| variable["name"] == "device").expect("the variable");
    let all = device["allValue"].as_str().expect("a text");
    let list = format!("({})", ids[1..].join("|"));
    let query = dashboard["panels"][0]["targets"][0]["query"].as_str().expect("a query");
    for (chosen, count) in [(all, 300), (list.as_str(), 299)] {
        let variables = [("measurement", "climate"), ("field", "temp"), ("device", chosen)];
        let found = send(&server, &Method::POST, &statement(query, "1h", &variables)).await;
        assert_eq!(found["series"][0]["values"][0][1], json!(count), "{found}");
    }
}

#[test]
fn the_provisioning_names_the_data_source_of_the_dashboards() {
    let source = in_grafana("provisioning/datasources/tidegauge.yml");
    for line in ["uid: tidegauge", "type: influxdb", "httpMode: POST", "dbName: tidegauge"] {
        assert!(source.contains(line), "{line}");
    }
    let provider = in_grafana("provisioning/dashboards/tidegauge.yml");
    assert!(provider.contains("path: /var/lib/grafana/dashboards/tidegauge"));
}

/// A legend with the alias `$tag_name` shows the tag of this name. Tables have a column for it.
#[tokio::test]
async fn the_name_of_a_device_is_a_tag_for_legends_and_a_column_of_tables() {
    let setup = Setup::sqlite().token("writer", "scopes = ['ingest', 'metadata']");
    let setup = setup.token("grafana", "scopes = ['query']").token("operator", "scopes = ['admin']");
    let server = Server::start(setup).await;
    let as_writer = async |method, path: &str, body: Value| {
        let request = server.request(method, path).header("content-type", "application/json");
        let answer = server.send(request.bearer_auth(secret_of("writer")).body(body.to_string())).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    for (device, value) in [("0x01", 20.0), ("0x02", 30.0)] {
        let reading = json!({ "deviceId": device, "ts": START_MS, "metadata": { "name": "TH01" }, "values": {
            "temp": value,
        } });
        as_writer(Method::POST, "/v1/readings", reading).await;
    }
    as_writer(Method::PATCH, "/v1/devices/0x01/metadata", json!({ "name": "Küche, \"Fenster\"" })).await;
    let of_names = format!("SELECT mean(\"value\") FROM \"temp\" WHERE time >= {START_MS}ms GROUP BY \"name\"");
    let found = send(&server, &Method::POST, &of_names).await;
    let series = found["series"].as_array().expect("series").iter();
    let found: Vec<_> = series.map(|series| (series["tags"].clone(), series["values"][0][1].clone())).collect();
    let of = |name: &str, mean: i64| (json!({ "name": name }), json!(mean));
    assert_eq!(found, [of("Küche, \"Fenster\"", 20), of("TH01", 30)]);
    let names = choices(&server, "SHOW TAG VALUES FROM \"temp\" WITH KEY = \"name\"").await;
    assert_eq!(names, ["Küche, \"Fenster\"", "TH01"]);

    let range = format!("from={START_MS}&to={}&fn=avg&format=csv", START_MS + 3_600_000);
    let table = server.request(Method::GET, &format!("/v1/rollups?combine=by:name&{range}"));
    let table = server.send(table.bearer_auth(secret_of("grafana"))).await;
    let mut rows = csv::Reader::from_reader(&table.body[..]);
    let column = rows.headers().expect("a header").iter().position(|name| name == "meta.name").expect("a column");
    let names: Vec<String> = rows.records().map(|row| row.expect("a row")[column].to_owned()).collect();
    assert_eq!(names, ["Küche, \"Fenster\"", "TH01"]);
}
