//! `[forward]`: the other server, and what waits for it.

use std::path::Path;

use serde_json::json;

use crate::check::{check, small};
use crate::forward::to;
use crate::harness::{Server, Setup, free_port, secret_of};

/// A data folder of a service that was never started.
fn no_data() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

async fn has(setup: Setup, data: &Path, severity: &str, part: &str, found: &str, mend: &str) {
    let checked = check(&small(setup), data).await;
    let given = checked.has(severity, part, found);
    assert!(given.contains(mend), "{given}");
}

#[tokio::test]
async fn a_centre_that_is_away_and_readings_that_wait_for_it_are_found() {
    let setup =
        to(&format!("http://127.0.0.1:{}", free_port())).set("log.max_bytes", "4MiB").set("log.segment_bytes", "64KiB");
    let site = Server::start(setup.clone()).await;
    let reading = |n: i64| json!({ "ts": 1_713_621_600_000_i64 + n, "value": rand::random::<f64>() });
    loop {
        let readings: Vec<_> = (0..10_000).map(reading).collect();
        if site.ingest(&json!({ "deviceId": "S1", "readings": readings })).await.status != 200 {
            break; // the log is full of what is not forwarded
        }
    }
    let found = check(&setup, &site.data_dir()).await;
    let mend = found.has("error", "forward-reach", "connection: ");
    assert!(mend.contains("start the other server"), "{mend}");
    let mend = found.has("error", "log-size", "wait for the server at forward.url");
    assert!(mend.contains("see forward-reach"), "{mend}");
    assert!(found.report.to_string().contains("of the log are not forwarded yet"), "{found:#?}");
}

#[tokio::test]
async fn a_centre_that_admits_this_token_is_told_from_one_that_does_not() {
    let centre = Server::start(
        Setup::sqlite()
            .token("operator", "scopes = ['ingest', 'query', 'admin']")
            .token("reader", "scopes = ['query']")
            .token("writer", "scopes = ['ingest']")
            .token("site", "scopes = ['ingest', 'metadata']"),
    )
    .await;
    let data = no_data();
    for (token, answer) in [(None, "401"), (Some("unknown"), "401"), (Some("reader"), "403")] {
        let setup = to(centre.url());
        let setup = token.map_or(setup.clone(), |token| setup.set("forward.token", secret_of(token)));
        has(setup, data.path(), "error", "forward-reach", &format!("unauthorized: {answer}"), "scope ingest").await;
    }
    for (token, said) in
        [("writer", "make a token with the scopes ingest and metadata"), ("site", "takes metadata of operators")]
    {
        let setup = to(centre.url()).set("forward.token", secret_of(token));
        let good = check(&small(setup), data.path()).await;
        let report = good.report.to_string();
        let has_both = ["takes readings with this token", said].iter().all(|said| report.contains(said));
        assert!(good.bad().is_empty() && has_both, "{good:#?}");
    }
    assert_eq!(centre.metrics().await.count("tidegauge_readings_accepted_total"), 0, "the check sends none");
}
