//! Every format that a version of the program has written, on disk and on the wire, as files of
//! `tests/golden`.
//!
//! Each file has the same readings in another format. The program must answer the same from each of them, and
//! must write each byte for byte. `GOLDEN=write` writes the files anew: only while no release has written
//! them. `docs/formats.md` has the rule for changed formats.

mod dump;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};

use bson::oid::ObjectId;
use bson::{Bson, Document, doc};
use serde_json::{Value, json};

use crate::harness::{Database, Server, Setup, key_of, run, wait_until};
use crate::pages::in_repository;

/// 2024-04-20T14:00:00Z.
const START_MS: i64 = 1_713_621_600_000;

const DEVICE: &str = "golden";

/// The readings of every golden file.
fn body() -> Value {
    json!({
        "deviceId": DEVICE,
        "metadata": { "floor": 2, "zone": "Zone 4" },
        "readings": [
            { "ts": START_MS, "values": { "temp": 22.5, "hum": 40 } },
            { "ts": START_MS + 10_000, "values": { "temp": -1.25 } },
            { "ts": START_MS + 20_500, "values": { "temp": 1e300, "cpu{core=0}": 7 } },
        ],
    })
}

fn golden(name: &str) -> PathBuf {
    in_repository("tests/golden").join(name)
}

fn text_of(name: &str) -> String {
    fs::read_to_string(golden(name)).unwrap_or_else(|error| panic!("tests/golden/{name}: {error}"))
}

/// Checks that a golden file is what the program writes today.
fn is_golden(name: &str, written: &[u8]) {
    let path = golden(name);
    if std::env::var("GOLDEN").is_ok_and(|mode| mode == "write") {
        fs::create_dir_all(path.parent().expect("a folder")).expect("the repository is writable");
        fs::write(&path, written).expect("the repository is writable");
    }
    let before = fs::read(&path).unwrap_or_default();
    assert!(
        before == written,
        "the program writes another format than tests/golden/{name}: see docs/formats.md. It \
         writes:\n{}",
        String::from_utf8_lossy(written)
    );
}

/// Checks that a server has the readings of the golden files, no more, and their stats.
async fn has_readings(server: &Server) {
    let expected: Vec<(i64, Value)> = body()["readings"]
        .as_array()
        .expect("readings")
        .iter()
        .map(|reading| (reading["ts"].as_i64().expect("a time"), reading["values"].clone()))
        .collect();
    let found = server.readings(DEVICE).await;
    let instant = |reading: &Value| -> i64 {
        let ts: jiff::Timestamp = reading["ts"].as_str().expect("a time").parse().expect("a time");
        ts.as_millisecond()
    };
    let floats = |values: &Value| -> BTreeMap<String, f64> {
        let values = values.as_object().expect("values").iter();
        values.map(|(name, value)| (name.clone(), value.as_f64().expect("a number"))).collect()
    };
    let found: Vec<_> =
        found.as_array().expect("readings").iter().map(|it| (instant(it), floats(&it["values"]))).collect();
    let expected: Vec<_> = expected.iter().map(|(ts, values)| (*ts, floats(values))).collect();
    assert_eq!(found, expected);
    has_rollups(server).await;
}

async fn has_rollups(server: &Server) {
    let range = "from=2024-04-20T14:00:00Z&to=2024-04-20T15:00:00Z";
    let rollups = server.get_json(&format!("/v1/devices/{DEVICE}/rollups?{range}")).await;
    let hum = &rollups["metrics"]["hum"][0];
    assert_eq!(
        ["count", "min", "max", "sum"].map(|key| hum[key].as_f64()),
        [1.0, 40.0, 40.0, 40.0].map(Some),
        "{rollups}"
    );
    assert_eq!(rollups["metrics"]["temp"][0]["count"], 3, "{rollups}");
}

async fn has_readings_and_metadata(server: &Server) {
    has_readings(server).await;
    let metadata = server.get_json(&format!("/v1/devices/{DEVICE}/metadata")).await;
    assert_eq!(metadata["sentByDevice"], body()["metadata"], "{metadata}");
}

/// Sets the keys of an operator that some golden files have.
async fn name(server: &Server) {
    let key = |at_ms, value: Value| json!({ "atMs": at_ms, "value": value });
    let keys = json!({ "name": key(START_MS, json!("Press 3")), "a.b": key(START_MS + 1, json!([1, 0.5])), "old": {
        "atMs": START_MS + 2,
    } });
    let line = json!({ "deviceId": DEVICE, "change": { "replacedMs": START_MS, "keys": keys } });
    let answer = server.post("/v1/metadata", "application/x-ndjson", line.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

async fn is_named(server: &Server) {
    let metadata = server.get_json(&format!("/v1/devices/{DEVICE}/metadata")).await;
    assert_eq!(metadata["setByOperators"], json!({ "name": "Press 3", "a.b": [1, 0.5] }), "{metadata}");
}

/// Copies a folder with its folders.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("our folder");
    for entry in fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
        let entry = entry.expect("a file");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("our folder");
        }
    }
}

#[test]
fn the_page_of_formats_names_each_golden_file() {
    let page = fs::read_to_string(in_repository("docs/formats.md")).expect("the page");
    let files = fs::read_dir(in_repository("tests/golden")).expect("the folder");
    let names = files.map(|entry| entry.expect("a file").file_name().into_string().expect("UTF-8"));
    let present: BTreeSet<String> = names.filter(|name| name != "dump.rs").collect();
    let named: BTreeSet<String> = page
        .split("`tests/golden/")
        .skip(1)
        .map(|rest| rest.split('`').next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(named, present);
}

#[tokio::test]
async fn the_log_is_read_and_written() {
    let mut server = Server::start(Setup::sqlite().all_pending()).await;
    assert_eq!(server.ingest(&body()).await.status, 200);
    server.kill9();
    let segment = "log/00000000000000000000.log";
    is_golden(&format!("data-1/{segment}"), &fs::read(server.data_dir().join(segment)).expect("the log"));
    assert_eq!(fs::metadata(server.data_dir().join("log/checkpoint")).expect("it is there").len(), 4_124);

    let mut server = Server::start(Setup::sqlite().all_pending()).await;
    assert_eq!(server.ingest(&body()).await.status, 200);
    name(&server).await;
    server.kill9();
    is_golden(&format!("data-1-metadata/{segment}"), &fs::read(server.data_dir().join(segment)).expect("the log"));
    let server = Server::start_with_data(Setup::sqlite(), |data| copy(&golden("data-1-metadata"), data)).await;
    has_readings_and_metadata(&server).await;
    is_named(&server).await;

    for name in ["data-1", "data-1-deletion"] {
        let server = Server::start_with_data(Setup::sqlite(), |data| copy(&golden(name), data)).await;
        has_readings_and_metadata(&server).await;
        let others = server.get_json("/v1/devices").await;
        assert_eq!(others["devices"].as_array().map(Vec::len), Some(1), "{name}: a deleted device is back: {others}");
    }
}

/// IDs that a quoted text, a path, a line of writing or a normal form could change.
const HOSTILE: [&str; 8] =
    ["a\"b'c\\", "../x", "a/2024-04-20T14", "שלום-12", "e\u{301}", "é", "\u{1F468}\u{200D}\u{1F527}", "(index)"];

fn hostile_body() -> Value {
    HOSTILE.into_iter().enumerate().map(|(n, id)| json!({ "deviceId": id, "ts": START_MS, "value": n })).collect()
}

async fn has_hostile_ids(server: &Server) {
    for (n, id) in HOSTILE.into_iter().enumerate() {
        let readings = server.readings(id).await;
        assert_eq!(readings, json!([{ "ts": "2024-04-20T14:00:00.000Z", "values": { "value": n as f64 } }]), "{id}");
    }
}

#[tokio::test]
async fn hostile_device_ids_are_read_and_written() {
    const BUCKETS: &str = "mongodb-1-ids.bson";
    const MEASUREMENTS: &str = "timeseries-1-ids.bson";
    let mut server = Server::start(Setup::sqlite().all_pending()).await;
    assert_eq!(server.ingest(&hostile_body()).await.status, 200);
    server.kill9();
    let segment = "log/00000000000000000000.log";
    is_golden(&format!("data-1-ids/{segment}"), &fs::read(server.data_dir().join(segment)).expect("the log"));
    let server = Server::start_with_data(Setup::sqlite(), |data| copy(&golden("data-1-ids"), data)).await;
    has_hostile_ids(&server).await;

    let [buckets, measurements] = [Database::new(), Database::new()];
    for (setup, database, collection, name) in [
        (Setup::mongodb(&buckets), &buckets, "buckets", BUCKETS),
        (Setup::timeseries(&measurements), &measurements, "readings", MEASUREMENTS),
    ] {
        let server = Server::start(setup).await;
        assert_eq!(server.ingest(&hostile_body()).await.status, 200);
        server.settled().await;
        let by_device = vec![doc! { "$sort": { "meta.deviceId": 1, "_id": 1 } }];
        is_golden(name, &documents_by(database, collection, by_device).await);
    }
    let [buckets, measurements] = [Database::new(), Database::new()];
    insert(&buckets, "buckets", BUCKETS).await;
    has_hostile_ids(&Server::start(Setup::mongodb(&buckets)).await).await;
    let server = Server::start(Setup::timeseries(&measurements)).await; // creates the collection
    insert(&measurements, "readings", MEASUREMENTS).await;
    has_hostile_ids(&server).await;
}

#[tokio::test]
async fn the_sqlite_file_is_read_and_written() {
    let mut server = Server::start(Setup::sqlite()).await;
    assert_eq!(server.ingest(&body()).await.status, 200);
    name(&server).await;
    server.settled().await;
    server.terminate().await;
    is_golden("sqlite-1.sql", dump::of(&server.data_dir().join("tidegauge.sqlite")).as_bytes());

    let sql = text_of("sqlite-1.sql");
    let fill = |data: &Path| dump::load(&sql, &data.join("tidegauge.sqlite"));
    let server = Server::start_with_data(Setup::sqlite(), fill).await;
    has_readings_and_metadata(&server).await;
    is_named(&server).await;
    assert_eq!(server.ingest(&body()).await.status, 200);
    server.settled().await;
    has_readings_and_metadata(&server).await;
}

/// The documents of a collection one after the other, as mongodump writes them, without IDs that the driver
/// makes.
async fn documents(database: &Database, collection: &str) -> Vec<u8> {
    documents_by(database, collection, vec![doc! { "$sort": { "ts": 1, "_id": 1 } }]).await
}

async fn documents_by(database: &Database, collection: &str, pipeline: Vec<Document>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for mut document in database.aggregate(collection, pipeline).await {
        if document.contains_key("epoch") {
            document.insert("epoch", ObjectId::from_bytes([1; 12])); // random in each collection
        }
        if !matches!(document.get("_id"), Some(Bson::String(_) | Bson::Document(_))) {
            document.remove("_id");
            // The server makes a measurement of its columns, in no order.
            let fields: BTreeMap<String, Bson> = document.into_iter().collect();
            document = fields.into_iter().collect();
        }
        bytes.extend(document.to_vec().expect("a document"));
    }
    bytes
}

async fn insert(database: &Database, collection: &str, name: &str) {
    let bytes = fs::read(golden(name)).unwrap_or_else(|error| panic!("tests/golden/{name}: {error}"));
    let mut rest = &bytes[..];
    let mut documents = Vec::new();
    while !rest.is_empty() {
        documents.push(Document::from_reader(&mut rest).expect("a document"));
    }
    let inserted = database.handle().await.collection::<Document>(collection).insert_many(documents).await;
    inserted.expect("the server takes them");
}

#[tokio::test]
async fn the_bucket_documents_of_each_layout_are_read_and_written() {
    for (name, setup) in [
        ("mongodb-1-readable.bson", Setup::mongodb as fn(&Database) -> Setup),
        ("mongodb-1-packed.bson", Setup::packed),
    ] {
        let database = Database::new();
        let server = Server::start(setup(&database)).await;
        assert_eq!(server.ingest(&body()).await.status, 200);
        server.settled().await;
        is_golden(name, &documents(&database, "buckets").await);

        let database = Database::new();
        insert(&database, "buckets", name).await;
        let server = Server::start(Setup::mongodb(&database)).await;
        has_readings(&server).await;
        assert_eq!(server.ingest(&body()).await.status, 200);
        server.settled().await;
        has_readings_and_metadata(&server).await;
    }
}

#[tokio::test]
async fn the_documents_of_rollups_and_of_the_device_index_are_read_and_written() {
    const ROLLUPS: &str = "mongodb-1-rollups.bson";
    const DEVICES: &str = "mongodb-1-devices.bson";
    let database = Database::new();
    let server = Server::start(Setup::mongodb(&database)).await;
    assert_eq!(server.ingest(&body()).await.status, 200);
    server.settled().await;
    let rollups = wait_until("the day is rolled up", async || {
        Some(documents(&database, "rollups").await).filter(|documents| !documents.is_empty())
    })
    .await;
    is_golden(ROLLUPS, &rollups);
    is_golden(DEVICES, &documents(&database, "devices").await);

    let database = Database::new();
    insert(&database, "rollups", ROLLUPS).await;
    insert(&database, "devices", DEVICES).await;
    let server = Server::start(Setup::mongodb(&database)).await;
    has_rollups(&server).await;
    let device = server.get_json(&format!("/v1/devices/{DEVICE}")).await;
    assert_eq!(device["metadata"], body()["metadata"], "{device}");
}

#[tokio::test]
async fn the_documents_of_what_operators_have_set_are_read_and_written() {
    const NAME: &str = "mongodb-1-metadata.bson";
    let database = Database::new();
    let server = Server::start(Setup::mongodb(&database)).await;
    name(&server).await;
    let written = wait_until("the metadata is stored", async || {
        Some(documents(&database, "buckets_metadata").await).filter(|documents| !documents.is_empty())
    })
    .await;
    is_golden(NAME, &written);

    let database = Database::new();
    insert(&database, "buckets_metadata", NAME).await;
    is_named(&Server::start(Setup::mongodb(&database)).await).await;
}

#[tokio::test]
async fn the_measurements_of_a_time_series_are_read_and_written() {
    const NAME: &str = "timeseries-1.bson";
    let database = Database::new();
    let server = Server::start(Setup::timeseries(&database)).await;
    assert_eq!(server.ingest(&body()).await.status, 200);
    server.settled().await;
    is_golden(NAME, &documents(&database, "readings").await);

    let database = Database::new();
    let server = Server::start(Setup::timeseries(&database)).await;
    insert(&database, "readings", NAME).await;
    has_readings(&server).await;
    assert_eq!(server.ingest(&body()).await.status, 200);
    server.settled().await;
    has_readings_and_metadata(&server).await;
}

#[tokio::test]
async fn every_format_of_datagrams_is_read_and_the_signature_is_written() {
    let content = text_of("datagram-2.lp");
    let (line, signed) = content.split_once('\n').expect("a signature line");
    is_golden(
        "datagram-2.lp",
        format!("{}{signed}", tidegauge::access::sign("golden", &key_of("golden"), signed.as_bytes())).as_bytes(),
    );
    assert!(line.starts_with("#tg1 golden "), "{line}");
    for (name, setup) in [
        ("datagram-1.json", Setup::sqlite()),
        ("datagram-1.lp", Setup::sqlite()),
        ("datagram-2.lp", Setup::sqlite().key("golden", "")),
    ] {
        let server = Server::start(setup).await;
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        socket.send_to(text_of(name).as_bytes(), server.udp_addr()).expect("sent");
        wait_until("the datagram is there", async || {
            (server.metrics().await.value("tidegauge_udp_datagrams_total") == Some(1.0)).then_some(())
        })
        .await;
        has_readings(&server).await;
    }
}

#[tokio::test]
async fn dead_letters_and_backups_are_read() {
    let letters = text_of("dead-letters-1.ndjson");
    let fill = |data: &Path| {
        fs::create_dir_all(data).expect("our folder");
        fs::write(data.join("dead-letters.ndjson"), &letters).expect("our folder");
    };
    let server = Server::start_with_data(Setup::sqlite(), fill).await;
    let data = server.data_dir().display().to_string();
    let retried = run(&["dead-letters", "retry", "--data-dir", &data, "--url", server.url()]).await;
    assert_eq!(retried.code, Some(0), "{retried:?}");
    has_readings_and_metadata(&server).await;

    let place = tempfile::TempDir::new().expect("a temporary folder");
    let fill = |data: &Path| {
        let config = place.path().join("config.toml");
        fs::write(&config, "[store]\nkind = \"mongodb\"\n[mongodb]\nuri = \"mongodb://127.0.0.1:1\"\n")
            .expect("our folder");
        let (from, to) = (golden("backup-1").display().to_string(), data.display().to_string());
        let config = config.display().to_string();
        let restored = tidegauge_restore(&["restore", "--config", &config, "--from", &from, "--data-dir", &to]);
        assert!(restored.status.success(), "{restored:?}");
    };
    let server = Server::start_with_data(Setup::sqlite(), fill).await;
    has_readings_and_metadata(&server).await;
}

fn tidegauge_restore(args: &[&str]) -> std::process::Output {
    std::process::Command::new(crate::harness::binary()).args(args).output().expect("the binary runs")
}
