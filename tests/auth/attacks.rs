//! Attacks, each with its exact answer.

use std::time::Instant;

use reqwest::Method;
use serde_json::{Value, json};

use super::{RANGE, TS, devices, get, ingest, reading, refused, setup};
use crate::harness::mongod::deadline::deadline;
use crate::harness::{Connection, Server, Setup, secret_of};

fn tokens() -> Setup {
    setup()
        .token("all", "scopes = ['ingest', 'query']")
        .token("lights", "scopes = ['ingest', 'query']\ndevices = ['LIGHT-*']")
        .token("acme", "scopes = ['ingest', 'query']\ndevice_prefix = 'acme/'")
}

/// `GET`s a target exactly as it is written, with the token of this name; the status and the code of the
/// problem.
async fn raw_get(server: &Server, name: &str, target: &str) -> (u16, Value) {
    let mut connection = Connection::open(server).await;
    let secret = secret_of(name);
    let request = format!("GET {target} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n\r\n");
    let (status, _, body) = connection.ask(request.as_bytes()).await;
    (status, serde_json::from_slice::<Value>(&body).map_or(Value::Null, |mut body| body["code"].take()))
}

#[tokio::test]
async fn tokens_that_are_truncated_oversized_or_mangled_are_unknown() {
    let server = Server::start(tokens()).await;
    let secret = secret_of("all");
    let shown = [
        secret[..secret.len() - 1].to_owned(),
        format!("{secret}x"),
        format!("{secret} {secret}"),
        format!("{secret},{secret}"),
        secret.to_uppercase(),
        secret.repeat(100),
        "x".repeat(10_000),
        format!("\"{secret}\""),
        tidegauge::config::TokenHash::of(&secret).to_string(),
        String::new(),
        "*".to_owned(),
        "null".to_owned(),
    ];
    for token in shown {
        let request = server.request(Method::GET, "/v1/devices").header("authorization", format!("Bearer {token}"));
        refused(&server.send(request).await, 401, "unauthorized");
    }
    let two = server.request(Method::GET, "/v1/devices").bearer_auth("wrong").bearer_auth(&secret);
    refused(&server.send(two).await, 401, "unauthorized");
    let large = server.request(Method::GET, "/v1/devices").bearer_auth("x".repeat(50_000));
    refused(&server.send(large).await, 401, "unauthorized");
    let larger = server.request(Method::GET, "/v1/devices").bearer_auth("x".repeat(100_000));
    assert_eq!(server.send(larger).await.status, 431, "no head is that large");
}

#[tokio::test]
async fn a_token_anywhere_but_in_the_header_is_ignored() {
    let server = Server::start(tokens()).await;
    let secret = secret_of("all");
    for name in ["token", "access_token", "api_key", "authorization", "Authorization", "bearer", "u", "p"] {
        let answer = server.get(&format!("/v1/devices?{name}={secret}")).await;
        refused(&answer, 401, "unauthorized");
        let cookie = server.request(Method::GET, "/v1/devices").header("cookie", format!("{name}={secret}"));
        refused(&server.send(cookie).await, 401, "unauthorized");
        let header = server.request(Method::GET, "/v1/devices").header("x-api-key", &secret);
        refused(&server.send(header).await, 401, "unauthorized");
    }
    let line = "m,device=d v=1 1713621610000000000";
    let written = server.post(&format!("/write?u=ann&p={secret}"), "text/plain", line).await;
    assert_eq!(written.status, 401, "as clients of InfluxDB 1 may do it");
    let beside = super::post(&server, "all", "/write?u=ann&p=wrong", "text/plain", line).await;
    assert_eq!(beside.status, 204, "and they do not harm");
}

#[tokio::test]
async fn unknown_clients_are_answered_before_their_body() {
    let server = Server::start(tokens()).await;
    let head = |length: usize, more: &str| {
        format!(
            "POST /v1/readings HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n{more}\r\n"
        )
    };
    let mut connection = Connection::open(&server).await;
    let (status, head_of_answer, _) = connection.ask(head(10 << 20, "").as_bytes()).await;
    assert_eq!(status, 401, "nothing of the body was sent");
    assert!(!head_of_answer.contains("100 continue"), "{head_of_answer}");
    let mut connection = Connection::open(&server).await;
    let (status, first, _) = connection.ask(head(10 << 20, "expect: 100-continue\r\n").as_bytes()).await;
    assert_eq!(status, 401, "the body is not asked for: {first}");

    assert!(first.contains("connection: close"), "so that nothing is sent behind it: {first}");

    let mut connection = Connection::open(&server).await;
    assert_eq!(connection.ask(b"GET /v1/devices HTTP/1.1\r\nhost: x\r\n\r\n").await.0, 401);
    let body = reading("d", 1.0).to_string();
    let authorized = head(body.len(), &format!("authorization: Bearer {}\r\n", secret_of("all"))) + &body;
    for _ in 0..2 {
        let (status, head, _) = connection.ask(authorized.as_bytes()).await;
        assert!(status == 200 && !head.contains("connection: close"), "the same connection: {head}");
    }
    for _ in 0..20 {
        let large = server.post("/v1/readings", "application/json", vec![b' '; 4 << 20]).await;
        refused(&large, 401, "unauthorized"); // and no broken connection, though nobody read what was sent
    }
    let metrics = server.metrics().await;
    assert_eq!(metrics.count("tidegauge_http_bytes_in_flight"), 0);
}

#[tokio::test]
async fn paths_are_not_normalized() {
    let server = Server::start(tokens()).await;
    assert_eq!(ingest(&server, "all", &json!([reading("PUMP-1", 1.0), reading("blue/x", 1.0)])).await.status, 200);
    let long = "x".repeat(129);
    for (name, target, expected, code) in [
        ("lights", "/v1/devices/PUMP-1/latest", 403, "device_forbidden"),
        ("lights", "/v1/devices/LIGHT-1/../PUMP-1/latest", 404, "not_found"),
        ("lights", "/v1/devices/LIGHT-1%2f..%2fPUMP-1/latest", 404, "unknown_device"),
        ("lights", "/v1/devices/..%2FPUMP-1/latest", 403, "device_forbidden"),
        ("lights", "/v1/devices/%50UMP-1/latest", 403, "device_forbidden"),
        ("lights", "/v1/devices/LIGHT-1%00PUMP-1/latest", 400, "invalid_parameter"),
        ("lights", "/v1/devices/LIGHT-%2A/latest", 404, "unknown_device"),
        ("lights", "/v1/devices/%EF%BC%ACIGHT-1/latest", 403, "device_forbidden"), // a fullwidth L
        ("lights", "/v1/devices/LIGHT-1%E2%80%8B/latest", 404, "unknown_device"),  // a zero-width space
        ("lights", "/v1/devices/LIGHT%E2%80%9011/latest", 403, "device_forbidden"), // another hyphen
        ("lights", "/v1/devices/LIGHT-1%ff/latest", 400, "invalid_parameter"),
        ("lights", "/v1/devices/LIGHT-1%0d%0aX:%20y/latest", 400, "invalid_parameter"),
        ("lights", "/v1/devices/LIGHT-1;PUMP-1/latest", 404, "unknown_device"),
        ("lights", "/v1//devices", 404, "not_found"),
        ("lights", "/V1/devices", 404, "not_found"),
        ("lights", "/v1/devices/", 404, "not_found"),
        ("lights", "/./metrics", 404, "not_found"),
        ("lights", "/healthz/../metrics", 404, "not_found"),
        ("lights", "/healthz%2f..%2fmetrics", 404, "not_found"),
        ("lights", "/metrics", 403, "forbidden"),
        ("lights", "http://x/metrics", 403, "forbidden"),
        ("acme", "/v1/devices/..%2fblue%2fx/latest", 404, "unknown_device"),
        ("acme", "/v1/devices/..%252fblue%252fx/latest", 404, "unknown_device"),
        ("acme", "/v1/devices/%2e%2e%2fblue%2fx/latest", 404, "unknown_device"),
        ("acme", "/v1/devices/%2fblue%2fx/latest", 404, "unknown_device"),
        ("acme", &format!("/v1/devices/{long}/latest"), 400, "invalid_parameter"),
    ] {
        assert_eq!(raw_get(&server, name, target).await, (expected, json!(code)), "{name} {target}");
    }
}

#[tokio::test]
async fn ids_that_resemble_allowed_ones_are_rejected_in_bodies() {
    let server = Server::start(tokens()).await;
    let (invalid, forbidden) = ("invalid_device_id", "device_forbidden");
    for (device, code) in [
        ("LIGHT-1\0", invalid),
        ("LIGHT-1\n", invalid),
        ("LIGHT-1 ", invalid),
        ("LIGHT-\u{202E}1", invalid),
        ("\u{FEFF}LIGHT-1", invalid),
        ("\u{FF2C}IGHT-1", forbidden),
        ("LIGHT\u{2010}1", forbidden),
        ("LI\u{200B}GHT-1", forbidden),
        ("*", forbidden),
    ] {
        let answer = ingest(&server, "lights", &reading(device, 1.0)).await;
        let problem = answer.json();
        assert_eq!((answer.status, &problem["errors"][0]["code"]), (400, &json!(code)), "{device:?}");
    }
    for device in ["L\u{49}GHT-1", "LIGHT-1/../PUMP-1", "LIGHT-../../x", "LIGHT-*", "LIGHT-1%2F"] {
        assert_eq!(ingest(&server, "lights", &reading(device, 1.0)).await.status, 200, "{device}: a literal");
    }
    let literal = ["LIGHT-*", "LIGHT-../../x", "LIGHT-1", "LIGHT-1%2F", "LIGHT-1/../PUMP-1"];
    assert_eq!(devices(&server, "all", "").await, literal);
    let not_a_text = json!({ "deviceId": { "$gt": "" }, "ts": TS, "value": 1 });
    let answer = ingest(&server, "lights", &not_a_text).await;
    assert_eq!(
        (answer.status, &answer.json()["errors"][0]["code"]),
        (400, &json!("invalid_device_id")),
        "{}",
        answer.text()
    );
}

#[tokio::test]
async fn parameters_are_plain_text() {
    let server = Server::start(tokens()).await;
    assert_eq!(ingest(&server, "all", &json!([reading("LIGHT-1", 1.0), reading("PUMP-1", 2.0)])).await.status, 200);
    let bomb = format!("{}b", "(a+)+".repeat(20)).replace('+', "%2B");
    let hostile = [
        "%7B%22%24gt%22%3A%22%22%7D", // {"$gt":""}
        "%24where",                   // $where
        "%5B%5D",                     // []
        ".*",
        "%5E.*%24", // ^.*$
        bomb.as_str(),
        "'%20OR%20'1'%3D'1",
        "%25", // %, the wildcard of LIKE
        "_",   // the other
        "%00",
        "%F0%9F%94%A5",
    ];
    for value in hostile {
        for (path, status) in [
            (format!("/v1/devices/{value}/latest"), 0),
            (format!("/v1/rollups?device={value}&{RANGE}"), 0),
            (format!("/v1/devices?prefix={value}"), 0),
            (format!("/v1/rollups?prefix={value}&{RANGE}"), 0),
            (format!("/v1/devices?cursor={value}"), 0),
            (format!("/v1/devices/LIGHT-1/readings?cursor={value}&{RANGE}"), 400),
            (format!("/v1/devices/LIGHT-1/readings?metric={value}&{RANGE}"), 0),
            (format!("/v1/devices/LIGHT-1/rollups?metric={value}&{RANGE}"), 0),
            (format!("/v1/devices/LIGHT-1/rollups?step={value}&{RANGE}"), 400),
            (format!("/v1/devices/LIGHT-1/rollups?from={value}"), 400),
            (format!("/v1/devices/LIGHT-1/rollups?to={value}"), 400),
            (format!("/v1/devices?limit={value}"), 400),
            (format!("/v1/rollups?combine={value}&device=LIGHT-1"), 400),
            (format!("/v1/devices?prefix[$gt]={value}"), 400),
            (format!("/v1/devices?%24where={value}"), 400),
        ] {
            let began = Instant::now();
            let answer = get(&server, "lights", &path).await;
            let refusals: &[u16] = if path.contains("/latest") { &[400, 403] } else { &[400, 403, 200] };
            assert!(
                answer.status == status || status == 0 && refusals.contains(&answer.status),
                "{path}: {}",
                answer.text()
            );
            assert!(!answer.text().contains("PUMP"), "{path}: {}", answer.text());
            let is_empty = answer.json()["devices"].as_array().is_none_or(Vec::is_empty);
            assert!(is_empty || path.contains("cursor="), "{path}: {}", answer.text());
            assert!(began.elapsed() < deadline(60), "{path}");
        }
    }
}

#[tokio::test]
async fn every_answer_has_strict_headers_and_none_names_the_server() {
    let server = Server::start(tokens()).await;
    for (answer, caching) in [
        (get(&server, "all", "/v1/devices").await, "private, no-cache"),
        (ingest(&server, "all", &reading("d", 1.0)).await, "no-store"),
        (server.get("/v1/devices").await, "no-store"),
        (server.get("/nothing").await, "no-store"),
        (server.get("/healthz").await, "no-store"),
        (server.send(server.request(Method::PUT, "/v1/readings")).await, "no-store"),
        (super::post(&server, "all", "/write", "text/plain", "m,device=d v=1").await, "no-store"),
        (get(&server, "operator", "/metrics").await, "no-store"),
    ] {
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("cache-control"), caching);
        assert_eq!(answer.header("content-security-policy"), "default-src 'none'; frame-ancestors 'none'");
        for name in ["server", "x-powered-by", "via", "access-control-allow-origin"] {
            assert_eq!(answer.header(name), "", "{name}");
        }
        let version = env!("CARGO_PKG_VERSION");
        let head = format!("{:?}", answer.headers);
        assert!(!head.contains(version), "{head}");
    }
}

#[tokio::test]
async fn no_secret_gets_into_the_log() {
    let loud = tokens().set("telemetry.log_level", "trace").set("http.listen", "127.0.0.1:0");
    let server = Server::start(loud.clone()).await;
    ingest(&server, "all", &reading("d", 1.0)).await;
    ingest(&server, "unknown", &reading("d", 1.0)).await;
    let basic = server.request(Method::POST, "/write").basic_auth("ann", Some(secret_of("all")));
    assert_eq!(server.send(basic.body("m,device=d v=1")).await.status, 204);
    server.write_config(&loud.or("udp.listen", "127.0.0.1:0").to_toml().replace("sha256:", "tg_pasted-by-mistake"));
    super::reload::reload_says(&server, "are unchanged").await;
    let log = server.log();
    for secret in [secret_of("all"), secret_of("unknown"), "tg_".to_owned(), "pasted-by-mistake".to_owned()] {
        assert!(!log.contains(&secret), "{secret} in:\n{log}");
    }
    let encoded =
        base64::Engine::encode(&base64::engine::general_purpose::STANDARD, format!("ann:{}", secret_of("all")));
    assert!(!log.contains(&encoded), "basic credentials in:\n{log}");
}
