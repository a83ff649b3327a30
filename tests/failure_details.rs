//! Details of failures: no answer to a token without `admin` contains a path, a host, a system error or the
//! prefix of a tenant.

use reqwest::Method;

use crate::harness::{Answer, Database, Mongod, Server, Setup, secret_of, wait_until};

const PREFIX: &str = "hidden-prefix/";

async fn send(server: &Server, token: Option<&str>, method: Method, path: &str, body: &Body) -> Answer {
    let request =
        token.iter().fold(server.request(method, path), |request, token| request.bearer_auth(secret_of(token)));
    let (content_type, encoding, bytes) = body;
    let request = request.header("content-type", *content_type).header("content-encoding", *encoding);
    server.send(request.body(bytes.clone())).await
}

/// Media type, encoding, bytes.
type Body = (&'static str, &'static str, Vec<u8>);

fn bodies() -> Vec<Body> {
    let plain = |media_type, text: &str| (media_type, "identity", text.as_bytes().to_vec());
    let long = "x".repeat(124);
    vec![
        plain("application/json", r#"{"deviceId":"pump-1","value":1}"#),
        plain("application/json", &format!(r#"{{"deviceId":"pump-{long}","value":1}}"#)),
        plain("application/json", r#"{"deviceId":"light-1","value":1}"#),
        plain("application/json", r#"[{"deviceId":"pump-1"},{"value":"#),
        plain("application/json", &" ".repeat(70_000)),
        plain("application/x-ndjson", "{}\n[1]\n"),
        plain("application/senml+json", r#"[{"n":"light-1/temp","v":1},{"n":"a"}]"#),
        plain("application/senml+cbor", "\u{0}"),
        plain("text/plain", "m,deviceId=pump-1 v=1"),
        plain("text/plain", &format!("m,deviceId=pump-{long} v=1")),
        plain("text/plain", "m,deviceId=light-1 v=1\nm v"),
        ("application/json", "gzip", b"not gzip".to_vec()),
        ("application/json", "zstd", b"not zstd".to_vec()),
        ("application/json", "deflate", b"not deflate".to_vec()),
        ("application/json", "br", b"brotli".to_vec()),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_without_the_scope_admin_reveal_no_internals() {
    let mut mongod = Mongod::start();
    let database = Database::on(&mongod);
    let tenant = format!("device_prefix = '{PREFIX}'\ndevices = ['pump-*']");
    let setup = Setup::mongodb(&database)
        .set("mongodb.timeout", "1s")
        .set("http.max_body_bytes", "64KiB")
        .token("operator", "scopes = ['admin']")
        .token("writer", &format!("scopes = ['ingest']\n{tenant}"))
        .token("reader", &format!("scopes = ['query']\n{tenant}"))
        .token("idle", "scopes = ['query']\ndevice_prefix = 'idle/'");
    let server = Server::start_with_disk_of_log(setup, 8).await;
    mongod.kill9();
    server.disk().fill(0);
    let good: Body = ("application/json", "identity", br#"{"deviceId":"pump-1","value":1}"#.to_vec());
    wait_until("the disk is full", async || {
        server.disk().fill_up();
        let answer = send(&server, Some("writer"), Method::POST, "/v1/readings", &good).await;
        (answer.status == 503).then_some(())
    })
    .await;
    server.logged("the store is away").await;

    let mut answers = Vec::new();
    for token in [None, Some("unknown"), Some("writer"), Some("reader"), Some("idle")] {
        for path in
            ["/v1/readings", "/v1/readings?partial=false", "/write", "/api/v2/write", "/api/v3/write_lp", "/query"]
        {
            for body in bodies() {
                answers.push((path.to_owned(), send(&server, token, Method::POST, path, &body).await));
            }
        }
        let long = "x".repeat(128);
        for path in [
            "/",
            "/nothing",
            "/v1/devices",
            "/v1/devices?limit=0",
            "/v1/devices?prefix=light",
            "/v1/rollups?prefix=pump",
            "/v1/devices/pump-1/latest",
            "/v1/devices/pump-1/rollups?from=1990-01-01T00:00:00Z",
            "/v1/devices/pump-1/readings?from=x",
            "/v1/devices/light-1/latest",
            "/v1/devices/%FF/latest",
            "/query?q=SHOW+MEASUREMENTS",
            "/query?q=SELECT+value+FROM+m",
            "/query?q=SELECT+value+FROM+m&chunked=true",
            &format!("/v1/devices/pump-{}/latest", &long[..124]),
            "/metrics",
            "/healthz",
            "/readyz",
            "/health",
            "/ping",
            "/version",
        ] {
            let nothing: Body = ("text/plain", "identity", Vec::new());
            answers.push((path.to_owned(), send(&server, token, Method::GET, path, &nothing).await));
        }
    }
    let statuses: std::collections::BTreeSet<u16> = answers.iter().map(|(_, answer)| answer.status).collect();
    for status in [400, 401, 403, 404, 413, 415, 503] {
        assert!(statuses.contains(&status), "{status} was provoked: {statuses:?}");
    }
    let failed = r#""error":"the store does not answer; try again later""#;
    let statements =
        answers.iter().filter(|(_, answer)| String::from_utf8_lossy(&answer.body).contains(failed)).count();
    assert!(statements >= 3, "nothing of the token \"idle\" is pending: {statements}");
    let address = database.uri.split("//").nth(1).and_then(|rest| rest.split(['/', '?']).next()).expect("an address");
    let data = server.data_dir().display().to_string();
    for (path, answer) in &answers {
        let text = format!("{:?} {}", answer.headers, String::from_utf8_lossy(&answer.body));
        for hidden in
            [&data, address, &database.name, PREFIX, "os error", "No space left", "/tmp/", "at most 114 bytes"]
        {
            assert!(!text.contains(hidden), "{path} tells of {hidden}: {text}");
        }
    }
    server.logged("the disk of the log is nearly full (log.min_free_bytes)").await; // the operator is told
    server.disk().free();
    tokio::task::block_in_place(|| mongod.start_again());
    server.settled().await;
}
