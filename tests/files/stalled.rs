//! Files that do not reach their end: a client that stops reading, a store that stops answering.

use std::io::Read;

use reqwest::Method;
use serde_json::{Map, Value, json};

use super::START_MS;
use crate::harness::mongod::deadline::deadline;
use crate::harness::{Server, Setup, wait_until};

const PATH: &str = "/v1/readings?from=2024-04-20T00:00:00Z&to=2024-04-21T00:00:00Z&format=csv";

/// A file without rows, which is sent at once, however slow its client is.
const SMALL: &str = "/v1/readings?from=2024-04-19T00:00:00Z&to=2024-04-20T00:00:00Z&format=csv";

/// Rows of 160 bytes: with all of them, the file is larger than all buffers between server and client.
const METRICS: usize = 256;
const INSTANTS: usize = 1_700;

/// A file takes 40 to 56 MiB of this device, with what the allocator keeps for each thread and, in a new
/// process, pages of code. A server that held the text, 67 MiB, would take more than 100.
const MEMORY_MAX_KIB: u64 = 80 << 10;

/// A server with one stored device whose hours have more values than a slice.
async fn large_device(setup: Setup) -> Server {
    let server = Server::start(setup).await;
    let device = "d".repeat(125);
    let values: Map<String, Value> = (0..METRICS).map(|metric| (format!("m{metric}"), json!(0.5))).collect();
    let reading = |at: usize| json!({ "ts": START_MS + 5_000 * at as i64, "values": values });
    let readings: Vec<Value> = (0..INSTANTS).map(reading).collect();
    server.accepts(&json!({ "deviceId": device, "readings": readings })).await;
    server.settled().await;
    server
}

/// Begins to read a file, which the client may take as long as the server allows.
async fn begin(server: &Server) -> (reqwest::Response, Vec<u8>) {
    let mut response = server.request(Method::GET, PATH).timeout(deadline(600)).send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    let piece = response.chunk().await.expect("a piece").expect("not the end");
    (response, piece.to_vec())
}

/// Reads the rest of a file into `bytes`.
async fn read(response: &mut reqwest::Response, bytes: &mut Vec<u8>) -> Result<(), reqwest::Error> {
    while let Some(piece) = response.chunk().await? {
        bytes.extend_from_slice(&piece);
    }
    Ok(())
}

/// The number of rows of a file, with its head.
fn rows(bytes: &[u8]) -> usize {
    memchr::memchr_iter(b'\n', bytes).count()
}

/// Asserts that the only place for files is taken. The server waits for a second before it says so.
async fn has_no_place(server: &Server) {
    let refused = server.get(SMALL).await;
    assert_eq!(refused.status, 503, "one file at a time");
    assert_eq!(refused.json()["code"], "overloaded");
}

/// The peak of the memory of a server from now on.
struct Peak {
    before_kib: u64,
}

impl Peak {
    fn begin(server: &Server) -> Self {
        std::fs::write(format!("/proc/{}/clear_refs", server.id()), "5").expect("our process"); // `VmHWM` begins again
        Self { before_kib: Self::now_kib(server) }
    }

    fn now_kib(server: &Server) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    fn assert_small(&self, server: &Server) {
        let (before, peak) = (self.before_kib, Self::now_kib(server));
        println!("{before} KiB before, {peak} KiB at most");
        assert!(peak < before + MEMORY_MAX_KIB, "{before} KiB before, {peak} KiB at most");
    }
}

#[tokio::test]
async fn the_memory_of_a_file_is_bounded_and_a_client_that_stops_reading_loses_it() {
    let with_timeout = |timeout: &str| Setup::sqlite().set("query.max_files", 1).set("http.body_timeout", timeout);
    let mut server = large_device(with_timeout("1h")).await;
    let peak = Peak::begin(&server);
    let (mut paused, mut bytes) = begin(&server).await;
    for _ in 0..2 {
        has_no_place(&server).await;
    }
    read(&mut paused, &mut bytes).await.expect("a client that goes on in time gets the whole file");
    assert_eq!(rows(&bytes), 1 + METRICS * INSTANTS);
    peak.assert_small(&server);

    server.start_again_after_stop(with_timeout("2s")).await;
    let peak = Peak::begin(&server);
    let (mut stalled, mut bytes) = begin(&server).await;
    let is_free = async || (server.get(SMALL).await.status == 200).then_some(());
    wait_until("the place of the stalled file is free", is_free).await;
    peak.assert_small(&server);
    let end = read(&mut stalled, &mut bytes).await;
    assert!(end.is_err_and(|error| !error.is_timeout()), "an interrupted file must not look complete");
    assert!(rows(&bytes) < METRICS * INSTANTS);
}

#[tokio::test]
async fn an_error_in_the_middle_is_no_clean_end() {
    let server = large_device(Setup::sqlite()).await;
    let file = server.data_dir().join("tidegauge.sqlite");
    let aside = file.with_extension("aside");
    for encoding in ["identity", "gzip"] {
        let interrupted = async || {
            let request = server.request(Method::GET, PATH).header("accept-encoding", encoding);
            let mut response = request.send().await.expect("an answer");
            assert_eq!(response.status(), 200);
            std::fs::rename(&file, &aside).expect("the file is there");
            let mut bytes = Vec::new();
            let end = read(&mut response, &mut bytes).await;
            assert!(end.as_ref().err().is_none_or(|error| !error.is_timeout()), "{encoding}: the file has no end");
            if end.is_ok() {
                // The server was faster than this test: the file was complete before the error.
                std::fs::rename(&aside, &file).expect("it comes back");
                let read = if encoding == "gzip" { unpacked(&bytes) } else { bytes };
                assert_eq!(rows(&read), 1 + METRICS * INSTANTS, "{encoding}: a clean end before the last row");
            }
            end.err()
        };
        wait_until("a file is interrupted", interrupted).await;
        server.logged("a file ended early").await;
        let refused = wait_until("the store is away", async || {
            Some(server.get(PATH).await).filter(|answer| answer.status == 503)
        })
        .await;
        assert_eq!(refused.json()["code"], "store_unavailable", "an error before the first row has its status");
        std::fs::rename(&aside, &file).expect("it comes back");
        wait_until("the store is back", async || (server.get_json("/readyz").await["status"] == "ok").then_some(()))
            .await;
    }
}

fn unpacked(gzip: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(gzip).read_to_end(&mut text).expect("a whole file");
    text
}
