//! Limits of one token, which do not affect another.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use tidegauge::telemetry::Limit;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::{ALL, get, ingest, limited, readings, refused, setup, wait_for_retry_after};
use crate::harness::{Server, Setup, secret_of, wait_until};

#[tokio::test]
async fn readings_of_a_token() {
    let server = Server::start(setup().set("limits.token_readings_per_second", 1).set("limits.burst", "1s")).await;
    assert_eq!(ingest(&server, "greedy", &readings("d", 10_000)).await.status, 200, "the excess is a debt");
    refused(&ingest(&server, "greedy", &readings("d", 1)).await, 429, "rate_limited");
    assert_eq!(get(&server, "greedy", "/v1/devices").await.status, 200, "a query is no reading");

    // Requests of one moment owe nothing, so the wait is short.
    let requests: Vec<Value> = (0..20).map(|_| readings("d", 1)).collect();
    let answers = join_all(requests.iter().map(|one| ingest(&server, "other", one))).await;
    let late: Vec<_> = requests.iter().zip(&answers).filter(|(_, answer)| answer.status != 200).collect();
    for (_, answer) in &late {
        refused(answer, 429, "rate_limited");
    }
    let (request, answer) = late.last().expect("one a second is admitted");
    wait_for_retry_after(answer).await;
    assert_eq!(ingest(&server, "other", request).await.status, 200);
    let (metrics, refusals) = (server.metrics().await, 1 + late.len() as u64);
    assert_eq!(limited(&metrics, Limit::TokenReadings), refusals);
    assert_eq!(metrics.count_where("tidegauge_readings_rejected_total", &[("reason", "rate_limited")]), refusals);
}

#[tokio::test]
async fn concurrent_requests_exceed_the_rate_by_one_request_at_most() {
    let server = Server::start(setup().set("limits.token_readings_per_second", 1).set("limits.burst", "1s")).await;
    let requests: Vec<_> = (0..8).map(|_| readings("d", 10)).collect();
    let answers = join_all(requests.iter().map(|one| ingest(&server, "greedy", one))).await;
    let taken = answers.iter().filter(|answer| answer.status == 200).count();
    let limited = answers.iter().filter(|answer| answer.status != 200);
    assert!((1..=3).contains(&taken), "{taken} of 8");
    for answer in limited {
        refused(answer, 429, "rate_limited");
    }
    server.assert_balanced().await;
}

#[tokio::test]
async fn a_token_has_its_own_rate_shared_by_tokens_of_its_name() {
    let own = format!("{ALL}\nreadings_per_second = 10\nname = 'pair'");
    let setup = setup().set("limits.burst", "1s").token("one", &own).token("two", &own);
    let server = Server::start(setup).await;
    assert_eq!(ingest(&server, "greedy", &readings("d", 1_000)).await.status, 200, "no limit for the others");
    assert_eq!(ingest(&server, "greedy", &readings("d", 1_000)).await.status, 200);
    assert_eq!(ingest(&server, "one", &readings("d", 10_000)).await.status, 200);
    refused(&ingest(&server, "two", &readings("d", 1)).await, 429, "rate_limited");
}

#[tokio::test]
async fn who_shows_no_token_counts_as_one() {
    let setup = Setup::sqlite().set("limits.token_readings_per_second", 10).set("limits.burst", "1s");
    let server = Server::start(setup).await;
    assert_eq!(server.ingest(&readings("d", 600)).await.status, 200);
    refused(&server.ingest(&readings("d", 1)).await, 429, "rate_limited");
}

#[tokio::test]
async fn requests_of_a_token_of_any_kind() {
    let server = Server::start(setup().set("limits.token_requests_per_second", 1).set("limits.burst", "1s")).await;
    let answers = join_all((0..20).map(|_| get(&server, "greedy", "/v1/devices"))).await;
    let late: Vec<_> = answers.iter().filter(|answer| answer.status != 200).collect();
    for answer in &late {
        refused(answer, 429, "rate_limited");
    }
    assert_eq!(get(&server, "other", "/v1/devices").await.status, 200);
    for path in ["/metrics", "/healthz"] {
        assert_eq!(get(&server, "greedy", path).await.status, 200, "who looks after the service may always look");
    }
    wait_for_retry_after(late.last().expect("one a second is admitted")).await;
    assert_eq!(get(&server, "greedy", "/v1/devices").await.status, 200);
    assert_eq!(limited(&server.metrics().await, Limit::TokenRequests), late.len() as u64);
}

#[tokio::test]
async fn influx_clients_get_refusals_in_their_format() {
    let server = Server::start(setup().set("limits.token_readings_per_second", 10).set("limits.burst", "1s")).await;
    assert_eq!(ingest(&server, "greedy", &readings("d", 600)).await.status, 200);
    let paths = [("/write", "error", 503), ("/api/v2/write", "message", 429), ("/api/v3/write_lp", "error", 429)];
    for (path, error, status) in paths {
        let request = server.request(reqwest::Method::POST, path).bearer_auth(secret_of("greedy"));
        let answer = server.send(request.body("m,device=d v=1")).await;
        assert_eq!(answer.status, status, "{path}");
        assert!(!answer.header("retry-after").is_empty(), "{path}");
        assert!(answer.json()[error].as_str().is_some_and(|text| text.contains("token_readings_per_second")), "{path}");
    }
    let log = server.logged(" sender=greedy ").await;
    assert!(!log.contains(" sender=all "), "the sender is named: {log}");
}

#[tokio::test]
async fn bytes_in_flight_of_a_token() {
    let setup = setup().set("http.max_body_bytes", "1MiB").set("http.max_bytes_in_flight", "4MiB");
    let server = Server::start(setup).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(begin_body(&server, "greedy", 1 << 20).await);
    }
    bytes_are_in_flight(&server, 2 << 20).await;
    let late = readings("d", 1);
    let answer = ingest(&server, "greedy", &late).await;
    refused(&answer, 429, "rate_limited");
    assert!(answer.json()["detail"].as_str().is_some_and(|text| text.contains("token_bytes_in_flight")));
    assert_eq!(ingest(&server, "other", &readings("d", 1)).await.status, 200);
    drop(held);
    bytes_are_in_flight(&server, 0).await;
    wait_for_retry_after(&answer).await;
    assert_eq!(ingest(&server, "greedy", &late).await.status, 200);
    assert_eq!(limited(&server.metrics().await, Limit::TokenBytesInFlight), 1);
}

#[tokio::test]
async fn bytes_in_flight_of_all() {
    let setup = setup().set("http.max_body_bytes", "1MiB").set("http.max_bytes_in_flight", "2MiB");
    let server = Server::start(setup).await;
    let held = [begin_body(&server, "greedy", 1 << 20).await, begin_body(&server, "other", 1 << 20).await];
    bytes_are_in_flight(&server, 2 << 20).await;
    let late = json!([{ "deviceId": "d", "value": 1 }]);
    let answer = ingest(&server, "operator", &late).await;
    refused(&answer, 503, "overloaded");
    drop(held);
    bytes_are_in_flight(&server, 0).await;
    wait_for_retry_after(&answer).await;
    assert_eq!(ingest(&server, "operator", &late).await.status, 200);
    assert_eq!(limited(&server.metrics().await, Limit::BytesInFlight), 1);
}

#[tokio::test]
async fn a_body_whose_memory_ends_midway_is_refused() {
    let setup = setup().set("http.max_body_bytes", "1MiB").set("http.max_bytes_in_flight", "1152KiB");
    let server = Server::start(setup).await;
    let held = begin_body(&server, "greedy", 1 << 20).await;
    bytes_are_in_flight(&server, 1 << 20).await;
    let request = server.request(Method::POST, "/v1/readings").bearer_auth(secret_of("other"));
    let request = request.header("content-type", "application/json");
    let answer = server.send(request.body(vec![b' '; 512 << 10])).await;
    refused(&answer, 503, "overloaded");
    assert_eq!((answer.header("connection"), answer.header("retry-after").is_empty()), ("close", false));
    bytes_are_in_flight(&server, 1 << 20).await;
    drop(held);
}

async fn bytes_are_in_flight(server: &Server, bytes: u64) {
    wait_until("so many bytes are in flight", async || {
        (server.metrics().await.count("tidegauge_http_bytes_in_flight") == bytes).then_some(())
    })
    .await;
}

/// A connection that has sent a body of this length but for its last byte.
async fn begin_body(server: &Server, name: &str, length: usize) -> TcpStream {
    let address = server.url().strip_prefix("http://").expect("http");
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let head = format!(
        "POST /v1/readings HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{}",
        secret_of(name),
        " ".repeat(length - 1)
    );
    stream.write_all(head.as_bytes()).await.expect("open");
    stream
}
