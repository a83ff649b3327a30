//! A real influxd, InfluxDB 1, on a free port.

use std::fs::File;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::mongod::free_port;
use super::mongod::kill_on_exit::KillOnExit;
use super::{Killed, client, fetched, wait_until};

/// An influxd on free ports, with a temporary folder.
#[derive(Debug)]
pub(crate) struct Influxd {
    _child: Killed,
    url: String,
    client: reqwest::Client,
    folder: TempDir,
    _kill_on_exit: KillOnExit,
}

impl Influxd {
    /// Starts influxd, and waits until it answers.
    pub(crate) async fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("tidegauge-influxd-").tempdir().expect("a temporary folder");
        let http = format!("127.0.0.1:{}", free_port());
        let log = File::create(folder.path().join("log")).expect("the folder is writable");
        let mut command = Command::new(fetched("get influxd"));
        command.args(["run", "-config", "/dev/null"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        for (name, value) in [
            ("META_DIR", folder.path().join("meta").display().to_string()),
            ("DATA_DIR", folder.path().join("data").display().to_string()),
            ("DATA_WAL_DIR", folder.path().join("wal").display().to_string()),
            ("BIND_ADDRESS", format!("127.0.0.1:{}", free_port())),
            ("HTTP_BIND_ADDRESS", http.clone()),
            ("REPORTING_DISABLED", "true".to_owned()),
            ("MONITOR_STORE_ENABLED", "false".to_owned()),
        ] {
            command.env(format!("INFLUXDB_{name}"), value);
        }
        let child = Killed(command.spawn().expect("tests/get influxd names a program that runs"));
        let kill_on_exit = KillOnExit::new(&child.0, folder.path());
        let client = client(None).build().expect("a client");
        let url = format!("http://{http}");
        let influxd = Self { _child: child, url, client, folder, _kill_on_exit: kill_on_exit };
        wait_until("influxd answers", async || {
            let answer = influxd.client.get(format!("{}/ping", influxd.url)).send().await;
            answer.is_ok_and(|answer| answer.status() == 204).then_some(())
        })
        .await;
        influxd
    }

    /// The URL of this influxd, such as `http://127.0.0.1:40123`.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// A client for requests to it.
    pub(crate) const fn client(&self) -> &reqwest::Client {
        &self.client
    }
}

impl Drop for Influxd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            eprintln!("--- influxd logged:\n{log}---");
        }
    }
}
