//! Prometheus remote write: a real Prometheus, and the answers that the specifications of 1.0 and 2.0 demand.

#[path = "../src/wire/remote_write/tests/messages.rs"]
mod messages;

use prost::Message;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::harness::{Answer, Prometheus, Samples, Server, Setup, secret_of, wait_until};
pub(crate) use messages::Sample;
pub(crate) use messages::v1::{Label, TimeSeries};
use messages::{Count, Histogram, v1, v2};

const V1: &str = "application/x-protobuf";
const V2: &str = "application/x-protobuf;proto=io.prometheus.write.v2.Request";
const TS_MS: i64 = 1_713_621_610_000; // 2024-04-20T14:00:10Z
const TS: &str = "2024-04-20T14:00:10.000Z";
const DAY_MS: i64 = 86_400_000;

fn series(labels: &[(&str, &str)], values: &[f64]) -> TimeSeries {
    let label = |(name, value): &(&str, &str)| Label { name: (*name).to_owned(), value: (*value).to_owned() };
    let sample = |(at, value): (i64, &f64)| Sample { value: *value, timestamp: TS_MS + 1_000 * at };
    let (labels, samples) = (labels.iter().map(label).collect(), (0..).zip(values).map(sample).collect());
    TimeSeries { labels, samples, ..TimeSeries::default() }
}

fn encoded(timeseries: Vec<TimeSeries>) -> Vec<u8> {
    v1::WriteRequest { timeseries, ..v1::WriteRequest::default() }.encode_to_vec()
}

fn compressed(body: &[u8]) -> Vec<u8> {
    snap::raw::Encoder::new().compress_vec(body).expect("memory")
}

async fn write(server: &Server, timeseries: Vec<TimeSeries>) -> Answer {
    post(server, V1, compressed(&encoded(timeseries))).await
}

/// Writes a sample of a metric for each device.
pub(crate) async fn of_devices(server: &Server, metric: &str, devices: &[String]) {
    let of = |device: &String| series(&[("__name__", metric), ("device", device)], &[1.0]);
    let answer = write(server, devices.iter().map(of).collect()).await;
    assert_eq!(answer.status, 204, "{}", answer.text());
}

async fn post(server: &Server, content_type: &str, body: Vec<u8>) -> Answer {
    let request = server.request(reqwest::Method::POST, "/api/v1/write").header("content-type", content_type);
    server.send(request.header("content-encoding", "snappy").body(body)).await
}

#[tokio::test]
async fn an_instance_of_dots_is_rejected() {
    let server = Server::start(Setup::sqlite()).await;
    for instance in [".", ".."] {
        let label = |(name, value): (&str, &str)| Label { name: name.to_owned(), value: value.to_owned() };
        let labels = [("__name__", "temp"), ("instance", instance)].map(label).to_vec();
        let samples = vec![Sample { value: 1.0, timestamp: TS_MS }];
        let answer = write(&server, vec![TimeSeries { labels, samples, ..TimeSeries::default() }]).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.text().contains("must not be \".\" or \"..\""), "{}", answer.text());
    }
}

/// Prometheus writes its own metrics for `REMOTE_WRITE_SECONDS` (5), and tidegauge has each sample.
#[tokio::test]
async fn a_real_prometheus_finds_each_of_its_samples() {
    let seconds = std::env::var("REMOTE_WRITE_SECONDS").map_or(5, |seconds| seconds.parse().expect("a number"));
    let server = Server::start(Setup::sqlite()).await;
    let prometheus = Prometheus::start(server.url()).await;
    let device = prometheus.instance();
    let latest = format!("/v1/devices/{device}/latest?metric=up");
    // The samples of a scrape are written in their order, that of `up` after those of the target.
    let up = async || Some(server.get(&latest).await).filter(|answer| answer.status == 200);
    wait_until("the first scrape arrives", up).await;
    let scrapes = async || {
        let latest = server.get_json(&latest).await["metrics"]["up{job=itself}"]["ts"].take();
        let until_ms = ms(&latest);
        let scrapes = prometheus.samples("up[1d]", until_ms).await.len();
        (scrapes >= seconds).then_some(until_ms)
    };
    let until_ms = wait_until("so many scrapes arrive", scrapes).await;
    let all = prometheus.samples("{__name__=~\".+\"}[1d]", until_ms).await;
    let expected: Samples =
        all.iter().filter(|(_, value)| value.is_finite()).map(|(at, value)| (at.clone(), *value)).collect();
    assert!(expected.len() > 300 * seconds, "{} samples", expected.len());
    let found = async || Some(samples(&server, &device, until_ms).await).filter(|found| found.len() >= expected.len());
    let found = wait_until("each sample arrives", found).await;
    let missing: Vec<_> = expected.iter().filter(|(at, value)| found.get(at) != Some(value)).take(5).collect();
    let surplus: Vec<_> = found.iter().filter(|(at, _)| !expected.contains_key(at)).take(5).collect();
    assert!(missing.is_empty() && surplus.is_empty(), "missing: {missing:?}, surplus: {surplus:?}");

    let metrics = server.metrics().await;
    assert_eq!(metrics.count_where("tidegauge_readings_rejected_total", &[("protocol", "remote_write")]), 0);
    let of_non_finite = [("protocol", "remote_write"), ("reason", "non_finite")];
    let ignored = metrics.count_where("tidegauge_fields_ignored_total", &of_non_finite) as usize;
    assert!(ignored >= all.len() - expected.len() && ignored > 0, "{ignored} samples are not finite");
    println!("{} samples of {seconds} scrapes are equal, {ignored} are not finite", expected.len());
}

/// All samples of a device up to an instant.
async fn samples(server: &Server, device: &str, until_ms: i64) -> Samples {
    let mut samples = Samples::new();
    let mut cursor = String::new();
    loop {
        let path = format!("/v1/devices/{device}/readings?from={}&to={}{cursor}", until_ms - DAY_MS, until_ms + 1);
        let mut page = server.get_json(&path).await;
        for reading in page["readings"].as_array().expect("readings") {
            for (series, value) in reading["values"].as_object().expect("values") {
                samples.insert((ms(&reading["ts"]), series.clone()), value.as_f64().expect("a number"));
            }
        }
        match page["next"].take() {
            Value::String(next) => cursor = format!("&cursor={next}"),
            _ => return samples,
        }
    }
}

fn ms(ts: &Value) -> i64 {
    ts.as_str().expect("a time").parse::<jiff::Timestamp>().expect("RFC 3339").as_millisecond()
}

#[tokio::test]
async fn series_become_readings_with_labels() {
    let server = Server::start(Setup::sqlite()).await;
    let all = vec![
        series(&[("__name__", "up"), ("instance", "a:9100"), ("job", "node")], &[1.0, 0.0]),
        series(&[("__name__", "disk_free"), ("device", "sda"), ("instance", "a:9100")], &[5.0]),
        series(&[("__name__", "temp"), ("device", "d"), ("room", "")], &[20.5]),
    ];
    let answer = write(&server, all.clone()).await;
    assert_eq!((answer.status, answer.text()), (204, ""));
    assert_eq!(answer.header("x-prometheus-remote-write-samples-written"), "");
    assert_eq!(write(&server, all).await.status, 204, "a repeated request is the same");
    assert_eq!(
        server.readings("a:9100").await,
        json!([
            { "ts": TS, "values": { "disk_free{device=sda}": 5.0, "up{job=node}": 1.0 } },
            { "ts": "2024-04-20T14:00:11.000Z", "values": { "up{job=node}": 0.0 } },
        ])
    );
    assert_eq!(server.readings("d").await, json!([{ "ts": TS, "values": { "temp": 20.5 } }]));
    let metrics = server.metrics().await;
    assert!(metrics.count_where("tidegauge_readings_accepted_total", &[("protocol", "remote_write")]) > 0);
}

/// Prometheus writes its alerts too, and an alert about a silent device names the device.
#[tokio::test]
async fn alerts_and_latest_values_are_no_readings_of_the_device_that_they_name() {
    let server = Server::start(Setup::sqlite()).await;
    let all = vec![
        series(&[("__name__", "ALERTS"), ("alertname", "Silent"), ("device", "silent")], &[1.0]),
        series(&[("__name__", "ALERTS_FOR_STATE"), ("alertname", "Other")], &[1.0]),
        series(&[("__name__", "tidegauge_latest_value"), ("device", "silent"), ("instance", "a:8080")], &[1.0]),
    ];
    let answer = write(&server, all).await;
    assert_eq!((answer.status, answer.text()), (204, ""));
    assert_eq!(server.get_json("/v1/devices").await["devices"], json!([]));
    let derived = [("protocol", "remote_write"), ("reason", "derived")];
    assert_eq!(server.metrics().await.count_where("tidegauge_fields_ignored_total", &derived), 3);
}

#[tokio::test]
async fn version_2_is_answered_with_the_numbers_of_what_is_written() {
    let server = Server::start(Setup::sqlite()).await;
    let symbols = ["", "__name__", "up", "instance", "a", "m{"].map(str::to_owned).to_vec();
    let sample = |ms| Sample { value: 1.0, timestamp: TS_MS + ms };
    let histogram = Histogram {
        count: Some(Count::Whole(2)),
        sum: 3.5,
        positive_deltas: vec![1, 0],
        timestamp: TS_MS,
        ..Histogram::default()
    };
    let of = |labels_refs: [u32; 4], samples| v2::TimeSeries {
        labels_refs: labels_refs.to_vec(),
        samples,
        ..v2::TimeSeries::default()
    };
    let histograms = vec![histogram.clone(), Histogram { timestamp: TS_MS + 1, ..histogram }];
    let good = v2::TimeSeries { histograms, ..of([1, 2, 3, 4], vec![sample(0), sample(1)]) };
    let bad = of([1, 5, 3, 4], vec![sample(0)]);
    let written = |answer: &Answer| {
        ["samples", "histograms", "exemplars"]
            .map(|what| answer.header(&format!("x-prometheus-remote-write-{what}-written")).to_owned())
    };
    let request = v2::Request { symbols, timeseries: vec![good] };
    let answer = post(&server, V2, compressed(&request.encode_to_vec())).await;
    assert_eq!((answer.status, written(&answer)), (204, ["2", "2", "0"].map(str::to_owned)));
    let request = v2::Request { timeseries: vec![request.timeseries[0].clone(), bad], ..request };
    let answer = post(&server, V2, compressed(&request.encode_to_vec())).await;
    assert_eq!((answer.status, written(&answer)), (400, ["2", "2", "0"].map(str::to_owned)));
    let answer = post(&server, V2, b"not snappy".to_vec()).await;
    assert_eq!((answer.status, written(&answer)), (400, ["0", "0", "0"].map(str::to_owned)));
    let metrics = server.metrics().await;
    let of_histograms = [("protocol", "remote_write"), ("reason", "histogram")];
    assert_eq!(metrics.count_where("tidegauge_fields_ignored_total", &of_histograms), 4);
    assert_eq!(server.readings("a").await[0]["values"], json!({ "up": 1.0, "up_count": 2.0, "up_sum": 3.5 }));
}

/// The target counts up: each scrape has one observation more, of 0.5.
#[tokio::test]
async fn a_real_prometheus_sends_the_counts_and_sums_of_native_histograms() {
    let server = Server::start(Setup::sqlite()).await;
    let socket = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let target = socket.local_addr().expect("it is bound");
    let scraped = tokio::spawn(serve_histograms(socket));
    let _prometheus = Prometheus::of_histograms(target, server.url()).await;
    let device = target.to_string();
    let path = format!("/v1/devices/{device}/readings?from=-1h&metric=rpc_count&metric=rpc_sum");
    let (counts, sums) = wait_until("three histograms arrive", async || {
        let answer = server.get(&path).await;
        let readings = if answer.status == 200 { answer.json()["readings"].take() } else { json!([]) };
        let of = |series: &str| -> Vec<f64> {
            readings.as_array().expect("a list").iter().filter_map(|of| of["values"][series].as_f64()).collect()
        };
        let (counts, sums) = (of("rpc_count{job=it}"), of("rpc_sum{job=it}"));
        (counts.len() >= 3).then_some((counts, sums))
    })
    .await;
    assert!(counts.windows(2).all(|two| two[0] < two[1]), "{counts:?}");
    assert_eq!(sums, counts.iter().map(|count| count / 2.0).collect::<Vec<_>>());
    let metrics = server.metrics().await;
    let of_histograms = [("protocol", "remote_write"), ("reason", "histogram")];
    assert!(metrics.count_where("tidegauge_fields_ignored_total", &of_histograms) >= 3);
    scraped.abort();
}

/// Answers each scrape with a native histogram, in the protobuf format of Prometheus.
async fn serve_histograms(socket: TcpListener) {
    for n in 1.. {
        let (mut stream, _) = socket.accept().await.expect("Prometheus connects");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("a request"));
        }
        let histogram = ClientHistogram {
            sample_count: n,
            sample_sum: n as f64 / 2.0,
            schema: Some(0),
            zero_threshold: Some(1e-9),
            zero_count: Some(0),
            positive_span: vec![Span { offset: -1, length: 1 }],
            positive_delta: vec![n.cast_signed()],
        };
        let family = Family { name: "rpc".to_owned(), kind: 4, metric: vec![Metric { histogram: Some(histogram) }] };
        let kind = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";
        let body = family.encode_length_delimited_to_vec();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), &body].concat()).await.expect("Prometheus reads");
    }
}

/// `io.prometheus.client.MetricFamily`.
#[derive(Clone, PartialEq, Message)]
struct Family {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int32, tag = "3")]
    kind: i32,
    #[prost(message, repeated, tag = "4")]
    metric: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(message, optional, tag = "7")]
    histogram: Option<ClientHistogram>,
}

#[derive(Clone, PartialEq, Message)]
struct ClientHistogram {
    #[prost(uint64, tag = "1")]
    sample_count: u64,
    #[prost(double, tag = "2")]
    sample_sum: f64,
    #[prost(sint32, optional, tag = "5")]
    schema: Option<i32>,
    #[prost(double, optional, tag = "6")]
    zero_threshold: Option<f64>,
    #[prost(uint64, optional, tag = "7")]
    zero_count: Option<u64>,
    #[prost(message, repeated, tag = "12")]
    positive_span: Vec<Span>,
    #[prost(sint64, repeated, packed = "false", tag = "13")]
    positive_delta: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(sint32, tag = "1")]
    offset: i32,
    #[prost(uint32, tag = "2")]
    length: u32,
}

#[tokio::test]
async fn rejected_samples_are_named_and_the_others_are_kept() {
    let server = Server::start(Setup::sqlite()).await;
    let all = vec![
        series(&[("__name__", "up"), ("instance", "a")], &[1.0, f64::NAN]),
        series(&[("__name__", "up"), ("instance", "a"), ("l", "a\nb")], &[1.0]),
        series(&[("__name__", "up"), ("job", "b")], &[1.0]),
        series(&[("__name__", "up"), ("instance", "a ")], &[1.0]),
    ];
    let answer = write(&server, all).await;
    assert_eq!((answer.status, answer.header("content-type")), (400, "text/plain; charset=utf-8"));
    assert_eq!(
        answer.text(),
        "3 of 4 samples are rejected, the others are stored: device a: a label has a key and a value without control \
         characters, U+FF0E and U+FF04, unlike \"l=a\\nb\"; no label of \"up\" names the device (looked for deviceId, \
         device_id, sensor_id, sensorId, instance, host, device); device a : a device id must not begin or end with a \
         space: remove it\n"
    );
    assert_eq!(server.readings("a").await, json!([{ "ts": TS, "values": { "up": 1.0 } }]));
}

#[tokio::test]
async fn requests_that_are_none_are_refused() {
    let server = Server::start(Setup::sqlite().set("http.max_body_bytes", 1_000)).await;
    let body = || compressed(&encoded(vec![series(&[("__name__", "up"), ("instance", "a")], &[1.0])]));
    for content_type in ["application/json", "application/x-protobuf;proto=io.prometheus.write.v3.Request"] {
        let answer = post(&server, content_type, body()).await;
        assert_eq!(answer.status, 415, "{content_type}");
        assert!(answer.text().starts_with("expected application/x-protobuf"), "{}", answer.text());
    }
    let answer = post(&server, V2, body()).await;
    assert_eq!(answer.status, 400);
    assert!(answer.text().starts_with("the body is not a io.prometheus.write.v2.Request"), "{}", answer.text());
    assert_eq!(post(&server, V1, compressed(b"not protobuf")).await.status, 400);
    assert_eq!(post(&server, V1, b"not snappy".to_vec()).await.status, 400);
    assert_eq!(post(&server, V1, compressed(&[0; 1_001])).await.status, 413);
    let request = server.request(reqwest::Method::POST, "/api/v1/write").header("content-type", V1);
    assert_eq!(server.send(request.header("content-encoding", "lz4").body(body())).await.status, 415);
    assert_eq!(server.get("/api/v1/write").await.status, 405);
    let metrics = server.metrics().await;
    for (reason, count) in
        [("invalid_remote_write", 2), ("unsupported_media_type", 3), ("body_too_large", 1), ("invalid_body", 1)]
    {
        let labels = [("protocol", "remote_write"), ("reason", reason)];
        assert_eq!(metrics.count_where("tidegauge_readings_rejected_total", &labels), count, "{reason}");
    }
}

#[tokio::test]
async fn a_body_without_an_encoding_is_snappy_and_others_are_named() {
    let server = Server::start(Setup::sqlite()).await;
    let body = |at| encoded(vec![series(&[("__name__", "up"), ("instance", at)], &[1.0])]);
    let request = || server.request(reqwest::Method::POST, "/api/v1/write").header("content-type", V1);
    let plain = server.send(request().body(compressed(&body("a")))).await;
    let zstd = zstd::encode_all(&*body("b"), 3).expect("memory");
    let zstd = server.send(request().header("content-encoding", "zstd").body(zstd)).await;
    let identity = server.send(request().header("content-encoding", "identity").body(body("c"))).await;
    assert_eq!([plain.status, zstd.status, identity.status], [204; 3]);
    for device in ["a", "b", "c"] {
        assert_eq!(server.readings(device).await[0]["values"], json!({ "up": 1.0 }));
    }
}

#[tokio::test]
async fn a_token_needs_the_scope_to_ingest() {
    let tokens = Setup::sqlite().token("operator", "scopes = ['admin']").token("writer", "scopes = ['ingest']");
    let server = Server::start(tokens.token("reader", "scopes = ['query']")).await;
    let body = compressed(&encoded(vec![series(&[("__name__", "up"), ("instance", "a")], &[1.0])]));
    for (name, status) in [("writer", 204), ("reader", 403), ("nobody", 401)] {
        let request = server.request(reqwest::Method::POST, "/api/v1/write").header("content-type", V1);
        let answer = server.send(request.bearer_auth(secret_of(name)).body(body.clone())).await;
        assert_eq!(answer.status, status, "{name}: {}", answer.text());
        assert!(status == 204 || answer.header("content-type").starts_with("text/plain"), "{name}");
    }
}

#[tokio::test]
async fn labels_of_devices_and_metadata_are_configurable() {
    let labels = |names: &[&str]| toml::Value::from(names.to_vec());
    let section: toml::Table =
        [("device_labels".to_owned(), labels(&["pod"])), ("metadata_labels".to_owned(), labels(&["node", "zone"]))]
            .into_iter()
            .collect();
    let server = Server::start(Setup::sqlite().set("ingest.remote_write", section)).await;
    let all =
        vec![series(&[("__name__", "up"), ("instance", "i"), ("node", "n1"), ("pod", "p"), ("zone", "z")], &[1.0])];
    assert_eq!(write(&server, all).await.status, 204);
    let device = server.get_json("/v1/devices").await["devices"][0].take();
    assert_eq!((&device["deviceId"], &device["metadata"]), (&json!("p"), &json!({ "node": "n1", "zone": "z" })));
    assert_eq!(server.readings("p").await[0]["values"], json!({ "up{instance=i}": 1.0 }));
}
