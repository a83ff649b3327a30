//! The client in `clients/python` against real servers: the programs of `tests/python_client`, made with
//! `unittest`.
//!
//! `SEED=n` repeats the kills of the run that printed `n`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

use crate::clients::clients;
use crate::harness::{Server, Setup, secret_of};

#[tokio::test]
async fn its_queries_return_what_it_wrote() {
    let server = Server::start(with_tokens()).await;
    succeeds(&server, "writes.py").await;
}

#[tokio::test]
async fn it_repeats_requests_until_readings_are_stored_once() {
    let limits = with_tokens()
        .set("http.max_body_bytes", "64KiB")
        .set("http.max_connections", 24)
        .set("limits.device_readings_per_second", 400)
        .set("limits.burst", "1s");
    let server = Server::start(limits).await;
    succeeds(&server, "retries.py").await;
}

#[tokio::test]
async fn its_spool_loses_nothing_when_the_process_dies() {
    let server = Server::start(with_tokens()).await;
    succeeds(&server, "spools.py").await;
}

#[tokio::test]
async fn it_bounds_what_a_hostile_server_costs() {
    let server = Server::start(with_tokens()).await;
    succeeds(&server, "hostile.py").await;
}

#[tokio::test]
async fn it_makes_data_frames_as_the_readme_shows() {
    let server = Server::start(Setup::sqlite()).await;
    succeeds(&server, "frames.py").await;
}

#[tokio::test]
async fn it_can_be_installed_and_has_types() {
    let server = Server::start(Setup::sqlite()).await;
    succeeds(&server, "package.py").await;
}

#[tokio::test]
async fn its_readings_wait_while_the_server_is_down() {
    let mut server = Server::start(with_tokens()).await;
    let mut program = program("restart.py", server.url());
    let mut child = program.stdin(Stdio::piped()).spawn().expect("python3 is there");
    let mut input = child.stdin.take().expect("piped");
    let mut steps = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
    writeln!(input, "{}", server.url()).expect("it reads");
    if steps.next().as_deref() == Some("kill") {
        server.kill9();
        writeln!(input).expect("it reads");
    }
    if steps.next().as_deref() == Some("start") {
        server.start_again().await;
        writeln!(input, "{}", server.url()).expect("it reads");
    }
    assert_success("restart.py", &child.wait_with_output().expect("our child"));
    server.assert_balanced().await;
}

#[test]
fn its_version_is_that_of_the_server() {
    let source = include_str!("../clients/python/tidegauge.py");
    assert!(source.contains(concat!("\n__version__ = \"", env!("CARGO_PKG_VERSION"), "\"\n")));
}

fn with_tokens() -> Setup {
    Setup::sqlite().token("operator", "scopes = ['admin']").token("client", "scopes = ['ingest', 'query']")
}

/// Runs a program of `tests/python_client` with this server.
async fn succeeds(server: &Server, name: &'static str) {
    let mut program = program(name, server.url());
    let run = move || program.output().expect("python3 is there");
    assert_success(name, &tokio::task::spawn_blocking(run).await.expect("no panic"));
    server.assert_balanced().await;
}

fn program(name: &str, url: &str) -> Command {
    let mut python = Command::new("python3");
    python
        .args(["-W", "always::ResourceWarning"])
        .arg(format!("{}/tests/python_client/{name}", env!("CARGO_MANIFEST_DIR")))
        .env("PYTHONPATH", clients())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TIDEGAUGE_URL", url)
        .env("TIDEGAUGE_TOKEN", secret_of("client"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    python
}

fn assert_success(name: &str, output: &Output) {
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}:\n{log}");
    assert!(!log.contains("ResourceWarning"), "{name} leaks:\n{log}");
    if log.contains("skipped") {
        eprintln!("{name}: some tests were skipped:\n{log}");
    }
}
