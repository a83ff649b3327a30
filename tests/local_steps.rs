//! Rollups by the local clock equal those that a Python program computes from the readings with `zoneinfo`:
//! on every store and layout, half of the readings stored and half pending. SQLite answers all questions, the
//! other stores a third each.

use std::process::Command;

use serde_json::{Map, Value, json};

use crate::harness::{Database, Server, Setup};
use crate::import_real_data::series::Series;

const DAY_MS: i64 = 86_400_000;

/// How far the readings are shifted so that the clocks of Lord Howe, Berlin and New York change meanwhile.
const DEVICES: [(&str, i64); 2] = [("autumn", -65 * DAY_MS), ("spring", 90 * DAY_MS)];

/// The readings of each of these devices, ten minutes apart: 45 days.
const READINGS: usize = 6_500;

/// The readings of a device with a year, in which each clock changes twice.
const READINGS_OF_A_YEAR: usize = 1_400;
const APART_MS: i64 = 374 * 60_000 + 1_234;

/// The readings that are stored in a row, and then those that stay pending: three days and a half.
const IN_A_ROW: usize = 505;

const PER_REQUEST: usize = 6_000;

#[tokio::test]
async fn rollups_by_the_local_clock_equal_independent_ones_on_every_store() {
    let databases = [Database::new(), Database::new(), Database::new()];
    let setups = Setup::of_each_store(&databases);
    let mut devices = DEVICES.map(|(device, shift_ms)| (device, readings(shift_ms))).to_vec();
    devices.push(("year", year(&devices[0].1)));
    let patient = setups.map(|setup| setup.set("query.timeout", "10m"));
    let servers = futures_util::future::join_all(patient.map(|setup| half_pending(setup, &devices))).await;

    let file = tempfile::NamedTempFile::new().expect("a file");
    let by_device: Map<String, Value> =
        devices.iter().map(|(device, readings)| ((*device).to_owned(), json!(readings))).collect();
    serde_json::to_writer(&file, &by_device).expect("written");
    let mut python = Command::new("python3");
    python.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/local_steps/expected.py")).arg(file.path());
    python.args(servers.iter().map(Server::url));
    let output =
        tokio::task::spawn_blocking(move || python.output().expect("python3 is there")).await.expect("no panic");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let points: usize = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number");
    assert!(points > 70_000, "{points} points were compared");
}

/// Each second reading of a real series, and a counter that begins again from time to time.
fn readings(shift_ms: i64) -> Vec<(i64, Value)> {
    let series = Series::load().last_values();
    let counted = |at: usize| ((at * 7_919) % 13 + at % 997 * 8) as f64 / 4.0;
    let values = series.values().step_by(2).take(READINGS).enumerate();
    values.map(|(at, (ts_ms, temp))| (ts_ms + shift_ms, json!({ "temp": temp, "total": counted(at) }))).collect()
}

/// The values of some readings, over a year.
fn year(readings: &[(i64, Value)]) -> Vec<(i64, Value)> {
    let some = readings.iter().take(READINGS_OF_A_YEAR).zip(0..);
    some.map(|((_, values), at)| (readings[0].0 + at * APART_MS, values.clone())).collect()
}

/// A server on which half of the readings are stored and the other half is pending, often of the same hour.
async fn half_pending(setup: Setup, devices: &[(&str, Vec<(i64, Value)>)]) -> Server {
    let mut server = Server::start(setup.clone()).await;
    for is_pending in [false, true] {
        if is_pending {
            server.settled().await;
            server.terminate().await;
            server.start_again_with(setup.clone().all_pending()).await;
        }
        for (device, readings) in devices {
            let half = readings.iter().enumerate().filter(|(at, _)| (at / IN_A_ROW % 2 == 1) == is_pending);
            let half: Vec<Value> = half.map(|(_, (ts, values))| json!({ "ts": ts, "values": values })).collect();
            for some in half.chunks(PER_REQUEST) {
                server.accepts(&json!({ "deviceId": device, "readings": some })).await;
            }
        }
    }
    let pending = server.metrics().await.count("tidegauge_readings_pending");
    assert!(pending > 6_000, "{pending} are pending");
    server
}
