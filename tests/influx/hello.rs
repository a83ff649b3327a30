//! Requests that clients send before they write.

use reqwest::Method;
use serde_json::json;

use crate::harness::{Server, Setup};

#[tokio::test]
async fn ping_answers_with_a_version() {
    let server = Server::start(Setup::sqlite()).await;
    for method in [Method::GET, Method::HEAD] {
        let answer = server.send(server.request(method, "/ping")).await;
        assert_eq!((answer.status, answer.text()), (204, ""));
        assert_eq!((answer.header("x-influxdb-version"), answer.header("x-influxdb-build")), ("1.8.10", "tidegauge"));
    }
}

#[tokio::test]
async fn health_passes() {
    let server = Server::start(Setup::sqlite()).await;
    let version = env!("CARGO_PKG_VERSION");
    let message = "ready for writes";
    let expected =
        json!({ "name": "tidegauge", "message": message, "checks": [], "status": "pass", "version": version });
    assert_eq!(server.get_json("/health").await, expected);
}
