//! Unmodified clients from `PyPI`: they send their token, get an error if it is wrong, and their writes can
//! be read.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Server, Setup, fetched, secret_of};

#[tokio::test]
async fn the_python_client_of_influxdb_2_writes() {
    writes("influxdb2.py", "v2").await;
}

#[tokio::test]
async fn the_python_client_of_influxdb_1_writes() {
    writes("influxdb1.py", "v1").await;
}

#[tokio::test]
async fn the_python_exporter_of_opentelemetry_writes() {
    let server = server_after("otlp.py").await;
    for device in ["otlp-plain", "otlp-gzip"] {
        let readings = server.readings(device).await;
        let values = readings.as_array().expect("readings").iter().map(|reading| reading["values"].as_object());
        let values: BTreeMap<&str, f64> = values
            .flat_map(|values| values.expect("values").iter())
            .map(|(series, value)| (series.as_str(), value.as_f64().expect("a number")))
            .collect();
        let expected = [
            ("latency_count{otel.scope.name=pumps,service.instance.id=1,service.name=plant}", 1.0),
            ("latency_max{otel.scope.name=pumps,service.instance.id=1,service.name=plant}", 0.2),
            ("latency_min{otel.scope.name=pumps,service.instance.id=1,service.name=plant}", 0.2),
            ("latency_sum{otel.scope.name=pumps,service.instance.id=1,service.name=plant}", 0.2),
            ("pump.running{otel.scope.name=pumps,service.instance.id=1,service.name=plant}", -2.0),
            ("pump.starts{line=a,otel.scope.name=pumps,service.instance.id=1,service.name=plant}", 3.0),
            ("pump.starts{line=b,otel.scope.name=pumps,service.instance.id=1,service.name=plant,spare=true}", 4.0),
            ("temp{otel.scope.name=pumps,room=hall,service.instance.id=1,service.name=plant}", 22.5),
        ];
        assert_eq!(values, BTreeMap::from(expected), "{device}");
        let metadata = server.get_json(&format!("/v1/devices?prefix={device}")).await["devices"][0]["metadata"].take();
        assert_eq!((&metadata["site"], &metadata["floor"]), (&json!("north hall"), &json!("2")));
        assert_eq!(metadata["telemetry.sdk.language"], "python");
    }
    let metrics = server.metrics().await;
    let of_histograms = [("protocol", "otlp"), ("reason", "histogram")];
    assert_eq!(metrics.count_where("tidegauge_fields_ignored_total", &of_histograms), 2);
}

/// A server to which a program of `tests/clients` has written.
async fn server_after(program: &str) -> Server {
    let tokens = Setup::sqlite().token("operator", "scopes = ['admin']").token("client", "scopes = ['ingest']");
    let server = Server::start(tokens.set("auth.allow_anonymous", true)).await;
    run_client(&server, program).await;
    server
}

/// Runs a program of `tests/clients` with the token of `client`.
pub(crate) async fn run_client(server: &Server, program: &str) {
    run_program(program, &[server.url(), &secret_of("client")]).await;
}

/// Runs a program of `tests/clients` with these arguments, and returns what it prints.
pub(crate) async fn run_program(program: &str, args: &[&str]) -> String {
    let program = format!("{}/tests/clients/{program}", env!("CARGO_MANIFEST_DIR"));
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let run = move || {
        let mut python = Command::new("python3");
        python.arg(&program).args(&args).env("PYTHONPATH", clients()).env("PYTHONDONTWRITEBYTECODE", "1");
        python.output().expect("python3 is there")
    };
    let output = tokio::task::spawn_blocking(run).await.expect("no panic");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Runs a program of `tests/clients`, then reads its writes.
async fn writes(program: &str, version: &str) {
    let server = server_after(program).await;
    for compression in ["plain", "gzip"] {
        let batches = server.readings(&format!("{version}-batch-{compression}")).await;
        let expected: Vec<_> = (0..120).map(reading).collect();
        assert_eq!(batches, json!(expected), "{version} {compression}");
        // One in each precision, the line behind the bad one, and the line before it, which has no time...
        let readings = server.readings(&format!("{version}-sync-{compression}")).await;
        let readings = readings.as_array().expect("readings");
        assert_eq!(readings[..4], (0..4).map(reading).collect::<Vec<_>>(), "{version} {compression}");
        let temp = format!("climate_temp{}", if version == "v1" { "{site=s}" } else { "{site=north hall}" });
        assert_eq!(readings[4]["values"][temp], 24.5, "{version} {compression}");
        assert_eq!(readings.len(), 6, "{version} {compression}");
    }
}

fn reading(second: u32) -> Value {
    let ts = format!("2024-04-20T14:{:02}:{:02}.000Z", second / 60, second % 60);
    let open = f64::from(u8::from(second.is_multiple_of(2)));
    let (temp, hum) = (20.5 + f64::from(second), 40.0 + f64::from(second));
    let series = |field| format!("climate_{field}{{site=north hall}}");
    json!({ "ts": ts, "values": { series("temp"): temp, series("hum"): hum, series("open"): open } })
}

/// The folder of the clients, and of the packages that the tests of `clients/python` need.
pub(crate) fn clients() -> &'static str {
    fetched("get python-clients")
}
