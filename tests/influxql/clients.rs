//! Unmodified clients that read: the Python client of InfluxDB 1 with data frames, and the shell `influx`.

use std::process::{Command, Stdio};

use super::envelope::{TS_NS, write};
use crate::clients::run_client;
use crate::harness::{Server, Setup, fetched, secret_of};

fn with_tokens() -> Setup {
    Setup::sqlite().token("operator", "scopes = ['admin']").token("client", "scopes = ['ingest', 'query']")
}

#[tokio::test]
async fn the_python_client_of_influxdb_1_reads() {
    let server = Server::start(with_tokens()).await;
    run_client(&server, "influxdb1_query.py").await;
}

/// Returns the output of `influx -execute`.
async fn influx(server: &Server, more: &[&str], statement: &str) -> String {
    let address = server.http_addr();
    let program = tokio::task::spawn_blocking(|| fetched("get influx")).await.expect("no panic");
    let mut command = Command::new(program);
    command.args(["-host", &address.ip().to_string(), "-port", &address.port().to_string()]);
    command.args(["-username", "ann", "-password", &secret_of("client")]);
    command.args(more).args(["-execute", statement]).env("HOME", "/nonexistent").stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("no panic").expect("it runs");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    printed
}

#[tokio::test]
async fn the_shell_of_influxdb_executes_statements() {
    let server = Server::start(with_tokens()).await;
    write(&server, Some("client"), &format!("climate,device_id=S1 temp=20.5 {TS_NS}")).await;
    let table = influx(&server, &["-database", "plant", "-precision", "s"], "SELECT * FROM climate").await;
    let expected = "name: climate\ntime       device_id temp\n----       --------- ----\n1713621610 S1        20.5\n";
    assert!(table.starts_with(expected), "{table}");
    let csv = influx(&server, &["-database", "plant", "-format", "csv"], "SHOW TAG VALUES WITH KEY = device_id").await;
    assert_eq!(csv.lines().collect::<Vec<_>>(), ["name,key,value", "climate,device_id,S1"]);
    let json = influx(&server, &["-format", "json"], "SHOW MEASUREMENTS").await;
    assert_eq!(
        json.trim_end(),
        r#"{"results":[{"series":[{"name":"measurements","columns":["name"],"values":[["climate"]]}]}]}"#
    );
}
