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

#[tokio::test]
async fn create_database_is_the_only_accepted_statement() {
    let server = Server::start(Setup::sqlite()).await;
    let created = json!({ "results": [{ "statement_id": 0 }] });
    let create = "/query?q=CREATE+DATABASE+%22plant%22";
    assert_eq!(server.get_json(create).await, created);
    assert_eq!(server.send(server.request(Method::POST, create)).await.json(), created);
    let form = "q=CREATE+DATABASE+%22plant%22&db=";
    let answer = server.post("/query", "application/x-www-form-urlencoded", form).await;
    assert_eq!((answer.status, answer.json()), (200, created));

    for (path, about) in
        [("/query?q=SHOW+DATABASES", "InfluxQL is not supported"), ("/query?db=plant", "q: is missing")]
    {
        let answer = server.get(path).await;
        assert_eq!(answer.status, 400, "{path}");
        let error = answer.json()["error"].as_str().expect("a text").to_owned();
        assert!(error.contains(about), "{error}");
        assert_eq!(answer.header("x-influxdb-error"), error);
    }
}
