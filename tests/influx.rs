//! The paths of InfluxDB 1, 2 and 3, as their clients use them.

mod errors;
mod hello;
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
async fn lines_become_readings_with_metadata() {
    let server = Server::start(Setup::sqlite()).await;
    for (number, path) in ALL.iter().enumerate() {
        let lines = format!(
            "# two points\nclimate,deviceId=d{number},site=north temp=22.4,hum=40i,open=t,value=7u {TS_NS}\n\n\
             lux,device=e{number} value=1e3 {TS_NS}\n"
        );
        let answer = write(&server, path, lines).await;
        assert_eq!((answer.status, answer.text()), (204, ""), "{path}");
        let values = json!({ "climate_temp": 22.4, "climate_hum": 40.0, "climate_open": 1.0, "climate": 7.0 });
        assert_eq!(server.readings(&format!("d{number}")).await, json!([{ "ts": TS, "values": values }]), "{path}");
        let values = json!({ "lux": 1000.0 });
        assert_eq!(server.readings(&format!("e{number}")).await, json!([{ "ts": TS, "values": values }]), "{path}");
    }
    let device = server.get_json("/v1/devices?prefix=d0").await["devices"][0].take();
    assert_eq!(device["metadata"], json!({ "site": "north" }));
    let metrics = server.metrics().await;
    assert_eq!(metrics.count_where("tidegauge_readings_accepted_total", &[("protocol", "influx")]), 6);
}

/// The differences from `InfluxDB` that docs/protocols.md lists.
#[tokio::test]
async fn tags_make_no_series_and_a_string_rejects_its_line() {
    let server = Server::start(Setup::sqlite()).await;
    let lines = format!("cpu,cpu=cpu0,host=raspi idle=10 {TS_NS}\ncpu,cpu=cpu1,host=raspi idle=20 {TS_NS}\n");
    assert_eq!(write(&server, V2, lines).await.status, 204);
    assert_eq!(server.readings("raspi").await, json!([{ "ts": TS, "values": { "cpu_idle": 20.0 } }]));
    assert_eq!(write(&server, V2, format!("disk,device=sda1,host=raspi free=1 {TS_NS}\n")).await.status, 204);
    assert_eq!(server.readings("sda1").await, json!([{ "ts": TS, "values": { "disk_free": 1.0 } }]));
    let answer = write(&server, V2, format!("system,host=alone up=7,text=\"a week\" {TS_NS}\n")).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert_eq!(server.readings("alone").await, json!([]));
}

#[tokio::test]
async fn the_error_for_times_in_seconds_suggests_the_precision() {
    let server = Server::start(Setup::default_config()).await;
    for path in [V1, V2] {
        let answer = write(&server, path, format!("cpu,deviceId=a value=1 {}", TS_NS / 1_000_000_000)).await;
        assert!(answer.status == 400 && answer.text().contains("add precision=s"), "{path}: {}", answer.text());
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
async fn the_tags_that_name_the_device_are_configurable() {
    let server = Server::start(Setup::sqlite().set("ingest.line_protocol", device_tags(&["mac", "host"]))).await;
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

fn device_tags(names: &[&str]) -> toml::Table {
    [("device_tags".to_owned(), names.to_vec().into())].into_iter().collect()
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(body).and_then(|()| encoder.finish()).expect("memory")
}
