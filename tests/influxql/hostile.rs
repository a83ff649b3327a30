//! Hostile queries: each is answered or refused soon, in bounded memory, and the server goes on.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::envelope::{TS_NS, write};
use crate::harness::mongod::deadline::deadline;
use crate::harness::{Connection, Server, Setup, wait_until};

/// Posts a query, and returns the answer and the time that it took.
async fn ask(server: &Server, query: &str) -> (u16, Value, Duration) {
    let form: String = form_urlencoded::Serializer::new(String::new()).append_pair("q", query).finish();
    let before = Instant::now();
    let answer = server.post("/query", "application/x-www-form-urlencoded", form).await;
    (answer.status, answer.json(), before.elapsed())
}

#[tokio::test]
async fn hostile_queries_are_bounded() {
    let server = Server::start(Setup::sqlite().set("query.timeout", "10m")).await;
    let hour_ns = 3_600_000_000_000;
    // Five years, with a reading in each week.
    let lines: Vec<_> =
        (0..260).map(|week| format!("m,device_id=d v={week} {}", TS_NS - week * 168 * hour_ns)).collect();
    write(&server, None, &lines.join("\n")).await;
    let range = format!("time >= {}s AND time < {}s", TS_NS / 1_000_000_000 - 157_680_000, TS_NS / 1_000_000_000);
    for (query, error) in [
        (format!("SELECT {}v{} FROM m", "(".repeat(20_000), ")".repeat(20_000)), Some("error parsing query")),
        (
            format!("SELECT v FROM {}m{}", "(SELECT v FROM ".repeat(5_000), ")".repeat(5_000)),
            Some("error parsing query"),
        ),
        (format!("SELECT v FROM m -- {}", "x".repeat(300_000)), Some("a query has at most 262144 bytes")),
        (format!("SELECT v FROM m WHERE device_id =~ /{}/", "(a?){50}".repeat(100)), Some("error parsing")),
        (format!("SELECT v FROM m WHERE device_id =~ /^({}b)+$/", "a*".repeat(500)), None),
        (format!("SELECT v FROM m LIMIT {0} OFFSET {0} SLIMIT {0}", i64::MAX), None),
        ("SELECT top(v, 999999) FROM m".to_owned(), None),
        (format!("SELECT mean(v) FROM m WHERE {range} GROUP BY time(1s)"), Some("max-select-buckets limit exceeded")),
        (format!("SELECT mean(v) FROM m WHERE {range} GROUP BY time(1h)"), None),
        (format!("SELECT v FROM m WHERE {range}"), None),
        ("SELECT v FROM m WHERE time > -9223372036854775806 AND time < 9223372036854775806".to_owned(), None),
        ("SELECT mean(v) FROM m WHERE time > 0 GROUP BY time(1ns)".to_owned(), Some("max-select-buckets")),
        (format!("SELECT mean(v){} FROM m GROUP BY time(1w)", ", mean(v) + 1".repeat(900)), None),
        ("SELECT v FROM m;".repeat(200), None),
        ("SELECT v FROM m;".repeat(300), Some("a query has at most 256 statements")),
    ] {
        let shown: String = query.chars().take(80).collect();
        let (status, answer, time) = ask(&server, &query).await;
        let found = answer["error"].as_str().or(answer["results"][0]["error"].as_str());
        match error {
            Some(error) => assert!(found.is_some_and(|found| found.contains(error)), "{shown}: {answer}"),
            None => assert_eq!((status, found), (200, None), "{shown}"),
        }
        assert!(time < deadline(20), "{shown}: {time:?}"); // seconds in the slowest build
    }
    let (_, answer, _) = ask(&server, &format!("SELECT count(v), last(v) FROM m WHERE {range}")).await;
    assert_eq!(answer["results"][0]["series"][0]["values"][0][1], 259);
}

#[tokio::test]
async fn a_statement_ends_when_its_client_leaves() {
    let setup = Setup::sqlite().set("query.max_concurrent", 1).set("query.timeout", "10m");
    let server = Server::start(setup).await;
    // Each device has metadata that takes long to compare, and the expression has no match.
    let reading = |nth: u64| {
        let text: String = (0..3_000_u64).map(|at| if (at * at * (nth + 7) / 3) % 5 < 2 { 'a' } else { 'b' }).collect();
        json!({ "deviceId": format!("d{nth}"), "ts": TS_NS / 1_000_000, "value": 1, "metadata": { "text": text } })
    };
    assert_eq!(server.ingest(&(0..1_000).map(reading).collect()).await.status, 200);
    let slow = ["text =~ /a[ab]{300}a[ab]{300}[^ab]/"; 4].join(" OR ");
    let slow = format!("SELECT count(value) FROM value WHERE {slow}");
    for more in ["", "&chunked=true"] {
        let mut params = form_urlencoded::Serializer::new(String::new());
        let head =
            format!("GET /query?{}{more} HTTP/1.1\r\nHost: localhost\r\n\r\n", params.append_pair("q", &slow).finish());
        let mut connection = Connection::open(&server).await;
        connection.send(head.as_bytes()).await;
        let other = async || server.get("/query?q=SHOW+DATABASES").await.status;
        wait_until("the statement runs", async || (other().await == 503).then_some(())).await;
        drop(connection);
        let left = Instant::now();
        wait_until("the statement has ended", async || (other().await == 200).then_some(())).await;
        assert!(left.elapsed() < deadline(30), "{more}: {:?}", left.elapsed());
    }
}
