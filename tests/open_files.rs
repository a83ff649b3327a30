//! Connections, which any client may open, leave enough open files for the log and the store.

use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::harness::mongod::deadline::deadline;
use crate::harness::{Connection, Server, Setup, wait_until};

/// More than any server with this few files may hold.
const IDLE: usize = 150;

fn soft_limit(server: &Server) -> String {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.id())).expect("it runs");
    let open_files = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    open_files.split_whitespace().nth(3).expect("a number").to_owned()
}

/// The base position of the newest segment.
fn newest_segment(server: &Server) -> u64 {
    let names = std::fs::read_dir(server.data_dir().join("log")).expect("there is a log");
    let names = names.filter_map(|entry| entry.expect("a file").file_name().into_string().ok());
    names.filter_map(|name| name.strip_suffix(".log")?.parse().ok()).max().expect("a segment")
}

#[tokio::test]
async fn the_limit_of_open_files_is_raised_to_the_hard_limit() {
    let server = Server::start_with_open_files(Setup::sqlite(), [256, 1_000]).await;
    assert_eq!(soft_limit(&server), "1000");
    let said = "allows fewer connections than http.max_connections";
    assert_eq!(server.logged(said).await.matches(said).count(), 1, "{}", server.log());
}

#[tokio::test]
async fn idle_connections_do_not_stop_the_log() {
    let setup = Setup::sqlite().set("log.segment_bytes", "64KiB").set("http.header_timeout", "1h");
    let server = Server::start_with_open_files(setup, [100, 100]).await;
    let mut device = Connection::open(&server).await;
    let ask = |body: &str| {
        let head = "POST /v1/readings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
        format!("{head}Content-Length: {}\r\n\r\n{body}", body.len())
    };
    let first = ask(&json!({ "deviceId": "d", "value": 1 }).to_string());
    assert_eq!(device.ask(first.as_bytes()).await.0, 200, "it is connected before the others come");
    let mut idle = Vec::new();
    for _ in 0..IDLE {
        idle.push(TcpStream::connect(server.http_addr()).await.expect("the system accepts it"));
    }
    let mut refusal = String::new();
    let last = idle.last_mut().expect("some");
    let told = tokio::time::timeout(deadline(60), last.read_to_string(&mut refusal)).await;
    assert!(told.is_ok(), "the last one is refused");
    assert!(refusal.is_empty() || refusal.starts_with("HTTP/1.1 503 "), "{refusal}");

    let start_ms = 1_713_621_600_000_i64;
    let mut sent = 0;
    while newest_segment(&server) < 5 * (64 << 10) {
        let readings: Vec<_> = (0..2_000).map(|at| json!({ "ts": start_ms + sent + at, "value": at })).collect();
        sent += 2_000;
        let (status, _, body) =
            device.ask(ask(&json!({ "deviceId": "d", "readings": readings }).to_string()).as_bytes()).await;
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
    }
    let refused = "connections are refused";
    let lines = server.logged(refused).await.matches(refused).count();
    assert!(lines <= 3, "one a minute for each reason: {}", server.log());
    drop(idle);
    wait_until("there is room again", async || {
        let request = server.request(reqwest::Method::GET, "/healthz").send().await;
        request.is_ok_and(|answer| answer.status() == 200).then_some(())
    })
    .await;
    assert_eq!(server.settled().await.count("tidegauge_readings_accepted_total"), sent as u64 + 1);
}
