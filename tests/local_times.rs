//! Ranges by the local clock: `from` and `to` without an offset, with `tz`.

use reqwest::Method;
use serde_json::json;

use crate::harness::{Server, Setup, run};

/// 2026-10-25T00:00:00Z; clocks in Berlin are set back an hour later.
const START_MS: i64 = 1_792_886_400_000;
const HOUR_MS: i64 = 3_600_000;

/// The local morning: 06:00 to 08:00 in Berlin is 05:00Z to 07:00Z.
const MORNING: &str = "from=2026-10-25T06:00&to=2026-10-25%2008:00:00&tz=Europe/Berlin";

#[tokio::test]
async fn a_local_range_selects_in_queries_files_and_deletions() {
    let server = Server::start(Setup::sqlite()).await;
    let readings: Vec<_> =
        (0..12).map(|hour| json!({ "deviceId": "d", "ts": START_MS + hour * HOUR_MS, "value": hour })).collect();
    assert_eq!(server.ingest(&json!(readings)).await.status, 200);

    let page = server.get_json(&format!("/v1/devices/d/readings?{MORNING}")).await;
    let values: Vec<_> =
        page["readings"].as_array().expect("readings").iter().map(|one| &one["values"]["value"]).collect();
    assert_eq!(values, [&json!(5.0), &json!(6.0)]);
    for path in ["/v1/devices/d/rollups?", "/v1/rollups?device=d&"] {
        let answer = server.get(&format!("{path}format=csv&{MORNING}")).await;
        let text = answer.text();
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("2026-10-25T06:00:00.000+01:00") && text.contains("T07:00:00.000+01:00"), "{text}");
    }
    let answer = server.get(&format!("/v1/readings?device=d&format=csv&{MORNING}")).await;
    let file = answer.text();
    assert_eq!(file.lines().count(), 3, "{file}");
    let zone = ["--from", "2026-10-25T06:00", "--to", "2026-10-25T08:00", "--tz", "Europe/Berlin"];
    let done = run(&[&["export", "--url", server.url()], &zone[..]].concat()).await;
    assert!(done.code == Some(0) && done.stdout.lines().count() == 2, "{done:?}");
    let done = run(&[&["export", "--url", server.url()], &zone[..4]].concat()).await;
    assert!(done.code == Some(64) && done.stderr.contains("has no offset from UTC"), "{done:?}");

    let request = server.request(Method::DELETE, &format!("/v1/devices/d/readings?{MORNING}"));
    let deleted = server.send(request).await;
    assert_eq!((deleted.status, deleted.json()["deleted"].as_u64()), (200, Some(2)), "{}", deleted.text());
    let left = server.get_json("/v1/devices/d/readings?from=2026-10-25T00:00:00Z&to=2026-10-26T00:00:00Z").await;
    assert_eq!(left["readings"].as_array().expect("readings").len(), 10);
}

#[tokio::test]
async fn a_local_time_that_is_not_one_instant_is_refused_with_both() {
    let server = Server::start(Setup::sqlite()).await;
    for path in ["/v1/devices/d/readings?", "/v1/devices/d/rollups?", "/v1/rollups?", "/v1/readings?"] {
        for (from, said) in [
            (
                "2026-10-25T02:30",
                "exists twice in this time zone, because clocks are set back: write \
              2026-10-25T00:30:00Z or 2026-10-25T01:30:00Z",
            ),
            (
                "2026-03-29T02:30",
                "does not exist in this time zone, because clocks are set forward: write \
              2026-03-29T00:30:00Z or 2026-03-29T01:30:00Z",
            ),
        ] {
            let refused = server.get(&format!("{path}from={from}&tz=Europe/Berlin")).await;
            assert!(refused.status == 400 && refused.text().contains(said), "{path}: {}", refused.text());
        }
        let refused = server.get(&format!("{path}from=2026-11-22T08:00")).await;
        assert!(
            refused.status == 400 && refused.text().contains("time zone (tz), such as Europe/Berlin"),
            "{path}: {}",
            refused.text()
        );
    }
}

#[tokio::test]
async fn a_client_of_flux_is_told_where_influxql_is() {
    let server = Server::start(Setup::sqlite()).await;
    let flux = "from(bucket: \"b\") |> range(start: -1h)";
    for answer in [
        server.get("/api/v2/query?org=o").await,
        server.post("/api/v2/query?org=o", "application/vnd.flux", flux).await,
    ] {
        let said = "tidegauge does not speak Flux; it answers InfluxQL at /query";
        assert_eq!((answer.status, answer.json()["detail"].as_str()), (404, Some(said)));
    }
}
