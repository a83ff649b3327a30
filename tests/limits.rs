//! Every limit refuses with its code and counts under its key. The server accepts the same request after the
//! time in the answer.

mod devices;
mod edge;
mod flood;
mod queries;
mod tokens;

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use strum::IntoEnumIterator;
use tidegauge::telemetry::Limit;

use crate::harness::{Answer, Metrics, Server, Setup, secret_of};
use crate::pages::reference;

const ALL: &str = "scopes = ['ingest', 'query', 'admin']";

/// A server with two tokens, and one for the harness.
fn setup() -> Setup {
    Setup::sqlite().set("limits.start_grace", "0s").token("operator", ALL).token("greedy", ALL).token("other", ALL)
}

/// `POST`s readings as JSON with the token of this name.
async fn ingest(server: &Server, name: &str, readings: &Value) -> Answer {
    let request = server.request(Method::POST, "/v1/readings").bearer_auth(secret_of(name));
    server.send(request.header("content-type", "application/json").body(readings.to_string())).await
}

/// `GET`s a path with the token of this name.
async fn get(server: &Server, name: &str, path: &str) -> Answer {
    server.send(server.request(Method::GET, path).bearer_auth(secret_of(name))).await
}

/// Readings of a device at instants that no other call returns.
fn readings(device: &str, count: u64) -> Value {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1_713_621_600_000);
    let first = NEXT.fetch_add(count, Ordering::Relaxed);
    (first..first + count).map(|ts| json!({ "deviceId": device, "ts": ts, "value": 1 })).collect()
}

/// Asserts the status and the code of an answer.
#[track_caller]
fn refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!((answer.status, answer.json()["code"].as_str()), (status, Some(code)), "{}", answer.text());
}

/// The code of the first rejected reading.
fn first_code(answer: &Answer) -> String {
    answer.json()["errors"][0]["code"].as_str().unwrap_or_else(|| panic!("{}", answer.text())).to_owned()
}

/// Waits for the time in `Retry-After`.
async fn wait_for_retry_after(answer: &Answer) {
    let seconds = answer.header("retry-after").parse().unwrap_or_else(|_| panic!("no Retry-After: {}", answer.text()));
    assert!((1..=10).contains(&seconds), "the limits of these tests are small: {seconds}");
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// The number of times that a limit was reached.
fn limited(metrics: &Metrics, limit: Limit) -> u64 {
    metrics.count_where("tidegauge_limited_total", &[("limit", limit.key())])
}

#[test]
fn the_docs_have_each_limit_with_its_default_and_code() {
    let (security, api) = (include_str!("../docs/security.md"), include_str!("../docs/http-api.md"));
    let reference = reference();
    for limit in Limit::iter() {
        let start = format!("| `{}` |", limit.key());
        let row = security.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("no row {start}"));
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, _, default, _, status, code, _] = cells[..] else { panic!("not five cells: {row}") };
        let status = status.trim_matches('`');
        // The server closes a connection of MQTT without an answer.
        if limit == Limit::MqttConnections {
            assert_eq!((status, code), ("none", "none"), "{row}");
        } else {
            assert!(["400", "413", "429", "503"].contains(&status), "{row}");
            assert!(api.contains(code) && code.starts_with('`'), "{code} is not in http-api.md");
        }
        let value = default.trim_matches('`');
        let default = &reference[limit.key()];
        assert!(default.as_deref().is_none_or(|default| default == value), "{row}, but the default is {default:?}");
    }
}
