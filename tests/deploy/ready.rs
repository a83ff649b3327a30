//! `tidegauge check --ready` says what `/readyz` says.

use serde_json::json;

use crate::harness::mongod::free_port;
use crate::harness::{Finished, Server, Setup, run, wait_until};

async fn ready(server: &Server) -> Finished {
    run(&["check", "--ready", "--http", &server.http_addr().to_string()]).await
}

#[tokio::test]
async fn a_server_is_ready_until_its_log_is_full() {
    let away = format!("mongodb://127.0.0.1:{}", free_port());
    let setup = Setup::sqlite().set("mongodb.uri", away).set("server.shutdown_grace", "0s");
    let server = Server::start(setup.set("log.segment_bytes", "64KiB").set("log.max_bytes", "128KiB")).await;
    let said = ready(&server).await;
    assert_eq!((said.code, said.stdout.as_str()), (Some(0), "ready\n"), "{said:?}");
    let readings: Vec<_> = (0..300).map(|at| json!({ "ts": at, "value": at })).collect();
    let batch = json!({ "deviceId": "d", "readings": readings });
    wait_until("the log is full", async || (server.ingest(&batch).await.status == 503).then_some(())).await;
    let said = ready(&server).await;
    assert_eq!((said.code, said.stdout.as_str()), (Some(1), ""), "{said:?}");
    assert!(said.stderr.contains("503") && said.stderr.contains("overloaded"), "{said:?}");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_not_ready() {
    let said = run(&["check", "--ready", "--http", &format!("127.0.0.1:{}", free_port())]).await;
    assert!(said.code == Some(1) && said.stderr.contains("does not answer"), "{said:?}");
    let said = run(&["check", "--ready", "--http", "127.0.0.1:0"]).await;
    assert!(said.code == Some(1) && said.stderr.contains("no fixed port"), "{said:?}");
}

#[tokio::test]
async fn a_server_that_requires_a_token_for_health_cannot_be_asked() {
    let setup = Setup::sqlite().token("operator", "scopes = ['admin']").set("auth.health", "admin");
    let said = ready(&Server::start(setup).await).await;
    assert!(said.code == Some(1) && said.stderr.contains("auth.health"), "{said:?}");
}
