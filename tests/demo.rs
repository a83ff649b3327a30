//! `tidegauge demo`: a factory with a week of history, live readings, alerts, and nothing left at the end.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::mongod::kill_on_exit::KillOnExit;
use crate::harness::mongod::signal;
use crate::harness::{Metrics, Prometheus, binary, client, wait_until};
use crate::readme::{blocks, print_what_is_shown};

/// A running demo.
struct Demo {
    child: Child,
    url: String,
    client: reqwest::Client,
    /// The folder in which it makes its own.
    folder: TempDir,
    _kill_on_exit: KillOnExit,
}

impl Demo {
    async fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("tidegauge-demo-test-").tempdir().expect("a temporary folder");
        let mut command = Command::new(binary());
        command.args(["demo", "--port", "0"]).env("TMPDIR", folder.path());
        // A demo must not touch the store of a real server.
        command.env("TIDEGAUGE_STORE__KIND", "mongodb").env("TIDEGAUGE_SQLITE__FILE", folder.path().join("real"));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the binary runs");
        let kill_on_exit = KillOnExit::new(&child, folder.path());
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let first = tokio::task::spawn_blocking(move || {
            let first = lines.next().expect("a line").expect("text");
            std::thread::spawn(move || lines.for_each(drop)); // the demo never blocks on the pipe
            first
        });
        let first = first.await.expect("no panic");
        let url = first.split_whitespace().find(|word| word.starts_with("http://")).expect("an address");
        let url = url.trim_end_matches('/').to_owned();
        let client = client(None).build().expect("a client");
        Self { child, url, client, folder, _kill_on_exit: kill_on_exit }
    }

    async fn text(&self, path: &str) -> String {
        let answer = self.client.get(format!("{}{path}", self.url)).send().await.expect("the demo answers");
        assert!(answer.status().is_success(), "{path}: {answer:?}");
        answer.text().await.expect("text")
    }

    async fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.text(path).await).expect("JSON")
    }

    async fn send(&self, reading: &'static str) {
        let request = self.client.post(format!("{}/v1/readings", self.url));
        let answer = request.header("content-type", "application/json").body(reading).send().await;
        assert_eq!(answer.expect("the demo answers").status(), 200, "{reading}");
    }

    async fn metrics(&self) -> Metrics {
        Metrics::parse(&self.text("/metrics").await)
    }

    /// Ends the demo like Ctrl-C.
    async fn end(mut self) {
        signal(&self.child, "INT");
        let ended = wait_until("the demo ends after SIGINT", async || self.child.try_wait().expect("our child")).await;
        assert!(ended.success() && self.folders() == 0, "{ended:?}");
    }

    fn folders(&self) -> usize {
        fs::read_dir(self.folder.path()).expect("a folder").count()
    }
}

#[tokio::test]
async fn a_demo_shows_a_week_live_readings_and_alerts_and_removes_its_folder() {
    let demo = Demo::start().await;
    assert_eq!(demo.folders(), 1);
    let start = demo.json("/v1/time").await["ts"].as_str().expect("text").to_owned();

    // One device after another gets the rest of its week. The first and the last hour are partial.
    let hours = "/v1/rollups?device=LIGHT-FL01-ZONE1&from=-8d&step=1h";
    let week = async || {
        let lux = demo.json(hours).await["devices"][0]["metrics"]["lux"].clone();
        lux.as_array().filter(|points| points.len() >= 168).map(Vec::len)
    };
    assert!(wait_until("a device has its week", week).await <= 170);

    // By then the last day of each device is there.
    let silent = demo.json("/v1/devices?silent_for=1h").await;
    let silent: Vec<_> = silent["devices"].as_array().expect("a list").iter().map(|it| &it["deviceId"]).collect();
    assert_eq!(silent, ["LIGHT-DOCK", "TANK-1"]);
    wait_until("the silent devices of a new service are counted", async || {
        (demo.metrics().await.value("tidegauge_devices_silent") == Some(2.0)).then_some(())
    })
    .await;
    let on_floor = demo.json("/v1/devices?meta.floor=2").await["devices"].as_array().map(Vec::len);
    assert_eq!(on_floor, Some(5));

    for (what, labels) in [
        ("accepted_total", &[("protocol", "http")][..]),
        ("accepted_total", &[("protocol", "udp")]),
        ("rejected_total", &[("protocol", "http"), ("reason", "timestamp_in_future")]),
    ] {
        let count = async || {
            let count = demo.metrics().await.count_where(&format!("tidegauge_readings_{what}"), labels);
            (count > 0).then_some(count)
        };
        wait_until(&format!("{what} {labels:?}"), count).await;
    }
    let live = async || {
        let latest = demo.json("/v1/devices/LIGHT-FL04-ZONE1/latest").await["metrics"]["lux"]["ts"].clone();
        latest.as_str().is_some_and(|ts| *ts > *start).then_some(())
    };
    wait_until("a live value of a device that sends datagrams", live).await;

    let readme = fs::read_to_string(crate::pages::in_repository("README.md")).expect("there is a page");
    print_what_is_shown("README.md", blocks(&readme, "console demo"), &demo.url).await;

    alerts_of_the_tank_fire_and_end(&demo).await;
    demo.end().await;
}

/// A real Prometheus evaluates the rules of `deploy`.
async fn alerts_of_the_tank_fire_and_end(demo: &Demo) {
    let rules = fs::read_to_string(crate::pages::in_repository("deploy/alerts-readings.yml")).expect("the rules");
    let prometheus = Prometheus::watching(&demo.url, &rules.replace("for: 5m", "for: 1s")).await;
    let tank = async |alert: &str| {
        let firing = prometheus.firing().await;
        firing.into_iter().find(|labels| labels["alertname"] == alert && labels["device"] == "TANK-1")
    };
    wait_until("the tank is silent for five hours", async || tank("TidegaugeDeviceSilent").await).await;

    demo.send(r#"{"deviceId":"TANK-1","values":{"level":12.5}}"#).await;
    let is_over = async || tank("TidegaugeDeviceSilent").await.is_none().then_some(());
    wait_until("the tank is not silent any more", is_over).await;
    let beyond = wait_until("the tank is nearly empty", async || tank("TidegaugeBeyondLimit").await).await;
    assert_eq!((&beyond["metric"], &beyond["bound"]), (&"level".into(), &"min".into()), "{beyond}");

    demo.send(r#"{"deviceId":"TANK-1","values":{"level":60}}"#).await;
    let is_over = async || tank("TidegaugeBeyondLimit").await.is_none().then_some(());
    wait_until("the tank is filled", is_over).await;
    let alerts = prometheus.firing().await;
    assert!(alerts.iter().all(|labels| labels["alertname"] != "TidegaugeReadingsNotScraped"), "{alerts:?}");
}

#[tokio::test]
async fn a_port_in_use_is_named_and_no_folder_stays() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let other = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = other.local_addr().expect("it is bound").port().to_string();
    let mut command = Command::new(binary());
    command.args(["demo", "--port", &port]).env("TMPDIR", folder.path()).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("no panic").expect("our child");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains(&format!("another program uses port {port}: choose one with --port")), "{said}");
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
}
