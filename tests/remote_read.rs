//! Prometheus remote read: a real Prometheus, and every store against a plain list of samples.

use std::collections::BTreeMap;

use prost::Message;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use regex::Regex;
use serde_json::{Value, json};

use crate::harness::{Answer, Database, Prometheus, Server, Setup, encoded, now_ms, secret_of, wait_until};
use crate::remote_write::{Label, Sample, TimeSeries};

const TS_MS: i64 = 1_713_621_600_000; // 2024-04-20T14:00:00Z

#[derive(Clone, PartialEq, Message)]
struct ReadRequest {
    #[prost(message, repeated, tag = "1")]
    queries: Vec<Query>,
    #[prost(int32, repeated, tag = "2")]
    accepted_response_types: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Query {
    #[prost(int64, tag = "1")]
    start_timestamp_ms: i64,
    #[prost(int64, tag = "2")]
    end_timestamp_ms: i64,
    #[prost(message, repeated, tag = "3")]
    matchers: Vec<Matcher>,
}

#[derive(Clone, PartialEq, Message)]
struct Matcher {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, tag = "3")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct ReadResponse {
    #[prost(message, repeated, tag = "1")]
    results: Vec<QueryResult>,
}

#[derive(Clone, PartialEq, Message)]
struct QueryResult {
    #[prost(message, repeated, tag = "1")]
    timeseries: Vec<TimeSeries>,
}

#[derive(Clone, PartialEq, Message)]
struct ChunkedReadResponse {
    #[prost(message, repeated, tag = "1")]
    chunked_series: Vec<ChunkedSeries>,
    #[prost(int64, tag = "2")]
    query_index: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ChunkedSeries {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    chunks: Vec<Chunk>,
}

#[derive(Clone, PartialEq, Message)]
struct Chunk {
    #[prost(int64, tag = "1")]
    min_time_ms: i64,
    #[prost(int64, tag = "2")]
    max_time_ms: i64,
    #[prost(int32, tag = "3")]
    kind: i32,
    #[prost(bytes = "vec", tag = "4")]
    data: Vec<u8>,
}

fn matcher(kind: i32, name: &str, value: &str) -> Matcher {
    Matcher { kind, name: name.to_owned(), value: value.to_owned() }
}

fn query(range_ms: (i64, i64), matchers: Vec<Matcher>) -> Query {
    Query { start_timestamp_ms: range_ms.0, end_timestamp_ms: range_ms.1, matchers }
}

async fn post(server: &Server, token: Option<&str>, request: &ReadRequest) -> Answer {
    let body = snap::raw::Encoder::new().compress_vec(&request.encode_to_vec()).expect("memory");
    let http = server.request(reqwest::Method::POST, "/api/v1/read").header("content-type", "application/x-protobuf");
    let http = http.header("accept-encoding", "snappy, gzip").header("content-encoding", "snappy").body(body);
    server.send(if let Some(token) = token { http.bearer_auth(secret_of(token)) } else { http }).await
}

/// The samples by labels of each query.
type Results = Vec<BTreeMap<Vec<(String, String)>, Vec<(i64, f64)>>>;

fn results(answer: &Answer) -> Results {
    assert_eq!(answer.status, 200, "{}", answer.text());
    if answer.header("content-type").contains("streamed") {
        return chunked_results(answer);
    }
    let headers = (answer.header("content-type"), answer.header("content-encoding"));
    assert_eq!(headers, ("application/x-protobuf", "snappy"));
    let body = snap::raw::Decoder::new().decompress_vec(&answer.body).expect("snappy");
    let response = ReadResponse::decode(&body[..]).expect("a response");
    let series = |of: TimeSeries| {
        let labels: Vec<_> = of.labels.into_iter().map(|label| (label.name, label.value)).collect();
        assert!(labels.is_sorted() && !of.samples.is_empty(), "{labels:?}");
        (labels, of.samples.iter().map(|Sample { value, timestamp }| (*timestamp, *value)).collect())
    };
    let of_query = |result: QueryResult| result.timeseries.into_iter().map(series).collect();
    response.results.into_iter().map(of_query).collect()
}

/// The samples of frames with chunks, whose last series is that of the last query.
fn chunked_results(answer: &Answer) -> Results {
    let media = "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse";
    assert_eq!((answer.header("content-type"), answer.header("content-encoding")), (media, ""));
    let mut results = Results::new();
    let mut rest = &answer.body[..];
    let mut before = None;
    while !rest.is_empty() {
        let length = prost::decode_length_delimiter(&mut rest).expect("a length");
        let (message, next) = rest[4..].split_at(length); // the checksum is a matter of unit tests and Prometheus
        rest = next;
        let frame = ChunkedReadResponse::decode(message).expect("a message");
        assert_eq!(frame.chunked_series.len(), 1);
        results.resize(usize::try_from(frame.query_index).expect("an index") + 1, BTreeMap::new());
        for ChunkedSeries { labels, chunks } in frame.chunked_series {
            let labels: Vec<_> = labels.into_iter().map(|label| (label.name, label.value)).collect();
            let place = Some((frame.query_index, labels.clone()));
            assert!(labels.is_sorted() && before < place, "the series of a query are sorted");
            before = place;
            let mut samples = Vec::new();
            for Chunk { min_time_ms, max_time_ms, kind, data } in chunks {
                let of_chunk = decoded_chunk(&data);
                let edges = of_chunk.first().zip(of_chunk.last()).map(|(first, last)| (first.0, last.0, 1));
                assert_eq!(edges, Some((min_time_ms, max_time_ms, kind)));
                samples.extend(of_chunk);
            }
            results.last_mut().expect("a query").insert(labels, samples);
        }
    }
    results
}

fn varint(bits: &mut impl FnMut(u32) -> u64) -> u64 {
    let (more, low) = (bits(1), bits(7));
    if more == 1 { low | varint(bits) << 7 } else { low }
}

/// The samples of an XOR chunk.
fn decoded_chunk(data: &[u8]) -> Vec<(i64, f64)> {
    let mut at = 0;
    let mut bits = |count: u32| {
        (0..count).fold(0_u64, |number, _| {
            let bit = data[at / 8] >> (7 - at % 8) & 1;
            at += 1;
            number << 1 | u64::from(bit)
        })
    };
    let samples = bits(16);
    let first = varint(&mut bits);
    let (mut ts, mut value) = ((first >> 1).cast_signed() ^ -(first & 1).cast_signed(), bits(64));
    let (mut delta, mut leading, mut width) = (0, 0, 0);
    let mut found = vec![(ts, f64::from_bits(value))];
    for nth in 1..samples {
        if nth == 1 {
            delta = varint(&mut bits).cast_signed();
        } else {
            let class = (0..4).take_while(|_| bits(1) == 1).count();
            let size = [0, 14, 17, 20, 64][class];
            let change = bits(size).cast_signed();
            let is_negative = (1..64).contains(&size) && change > 1 << (size - 1);
            delta += if is_negative { change - (1 << size) } else { change };
        }
        ts += delta;
        if bits(1) == 1 {
            if bits(1) == 1 {
                leading = bits(5) as u32;
                width = (bits(6) as u32 + 63) % 64 + 1;
            }
            value ^= bits(width) << (64 - leading - width);
        }
        found.push((ts, f64::from_bits(value)));
    }
    found
}

#[tokio::test]
async fn prometheus_computes_the_same_from_tidegauge_as_from_its_own_samples() {
    let server = Server::start(Setup::sqlite()).await;
    let writer = Prometheus::start(server.url()).await;
    let device = writer.instance();
    let begin_ms = now_ms();
    let at_ms = wait_until("twelve seconds of samples are there", async || {
        let latest = server.get_json(&format!("/v1/latest?device={device}&metric=up")).await;
        let ts = latest["devices"][0]["metrics"].as_object()?.values().next()?["ts"].as_str()?.to_owned();
        let ts_ms = ts.parse::<jiff::Timestamp>().expect("a time").as_millisecond();
        (ts_ms - begin_ms > 12_000).then_some(ts_ms)
    })
    .await;
    let reader = Prometheus::reading(server.url()).await;
    for expression in [
        "sum by (job) (scrape_samples_scraped)",
        "count({__name__=~\"go_.*\"})",
        "sum(rate(prometheus_tsdb_head_samples_appended_total[10s]))",
        "max_over_time(go_goroutines[10s])",
        "max_over_time(go_goroutines{instance!=\"none\",job=~\"it.+\"}[10s])",
    ] {
        let (own, read) = (writer.query(expression, at_ms).await, reader.query(expression, at_ms).await);
        assert!(own.as_array().is_some_and(|series| !series.is_empty()), "{expression}: {own}");
        assert_eq!(own, read, "{expression}");
    }
}

#[tokio::test]
async fn every_store_answers_the_samples_of_the_series_that_match() {
    let databases = [Database::new(), Database::new(), Database::new()];
    for setup in Setup::of_each_store(&databases) {
        let server = Server::start(setup).await;
        let mut dice = StdRng::seed_from_u64(7);
        // The samples by device, metric, label `side`, and instant.
        let mut sent: BTreeMap<(String, String, String), BTreeMap<i64, f64>> = BTreeMap::new();
        for round in 0..2 {
            let mut lines = String::new();
            for _ in 0..120 {
                let device = format!("d{}", dice.random_range(0..4));
                let metric = ["temp", "level", "job:x"][dice.random_range(0..3)];
                let side = ["", "left", "right"][dice.random_range(0..3)];
                let ts_ms = TS_MS + dice.random_range(0..5) * 3_600_000 + dice.random_range(0..50);
                let name = if side.is_empty() { metric.to_owned() } else { format!("{metric}{{side={side}}}") };
                let of_series = sent.entry((device.clone(), metric.to_owned(), side.to_owned())).or_default();
                if of_series.contains_key(&ts_ms) {
                    continue; // a time series keeps the first value
                }
                let value = f64::from(dice.random_range(-1_000..1_000)) / 8.0;
                of_series.insert(ts_ms, value);
                lines += &json!({ "deviceId": device, "ts": ts_ms, "values": { name: value } }).to_string();
                lines.push('\n');
            }
            let accepted = server.post("/v1/readings", "application/x-ndjson", lines).await;
            assert_eq!(accepted.status, 200, "{}", accepted.text());
            if round == 0 {
                server.settled().await; // the second half is pending
            }
        }
        for case in 0..60 {
            let names = ["instance", "__name__", "side", "absent"];
            let values = ["d1", "d[02]", "d1|d3", "temp", "level|temp", "job:x", ".*", "left", "", ".+t"];
            let matchers: Vec<Matcher> = (0..dice.random_range(0..3))
                .map(|_| {
                    let (name, value) = (dice.random_range(0..4), dice.random_range(0..values.len()));
                    matcher(dice.random_range(0..4), names[name], values[value])
                })
                .collect();
            let edge = |dice: &mut StdRng| TS_MS + dice.random_range(-1..5) * 3_600_000 + dice.random_range(0..50);
            let range_ms = (edge(&mut dice), if case == 0 { i64::MAX } else { edge(&mut dice) });
            let matches = |labels: &[(String, String)]| {
                matchers.iter().all(|Matcher { kind, name, value }| {
                    let found = labels.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value);
                    let is_same = match kind {
                        0 | 1 => found == value,
                        _ => Regex::new(&format!("^(?:{value})$")).expect("an expression").is_match(found),
                    };
                    is_same != (kind % 2 == 1)
                })
            };
            let mut expected = BTreeMap::new();
            for ((device, metric, side), samples) in &sent {
                let mut labels = vec![("__name__".to_owned(), metric.clone()), ("instance".to_owned(), device.clone())];
                if !side.is_empty() {
                    labels.push(("side".to_owned(), side.clone()));
                }
                let samples: Vec<_> = samples.iter().map(|(ts_ms, value)| (*ts_ms, *value)).collect();
                let inside = |(ts_ms, _): &(i64, f64)| (range_ms.0..=range_ms.1).contains(ts_ms);
                let samples: Vec<_> = samples.into_iter().filter(inside).collect();
                if !samples.is_empty() && matches(&labels) {
                    expected.insert(labels, samples);
                }
            }
            for types in [vec![0, 1], vec![1, 0]] {
                let is_chunked = types[0] == 1;
                let queries = vec![query(range_ms, matchers.clone()); 1 + usize::from(is_chunked)];
                let request = ReadRequest { queries, accepted_response_types: types };
                let found = results(&post(&server, None, &request).await);
                let expected = if !is_chunked {
                    vec![expected.clone()]
                } else if expected.is_empty() {
                    Vec::new()
                } else {
                    vec![expected.clone(); 2]
                };
                assert_eq!(found, expected, "case {case}: {range_ms:?} {matchers:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_read_is_whole_or_refused_and_shows_the_devices_of_its_token_only() {
    let tenant = |name: &str| format!("scopes = ['ingest', 'query']\ndevice_prefix = '{name}/'");
    let setup = Setup::sqlite()
        .set("query.max_points", 1_000)
        .token("operator", "scopes = ['admin']")
        .token("acme", &tenant("acme"))
        .token("other", &tenant("other"))
        .token("writer", "scopes = ['ingest']");
    let server = Server::start(setup).await;
    for (name, value) in [("acme", 1.0), ("other", 2.0)] {
        let lines: Vec<_> = (0..600).map(|at| json!({ "deviceId": "S1", "ts": TS_MS + at, "value": value })).collect();
        let request = server.request(reqwest::Method::POST, "/v1/readings").bearer_auth(secret_of(name));
        let request = request.header("content-type", "application/json").body(json!(lines).to_string());
        assert_eq!(server.send(request).await.status, 200);
    }
    let all = || query((0, i64::MAX), vec![matcher(0, "instance", "S1")]);
    let of = |queries: Vec<Query>| ReadRequest { queries, accepted_response_types: vec![] };
    let found = results(&post(&server, Some("acme"), &of(vec![all()])).await);
    let samples: Vec<_> = found[0].values().flatten().map(|(_, value)| *value).collect();
    assert_eq!((found[0].len(), samples), (1, vec![1.0; 600]));
    let foreign = query((0, i64::MAX), vec![matcher(0, "instance", "other/S1")]);
    assert_eq!(results(&post(&server, Some("acme"), &of(vec![foreign])).await), [BTreeMap::new()]);

    for (token, request, status, why) in [
        ("acme", of(vec![all(), all()]), 400, "at most 1000 are allowed (query.max_points)"),
        ("acme", of(vec![query((0, 1), vec![matcher(2, "job", "(")])]), 400, "missing closing )"),
        ("acme", of(vec![query((0, 1), vec![matcher(9, "job", "")])]), 400, "unknown type 9"),
        ("acme", ReadRequest { queries: vec![all()], accepted_response_types: vec![2] }, 400, "STREAMED_XOR_CHUNKS"),
        ("writer", of(vec![all()]), 403, "query"),
    ] {
        let refused = post(&server, Some(token), &request).await;
        assert_eq!(refused.status, status, "{}", refused.text());
        assert!(refused.text().contains(why), "{}", refused.text());
    }
    let chunked = |queries| ReadRequest { queries, accepted_response_types: vec![1] };
    let noise: Vec<_> =
        (0..10_000).map(|at| json!({ "deviceId": "S2", "ts": TS_MS + at, "value": at as f64 / 7.0 })).collect();
    let request = server.request(reqwest::Method::POST, "/v1/readings").bearer_auth(secret_of("acme"));
    let request = request.header("content-type", "application/json").body(json!(noise).to_string());
    assert_eq!(server.send(request).await.status, 200);
    let all_noise = query((0, i64::MAX), vec![matcher(0, "instance", "S2")]);
    let refused = post(&server, Some("acme"), &chunked(vec![all_noise])).await;
    assert!(refused.status == 400 && refused.text().contains("more than 64000 bytes"), "{}", refused.text());
    let found = results(&post(&server, Some("acme"), &chunked(vec![all(); 16])).await);
    assert!(found.len() == 16 && found.iter().all(|of| of.values().all(|samples| samples.len() == 600)));
    assert_eq!(post(&server, None, &of(vec![all()])).await.status, 401);
    let request = server.request(reqwest::Method::POST, "/api/v1/read").bearer_auth(secret_of("acme"));
    let refused = server.send(request.body("no snappy")).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
}

#[tokio::test]
async fn series_of_a_device_with_more_than_the_index_keeps_are_found_and_count_only_if_they_match() {
    let setup = Setup::sqlite()
        .set("ingest.max_metrics_per_reading", 4_096)
        .set("limits.device_metrics_per_hour", 0)
        .set("query.max_points", 1_000);
    series_beyond_the_index_are_found(&Server::start(setup.clone().all_pending()).await, false).await;
    series_beyond_the_index_are_found(&Server::start(setup).await, true).await;
}

async fn series_beyond_the_index_are_found(server: &Server, is_stored: bool) {
    let later_ms = TS_MS + 86_400_000;
    let pods =
        |from: u32| -> Value { (from..from + 4_000).map(|pod| (format!("pod_cpu{{pod={pod}}}"), pod)).collect() };
    let reading =
        |device: &str, ts_ms: i64, values: Value| json!({ "deviceId": device, "ts": ts_ms, "values": values });
    // The index leaves out the series that are silent for longest.
    server
        .accepts(&json!([
            reading("big", TS_MS, json!({ "room.temp": 21.5 })),
            reading("big", later_ms, pods(0)),
            reading("big", later_ms + 1, pods(4_000)),
            reading("small", TS_MS, json!({ "room_temp": 22.5 })),
        ]))
        .await;
    if is_stored {
        server.settled().await;
    }
    let device = server.get_json("/v1/devices/big").await;
    assert_eq!(device["moreMetrics"], true);
    assert!(!device["metrics"].as_array().expect("a list").contains(&json!("room.temp")));

    let labels = |labels: &[(&str, &str)]| -> Vec<(String, String)> {
        labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let of_big = labels(&[("__name__", "room_temp"), ("instance", "big"), ("series", "room.temp")]);
    let of_small = labels(&[("__name__", "room_temp"), ("instance", "small")]);
    let rooms = BTreeMap::from([(of_big, vec![(TS_MS, 21.5)]), (of_small, vec![(TS_MS, 22.5)])]);
    let of_pod = labels(&[("__name__", "pod_cpu"), ("instance", "big"), ("pod", "7999")]);
    let pod = BTreeMap::from([(of_pod, vec![(later_ms + 1, 7_999.0)])]);
    for (matcher, expected) in [
        (matcher(0, "__name__", "room_temp"), &rooms),
        (matcher(2, "__name__", "other|room_temp"), &rooms),
        (matcher(2, "__name__", "room_.*"), &rooms),
        (matcher(0, "pod", "7999"), &pod),
    ] {
        let queries = vec![query((0, i64::MAX), vec![matcher.clone()])];
        let request = ReadRequest { queries, accepted_response_types: vec![] };
        assert_eq!(results(&post(server, None, &request).await), std::slice::from_ref(expected), "{matcher:?}");
    }
    let queries = vec![query((0, i64::MAX), vec![matcher(0, "__name__", "pod_cpu")])];
    let refused = post(server, None, &ReadRequest { queries, accepted_response_types: vec![] }).await;
    assert_eq!((refused.status, &refused.json()["code"]), (400, &json!("invalid_remote_read")), "{}", refused.text());
}

/// Remote read, and InfluxQL as CSV, have no place for a note on missing readings.
#[tokio::test]
async fn a_read_is_refused_while_readings_wait_for_pending() {
    let setup = Setup::sqlite().set("pending.max_bytes", "16KiB").set("query.catch_up_timeout", "100ms");
    let server = Server::start(setup).await;
    let send = async |batch: i64| {
        let readings = (0..5_000).map(|at| json!({ "deviceId": "d", "ts": TS_MS + batch * 5_000 + at, "value": at }));
        assert_eq!(server.ingest(&readings.collect()).await.status, 200);
    };
    send(0).await;
    server.settled().await;
    let file = rusqlite::Connection::open(server.data_dir().join("tidegauge.sqlite")).expect("the file of the server");
    file.execute_batch("PRAGMA busy_timeout = 60000; BEGIN IMMEDIATE").expect("nobody else writes for long");
    for batch in 1..4 {
        send(batch).await;
    }
    server.logged("pending is full (pending.max_bytes)").await;
    let queries = vec![query((0, i64::MAX), vec![matcher(0, "instance", "d")])];
    let all = ReadRequest { queries, accepted_response_types: vec![] };
    let refused = post(&server, None, &all).await;
    assert_eq!((refused.status, &refused.json()["code"]), (503, &json!("overloaded")), "{}", refused.text());
    let count = format!("/query?q={}", encoded("SELECT count(value) FROM value"));
    let (json, csv) = (server.get_json(&count).await, server.get_as(&count, "text/csv").await);
    let note = json["results"][0]["messages"][0]["text"].as_str();
    assert!(note.is_some_and(|note| note.contains("may be missing")), "the store answers: {json}");
    assert!(csv.text().starts_with("error\nreadings of the last "), "{}", csv.text());

    file.execute_batch("ROLLBACK").expect("it has begun");
    server.settled().await;
    let found = results(&post(&server, None, &all).await);
    assert_eq!(found[0].values().map(Vec::len).sum::<usize>(), 20_000);
    assert!(server.get_as(&count, "text/csv").await.text().starts_with("name,tags,time,count\n"));
}
