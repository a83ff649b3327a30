//! The commands of the load generator against a real tidegauge.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// The program of the service, which the tests of the workspace build beside that of the load generator.
fn tidegauge() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_loadtest")).with_file_name("tidegauge");
    assert!(path.is_file(), "build it with cargo build --workspace");
    path
}

/// Runs the load generator and returns the JSON that it prints.
fn loadtest(command: &str, options: &[&str]) -> Value {
    let mut loadtest = Command::new(env!("CARGO_BIN_EXE_loadtest"));
    loadtest.args([command, "--json", "--tidegauge"]).arg(tidegauge()).args(options).stdin(Stdio::null());
    let output = loadtest.output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("it prints JSON")
}

#[test]
fn hours_pass_by_a_fast_clock_and_every_reading_is_there_once() {
    let fleet = ["--devices", "8", "--connections", "2", "--hours", "1", "--verify", "8"];
    let report = loadtest("steady", &[&fleet[..], &["--speed", "1200"]].concat());
    // The first message has the readings of the minute before the hour.
    assert_eq!(report["verified"], serde_json::json!({ "devices": 8, "readings": 8 * 59, "wrong": 0 }), "{report}");
    assert_eq!(report["hours"][0]["name"], "23:00");
    // The service has lived through the hour: buckets got old and were written.
    assert!(report["hours"][0]["commands"].as_u64() >= Some(1), "{report}");
    assert_eq!(report["again"], 0, "{report}");
    assert!(report["store_away"].is_u64(), "{report}"); // on a busy machine the clock is too fast for the store
}

#[test]
fn the_quiet_fleet_is_measured_beside_others() {
    let report = loadtest(
        "bench",
        &["--only", "quiet", "--systems", "tidegauge-sqlite,bare", "--runs", "1", "--seconds", "0.2"],
    );
    let cells = report["cells"].as_array().expect("cells");
    let cpu = |system| {
        let of = |cell: &&Value| cell["section"] == "quiet_cpu" && cell["system"] == system;
        cells.iter().find(of).and_then(|cell| cell["median"].as_f64()).unwrap_or_else(|| panic!("{system}: {report}"))
    };
    assert!(cpu("tidegauge sqlite") > 0.0 && cpu("bare axum") >= 0.0);
}
