//! Files that do not reach their end: a client that stops reading, a store that stops answering.

use serde_json::{Map, Value, json};

use super::START_MS;
use crate::harness::{Server, Setup, wait_until};

const PATH: &str = "/v1/readings?from=2024-04-20T00:00:00Z&to=2024-04-21T00:00:00Z&format=csv";

/// Rows of 160 bytes: with all of them, the file is larger than all buffers between server and client.
const METRICS: usize = 256;
const INSTANTS: usize = 1_700;

/// More than a file holds, and far less than the file of 70 MB or its slices.
const MEMORY_MAX_KIB: u64 = 48 << 10;

/// A server with one stored device whose hours have more values than a slice.
async fn large_device(setup: Setup) -> Server {
    let server = Server::start(setup).await;
    let device = "d".repeat(125);
    let values: Map<String, Value> = (0..METRICS).map(|metric| (format!("m{metric}"), json!(0.5))).collect();
    let reading = |at: usize| json!({ "ts": START_MS + 5_000 * at as i64, "values": values });
    let readings: Vec<Value> = (0..INSTANTS).map(reading).collect();
    let answer = server.ingest(&json!({ "deviceId": device, "readings": readings })).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    server.settled().await;
    server
}

/// Begins to read a file.
async fn begin(server: &Server) -> reqwest::Response {
    let mut response = server.request(reqwest::Method::GET, PATH).send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    response.chunk().await.expect("a piece").expect("not the end");
    response
}

/// The value of a line of `/proc/PID/status`, in KiB.
fn memory_kib(server: &Server, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Lets `VmHWM` begin again with the memory of now.
fn forget_peak(server: &Server) {
    std::fs::write(format!("/proc/{}/clear_refs", server.id()), "5").expect("our process");
}

#[tokio::test]
async fn the_memory_of_a_file_is_bounded_and_a_client_that_stops_reading_loses_it() {
    let setup = Setup::sqlite().set("http.body_timeout", "2s").set("query.max_files", 1);
    let server = large_device(setup).await;
    forget_peak(&server);
    let before = memory_kib(&server, "VmHWM");
    let mut stalled = begin(&server).await;
    let refused = server.get(PATH).await;
    assert_eq!((refused.status, refused.json()["code"].as_str()), (503, Some("overloaded")), "one file at a time");
    let whole = wait_until("the place of the stalled file is free", async || {
        Some(server.get(PATH).await).filter(|answer| answer.status == 200)
    })
    .await;
    assert_eq!(whole.text().lines().count(), 1 + METRICS * INSTANTS);
    let peak = memory_kib(&server, "VmHWM");
    assert!(peak < before + MEMORY_MAX_KIB, "{before} KiB before, {peak} KiB at most");
    let end = loop {
        match stalled.chunk().await {
            Ok(Some(_)) => {}
            end => break end,
        }
    };
    assert!(end.is_err(), "an interrupted file must not look complete");
}

#[tokio::test]
async fn an_error_in_the_middle_is_no_clean_end() {
    let server = large_device(Setup::sqlite()).await;
    let file = server.data_dir().join("tidegauge.sqlite");
    for encoding in ["identity", "gzip"] {
        let request = server.request(reqwest::Method::GET, PATH).header("accept-encoding", encoding);
        let mut response = request.send().await.expect("an answer");
        assert_eq!(response.status(), 200);
        let aside = file.with_extension("aside");
        std::fs::rename(&file, &aside).expect("the file is there");
        let mut bytes = 0;
        let end = loop {
            match response.chunk().await {
                Ok(Some(piece)) => bytes += piece.len(),
                end => break end,
            }
        };
        assert!(end.is_err(), "{encoding}: {bytes} bytes and a clean end");
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
