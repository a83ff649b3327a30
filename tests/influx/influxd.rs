//! A real influxd is the oracle: what it and tidegauge store of the same lines is equal, series by series and
//! value by value.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tidegauge::model::series::Series;

use super::{V1, V2, V3};
use crate::harness::{Database, Influxd, Server, Setup, wait_until};

/// Each value by device, metric, labels and time in milliseconds.
type Stored = BTreeMap<(String, String, BTreeMap<String, String>, i64), f64>;

impl Influxd {
    async fn query(&self, statement: &str) -> Value {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs([("db", "plant"), ("epoch", "ms"), ("q", statement)]);
        let request = self.client().post(format!("{}/query?{}", self.url(), query.finish()));
        let answer = request.send().await.expect("influxd answers").text().await.expect("text");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert!(answer.get("error").is_none() && answer["results"][0].get("error").is_none(), "{statement}: {answer}");
        answer["results"][0].clone()
    }

    async fn write(&self, lines: &str) {
        let answer = self.client().post(format!("{}{V1}", self.url())).body(lines.to_owned()).send().await;
        let answer = answer.expect("influxd answers");
        let status = answer.status();
        assert_eq!(status, 204, "{}", answer.text().await.unwrap_or_default());
    }

    /// All numbers and booleans that it has. The tag `device_tag` names the device.
    async fn stored(&self, device_tag: &str) -> Stored {
        let mut stored = Stored::new();
        let found = self.query("SELECT * FROM /.*/ GROUP BY *").await;
        for series in found["series"].as_array().expect("series") {
            let measurement = series["name"].as_str().expect("a name");
            // A tag that only other series of the measurement have is empty here.
            let tags = series["tags"].as_object().expect("tags").iter();
            let tags = tags.map(|(key, value)| (key.clone(), value.as_str().expect("a text").to_owned()));
            let mut labels: BTreeMap<String, String> = tags.filter(|(_, value)| !value.is_empty()).collect();
            let device = labels.remove(device_tag).expect("a device");
            let columns = series["columns"].as_array().expect("columns").iter();
            let columns: Vec<&str> = columns.map(|column| column.as_str().expect("a name")).collect();
            for row in series["values"].as_array().expect("rows") {
                let ts_ms = row[0].as_i64().expect("a time");
                for (column, value) in columns.iter().zip(row.as_array().expect("a row")).skip(1) {
                    let Some(value) = value.as_f64().or(value.as_bool().map(f64::from)) else { continue };
                    let metric = match *column {
                        "value" => measurement.to_owned(),
                        field => format!("{measurement}_{field}"),
                    };
                    let identity = (device.clone(), metric, labels.clone(), ts_ms);
                    assert!(stored.insert(identity, value).is_none(), "{measurement} {column} twice");
                }
            }
        }
        stored
    }
}

/// All values that tidegauge has.
async fn stored_by(server: &Server) -> Stored {
    let mut stored = Stored::new();
    for device in server.get_json("/v1/devices").await["devices"].as_array().expect("devices") {
        let device = device["deviceId"].as_str().expect("an ID");
        let range = "from=2015-01-01T00:00:00Z&to=2024-12-31T00:00:00Z&limit=1000";
        let page = server.get_json(&format!("/v1/devices/{device}/readings?{range}")).await;
        assert!(page["next"].is_null(), "one page is enough");
        for reading in page["readings"].as_array().expect("readings") {
            let ts: jiff::Timestamp = reading["ts"].as_str().expect("a time").parse().expect("RFC 3339");
            for (text, value) in reading["values"].as_object().expect("values") {
                let series = Series::parse(text).expect("a series");
                let labels = series.labels.iter().map(|(key, value)| (key.to_string(), value.to_string()));
                let identity = (device.to_owned(), series.metric.to_owned(), labels.collect(), ts.as_millisecond());
                assert!(stored.insert(identity, value.as_f64().expect("a number")).is_none(), "{text} twice");
            }
        }
    }
    stored
}

/// Compares the maps entry by entry, for a short message.
fn assert_equal(found: &Stored, expected: &Stored, what: &str) {
    let differs =
        |(identity, value): &(&_, &f64)| found.get(*identity).map(|found| found.to_bits()) != Some(value.to_bits());
    let missing: Vec<_> = expected.iter().filter(differs).take(5).collect();
    assert!(missing.is_empty(), "{what}: influxd has {missing:?}");
    let more: Vec<_> = found.iter().filter(|(identity, _)| !expected.contains_key(*identity)).take(5).collect();
    assert!(more.is_empty(), "{what}: influxd does not have {more:?}");
}

/// Telegraf needs no configuration: `host` is one of the default tags.
fn with_device_tag(setup: Setup, tag: &str) -> Setup {
    let mapping: toml::Table = [("device_tags".to_owned(), vec![tag].into())].into_iter().collect();
    if tag == "host" { setup } else { setup.set("ingest.line_protocol", mapping) }
}

/// Sends each line as a datagram, and waits until the server has taken it.
async fn send_datagrams(server: &Server, lines: &str) {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for (at, line) in lines.lines().enumerate() {
        socket.send_to(line.as_bytes(), server.udp_addr()).expect("sent");
        wait_until("the datagram is taken", async || {
            let received = server.metrics().await.count("tidegauge_udp_datagrams_total");
            (received > at as u64).then_some(())
        })
        .await;
    }
    server.settled().await;
}

/// Writes lines to influxd and to tidegauge, on each path and in each store, and compares what they have.
///
/// Returns the number of series.
async fn each_series_and_value_is_equal(lines: &str, device_tag: &str) -> usize {
    let influxd = Influxd::start().await;
    influxd.query("CREATE DATABASE plant").await;
    influxd.write(lines).await;
    let expected = influxd.stored(device_tag).await;
    let databases = [Database::new(), Database::new()];
    let setups = [
        ("sqlite", V1, Setup::sqlite()),
        ("mongodb", V2, Setup::mongodb(&databases[0])),
        ("mongodb-timeseries", V3, Setup::timeseries(&databases[1])),
    ];
    for (store, path, setup) in setups {
        let server = Server::start(with_device_tag(setup, device_tag)).await;
        for _ in 0..2 {
            let answer = super::write(&server, path, lines).await;
            assert_eq!(answer.status, 204, "{store}: {}", answer.text());
        }
        assert_equal(&stored_by(&server).await, &expected, &format!("{store}, at once"));
        server.settled().await;
        assert_equal(&stored_by(&server).await, &expected, store);
    }
    let server = Server::start(with_device_tag(Setup::sqlite(), device_tag)).await;
    send_datagrams(&server, lines).await;
    assert_equal(&stored_by(&server).await, &expected, "UDP");
    expected.keys().map(|(device, metric, labels, _)| (device, metric, labels)).collect::<BTreeSet<_>>().len()
}

#[tokio::test]
async fn telegraf_loses_no_series_and_no_value() {
    let lines = include_str!("telegraf.lp");
    let series = each_series_and_value_is_equal(lines, "host").await;
    assert_eq!(series, 334);
}

#[tokio::test]
async fn home_assistant_loses_no_series_and_no_number() {
    let lines = include_str!("home_assistant.lp");
    let series = each_series_and_value_is_equal(lines, "entity_id").await;
    assert_eq!(series, 27);
}
