//! Hostile queries: each is answered or refused soon, in bounded memory, and the server goes on.

use std::time::Instant;

use serde_json::Value;

use super::envelope::{TS_NS, write};
use crate::harness::{Server, Setup};

/// Posts a query, and returns the answer and the seconds that it took.
async fn ask(server: &Server, query: &str) -> (u16, Value, f64) {
    let form: String = form_urlencoded::Serializer::new(String::new()).append_pair("q", query).finish();
    let before = Instant::now();
    let answer = server.post("/query", "application/x-www-form-urlencoded", form).await;
    (answer.status, answer.json(), before.elapsed().as_secs_f64())
}

#[tokio::test]
async fn hostile_queries_are_bounded() {
    let server = Server::start(Setup::sqlite().set("query.timeout", "5s")).await;
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
        let (status, answer, seconds) = ask(&server, &query).await;
        let found = answer["error"].as_str().or(answer["results"][0]["error"].as_str());
        match error {
            Some(error) => assert!(found.is_some_and(|found| found.contains(error)), "{shown}: {answer}"),
            None => assert_eq!((status, found), (200, None), "{shown}"),
        }
        assert!(seconds < 20.0, "{shown}: {seconds} s"); // seconds in the slowest build
    }
    let (_, answer, _) = ask(&server, &format!("SELECT count(v), last(v) FROM m WHERE {range}")).await;
    assert_eq!(answer["results"][0]["series"][0]["values"][0][1], 259);
}
