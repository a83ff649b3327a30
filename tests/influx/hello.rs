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
async fn ping_answers_with_a_body_if_the_client_asks_for_it() {
    let server = Server::start(Setup::sqlite()).await;
    for verbose in ["true", "1", "x&verbose=0&wait_for_leader=1s"] {
        let path = format!("/ping?verbose={verbose}");
        let answer = server.get(&path).await;
        assert_eq!((answer.status, answer.json()), (200, json!({ "version": "1.8.10" })), "{path}");
        assert_eq!(
            (answer.header("content-type"), answer.header("x-influxdb-version")),
            ("application/json", "1.8.10")
        );
        let head = server.send(server.request(Method::HEAD, &path)).await;
        assert_eq!((head.status, head.text()), (200, ""), "{path}");
    }
    for path in ["/ping?verbose", "/ping?verbose=0", "/ping?verbose=false", "/ping?wait_for_leader=1s"] {
        assert_eq!(server.get(path).await.status, 204, "{path}");
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
