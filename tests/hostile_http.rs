//! Broken, slow, greedy and vanished clients: each gets a clear error or a closed connection, memory stays
//! bounded, and the server keeps serving others.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::harness::mongod::deadline::deadline;
use crate::harness::{Server, Setup, wait_until};

/// The most resident memory that the server may have had, in MiB, with the limits of [`setup`]: bodies in
/// flight, what they become, and what the allocator keeps.
const MEMORY_MAX_MIB: u64 = 192;
/// The same with twenty bodies that are decompressed at once: zstd takes a window of up to 8 MiB for each.
const BOMBS_MAX_MIB: u64 = 384;
/// The same with ten thousand connections, each of which takes some 20 KiB.
const CONNECTIONS_MAX_MIB: u64 = 384;

fn setup() -> Setup {
    Setup::sqlite()
        .set("http.max_body_bytes", "4MiB")
        .set("http.max_bytes_in_flight", "16MiB")
        .set("pending.max_bytes", "16MiB")
}

async fn server() -> Server {
    Server::start(setup()).await
}

/// A server that does not wait long for slow clients. Other tests need one that does, or they would depend on
/// the speed of the machine.
async fn impatient_server() -> Server {
    Server::start(setup().set("http.header_timeout", "3s").set("http.body_timeout", "3s")).await
}

async fn connect(server: &Server) -> TcpStream {
    let address = server.url().trim_start_matches("http://");
    TcpStream::connect(address).await.expect("the server listens")
}

/// Sends bytes and returns all bytes that the server sends until it closes the connection.
async fn exchange(server: &Server, bytes: &[u8]) -> String {
    let mut stream = connect(server).await;
    let _ = stream.write_all(bytes).await; // the server may close it first
    let mut answer = Vec::new();
    let read = tokio::time::timeout(deadline(60), stream.read_to_end(&mut answer)).await;
    assert!(read.is_ok(), "neither answered nor closed: {}", String::from_utf8_lossy(&answer));
    String::from_utf8_lossy(&answer).into_owned()
}

/// Asserts that another client is served and that the memory of the server is within bounds.
async fn assert_alive(server: &Server) {
    assert_alive_within(server, MEMORY_MAX_MIB).await;
}

async fn assert_alive_within(server: &Server, max_mib: u64) {
    // On a new connection: the server closes an idle one after http.header_timeout.
    let request = server.request(reqwest::Method::POST, "/v1/readings").header("connection", "close");
    let request = request.header("content-type", "application/json");
    let answer = server.send(request.body(json!({ "deviceId": "other", "value": 1 }).to_string())).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).expect("it runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak").trim();
    let mib = peak.trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024;
    println!("at most {mib} MiB");
    assert!(mib < max_mib, "{mib} MiB");
}

fn post(body: &str, headers: &str) -> Vec<u8> {
    let head = "POST /v1/readings HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\n";
    format!("{head}{headers}\r\n{body}").into_bytes()
}

#[tokio::test]
async fn slow_heads_and_slow_bodies_are_cut_off() {
    let server = impatient_server().await;
    let mut head = connect(&server).await;
    head.write_all(b"POST /v1/readings HT").await.expect("open");
    let mut body = connect(&server).await;
    body.write_all(&post("{", "Content-Length: 1000\r\n")).await.expect("open");
    assert_alive(&server).await;
    let mut answer = String::new();
    body.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("body_timeout"), "{answer}");
    let metrics = server.metrics().await;
    let rejected = |reason| metrics.count_where("tidegauge_readings_rejected_total", &[("reason", reason)]);
    assert_eq!((rejected("body_timeout"), rejected("invalid_body")), (1, 0));
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(deadline(60), head.read_to_end(&mut rest)).await;
    assert!(closed.is_ok(), "a head that never ends keeps its connection");
    assert_alive(&server).await;
}

#[tokio::test]
async fn wrong_lengths_are_refused_or_disconnected() {
    let server = server().await;
    for (request, expected) in [
        (post("{}", "Content-Length: 99999999999\r\n"), "413"),
        (post("{}", "Content-Length: -1\r\n"), "400"),
        (post("{}", "Content-Length: 2\r\nContent-Length: 3\r\n"), "400"),
        (post("zz\r\n{}\r\n0\r\n\r\n", "Transfer-Encoding: chunked\r\n"), "400"),
        (post("", "X: a\0b\r\nContent-Length: 0\r\n"), "400"),
        (b"\0\x01\x02\x03\r\n\r\n".to_vec(), "400"),
    ] {
        let answer = exchange(&server, &request).await;
        let is_clear = answer.starts_with(&format!("HTTP/1.1 {expected}"));
        assert!(is_clear, "{} gave {answer}", String::from_utf8_lossy(&request));
    }
    let header = format!("X: {}\r\nContent-Length: 0\r\n", "x".repeat(1 << 20));
    let answer = exchange(&server, &post("", &header)).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert_alive(&server).await;
}

#[tokio::test]
async fn a_request_without_a_length_is_refused() {
    let server = server().await;
    for path in ["/v1/readings", "/write", "/api/v2/write?bucket=b", "/api/v3/write_lp?db=d"] {
        let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\r\n");
        let answer = exchange(&server, format!("{head}GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).await;
        let statuses = answer.matches("HTTP/1.1 ").count();
        assert!(answer.starts_with("HTTP/1.1 411") && statuses == 1, "{path}: {answer}");
        assert!(answer.contains("Content-Length"), "{path}: {answer}");
    }
    assert_alive(&server).await;
}

#[tokio::test]
async fn huge_and_nested_json_is_refused_with_a_code() {
    let server = server().await;
    let body = |body: String| async { server.post("/v1/readings", "application/json", body).await };
    for (text, status) in [
        ("[".repeat(100_000), 400),
        (format!("{{\"deviceId\":\"a\",\"value\":{}", "[".repeat(100_000)), 400),
        (
            format!(
                "{{\"deviceId\":\"a\",\"metadata\":{}1{},\"value\":1}}",
                "{\"a\":".repeat(5_000),
                "}".repeat(5_000)
            ),
            400,
        ),
        (format!("{{\"deviceId\":\"{}\",\"value\":1}}", "a".repeat(3 << 20)), 400),
        (format!("[{}]", "{},".repeat(1 << 20)), 413), // too many readings come before the comma that is too many
    ] {
        let answer = body(text).await;
        assert_eq!(answer.status, status, "{}", &answer.text()[..200.min(answer.text().len())]);
        assert!(answer.json()["code"].is_string());
    }
    assert_alive(&server).await;
}

/// 64 MiB of spaces in 64 KiB, twenty times at once.
#[tokio::test(flavor = "multi_thread")]
async fn bombs_do_not_go_off() {
    const BYTES: u64 = 64 << 20;
    let server = server().await;
    let spaces = || std::io::Read::take(std::io::repeat(b' '), BYTES);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::copy(&mut spaces(), &mut gzip).expect("memory");
    let gzip = gzip.finish().expect("memory");
    let zstd = zstd::stream::encode_all(spaces(), 3).expect("memory");
    let bombs = (0..20).map(|nth| {
        let (encoding, body) = if nth % 2 == 0 { ("gzip", gzip.clone()) } else { ("zstd", zstd.clone()) };
        let request = server.request(reqwest::Method::POST, "/v1/readings");
        server.send(request.header("content-type", "application/json").header("content-encoding", encoding).body(body))
    });
    for answer in futures_util::future::join_all(bombs).await {
        assert!([413, 503].contains(&answer.status), "{}: {}", answer.status, answer.text());
    }
    assert_alive_within(&server, BOMBS_MAX_MIB).await;
}

#[tokio::test]
async fn a_thousand_requests_in_a_row_get_a_thousand_answers_in_order() {
    let server = server().await;
    let known: Vec<_> = (0..1_000).map(|nth| json!({ "deviceId": format!("device-{nth}"), "value": 1 })).collect();
    assert_eq!(server.ingest(&Value::from(known)).await.status, 200);
    let mut requests = Vec::new();
    for nth in 0..1_000 {
        let last = if nth == 999 { "Connection: close\r\n" } else { "" };
        let path = format!("/v1/devices/device-{nth}/rollups");
        requests.extend_from_slice(format!("GET {path} HTTP/1.1\r\nHost: a\r\n{last}\r\n").as_bytes());
    }
    let answers = exchange(&server, &requests).await;
    let devices: Vec<&str> =
        answers.split("{\"deviceId\":\"").skip(1).filter_map(|text| text.split('"').next()).collect();
    let expected: Vec<String> = (0..1_000).map(|nth| format!("device-{nth}")).collect();
    assert_eq!(devices, expected);
    assert_alive(&server).await;
}

#[tokio::test]
async fn invalid_http_is_answered_with_a_status() {
    let server = server().await;
    let head = "GET /healthz HTTP/1.1\r\nHost: a\r\n";
    for (what, request, statuses) in [
        ("a space in a header's name", format!("{head}Name : x\r\n\r\n"), "400"),
        ("NUL in a header", format!("{head}Name: \0\r\n\r\n"), "400"),
        ("a length with a sign", format!("{head}Content-Length: +2\r\n\r\n{{}}"), "400"),
        ("a length beyond 64 bits", format!("{head}Content-Length: 18446744073709551616\r\n\r\n"), "400"),
        ("a long path", format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(70_000)), "414"),
        ("a long header", format!("{head}Name: {}\r\n\r\n", "a".repeat(500_000)), "431"),
        ("many headers", format!("{head}{}\r\n", "x: 1\r\n".repeat(5_000)), "431"),
        ("noise after a request", format!("{head}\r\n\0\0\0\r\n\r\n"), "200 400"),
    ] {
        let answers = exchange(&server, request.as_bytes()).await;
        let found: Vec<&str> = answers.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
        assert_eq!(found.join(" "), statuses, "{what}: {answers}");
    }
    assert_alive(&server).await;
}

/// Like `nc -N`, and like devices that send a line end after the body (RFC 9112, section 2.2).
#[tokio::test]
async fn half_closed_connections_and_extra_line_ends_are_answered() {
    let server = server().await;
    let body = r#"{"deviceId":"d","value":1}"#;
    let head = "POST /v1/readings HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n";
    for end in ["", "\n", "\r\n"] {
        let mut stream = connect(&server).await;
        let request = format!("{head}Content-Length: {}\r\n\r\n{body}{end}", body.len());
        stream.write_all(request.as_bytes()).await.expect("open");
        if end.is_empty() {
            stream.shutdown().await.expect("open");
        }
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1 200", "{end:?}");
    }
    assert_alive(&server).await;
}

#[tokio::test]
async fn a_client_that_reads_no_answers_is_disconnected() {
    let server = impatient_server().await;
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a small buffer");
    let address = server.url().trim_start_matches("http://").parse().expect("an address");
    let mut stream = socket.connect(address).await.expect("the server listens");
    let requests = b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1_000);
    let flood = async {
        for sent in 0.. {
            if stream.write_all(&requests).await.is_err() {
                return sent * requests.len();
            }
        }
        unreachable!("the loop ends with the connection")
    };
    let sent = tokio::time::timeout(deadline(60), flood).await.expect("the connection is cut off");
    assert!(sent < 64 << 20, "{sent} bytes of requests were read and not one answer taken");
    assert_alive(&server).await;
}

/// With [`setup`], four such bodies would be all the memory for bodies.
#[tokio::test]
async fn clients_that_only_declare_large_bodies_take_no_memory_from_others() {
    const CLIENTS: u64 = 300;
    let server = server().await;
    let mut stalled = Vec::new();
    for _ in 0..CLIENTS {
        let mut stream = connect(&server).await;
        stream.write_all(&post("[", "Content-Length: 4194304\r\n")).await.expect("open");
        stalled.push(stream);
    }
    wait_until("all bodies have begun", async || {
        (server.metrics().await.count("tidegauge_http_bytes_in_flight") >= CLIENTS * (16 << 10)).then_some(())
    })
    .await;
    assert_alive(&server).await;
}

#[tokio::test]
async fn clients_that_disconnect_midway_leave_nothing_behind() {
    let server = server().await;
    for nth in 0..300 {
        let mut stream = connect(&server).await;
        let body = format!("[{{\"deviceId\":\"gone\",\"ts\":{nth},\"value\":1}},");
        stream.write_all(&post(&body, "Content-Length: 100000\r\n")).await.expect("open");
    }
    assert_alive(&server).await;
    wait_until("no body is waited for", async || {
        (server.metrics().await.count("tidegauge_http_bytes_in_flight") == 0).then_some(())
    })
    .await;
    assert_eq!(server.readings("gone").await, Value::Array(Vec::new()), "half a body is none");
}

/// Opens as many connections as this machine allows, up to ten thousand.
#[tokio::test]
async fn ten_thousand_idle_connections_do_not_block_others() {
    let limits = std::fs::read_to_string("/proc/self/limits").expect("limits");
    let open_files = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    let soft: usize = open_files.split_whitespace().nth(3).expect("a number").parse().unwrap_or(usize::MAX);
    let count = 10_000.min(soft.saturating_sub(300) / 2);
    println!("{count} idle connections");
    let server =
        Server::start(Setup::sqlite().set("http.max_connections", 20_000).set("http.header_timeout", "1h")).await;
    let mut idle = Vec::new();
    for _ in 0..count {
        idle.push(connect(&server).await);
    }
    wait_until("all are open", async || {
        (server.metrics().await.count("tidegauge_http_connections") >= count as u64).then_some(())
    })
    .await;
    assert_alive_within(&server, CONNECTIONS_MAX_MIB).await;
}
