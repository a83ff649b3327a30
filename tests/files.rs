//! Files of readings, CSV, NDJSON and workbooks: the same readings as the pages of JSON, in every store,
//! half of them pending; what a file cannot show is refused.

mod stalled;
mod tables;
mod workbooks;

use std::io::Read;

use serde_json::{Value, json};

use crate::harness::{Answer, Connection, Server, Setup, in_stores, run};
use crate::http_contract::problem;

const HOUR_MS: i64 = 3_600_000;
const START_MS: i64 = 1_713_621_600_000; // 2024-04-20T14:00:00Z
const RANGE: &str = "from=2024-04-20T00:00:00Z&to=2024-04-21T00:00:00Z";

/// Series that CSV and JSON must quote, of two devices. Half of the readings are stored, half are pending,
/// and some of these replace stored ones.
async fn half_pending(setup: Setup) -> Server {
    let mut server = Server::start(setup.clone()).await;
    let labelled = "cpu{core=0,name=a \"b\"}";
    let of = |first: i64, factor: f64| -> Vec<Value> {
        let instants = (0..9).map(|nth| START_MS + (first + nth) * HOUR_MS / 4);
        let values = |ts: i64| json!({ "temp": (ts / 1_000 % 977) as f64 * factor, labelled: -0.001, "a": 1e300 });
        instants.map(|ts| json!({ "ts": ts, "values": values(ts) })).collect()
    };
    let batch = |first, factor| {
        json!([
            { "deviceId": "x:1", "readings": of(first, factor) },
            { "deviceId": "y", "ts": START_MS + first, "value": factor },
        ])
    };
    assert_eq!(server.ingest(&batch(0, 0.25)).await.status, 200);
    server.settled().await;
    assert!(server.terminate().await.success());
    server.start_again_with(setup.all_pending()).await;
    assert_eq!(server.ingest(&batch(5, 0.1)).await.status, 200);
    server
}

async fn file(server: &Server, path: &str, format: &str) -> String {
    let answer = server.get(&format!("{path}&format={format}")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.text().to_owned()
}

/// The cells of the rows of a CSV file, the header included.
fn cells(text: &str) -> Vec<Vec<String>> {
    assert_eq!(text.matches('\n').count(), text.matches("\r\n").count());
    let rows = csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes()).into_deserialize();
    rows.collect::<Result<_, _>>().expect("each row has as many cells as the header")
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

async fn files_have_the_readings_of_the_pages(setup: Setup) {
    let server = half_pending(setup).await;
    let mut of_devices = Vec::new();
    for device in ["y", "x:1"] {
        let path = format!("/v1/devices/{device}/readings?{RANGE}");
        let readings = server.get_json(&path).await["readings"].take();
        let readings = readings.as_array().expect("readings");
        let with_device =
            |reading: &Value| json!({ "deviceId": device, "ts": reading["ts"], "values": reading["values"] });
        let expected: Vec<Value> = readings.iter().map(with_device).collect();
        assert_eq!(lines(&file(&server, &path, "ndjson").await), expected);

        let rows = cells(&file(&server, &path, "csv").await);
        let series: Vec<&str> = rows[0].iter().map(String::as_str).collect();
        let all = ["ts", "a", "cpu{core=0,name=a \"b\"}", "temp"];
        assert_eq!(series, if device == "y" { &["ts", "value"][..] } else { &all });
        let row = |reading: &Value| -> Vec<String> {
            let value = |series: &&str| reading["values"].get(series).map_or(String::new(), Value::to_string);
            let ts = reading["ts"].as_str().expect("text").to_owned();
            std::iter::once(ts).chain(series[1..].iter().map(value)).collect()
        };
        assert_eq!(rows[1..], readings.iter().map(row).collect::<Vec<_>>());

        let limited = file(&server, &format!("{path}&limit=3"), "ndjson").await;
        assert_eq!(lines(&limited), expected[..expected.len().min(3)]);
        of_devices.extend(expected);
    }
    assert_eq!(of_devices.len(), 2 + 14, "four readings replace others");

    let both = format!("/v1/readings?{RANGE}&device=y&device=x:1");
    assert_eq!(lines(&file(&server, &both, "ndjson").await), of_devices);
    assert_eq!(lines(&file(&server, &format!("{both}&limit=7"), "ndjson").await), of_devices[..7]);
    let all = cells(&file(&server, &format!("/v1/readings?{RANGE}"), "csv").await);
    let rows = of_devices[2..].iter().chain(&of_devices[..2]).flat_map(|reading| {
        let values = reading["values"].as_object().expect("values").iter();
        let of = |key: &str| reading[key].as_str().expect("text").to_owned();
        values.map(move |(series, value)| vec![of("deviceId"), of("ts"), series.clone(), value.to_string()])
    });
    assert_eq!(all[0], ["deviceId", "ts", "series", "value"]);
    assert_eq!(all[1..], rows.collect::<Vec<_>>(), "in the order of the IDs");
    let cpu = cells(&file(&server, &format!("/v1/readings?{RANGE}&prefix=x&metric=cpu"), "csv").await);
    assert_eq!((cpu.len(), cpu.iter().skip(1).all(|row| row[2].starts_with("cpu{"))), (15, true), "{cpu:?}");
}

in_stores!(files_have_the_readings_of_the_pages, [sqlite, mongodb, packed, timeseries]);

#[tokio::test]
async fn a_file_can_be_imported_and_ingested_again() {
    let server = half_pending(Setup::sqlite()).await;
    let path = format!("/v1/devices/x:1/readings?{RANGE}");
    let (text, ndjson) = (file(&server, &path, "csv").await, file(&server, &path, "ndjson").await);
    let other = Server::start(Setup::sqlite()).await;
    let answer = other.post("/v1/readings", "application/x-ndjson", ndjson.clone()).await;
    assert_eq!((answer.status, answer.json()["accepted"].as_u64()), (200, Some(14)));
    assert_eq!(file(&other, &path, "ndjson").await, ndjson);

    let folder = tempfile::tempdir().expect("a temporary folder");
    let name = folder.path().join("x.csv").display().to_string();
    std::fs::write(&name, &text).expect("the folder is writable");
    let done = run(&["import", &name, "--device", "imported", "--url", other.url()]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(file(&other, &format!("/v1/devices/imported/readings?{RANGE}"), "csv").await, text);
}

/// The series of an instant may arrive one by one, so it may have more than one reading may have.
#[tokio::test]
async fn an_instant_of_more_series_than_a_reading_may_have_can_be_imported() {
    let server = Server::start(Setup::sqlite()).await;
    for some in [0..200, 200..400] {
        let values: serde_json::Map<String, Value> = some.map(|nth| (format!("m{nth}"), json!(nth))).collect();
        server.accepts(&json!({ "deviceId": "wide", "ts": START_MS, "values": values })).await;
    }
    let path = format!("/v1/devices/wide/readings?{RANGE}");
    let readings = server.get_json(&path).await["readings"].take();
    assert_eq!(readings[0]["values"].as_object().map(serde_json::Map::len), Some(400));
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (format, flags) in [("csv", &["--device", "wide"][..]), ("ndjson", &[])] {
        let name = folder.path().join(format!("wide.{format}")).display().to_string();
        std::fs::write(&name, file(&server, &path, format).await).expect("the folder is writable");
        let other = Server::start(Setup::sqlite()).await;
        let done = run(&[&["import", &name, "--url", other.url()][..], flags].concat()).await;
        assert!(done.code == Some(0) && done.stdout.contains(", 2 readings accepted, 0 rejected"), "{done:?}");
        assert_eq!(other.get_json(&path).await["readings"], readings, "{format}");
    }
}

/// The names have a meaning as columns of other files, or white space, or brackets like those of a unit. As
/// columns, the last could not be told from the names that other programs write.
#[tokio::test]
async fn a_csv_file_with_any_series_can_be_imported() {
    let server = Server::start(Setup::sqlite()).await;
    let of = |at: i64| {
        let gps = json!({
            "timestamp": START_MS / 1_000, "time": at, "host": 0.5, "t (min)": at + 1, "t (max)": at + 2,
            "Zeit [s]{axis=x}": at + 3, "t": at + 4, " t": at + 5, "t ": at + 6, "ts ": at + 7,
        });
        let odd = json!({ "Druck (bar)": at + 1, "t": at + 2, " t": at + 3, "t\u{a0}": at + 4, "ts (s)": at + 5 });
        [("gps", gps), ("odd", odd)]
            .map(|(device, values)| json!({ "deviceId": device, "ts": START_MS + at, "values": values }))
    };
    let readings = [of(0), of(1), of(999)].concat();
    assert_eq!(server.ingest(&json!(readings)).await.status, 200);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let name = folder.path().join("gps.csv").display().to_string();
    for (path, flags) in [
        (format!("/v1/devices/gps/readings?{RANGE}"), &["--device", "gps"][..]),
        (format!("/v1/readings?{RANGE}&device=gps&device=odd"), &[]),
    ] {
        let text = file(&server, &path, "csv").await;
        std::fs::write(&name, &text).expect("the folder is writable");
        let other = Server::start(Setup::sqlite()).await;
        let done = run(&[&["import", &name, "--url", other.url()][..], flags].concat()).await;
        assert_eq!(done.code, Some(0), "{done:?}");
        assert_eq!(file(&other, &path, "csv").await, text);
    }
}

#[tokio::test]
async fn the_headers_say_what_a_file_is() {
    let server = half_pending(Setup::sqlite()).await;
    let path = format!("/v1/devices/x:1/readings?{RANGE}");
    for (accept, content_type, name) in [
        ("text/csv", "text/csv; charset=utf-8; header=present", "attachment; filename=\"readings-x_1.csv\""),
        ("application/x-ndjson", "application/x-ndjson", "attachment; filename=\"readings-x_1.ndjson\""),
        ("*/*", "application/json", ""),
    ] {
        let answer = server.get_as(&path, accept).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, content_type));
        assert_eq!((answer.header("content-disposition"), answer.header("vary")), (name, "accept, accept-encoding"));
        let is_file = !name.is_empty();
        let caching = if is_file { "no-store" } else { "private, no-cache" };
        assert_eq!((answer.header("cache-control"), answer.header("etag").is_empty()), (caching, is_file));
    }
    let of_all = server.get(&format!("/v1/readings?{RANGE}")).await;
    assert_eq!(of_all.header("content-disposition"), "attachment; filename=\"readings.ndjson\"");
}

#[tokio::test]
async fn what_no_file_can_be_is_refused() {
    let server = half_pending(Setup::sqlite()).await;
    let get = async |path: &str, accept: &str| server.get_as(path, accept).await;
    let of_device = format!("/v1/devices/x:1/readings?{RANGE}");
    let refused = get(&of_device, "application/xml").await;
    assert_eq!(problem(&refused, 406)["code"], "not_acceptable");
    assert!(
        refused.text().contains("application/json, text/csv, application/x-ndjson, application/vnd."),
        "{}",
        refused.text()
    );
    for (path, detail) in [
        (format!("{of_device}&format=xml"), "format: expected one of json, csv, ndjson, xlsx"),
        (format!("{of_device}&format=csv&cursor=1"), "cursor: cannot be combined with"),
        (format!("{of_device}&format=csv&limit=0"), "limit: expected a number"),
        (format!("{of_device}&format=csv&prefix=x"), "prefix: this path has no such parameter"),
        (format!("/v1/readings?{RANGE}&format=json"), "format: expected one of ndjson, csv, xlsx"),
        (format!("/v1/readings?{RANGE}&device=x:1&prefix=x"), "prefix: cannot be combined with `device`"),
        (format!("/v1/readings?{RANGE}&device=%20"), "device:"),
    ] {
        let answer = get(&path, "*/*").await;
        assert_eq!(problem(&answer, 400)["code"], "invalid_parameter", "{path}");
        assert!(answer.text().contains(detail), "{path}: {}", answer.text());
    }
    let head = format!("GET {of_device}&format=csv HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n");
    let (status, _, body) = Connection::open(&server).await.ask(head.as_bytes()).await;
    assert!(status == 505 && String::from_utf8_lossy(&body).contains("http_version_not_supported"), "{status}");

    let values: serde_json::Map<String, Value> = (0..251).map(|at| (format!("m{at}"), json!(1))).collect();
    let wide = |at: i64| {
        let labels = json!({ "nth": at.to_string() });
        json!({ "deviceId": "wide", "ts": START_MS, "labels": labels, "values": values })
    };
    let readings: Vec<Value> = (0..4).map(wide).collect();
    assert_eq!(server.ingest(&json!(readings)).await.status, 200);
    let answer = get(&format!("/v1/devices/wide/readings?{RANGE}&format=csv"), "*/*").await;
    assert_eq!(problem(&answer, 400)["code"], "too_many_columns", "{}", answer.text());
    let long = file(&server, &format!("/v1/readings?{RANGE}&device=wide"), "csv").await;
    assert_eq!(cells(&long).len(), 1 + 4 * 251);
    let some = file(&server, &format!("/v1/devices/wide/readings?{RANGE}&metric=m1&metric=m250"), "csv").await;
    assert_eq!(cells(&some)[0].len(), 1 + 8);
}

/// The device index keeps 4,096 series of a device, so the series of a metric may not all be known.
#[tokio::test]
async fn columns_of_a_device_with_thousands_of_series_are_named_as_whole_series() {
    let server = Server::start(Setup::sqlite().set("limits.device_metrics_per_hour", 0)).await;
    let values: serde_json::Map<String, Value> = (0..250).map(|at| (format!("m{at}"), json!(1))).collect();
    let wide = |at: i64| {
        let labels = json!({ "nth": at.to_string() });
        json!({ "deviceId": "wide", "ts": START_MS, "labels": labels, "values": values })
    };
    let readings: Vec<Value> = (0..17).map(wide).collect();
    assert_eq!(server.ingest(&json!(readings)).await.status, 200);
    server.settled().await;
    let path = format!("/v1/devices/wide/readings?{RANGE}");
    for selection in ["", "&metric=m1"] {
        let answer = server.get(&format!("{path}{selection}&format=csv")).await;
        assert_eq!(problem(&answer, 400)["code"], "too_many_columns", "{selection}: {}", answer.text());
        assert!(answer.text().contains("whole series such as cpu{core=0}"), "{selection}: {}", answer.text());
    }
    let named = format!("{path}&metric=m1%7Bnth=16%7D&metric=m1%7Bnth=2%7D");
    assert_eq!(cells(&file(&server, &named, "csv").await)[0], ["ts", "m1{nth=16}", "m1{nth=2}"]);
    let long = file(&server, &format!("/v1/readings?{RANGE}&device=wide"), "csv").await;
    assert_eq!(cells(&long).len(), 1 + 17 * 250);
}

fn decoded(answer: &Answer) -> Vec<u8> {
    let mut text = Vec::new();
    match answer.header("content-encoding") {
        "gzip" => _ = flate2::read::GzDecoder::new(&answer.body[..]).read_to_end(&mut text).expect("gzip"),
        "zstd" => text = zstd::decode_all(&answer.body[..]).expect("zstd"),
        other => assert_eq!((other, text.extend(&answer.body)), ("", ())),
    }
    text
}

#[tokio::test]
async fn answers_are_compressed_as_the_client_asks() {
    let server = half_pending(Setup::sqlite()).await;
    let of_device = format!("/v1/devices/x:1/readings?{RANGE}");
    for (path, is_always) in [
        (of_device.clone(), false),
        (format!("{of_device}&format=csv"), true),
        (format!("/v1/readings?{RANGE}&format=ndjson"), true),
        (format!("/v1/devices/x:1/rollups?{RANGE}"), false),
        (format!("{of_device}&limit=1"), false),
    ] {
        let plain = server.get(&path).await;
        assert_eq!((plain.status, plain.header("content-encoding")), (200, ""));
        for encoding in ["gzip", "zstd"] {
            let request = server.request(reqwest::Method::GET, &path).header("accept-encoding", encoding);
            let answer = server.send(request).await;
            let is_compressed = is_always || plain.body.len() >= 1_024;
            assert_eq!(answer.header("content-encoding"), if is_compressed { encoding } else { "" }, "{path}");
            assert!(is_always || is_compressed == (answer.body.len() < plain.body.len()), "{path}");
            assert!(decoded(&answer) == plain.body, "{path}");
        }
    }
}

#[tokio::test]
async fn an_answer_has_a_tag_that_a_late_reading_changes() {
    let server = half_pending(Setup::sqlite()).await;
    let ask = async |path: &str, tag: &str, encoding: &str| {
        let request = server.request(reqwest::Method::GET, path).header("if-none-match", tag);
        server.send(request.header("accept-encoding", encoding)).await
    };
    for path in ["readings", "rollups", "latest"] {
        let range = if path == "latest" { "" } else { RANGE };
        let path = format!("/v1/devices/x:1/{path}?{range}");
        let first = server.get(&path).await;
        let tag = first.header("etag");
        assert!(first.status == 200 && tag.len() == 34, "{tag}");
        for known in [tag, &format!("W/{tag}"), "*"] {
            let same = ask(&path, known, "zstd").await;
            assert_eq!((same.status, same.body.len(), same.header("etag").trim_start_matches("W/")), (304, 0, tag));
            assert_eq!(same.header("cache-control"), "private, no-cache");
        }
    }
    let closed = format!("/v1/devices/x:1/rollups?{RANGE}");
    let before = server.get(&closed).await.header("etag").to_owned();
    let late = json!({ "deviceId": "x:1", "ts": START_MS + 1, "values": { "temp": 1 } });
    assert_eq!(server.ingest(&late).await.status, 200);
    let after = ask(&closed, &before, "identity").await;
    assert_eq!(after.status, 200);
    assert_ne!(after.header("etag"), before);
    assert_eq!(ask(&closed, after.header("etag"), "gzip").await.status, 304);
    let refused = ask("/v1/devices/none/rollups", "*", "identity").await;
    assert_eq!((refused.status, refused.header("etag"), refused.header("cache-control")), (404, "", "no-store"));
}
