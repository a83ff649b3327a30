//! Requests that a browser sends for pages of other sites: the server stores nothing and reveals nothing.

mod chromium;

use reqwest::Method;
use serde_json::Value;

use crate::harness::{Answer, Connection, Metrics, Server, Setup, secret_of};

/// Each path for writes, with a body that the server accepts.
const WRITES: [(&str, &str, &str); 6] = [
    ("/v1/readings", "application/json", r#"{"deviceId":"written","value":1}"#),
    // A page sends these two to any site without asking that site first.
    ("/v1/readings", "text/plain", r#"{"deviceId":"written","value":1}"#),
    ("/v1/readings", "", r#"{"deviceId":"written","value":1}"#),
    ("/write", "text/plain", "m,deviceId=written value=1"),
    ("/api/v2/write", "text/plain", "m,deviceId=written value=1"),
    ("/api/v3/write_lp", "text/plain", "m,deviceId=written value=1"),
];

/// Each path with an answer.
const READS: [&str; 14] = [
    "/v1/time",
    "/v1/devices",
    "/v1/rollups?prefix=",
    "/v1/devices/d/rollups",
    "/v1/devices/d/readings",
    "/v1/devices/d/latest",
    "/metrics",
    "/healthz",
    "/readyz",
    "/version",
    "/ping",
    "/health",
    "/query?q=CREATE+DATABASE+x",
    "/metrics?",
];

async fn write(server: &Server, nth: usize, headers: &[(&str, &str)]) -> Answer {
    let (path, content_type, body) = WRITES[nth];
    let request = server.request(Method::POST, path).body(body);
    let request = if content_type.is_empty() { request } else { request.header("content-type", content_type) };
    server.send(headers.iter().fold(request, |request, &(name, value)| request.header(name, value))).await
}

async fn read(server: &Server, path: &str, headers: &[(&str, &str)]) -> Answer {
    let request = server.request(Method::GET, path);
    server.send(headers.iter().fold(request, |request, &(name, value)| request.header(name, value))).await
}

/// Asserts the status of an answer and its code in the format of the path.
fn refused(path: &str, answer: &Answer, status: u16, said: &str) {
    assert_eq!(answer.status, status, "{path}: {}", answer.text());
    let body = answer.json();
    let text = if path.starts_with("/api/v2/") { &body["message"] } else { &body["error"] };
    let text = if path.starts_with("/v1/") || text.is_null() { &body["detail"] } else { text };
    assert!(text.as_str().is_some_and(|text| text.contains(said)), "{path}: {body}");
}

fn rejected(metrics: &Metrics, reason: &str) -> u64 {
    metrics.count_where("tidegauge_readings_rejected_total", &[("reason", reason)])
}

async fn nothing_is_stored(server: &Server) {
    assert_eq!(server.settled().await.count("tidegauge_readings_accepted_total"), 0);
    assert_eq!(server.get_json("/v1/devices").await["devices"], Value::Array(Vec::new()));
}

#[tokio::test]
async fn pages_of_other_sites_write_nothing_on_any_path() {
    let server = Server::start(Setup::default_config()).await;
    let foreign: [&[(&str, &str)]; 5] = [
        &[("sec-fetch-site", "cross-site"), ("origin", "https://evil.example")],
        &[("sec-fetch-site", "same-site")],
        &[("origin", "http://evil.example")],
        &[("origin", "http://127.0.0.1:1")],
        &[("origin", "null")],
    ];
    for headers in foreign {
        for (nth, (path, ..)) in WRITES.iter().enumerate() {
            refused(path, &write(&server, nth, headers).await, 403, "page of another site");
        }
    }
    nothing_is_stored(&server).await;
    assert_eq!(rejected(&server.metrics().await, "foreign_origin"), 30);
    let own = format!("http://{}", server.http_addr());
    for headers in [&[("origin", own.as_str())][..], &[("sec-fetch-site", "same-origin")], &[]] {
        for nth in 0..WRITES.len() {
            assert!(matches!(write(&server, nth, headers).await.status, 200 | 204));
        }
    }
}

#[tokio::test]
async fn a_rebound_name_reads_and_writes_nothing() {
    let server = Server::start(Setup::default_config()).await;
    let rebound = [("host", "rebind.evil.example:8080")];
    for path in READS {
        let answer = read(&server, path, &rebound).await;
        refused(path, &answer, 421, "\"rebind.evil.example\"; if it is the server's own, add it to http.allowed_hosts");
        let answer = read(&server, path, &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")]).await;
        refused(path, &answer, 403, "page of another site");
    }
    for (nth, (path, ..)) in WRITES.iter().enumerate() {
        refused(path, &write(&server, nth, &rebound).await, 421, "http.allowed_hosts");
    }
    nothing_is_stored(&server).await;
    assert_eq!(rejected(&server.metrics().await, "host_not_allowed"), 6);
    let mut connection = Connection::open(&server).await;
    let absolute = b"GET http://rebind.evil.example/v1/devices HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    assert_eq!(connection.ask(absolute).await.0, 421, "the authority of the target counts too");
}

#[tokio::test]
async fn allowed_hosts_are_answered_and_every_host_with_tokens() {
    let named = Setup::sqlite().set("http.allowed_hosts", vec!["ingest.example.com"]);
    let server = Server::start(named.clone()).await;
    assert_eq!(read(&server, "/v1/devices", &[("host", "Ingest.example.com:8080")]).await.status, 200);
    assert_eq!(read(&server, "/v1/devices", &[("host", "other.example.com")]).await.status, 421);

    let operator = ("authorization", format!("Bearer {}", secret_of("operator")));
    let operator = (operator.0, operator.1.as_str());
    let tokens = |setup: Setup| setup.token("operator", "scopes = ['admin']");
    let server = Server::start(tokens(Setup::sqlite())).await;
    assert_eq!(read(&server, "/metrics", &[operator, ("host", "any.example.com")]).await.status, 200);
    assert_eq!(read(&server, "/metrics", &[("host", "any.example.com")]).await.status, 401);
    assert_eq!(read(&server, "/healthz", &[("host", "balancer.example.com")]).await.status, 200);
    let foreign = [operator, ("sec-fetch-site", "cross-site")];
    assert_eq!(
        read(&server, "/metrics", &foreign).await.status,
        403,
        "browsers add passwords and certificates by themselves"
    );

    let server = Server::start(tokens(named)).await;
    assert_eq!(
        read(&server, "/metrics", &[operator, ("host", "other.example.com")]).await.status,
        421,
        "there is a list"
    );
}

#[tokio::test]
async fn a_request_needs_exactly_one_host_except_in_http_1_0() {
    let server = Server::start(Setup::default_config()).await;
    for (head, status) in [
        ("GET /v1/devices HTTP/1.1\r\n", 400),
        ("GET /v1/devices HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: 127.0.0.1\r\n", 400),
        ("GET /v1/devices HTTP/1.1\r\nHost: a/b\r\n", 400),
        ("GET /v1/devices HTTP/1.0\r\n", 200),
        ("GET /v1/devices HTTP/1.1\r\nHost:\r\n", 200),
    ] {
        let (found, _, body) = Connection::open(&server).await.ask(format!("{head}\r\n").as_bytes()).await;
        assert_eq!(found, status, "{head}: {}", String::from_utf8_lossy(&body));
        assert_eq!(status == 400, String::from_utf8_lossy(&body).contains("\"invalid_host\""), "{head}");
    }
}
