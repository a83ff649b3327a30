//! A real series, eleven weeks of five-minute readings, goes in with `tidegauge import` and comes out as
//! hourly rollups that equal independently computed ones: in every store, pending or stored, imported
//! twice, shuffled, through two servers at once, and over a `kill -9`.

pub(crate) mod series;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Database, Server, Setup, in_stores, run, wait_until};
use series::{Hourly, Series};

const DEVICE: &str = "machine-1";
const METRIC: &str = "temp";

/// The readings of four weeks.
const FOUR_WEEKS: usize = 4 * 7 * 288;

// A time-series collection keeps the first value of an instant, so each instant has one value only there.
in_stores!(
    hours_are_right_pending_after_a_crash_and_stored,
    [sqlite(super::Series::load()), mongodb(super::Series::load()), timeseries(super::Series::load().last_values())]
);

async fn hours_are_right_pending_after_a_crash_and_stored(setup: Setup, series: Series) {
    let file = file_of(&series);
    let mut server = Server::start(setup.clone().all_pending()).await;
    import(&server, &file).await;
    server.assert_balanced().await;
    assert_eq!(server.metrics().await.count("tidegauge_readings_pending"), series.len());
    assert_hours(&server, &series).await;

    server.assert_balanced().await;
    server.kill9();
    server.start_again_with(setup).await;
    let metrics = server.settled().await;
    assert_eq!(metrics.count("tidegauge_readings_recovered_total"), series.len());
    assert_eq!(metrics.count("tidegauge_readings_stored_total"), series.identities());
    assert_hours(&server, &series).await;
}

in_stores!(
    a_repeated_import_is_stored_once,
    [sqlite(super::Series::load()), mongodb(super::Series::load()), timeseries(super::Series::load().last_values())]
);

async fn a_repeated_import_is_stored_once(setup: Setup, series: Series) {
    let file = file_of(&series);
    let server = Server::start(setup).await;
    for pass in 1..=2 {
        import(&server, &file).await;
        let metrics = server.settled().await;
        assert_eq!(metrics.count("tidegauge_readings_accepted_total"), pass * series.len());
        assert_eq!(metrics.count("tidegauge_readings_stored_total"), series.identities(), "pass {pass}");
        assert_hours(&server, &series).await;
    }
}

in_stores!(a_shuffled_import_gives_the_same_hours, [sqlite, mongodb, timeseries]);

async fn a_shuffled_import_gives_the_same_hours(setup: Setup) {
    let series = Series::load().last_values().first(FOUR_WEEKS);
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("shuffled.csv");
    let server = Server::start(setup).await;
    for seed in 1..=2 {
        series.clone().shuffled(seed).write(&file);
        import(&server, &file).await;
        let metrics = server.settled().await;
        assert_eq!(metrics.count("tidegauge_readings_stored_total"), series.identities(), "seed {seed}");
        assert_hours(&server, &series).await;
    }
}

#[tokio::test]
async fn an_import_through_two_servers_is_stored_once_in_mongodb() {
    let database = Database::new();
    let series = Series::load();
    let in_order = file_of(&series);
    let folder = TempDir::new().expect("a temporary folder");
    let shuffled = folder.path().join("shuffled.csv");
    series.last_values().shuffled(3).write(&shuffled);
    let (one, other) = tokio::join!(Server::start(Setup::mongodb(&database)), Server::start(Setup::mongodb(&database)));
    tokio::join!(import(&one, &in_order), import(&other, &shuffled));
    let (metrics, other_metrics) = tokio::join!(one.settled(), other.settled());
    let stored = |name: &str| metrics.count(name) + other_metrics.count(name);
    assert_eq!(stored("tidegauge_readings_stored_total"), series.identities());
    assert_hours(&one, &series).await;
    assert_hours(&other, &series).await;
}

in_stores!(
    an_import_repeated_after_a_kill_is_stored_once,
    [sqlite(super::Series::load()), mongodb(super::Series::load()), timeseries(super::Series::load().last_values())]
);

async fn an_import_repeated_after_a_kill_is_stored_once(setup: Setup, series: Series) {
    let file = file_of(&series);
    let mut server = Server::start(setup).await;
    let mut import = Command::new(env!("CARGO_BIN_EXE_tidegauge"))
        .args(import_args(&server, &file))
        .args(["--batch", "250"]) // many small requests, so that there is a middle
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    wait_until("the first readings are in", async || {
        (server.metrics().await.count("tidegauge_readings_accepted_total") > 0).then_some(())
    })
    .await;
    server.kill9();
    import.kill().expect("our child");
    import.wait().expect("our child");

    server.start_again().await;
    self::import(&server, &file).await;
    server.settled().await;
    assert_hours(&server, &series).await;
}

fn file_of(series: &Series) -> tempfile::TempPath {
    let file = tempfile::Builder::new().suffix(".csv").tempfile().expect("a temporary file").into_temp_path();
    series.write(&file);
    file
}

fn import_args(server: &Server, file: &Path) -> [String; 10] {
    let file = file.to_str().expect("UTF-8");
    ["import", file, "--device", DEVICE, "--metric", METRIC, "--tz", "UTC", "--url", server.url()].map(str::to_owned)
}

async fn import(server: &Server, file: &Path) {
    let args = import_args(server, file);
    let finished = run(&args.each_ref().map(String::as_str)).await;
    assert_eq!(finished.code, Some(0), "{} {}", finished.stdout, finished.stderr);
}

/// The rollups of the server equal those of the series: counts, minima and maxima exactly.
async fn assert_hours(server: &Server, series: &Series) {
    let range = "from=2013-01-01T00:00:00Z&to=2015-01-01T00:00:00Z";
    let answer = server.get_json(&format!("/v1/devices/{DEVICE}/rollups?{range}&metric={METRIC}&step=1h")).await;
    assert_eq!(answer["deviceId"], DEVICE);
    let points = answer["metrics"][METRIC].as_array().expect("rollups of the metric");
    let found: BTreeMap<i64, Hourly> = points.iter().map(hourly_of).collect();
    assert_eq!(found.len(), points.len(), "an hour is there twice");
    let expected = series.hours();
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (hour, expected) in expected {
        found[&hour].assert_is(&expected, hour);
    }
}

fn hourly_of(point: &Value) -> (i64, Hourly) {
    let number = |key: &str| point[key].as_f64().unwrap_or_else(|| panic!("no {key} in {point}"));
    let ts: jiff::Timestamp = point["ts"].as_str().expect("a time").parse().expect("RFC 3339");
    let count = point["count"].as_u64().expect("a count");
    let hourly = Hourly { count, min: number("min"), max: number("max"), sum: number("sum") };
    assert!((number("avg") - hourly.avg()).abs() < 1e-9, "{point}");
    (ts.as_millisecond(), hourly)
}
