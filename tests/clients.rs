//! Unmodified clients from `PyPI`: they send their token, get an error if it is wrong, and their writes can
//! be read.

use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::harness::{Server, Setup, secret_of};

#[tokio::test]
async fn the_python_client_of_influxdb_2_writes() {
    writes("influxdb2.py", "v2").await;
}

#[tokio::test]
async fn the_python_client_of_influxdb_1_writes() {
    writes("influxdb1.py", "v1").await;
}

/// Runs a program of `tests/clients`, then reads its writes.
async fn writes(program: &str, version: &str) {
    let tokens = Setup::sqlite().token("operator", "scopes = ['admin']").token("client", "scopes = ['ingest']");
    let server = Server::start(tokens.set("auth.allow_anonymous", true)).await;
    let (program, url) = (format!("{}/tests/clients/{program}", env!("CARGO_MANIFEST_DIR")), server.url().to_owned());
    let run = move || {
        let mut python = Command::new("python3");
        python
            .args([&program, &url, &secret_of("client")])
            .env("PYTHONPATH", clients())
            .env("PYTHONDONTWRITEBYTECODE", "1");
        python.output().expect("python3 is there")
    };
    succeeded(&tokio::task::spawn_blocking(run).await.expect("no panic"));
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

/// The folder of the clients.
fn clients() -> &'static str {
    static FOLDER: OnceLock<String> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/get-python-clients");
        let output = Command::new(script).output().expect("python3 is there");
        succeeded(&output);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    })
}

fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
