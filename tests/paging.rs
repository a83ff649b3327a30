//! Pages of readings: following `next` to the end gives every reading of the range exactly once, for every
//! page size, in every store.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::harness::{Database, Server, Setup, in_stores};

const HOUR_MS: i64 = 3_600_000;
const START_MS: i64 = 1_713_621_600_000; // 2024-04-20T14:00:00Z
const RANGE: &str = "from=2024-04-20T00:00:00Z&to=2024-04-21T00:00:00Z";

/// The readings of the device: the values of each instant by metric.
type Model = BTreeMap<i64, BTreeMap<String, f64>>;

/// The instants of step `step` seconds, ten in each of three hours.
fn instants(step: i64) -> impl Iterator<Item = i64> {
    (0..3).flat_map(move |hour| (0..10).map(move |nth| START_MS + hour * HOUR_MS + nth * step * 1_000))
}

async fn send(server: &Server, model: &mut Model, metric: &str, instants: impl Iterator<Item = i64>) {
    let mut readings = Vec::new();
    for ts in instants {
        let value = (ts / 1_000 % 1_000) as f64 + metric.len() as f64 / 4.0;
        model.entry(ts).or_default().insert(metric.to_owned(), value);
        readings.push(json!({ "ts": ts, "values": { metric: value } }));
    }
    server.accepts(&json!({ "deviceId": "paged", "readings": readings })).await;
}

/// Adds metrics for earlier instants, late readings, and pending readings.
async fn fill(server: &mut Server, setup: Setup) -> Model {
    let mut model = Model::new();
    send(server, &mut model, "temp", instants(60)).await;
    server.settled().await;
    send(server, &mut model, "hum", instants(60)).await;
    server.settled().await;
    send(server, &mut model, "late", instants(50)).await;
    server.settled().await;
    assert!(server.terminate().await.success());
    server.start_again_with(setup.all_pending().set("mongodb.max_readings_per_document", 3_600)).await;
    send(server, &mut model, "pending", instants(40).filter(|ts| ts % 7 != 0)).await;
    send(server, &mut model, "temp", [-1, 4].into_iter().map(|hour| START_MS + hour * HOUR_MS)).await;
    model
}

/// All readings of the device in pages, and the length of each page.
async fn follow(server: &Server, limit: usize, metrics: &[&str]) -> (Vec<Value>, Vec<usize>) {
    let filter: Vec<String> = metrics.iter().map(|metric| format!("&metric={metric}")).collect();
    follow_path(server, &format!("/v1/devices/paged/readings?{RANGE}&limit={limit}{}", filter.concat()), || {}).await
}

/// The same of any path. `between` is called before each page but the first.
async fn follow_path(server: &Server, path: &str, between: impl Fn()) -> (Vec<Value>, Vec<usize>) {
    let (mut readings, mut pages) = (Vec::new(), Vec::new());
    let mut page = server.get_json(path).await;
    loop {
        let of_page = page["readings"].as_array().expect("readings");
        pages.push(of_page.len());
        readings.extend(of_page.iter().cloned());
        let Some(next) = page["next"].as_str() else { return (readings, pages) };
        between();
        page = server.get_json(&format!("{path}&cursor={next}")).await;
    }
}

fn expected(model: &Model, metrics: &[&str]) -> Vec<Value> {
    let wanted: BTreeSet<&str> = metrics.iter().copied().collect();
    let of_instant = |(ts, values): (&i64, &BTreeMap<String, f64>)| {
        let values = values.iter().filter(|(metric, _)| wanted.is_empty() || wanted.contains(metric.as_str()));
        let values: serde_json::Map<String, Value> =
            values.map(|(metric, value)| (metric.clone(), json!(value))).collect();
        let ts = jiff::Timestamp::from_millisecond(*ts).expect("an instant");
        (!values.is_empty()).then(|| json!({ "ts": format!("{ts:.3}"), "values": values }))
    };
    model.iter().filter_map(of_instant).collect()
}

async fn every_page_size_gives_every_reading(setup: Setup) {
    let mut server = Server::start(setup.clone()).await;
    let model = fill(&mut server, setup).await;
    let filters: [&[&str]; 6] =
        [&[], &["temp"], &["hum", "hum"], &["late", "pending"], &["hum", "nosuch"], &["nosuch"]];
    for metrics in filters {
        let expected = expected(&model, metrics);
        for limit in 1..=expected.len() + 2 {
            let (found, pages) = follow(&server, limit, metrics).await;
            assert_eq!(found.len(), expected.len(), "limit {limit}, metrics {metrics:?}, pages of {pages:?}");
            assert_eq!(found, expected, "limit {limit}, metrics {metrics:?}");
            let full = expected.len().saturating_sub(1) / limit;
            assert!(pages.iter().take(full).all(|&page| page == limit), "limit {limit}: pages of {pages:?}");
            assert_eq!(pages.len(), full + 1, "limit {limit}: pages of {pages:?}");
        }
    }
}

in_stores!(every_page_size_gives_every_reading, [sqlite, timeseries]);

#[tokio::test]
async fn a_page_ends_at_the_limit_of_values_per_answer() {
    let setup = Setup::sqlite().set("query.max_points", 7);
    let mut server = Server::start(setup.clone()).await;
    let model = fill(&mut server, setup).await;
    for limit in [1, 3, 1_000] {
        let (found, pages) = follow(&server, limit, &[]).await;
        assert_eq!(found, expected(&model, &[]), "limit {limit}");
        assert!(pages.iter().all(|&page| page <= 7), "limit {limit}: pages of {pages:?}");
    }
}

/// The start of the range moves with the clock, past all readings, while a client asks for the pages.
#[tokio::test]
async fn pages_of_a_range_before_now_are_complete() {
    let server = Server::start_with_clock(Setup::sqlite()).await;
    let (mut model, first_ms) = (Model::new(), server.clock().now_ms() - HOUR_MS / 2);
    send(&server, &mut model, "temp", (0..10).map(|nth| first_ms + nth * 1_000)).await;
    for (range, later_s) in [("from=-1h&", 3_600), ("", 25 * 3_600)] {
        let path = format!("/v1/devices/paged/readings?{range}limit=3");
        let (found, pages) = follow_path(&server, &path, || server.clock().set(later_s)).await;
        assert_eq!((found, pages), (expected(&model, &[]), vec![3, 3, 3, 1]), "{path}");
    }
    let to_ms = first_ms + 5_000;
    for (cursor, status) in [(to_ms - 1, 200), (to_ms, 400), (i64::MIN, 400)] {
        let answer = server.get(&format!("/v1/devices/paged/readings?to={to_ms}&cursor={cursor}")).await;
        assert_eq!(answer.status, status, "{cursor}: {}", answer.text());
    }
}

#[tokio::test]
async fn pages_of_mongodb_are_complete_for_every_limit() {
    let database = Database::new();
    // Small documents, so that metrics that arrive later go to other parts of the hour.
    let setup = Setup::mongodb(&database).set("flush.max_readings", 4).set("mongodb.max_readings_per_document", 4);
    every_page_size_gives_every_reading(setup).await;
}
