//! The paths of InfluxDB 1, 2 and 3, as their clients use them.

mod errors;
mod hello;
mod influxd;
mod precision;

use std::io::Write;

use flate2::{Compression, write::GzEncoder};
use reqwest::Method;
use serde_json::json;

use crate::harness::{Server, Setup};

const V1: &str = "/write?db=plant&rp=autogen&u=ann&p=secret&consistency=one";
const V2: &str = "/api/v2/write?org=acme&bucket=plant";
const V3: &str = "/api/v3/write_lp?db=plant&no_sync=false";
const ALL: [&str; 3] = [V1, V2, V3];

const TS_NS: i64 = 1_713_621_610_000_000_000; // 2024-04-20T14:00:10Z
const TS: &str = "2024-04-20T14:00:10.000Z";

async fn write(server: &Server, path: &str, lines: impl Into<String>) -> crate::harness::Answer {
    server.post(path, "text/plain; charset=utf-8", lines.into()).await
}

#[tokio::test]
async fn lines_become_readings_of_labelled_series() {
    let server = Server::start(Setup::sqlite()).await;
    for (number, path) in ALL.iter().enumerate() {
        let lines = format!(
            "# two points\nclimate,deviceId=d{number},site=north temp=22.4,hum=40i,open=t,value=7u {TS_NS}\n\n\
             lux,device=e{number} value=1e3 {TS_NS}\n"
        );
        let answer = write(&server, path, lines).await;
        assert_eq!((answer.status, answer.text()), (204, ""), "{path}");
        let series = |metric| format!("{metric}{{site=north}}");
        let (temp, hum, open) = (series("climate_temp"), series("climate_hum"), series("climate_open"));
        let values = json!({ temp: 22.4, hum: 40.0, open: 1.0, series("climate"): 7.0 });
        assert_eq!(server.readings(&format!("d{number}")).await, json!([{ "ts": TS, "values": values }]), "{path}");
        let values = json!({ "lux": 1000.0 });
        assert_eq!(server.readings(&format!("e{number}")).await, json!([{ "ts": TS, "values": values }]), "{path}");
    }
    let metrics = server.metrics().await;
    assert_eq!(metrics.count_where("tidegauge_readings_accepted_total", &[("protocol", "influx")]), 6);
}

#[tokio::test]
async fn points_that_differ_in_a_tag_are_different_series() {
    let server = Server::start(Setup::sqlite()).await;
    for (number, path) in ALL.iter().enumerate() {
        let lines = format!(
            "cpu,cpu=cpu0,host=raspi{number} idle=10 {TS_NS}\ncpu,cpu=cpu1,host=raspi{number} idle=20 {TS_NS}\n\
             disk,device=sda1,host=raspi{number} free=1 {TS_NS}\ndisk,device=sda1,host=other{number} free=2 {TS_NS}\n"
        );
        assert_eq!(write(&server, path, lines).await.status, 204);
        let values = json!({ "cpu_idle{cpu=cpu0}": 10.0, "cpu_idle{cpu=cpu1}": 20.0, "disk_free{device=sda1}": 1.0 });
        assert_eq!(server.readings(&format!("raspi{number}")).await, json!([{ "ts": TS, "values": values }]));
        let values = json!({ "disk_free{device=sda1}": 2.0 });
        assert_eq!(server.readings(&format!("other{number}")).await, json!([{ "ts": TS, "values": values }]));
    }
}

#[tokio::test]
async fn strings_are_dropped_and_counted_and_the_numbers_of_their_lines_are_kept() {
    let server = Server::start(Setup::sqlite()).await;
    for path in ALL {
        let lines = format!("system,host=h up=7,text=\"a week\" {TS_NS}\nsystem,host=h text=\"a week\" {TS_NS}\n");
        assert_eq!(write(&server, path, lines).await.status, 204);
    }
    assert_eq!(server.readings("h").await, json!([{ "ts": TS, "values": { "system_up": 7.0 } }]));
    let metrics = server.metrics().await;
    let ignored = [("protocol", "influx"), ("reason", "string")];
    assert_eq!(metrics.count_where("tidegauge_fields_ignored_total", &ignored), 6);
    assert_eq!(metrics.count("tidegauge_readings_received_total"), 3);
}

#[tokio::test]
async fn strings_are_metadata_or_rejected_if_the_configuration_says_so() {
    let strings = |choice: &str| {
        let table: toml::Table = [("strings".to_owned(), choice.into())].into_iter().collect();
        Setup::sqlite().set("ingest.line_protocol", table)
    };
    let line = format!("state,host=lamp value=1,friendly_name=\"Desk \\\"A\\\"\" {TS_NS}\n");
    let server = Server::start(strings("metadata")).await;
    assert_eq!(write(&server, V1, line.clone()).await.status, 204);
    let device = server.get_json("/v1/devices").await["devices"][0].take();
    assert_eq!(device["metadata"], json!({ "friendly_name": "Desk \"A\"" }));

    let server = Server::start(strings("reject")).await;
    let answer = write(&server, V2, line).await;
    assert_eq!(answer.status, 422, "{}", answer.text());
    let why = "line 1: the value of field \"friendly_name\" must be a number or a boolean, found a string at column 39";
    assert_eq!(answer.json()["message"], format!("partial write: {why} dropped=0"));
    assert_eq!(server.readings("lamp").await, json!([{ "ts": TS, "values": { "state": 1.0 } }]));
    let metrics = server.metrics().await;
    assert_eq!(metrics.count_where("tidegauge_values_rejected_total", &[("reason", "invalid_value")]), 1);
}

#[tokio::test]
async fn the_error_for_times_in_seconds_suggests_the_precision() {
    let server = Server::start(Setup::default_config()).await;
    for path in [V1, V2] {
        let answer = write(&server, path, format!("cpu,deviceId=a value=1 {}", TS_NS / 1_000_000_000)).await;
        assert!(answer.status == 400 && answer.text().contains("add precision=s"), "{path}: {}", answer.text());
    }
    for path in ALL {
        let path = format!("{path}&precision=us");
        let answer = write(&server, &path, format!("cpu,deviceId=a value=1 {}", TS_NS / 1_000_000_000)).await;
        let hint = "(in another unit of time it would be 2024-04-20T13:50:00.000Z)";
        assert!(answer.status == 400 && answer.text().contains(hint), "{path}: {}", answer.text());
    }
}

#[tokio::test]
async fn gzip_in_several_members_and_any_credentials_are_accepted() {
    let server = Server::start(Setup::sqlite()).await;
    for (path, authorization) in ALL.iter().zip(["Basic YW5uOnNlY3JldA==", "Token secret", "Bearer secret"]) {
        let line = |n: i64| format!("m,device=z value={n} {}\n", TS_NS + n * 1_000_000);
        let body = [gzip(line(1).as_bytes()), gzip(line(2).as_bytes())].concat();
        let request = server.request(Method::POST, path).header("content-encoding", "gzip");
        let answer = server.send(request.header("authorization", authorization).body(body)).await;
        assert_eq!(answer.status, 204, "{path}: {}", answer.text());
    }
    assert_eq!(server.readings("z").await.as_array().expect("readings").len(), 2);
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "what the server's clock said is compared with ours")]
async fn a_line_without_a_time_gets_the_time_of_the_server() {
    let server = Server::start(Setup::sqlite()).await;
    for path in ALL {
        assert_eq!(write(&server, path, "m,device=now value=1").await.status, 204);
    }
    let latest = server.get_json("/v1/devices/now/latest").await["metrics"]["m"].take();
    let ts: jiff::Timestamp = latest["ts"].as_str().expect("a time").parse().expect("RFC 3339");
    assert!(ts.duration_until(jiff::Timestamp::now()).as_secs() < 60, "{latest}");
}

#[tokio::test]
async fn the_tags_that_name_and_describe_the_device_are_configurable() {
    let mapping = line_protocol(&["mac", "host"], &["host"]);
    let server = Server::start(Setup::sqlite().set("ingest.line_protocol", mapping)).await;
    assert_eq!(write(&server, V2, format!("m,host=h,mac=a value=1 {TS_NS}")).await.status, 204);
    assert_eq!(write(&server, V2, format!("m,device=h value=1 {TS_NS}")).await.status, 400);
    let device = server.get_json("/v1/devices").await["devices"][0].take();
    assert_eq!((&device["deviceId"], &device["metadata"]), (&json!("a"), &json!({ "host": "h" })));
}

#[tokio::test]
async fn an_empty_body_is_no_error() {
    let server = Server::start(Setup::sqlite()).await;
    for path in ALL {
        assert_eq!(write(&server, path, "\n# nothing\n").await.status, 204);
    }
}

#[tokio::test]
async fn curl_needs_no_more_than_it_needs_for_influxdb() {
    let server = Server::start(Setup::sqlite()).await;
    for path in ALL {
        let url = format!("{}{path}", server.url());
        let mut curl = std::process::Command::new("curl");
        curl.args(["-sS", "-o", "/dev/null", "-w", "%{http_code}", "-XPOST", &url]);
        curl.args(["--data-binary", &format!("m,host=c value=1 {TS_NS}")]);
        let output =
            tokio::task::spawn_blocking(move || curl.output()).await.expect("no panic").expect("curl is there");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "204", "{}", String::from_utf8_lossy(&output.stderr));
    }
}

fn line_protocol(device_tags: &[&str], metadata_tags: &[&str]) -> toml::Table {
    let tags = [("device_tags", device_tags), ("metadata_tags", metadata_tags)];
    tags.into_iter().map(|(key, names)| (key.to_owned(), names.to_vec().into())).collect()
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(body).and_then(|()| encoder.finish()).expect("memory")
}
