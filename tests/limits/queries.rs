//! The limits of concurrent queries, their memory and their duration, on a frozen store.

use std::pin::pin;

use bson::doc;
use futures_util::future::{Either, select};
use reqwest::Method;
use serde_json::json;
use tidegauge::telemetry::Limit;

use super::{ALL, get, ingest, limited, readings, refused, wait_for_retry_after};
use crate::harness::{Database, Mongod, Server, Setup, secret_of};

const LATEST: &str = "/v1/devices/d/latest";

/// A server with tokens, whose store has readings of the device `d` and does not answer until it is thawed.
async fn frozen(set: impl FnOnce(Setup) -> Setup) -> (Server, Mongod, Database) {
    let mongod = Mongod::start();
    let database = Database::on(&mongod);
    let setup = Setup::mongodb(&database).set("limits.start_grace", "0s").set("query.timeout", "50s");
    let setup = setup.token("operator", ALL).token("greedy", ALL).token("other", ALL);
    let server = Server::start(set(setup)).await;
    assert_eq!(ingest(&server, "operator", &readings("d", 3)).await.status, 200);
    server.settled().await;
    mongod.freeze();
    (server, mongod, database)
}

/// Sends two queries of which only one may run. The other one is refused at `limit`, and taken later.
async fn one_of_two_is_refused(
    set: impl FnOnce(Setup) -> Setup,
    tokens: [&str; 2],
    path: &str,
    (limit, status, code): (Limit, u16, &str),
) {
    let (server, mongod, _database) = frozen(set).await;
    let (one, other) = (pin!(get(&server, tokens[0], path)), pin!(get(&server, tokens[1], path)));
    let (Either::Left((first, running)) | Either::Right((first, running))) = select(one, other).await;
    refused(&first, status, code);
    let detail = first.json()["detail"].to_string();
    assert!(detail.contains(limit.key()), "{detail}");
    assert_eq!(get(&server, "operator", "/healthz").await.status, 200);
    assert_eq!(limited(&server.metrics().await, limit), 1);
    mongod.thaw();
    let answer = running.await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    wait_for_retry_after(&first).await;
    let answer = get(&server, tokens[0], path).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_of_all() {
    let set = |setup: Setup| setup.set("query.max_concurrent", 1);
    one_of_two_is_refused(set, ["greedy", "other"], LATEST, (Limit::Queries, 503, "overloaded")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deletions_that_only_count() {
    let (server, mongod, _database) = frozen(|setup| setup.set("query.max_concurrent", 1)).await;
    let count = async || {
        let request = server.request(Method::DELETE, "/v1/devices/d?dry_run=true").bearer_auth(secret_of("greedy"));
        server.send(request).await
    };
    let (one, other) = (pin!(count()), pin!(count()));
    let (Either::Left((first, running)) | Either::Right((first, running))) = select(one, other).await;
    refused(&first, 503, "overloaded");
    assert_eq!(limited(&server.metrics().await, Limit::Queries), 1);
    mongod.thaw();
    let answer = running.await;
    assert_eq!((answer.status, &answer.json()["deleted"]), (200, &json!(3)), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_of_a_token() {
    let set = |setup: Setup| setup.set("query.max_concurrent_per_token", 1);
    one_of_two_is_refused(set, ["greedy", "greedy"], LATEST, (Limit::TokenQueries, 429, "rate_limited")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_of_queries() {
    let set = |setup: Setup| setup.set("query.max_bytes_in_flight", "1MiB");
    let pages = "/v1/devices/d/readings?from=2024-04-20T00:00:00Z&to=2024-04-21T00:00:00Z";
    one_of_two_is_refused(set, ["greedy", "other"], pages, (Limit::QueryBytes, 503, "overloaded")).await;
}

#[tokio::test]
async fn memory_of_statements() {
    let server = Server::start(super::setup().set("query.max_bytes_in_flight", "1MiB")).await;
    assert_eq!(ingest(&server, "operator", &readings("d", 3)).await.status, 200);
    let answer = get(&server, "greedy", "/query?q=SHOW+MEASUREMENTS").await;
    let error = answer.json()["results"][0]["error"].to_string();
    let alone = "this query alone needs more than the 786432 bytes that query.max_bytes_in_flight leaves it";
    assert!(error.contains(alone), "{}", answer.text());
    assert_eq!(limited(&server.metrics().await, Limit::QueryBytes), 1);
}

#[tokio::test]
async fn a_statement_in_chunks_gets_memory_although_a_file_may_need_all() {
    let server = Server::start(super::setup().set("query.max_bytes_in_flight", "16MiB")).await;
    assert_eq!(ingest(&server, "operator", &readings("d", 3)).await.status, 200);
    let path = "/query?q=SHOW+MEASUREMENTS&chunked=true";
    let answer = get(&server, "greedy", path).await;
    assert!(answer.json()["results"][0]["series"][0]["values"].is_array(), "{}", answer.text());
    let answer = get(&server, "greedy", &format!("{path}&chunk_size=100000")).await;
    let error = answer.json()["results"][0]["error"].to_string();
    let alone = "this query alone needs more than the 12582912 bytes that query.max_bytes_in_flight leaves it";
    assert!(error.contains(alone), "{}", answer.text());
    assert_eq!(limited(&server.metrics().await, Limit::QueryBytes), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_all() {
    let set = |setup: Setup| setup.set("query.max_files", 1);
    let file = "/v1/devices/d/readings?format=csv";
    one_of_two_is_refused(set, ["greedy", "other"], file, (Limit::Files, 503, "overloaded")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_that_takes_too_long_names_the_key() {
    let (server, mongod, database) = frozen(|setup| setup.set("query.timeout", "500ms")).await;
    for path in [LATEST, "/v1/devices/d/readings", "/v1/devices/d/rollups", "/v1/devices"] {
        let answer = get(&server, "greedy", path).await;
        refused(&answer, 503, "query_timeout");
        assert!(answer.json()["detail"].as_str().is_some_and(|text| text.contains("500ms (query.timeout)")));
        assert!(!answer.header("retry-after").is_empty(), "{path}");
    }
    mongod.thaw();
    crate::harness::wait_until("the store answers in time", async || {
        (get(&server, "greedy", LATEST).await.status == 200).then_some(())
    })
    .await;
    assert_eq!(database.aggregate("buckets", vec![doc! { "$count": "n" }]).await, [doc! { "n": 1 }]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_metadata_that_waits_too_long_names_the_store() {
    let set = |setup: Setup| setup.set("query.timeout", "500ms").token("changer", "scopes = ['metadata']");
    let (server, mongod, _database) = frozen(set).await;
    let line = json!({ "deviceId": "d", "change": { "keys": { "name": { "atMs": 1, "value": "N" } } } });
    for (method, path, content_type, body) in [
        (Method::PATCH, "/v1/devices/d/metadata", "application/json", json!({ "name": "N" })),
        (Method::PUT, "/v1/devices/d/metadata", "application/json", json!({ "name": "N" })),
        (Method::POST, "/v1/metadata", "application/x-ndjson", line),
    ] {
        let request = server.request(method, path).bearer_auth(secret_of("changer"));
        let answer = server.send(request.header("content-type", content_type).body(body.to_string())).await;
        refused(&answer, 503, "store_unavailable");
        assert!(!answer.header("retry-after").is_empty(), "{path}");
    }
    mongod.thaw();
    let known = crate::harness::wait_until("the store answers in time", async || {
        let answer = get(&server, "greedy", "/v1/devices/d/metadata").await;
        (answer.status == 200).then(|| answer.json())
    })
    .await;
    assert_eq!(known["setByOperators"], json!({}), "nothing has changed");
}
