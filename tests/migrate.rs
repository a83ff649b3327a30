//! `tidegauge migrate` rewrites the documents of guides to the bucket pattern, while devices send.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use bson::oid::ObjectId;
use bson::{Bson, DateTime, Document, doc};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Database, Finished, Model, Server, Setup, Values, binary, run, wait_until};
use crate::pages::in_repository;

const HOUR_MS: i64 = 3_600_000;

/// 2026-04-20T00:00:00Z.
const START_MS: i64 = 1_776_643_200_000;

/// The hours of each device: enough documents for two pages.
const HOURS: i64 = 240;

/// The readings of a document.
const READINGS: i64 = 4;

/// A device for each shape of the guides.
const DEVICES: [&str; 3] = ["LIGHT-FL02-ZONE4", "12345", "pump/7"];

fn values(of: &[(&str, f64)]) -> Values {
    of.iter().map(|(series, value)| ((*series).to_owned(), *value)).collect()
}

fn at(ms: i64) -> Bson {
    DateTime::from_millis(ms).into()
}

/// Documents as the guides make them, of all shapes and with `_id`s of several types, and their readings.
fn guides_documents(model: &mut Model) -> Vec<Document> {
    let mut documents = Vec::new();
    for hour in 0..HOURS {
        let start_ms = START_MS + hour * HOUR_MS;
        let minutes = (0..READINGS).map(|nth| nth * 60 / READINGS);
        let temp = |minute: i64| (hour * 60 + minute) as f64 * 0.1;
        for minute in minutes.clone() {
            let ts = start_ms + minute * 60_000;
            model.insert(DEVICES[0], ts, values(&[("value", temp(minute))]));
            model.insert(DEVICES[1], ts, values(&[("temp", temp(minute)), ("hum", minute as f64)]));
            model.insert(DEVICES[2], ts, values(&[("temperature", -temp(minute))]));
        }
        let readings = |make: &dyn Fn(i64) -> Document| minutes.clone().map(make).collect::<Vec<_>>();
        let label = tidegauge::common::clock::rfc3339(start_ms)[..13].replace('T', "-");
        let of_first = readings(&|minute| doc! { "ts": at(start_ms + minute * 60_000), "value": temp(minute) });
        let stats = doc! { "min": temp(0), "max": temp(60 - 60 / READINGS) };
        let (first, second, third) = (DEVICES[0], 12_345, DEVICES[2]);
        documents.push(doc! {
            "_id": ObjectId::new(), "deviceId": first, "bucket": label, "metadata": { "floor": 2 },
            "readings": of_first, "readingCount": READINGS, "stats": stats,
        });
        documents.push(doc! {
            "_id": hour, "sensorId": second, "hour": at(start_ms), "count": READINGS as f64,
            "readings": readings(&|minute| doc! { "minute": minute, "temp": temp(minute), "hum": minute as i32 }),
        });
        documents.push(doc! {
            "_id": format!("{third}:{hour}"), "sensor_id": third, "start_date": at(start_ms),
            "end_date": at(start_ms + HOUR_MS - 1_000), "transaction_count": READINGS,
            "measurements": readings(&|minute| {
                doc! { "timestamp": at(start_ms + minute * 60_000), "temperature": -temp(minute) }
            }),
        });
    }
    documents
}

/// Documents that are not understood.
fn odd_documents() -> Vec<Document> {
    let reading = doc! { "ts": at(START_MS), "value": 1 };
    let bucket = "2026-04-20-00";
    vec![
        doc! { "_id": "roof", "deviceId": "roof", "bucket": bucket, "readings": [&reading], "location": "roof" },
        doc! { "_id": "no-device", "bucket": bucket, "readings": [reading] },
    ]
}

/// A collection with documents of the guides, and the flags of a migration of it.
struct Migration {
    folder: TempDir,
    data_dir: PathBuf,
    database: Database,
    collection: &'static str,
}

impl Migration {
    fn of(server: &Server, database: Database, collection: &'static str) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        Self { folder, data_dir: server.data_dir(), database, collection }
    }

    async fn insert(&self, documents: Vec<Document>) {
        let collection = self.database.handle().await.collection::<Document>(self.collection);
        collection.insert_many(documents).await.expect("they are inserted");
    }

    /// The number of documents of the guides that are left.
    async fn left(&self) -> u64 {
        let collection = self.database.handle().await.collection::<Document>(self.collection);
        collection.count_documents(doc! { "schemaVersion": { "$exists": false } }).await.expect("a count")
    }

    fn args(&self, setup: &Setup, flags: &[&str]) -> Vec<String> {
        let config = self.folder.path().join("config.toml");
        fs::write(&config, setup.to_toml()).expect("the folder is writable");
        let (config, data_dir) = (config.display().to_string(), self.data_dir.display().to_string());
        let given = ["migrate", "--from", self.collection, "--config", &config, "--data-dir", &data_dir];
        given.iter().chain(flags).map(|flag| (*flag).to_owned()).collect()
    }

    async fn run(&self, setup: &Setup, flags: &[&str]) -> Finished {
        run(&self.args(setup, flags).iter().map(String::as_str).collect::<Vec<_>>()).await
    }

    fn progress(&self) -> PathBuf {
        self.data_dir.join("migrate.json")
    }

    /// Starts a migration, and kills it once the first page is done.
    async fn kill_in_the_middle(&self, setup: &Setup) {
        let args = self.args(setup, &["--rate", "1500"]);
        let mut command = Command::new(binary());
        let mut child =
            command.args(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs");
        wait_until("a page is done", async || self.progress().exists().then_some(())).await;
        child.kill().expect("our child");
        let status = child.wait().expect("our child");
        assert_eq!(status.code(), None, "it was killed before its end");
        assert!(self.progress().exists());
    }
}

fn assert_says(done: &Finished, code: i32, said: &[&str]) {
    assert_eq!(done.code, Some(code), "{}{}", done.stdout, done.stderr);
    for said in said {
        assert!(done.stdout.contains(said), "{}{}\nlacks {said}", done.stdout, done.stderr);
    }
}

/// The whole story: a dry run, a migration that is killed and goes on while devices send to the same hours,
/// a repetition, and the removal.
async fn migrate_while_devices_send(setup: impl Fn(&Database) -> Setup, collection: &'static str) {
    let database = Database::new();
    let setup = setup(&database);
    let server = Server::start(setup.clone()).await;
    let migration = Migration::of(&server, database, collection);
    let mut model = Model::default();
    let all = guides_documents(&mut model);
    let (documents, readings) = (all.len() as u64, all.len() as i64 * READINGS);
    migration.insert(all).await;
    migration.insert(odd_documents()).await;

    let dry = migration.run(&setup, &["--dry-run"]).await;
    let shapes = [
        "documents: 720 understood, 2 left alone, 0 of tidegauge itself",
        "  240 { deviceId, bucket: string, readings: [{ ts, ... }] }",
        "  240 { sensorId, hour: date, readings: [{ minute, ... }] }",
        "  240 { sensor_id, start_date: date, measurements: [{ timestamp, ... }] }",
        "the field location has no known meaning (--metadata location keeps it, --ignore location skips it)",
        "_id \"no-device\"",
    ];
    assert_says(&dry, 1, &shapes);
    assert_says(&dry, 1, &["readings: 2,880 would be copied"]);
    assert!(server.get_json("/v1/devices").await["devices"].as_array().is_some_and(Vec::is_empty), "only said");

    migration.kill_in_the_middle(&setup).await;
    let live = async {
        for round in 0..10 {
            let hour_ms = START_MS + round * 23 * HOUR_MS;
            let mut sent = Vec::new();
            for device in DEVICES {
                // A new instant of an hour that is migrated too, another metric of a reading of the guides,
                // and a later hour.
                for (ts, metric) in
                    [(hour_ms + 61_000, "value"), (hour_ms, "live"), (START_MS + (HOURS + round) * HOUR_MS, "value")]
                {
                    model.insert(device, ts, values(&[(metric, round as f64)]));
                    sent.push(json!({"deviceId": device, "ts": ts, "values": { metric: round }}));
                }
            }
            assert_eq!(server.ingest(&json!(sent)).await.status, 200);
        }
    };
    let (done, ()) = tokio::join!(migration.run(&setup, &[]), live);
    assert_says(&done, 1, &["left alone by the interrupted attempt: 2 documents", "removed: 0 documents"]);
    assert!(done.stderr.contains("continuing before the _id"), "{}", done.stderr);
    assert!(!migration.progress().exists(), "the migration is complete");
    server.settled().await;
    model.check(&server).await;
    assert_eq!(server.get_json("/v1/devices/LIGHT-FL02-ZONE4").await["metadata"], json!({"floor": 2}));

    let again = migration.run(&setup, &[]).await;
    assert_says(&again, 1, &[&format!("readings: 2,880 copied, 0 new, {} there already", "2,880")]);
    assert_eq!(readings, 2_880);
    model.check(&server).await;

    assert_eq!(migration.left().await, documents + 2);
    let removed = migration.run(&setup, &["--remove", "--ignore", "location"]).await;
    assert_says(&removed, 1, &["removed: 721 documents", "the document has no device"]);
    assert_eq!(migration.left().await, 1);
    model.insert("roof", START_MS, values(&[("value", 1.0)]));
    model.check(&server).await;
}

#[tokio::test]
async fn the_collection_of_the_service_itself_is_migrated_in_place() {
    migrate_while_devices_send(Setup::mongodb, "buckets").await;
}

#[tokio::test]
async fn another_collection_is_migrated_into_packed_documents() {
    migrate_while_devices_send(Setup::packed, "sensor_buckets").await;
}

#[tokio::test]
async fn another_collection_is_migrated_into_a_time_series() {
    migrate_while_devices_send(Setup::timeseries, "sensor_buckets").await;
}

/// A value that a device has sent stays, and a document with another one, or with a finding, is not removed.
#[tokio::test]
async fn documents_that_differ_from_the_store_stay() {
    let database = Database::new();
    let setup = Setup::mongodb(&database);
    let server = Server::start(setup.clone()).await;
    let migration = Migration::of(&server, database, "old");
    let live = json!({"deviceId": "a", "ts": START_MS, "values": {"value": 7}});
    assert_eq!(server.ingest(&live).await.status, 200);
    server.settled().await;
    let readings = |value: f64| vec![doc! { "ts": at(START_MS), "value": value }];
    let of = |id: &str, device: &str, fields: Document| {
        let mut document = doc! { "_id": id, "deviceId": device, "bucket": "2026-04-20-00" };
        document.extend(fields);
        document
    };
    let documents = vec![
        of("other", "a", doc! { "readings": readings(1.0) }),
        of("same", "a", doc! { "readings": readings(7.0) }),
        of("count", "b", doc! { "readings": readings(1.0), "readingCount": 2 }),
        of("nan", "c", doc! { "readings": [&readings(1.0)[0], { "ts": at(START_MS + 1), "value": f64::NAN }] }),
        of("alone", "d", doc! { "readings": readings(1.0) }),
        of("metadata", "e", doc! { "readings": [], "metadata": { "place": "Hall 2" } }),
    ];
    migration.insert(documents).await;
    let done = migration.run(&setup, &["--remove", "--partial"]).await;
    assert_says(
        &done,
        1,
        &[
            "5 understood, 2 left alone",
            "_id \"metadata\": it is stored with a reading, and there is none",
            "_id \"nan\": readings[1] value is NaN, which is not finite",
            "_id \"other\": 1 of them",
            "_id \"count\": readingCount is 2, and there are 1",
            "removed: 2 documents",
        ],
    );
    assert_eq!(migration.left().await, 4);
    let mut model = Model::default();
    for (device, value) in [("a", 7.0), ("b", 1.0), ("c", 1.0), ("d", 1.0)] {
        model.insert(device, START_MS, values(&[("value", value)]));
    }
    model.check(&server).await;
    let ignored = migration.run(&setup, &["--remove", "--ignore", "readingCount", "--ignore", "metadata"]).await;
    assert_says(&ignored, 1, &["removed: 2 documents", "3 understood, 1 left alone"]);
    let old = migration.run(&setup.clone().set("retention.readings", "90d"), &["--dry-run"]).await;
    assert_says(&old, 1, &["older than retention.readings (raise that first)", "0 understood, 2 left alone"]);
}

#[tokio::test]
async fn wrong_collections_are_refused() {
    let database = Database::new();
    let setup = Setup::mongodb(&database);
    let server = Server::start(setup.clone()).await;
    let migration = Migration::of(&server, database, "no-such-collection");
    let missing = migration.run(&setup, &[]).await;
    assert_eq!(missing.code, Some(64), "{}", missing.stderr);
    assert!(missing.stderr.contains("there is no collection"), "{}", missing.stderr);
    let migration = Migration { collection: "devices", ..migration };
    let own = migration.run(&setup, &[]).await;
    assert!(own.code == Some(64) && own.stderr.contains("a collection of the service"), "{}", own.stderr);
    let view = doc! { "create": "view", "viewOn": "devices", "pipeline": [] };
    migration.database.handle().await.run_command(view).await.expect("a view");
    let migration = Migration { collection: "view", ..migration };
    let of_view = migration.run(&setup, &[]).await; // it does not wait for the view to become a collection
    assert!(of_view.code == Some(1) && of_view.stderr.contains("import its readings as files"), "{}", of_view.stderr);
    let no_database = migration.run(&Setup::sqlite(), &[]).await;
    assert!(no_database.code == Some(64) && no_database.stderr.contains("mongodb.uri"), "{}", no_database.stderr);
}

/// The commands of the page, with the configuration of the test in place of the one in /etc.
#[tokio::test]
async fn the_commands_of_the_page_run() {
    let database = Database::new();
    let setup = Setup::mongodb(&database);
    let server = Server::start(setup.clone()).await;
    let migration = Migration::of(&server, database, "sensor_buckets");
    let document = doc! {
        "deviceId": "S1", "bucket": "2026-04-20-14", "location": "roof",
        "readings": [{ "ts": at(START_MS + 14 * HOUR_MS), "temp": 22.4, "status": "ok" }],
    };
    migration.insert(vec![document]).await;
    let page = fs::read_to_string(in_repository("docs/migrate.md")).expect("the page");
    let page = page.replace("\\\n ", "");
    let of_service = "tidegauge migrate --config /etc/tidegauge/tidegauge.toml --data-dir /var/lib/tidegauge  ";
    let flags = |line: &str| Some(line.split_once(of_service)?.1.strip_prefix("--from sensor_buckets ")?.to_owned());
    let commands: Vec<String> = page.lines().filter_map(flags).collect();
    assert!(commands.len() >= 3, "{commands:?}");
    for flags in &commands {
        let done = migration.run(&setup, &flags.split(' ').collect::<Vec<_>>()).await;
        assert!(done.code == Some(0) || done.code == Some(1), "{flags:?}: {}{}", done.stdout, done.stderr);
    }
    assert_eq!(migration.left().await, 0, "the last of them removes the document");
    let found: Value = server.readings("S1").await;
    assert_eq!(found, json!([{"ts": "2026-04-20T14:00:00.000Z", "values": {"temp": 22.4}}]));
    assert_eq!(server.get_json("/v1/devices/S1").await["metadata"], json!({"location": "roof"}));
}
