//! `tidegauge check --full`: no warnings of a healthy set-up, and a finding with its mend for each thing that
//! a test breaks on purpose.

mod database;
mod files;
mod forward;
mod healthy;
mod report;
mod servers;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Server, Setup, binary};

/// Parts whose findings depend on the machine of the tests and on what else runs on it.
const OF_THE_MACHINE: [&str; 5] = ["server-cache", "server-disk", "server-growth", "server-oplog", "log-disk"];

/// The outcome of a check.
#[derive(Debug)]
pub(crate) struct Checked {
    code: Option<i32>,
    pub(crate) report: Value,
}

impl Checked {
    /// The findings of at least this severity, those of the machine aside.
    pub(crate) fn bad(&self) -> Vec<&Value> {
        let is_bad = |finding: &&Value| ["warning", "error"].contains(&text(finding, "severity"));
        let findings = self.report["findings"].as_array().expect("an array").iter();
        findings.filter(is_bad).filter(|finding| !OF_THE_MACHINE.contains(&text(finding, "part"))).collect()
    }

    /// Checks that a finding has this severity, part and text, and returns its mend.
    pub(crate) fn has(&self, severity: &str, part: &str, found: &str) -> &str {
        let all = self.report["findings"].as_array().expect("an array");
        let is_it = |finding: &&Value| text(finding, "part") == part && text(finding, "found").contains(found);
        let finding = all.iter().find(is_it).unwrap_or_else(|| panic!("no {part} with {found:?} in {self:#?}"));
        assert_eq!(text(finding, "severity"), severity, "{finding}");
        let is_worse = self.code == Some(1) || (self.code == Some(2) && severity == "warning");
        assert!(is_worse, "the exit code: {self:?}");
        finding["mend"].as_str().unwrap_or_else(|| panic!("{finding} has no mend"))
    }
}

fn text<'v>(finding: &'v Value, field: &str) -> &'v str {
    finding[field].as_str().unwrap_or_else(|| panic!("no {field} in {finding}"))
}

/// Checks a set-up with a data folder.
pub(crate) async fn check(setup: &Setup, data_dir: &Path) -> Checked {
    check_with(setup, data_dir, std::process::Command::new(binary())).await
}

/// The same with a command that runs the binary.
async fn check_with(setup: &Setup, data_dir: &Path, mut command: std::process::Command) -> Checked {
    let folder = TempDir::new().expect("a temporary folder");
    let config = folder.path().join("config.toml");
    std::fs::write(&config, setup.to_toml()).expect("the folder is writable");
    std::fs::set_permissions(&config, Permissions::from_mode(0o600)).expect("our file"); // it may have secrets
    command.args(["check", "--full", "--json", "--config"]).arg(config).arg("--data-dir").arg(data_dir);
    let run = move || command.stdin(Stdio::null()).output().expect("the binary runs");
    let output = tokio::task::spawn_blocking(run).await.expect("no panic");
    let report = serde_json::from_slice(&output.stdout);
    Checked { code: output.status.code(), report: report.unwrap_or_else(|error| panic!("{error}: {output:?}")) }
}

/// Limits that the disk of any machine has space for, and readings that expire.
pub(crate) fn small(setup: Setup) -> Setup {
    let setup = setup.set("log.max_bytes", "64MiB").set("log.segment_bytes", "1MiB");
    setup.set("retention.readings", "90d")
}

/// Starts a server, has it store readings of three devices, and leaves it running.
async fn with_readings(setup: &Setup) -> Server {
    let server = Server::start(setup.clone()).await;
    let readings = ["a", "b", "c"].map(|device| serde_json::json!({ "deviceId": device, "values": { "temp": 1.5 } }));
    server.accepts(&readings.to_vec().into()).await;
    server.settled().await;
    server
}
