//! A real Prometheus, which scrapes itself each second and remote-writes its metrics.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::mongod::{free_port, kill_on_exit::KillOnExit};
use super::{Killed, client, fetched, wait_until};

/// The samples of one instance.
///
/// The keys are the time in Unix milliseconds and the text of the series.
pub(crate) type Samples = BTreeMap<(i64, String), f64>;

/// A Prometheus. It is killed at the end.
pub(crate) struct Prometheus {
    _child: Killed,
    _kill_on_exit: KillOnExit,
    folder: TempDir,
    port: u16,
    client: reqwest::Client,
}

impl Prometheus {
    /// Starts a Prometheus that writes to this URL, and waits until it is ready.
    pub(crate) async fn start(url: &str) -> Self {
        let config = |port: u16| {
            format!(
                "global: {{ scrape_interval: 1s, scrape_timeout: 1s }}\n\
                 scrape_configs:\n  - job_name: itself\n    static_configs: [{{ targets: ['127.0.0.1:{port}'] }}]\n\
                 remote_write:\n  - url: {url}/api/v1/write\n    queue_config: {{ batch_send_deadline: 100ms }}\n"
            )
        };
        Self::start_with(config, "", &[]).await
    }

    /// Starts a Prometheus that scrapes native histograms of this address.
    ///
    /// It writes them to this URL.
    pub(crate) async fn of_histograms(target: SocketAddr, url: &str) -> Self {
        let config = format!(
            "global: {{ scrape_interval: 1s, scrape_timeout: 1s }}\n\
             scrape_configs:\n  - job_name: it\n    static_configs: [{{ targets: ['{target}'] }}]\n\
             remote_write:\n  - url: {url}/api/v1/write\n    send_native_histograms: true\n    \
             queue_config: {{ batch_send_deadline: 100ms }}\n"
        );
        Self::start_with(|_| config, "", &["--enable-feature=native-histograms"]).await
    }

    /// Starts a Prometheus that reads from this URL, and has no samples of its own.
    pub(crate) async fn reading(url: &str) -> Self {
        Self::start_with(|_| format!("remote_read:\n  - url: {url}/api/v1/read\n    read_recent: true\n"), "", &[])
            .await
    }

    /// Starts a Prometheus that scrapes the latest values of a server, and evaluates these rules.
    ///
    /// On a busy machine, a scrape may take seconds.
    pub(crate) async fn watching(url: &str, rules: &str) -> Self {
        let target = url.trim_start_matches("http://");
        let config = format!(
            "global: {{ scrape_interval: 5s, scrape_timeout: 5s, evaluation_interval: 1s }}\n\
             rule_files: [rules.yml]\n\
             scrape_configs:\n  - job_name: tidegauge-readings\n    metrics_path: /metrics/latest\n    \
             static_configs: [{{ targets: ['{target}'] }}]\n"
        );
        Self::start_with(|_| config, rules, &[]).await
    }

    async fn start_with(config: impl FnOnce(u16) -> String, rules: &str, args: &[&str]) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let port = free_port();
        let config = config(port);
        std::fs::write(folder.path().join("rules.yml"), rules).expect("the folder is writable");
        std::fs::write(folder.path().join("prometheus.yml"), config).expect("the folder is writable");
        let log = File::create(folder.path().join("log")).expect("the folder is writable");
        let child = Command::new(fetched("get prometheus"))
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .args(args)
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("prometheus runs");
        let child = Killed(child);
        let kill_on_exit = KillOnExit::new(&child.0, folder.path());
        let client = client(None).build().expect("a client");
        let prometheus = Self { _child: child, _kill_on_exit: kill_on_exit, folder, port, client };
        let ready = format!("http://{}/-/ready", prometheus.instance());
        let is_ready = async || {
            let answer = prometheus.client.get(&ready).send().await;
            answer.is_ok_and(|answer| answer.status().is_success()).then_some(())
        };
        wait_until("Prometheus is ready", is_ready).await;
        prometheus
    }

    /// The label `instance` of the metrics of this Prometheus.
    pub(crate) fn instance(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The labels of the alerts that fire.
    pub(crate) async fn firing(&self) -> Vec<Value> {
        let request = self.client.get(format!("http://{}/api/v1/alerts", self.instance()));
        let answer = request.send().await.expect("Prometheus answers").bytes().await.expect("the whole answer");
        let answer: Value = serde_json::from_slice(&answer).expect("JSON");
        let alerts = answer["data"]["alerts"].as_array().expect("alerts").iter();
        alerts.filter(|alert| alert["state"] == "firing").map(|alert| alert["labels"].clone()).collect()
    }

    /// Its log lines so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).expect("there is a log")
    }

    /// The result of an expression at an instant in Unix milliseconds.
    pub(crate) async fn query(&self, expression: &str, at_ms: i64) -> Value {
        let form = form_urlencoded::Serializer::new(String::new())
            .append_pair("query", expression)
            .append_pair("time", &format!("{}.{:03}", at_ms / 1_000, at_ms % 1_000))
            .finish();
        let request = self.client.post(format!("http://{}/api/v1/query", self.instance()));
        let request = request.header("content-type", "application/x-www-form-urlencoded").body(form);
        let answer: Value = serde_json::from_slice(
            &request.send().await.expect("Prometheus answers").bytes().await.expect("the whole answer"),
        )
        .expect("JSON");
        assert_eq!(answer["status"], "success", "{answer}");
        answer["data"]["result"].clone()
    }

    /// The samples that a range selector finds in the database of this Prometheus.
    ///
    /// `at_ms` is the instant of the query, in Unix milliseconds.
    pub(crate) async fn samples(&self, selector: &str, at_ms: i64) -> Samples {
        let mut samples = Samples::new();
        for series in self.query(selector, at_ms).await.as_array().expect("series") {
            let text = text_of(&series["metric"]);
            for sample in series["values"].as_array().expect("samples") {
                let ts_ms = (sample[0].as_f64().expect("a time") * 1_000.0).round() as i64;
                let value = sample[1].as_str().expect("a text").parse().expect("a number");
                samples.insert((ts_ms, text.clone()), value);
            }
        }
        samples
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- Prometheus logged:\n{}---", self.log());
        }
    }
}

/// The text of a series: its name, and its labels except `instance`.
fn text_of(labels: &Value) -> String {
    let labels: BTreeMap<String, String> = serde_json::from_value(labels.clone()).expect("labels");
    let others = labels.iter().filter(|(key, _)| !["__name__", "instance"].contains(&key.as_str()));
    let others: Vec<_> = others.map(|(key, value)| format!("{}={}", escaped(key), escaped(value))).collect();
    let others = if others.is_empty() { String::new() } else { format!("{{{}}}", others.join(",")) };
    format!("{}{others}", labels["__name__"])
}

fn escaped(text: &str) -> String {
    text.chars().flat_map(|char| r"\{},=".contains(char).then_some('\\').into_iter().chain([char])).collect()
}
