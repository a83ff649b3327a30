//! `tidegauge move` copies any store into any other while devices send: readings, metadata, rollups.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use bson::{Document, doc};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Database, Finished, Model, Server, Setup, binary, encoded, run, wait_until};

const HOUR_MS: i64 = 3_600_000;

/// 2026-01-01T00:00:00Z.
const START_MS: i64 = 1_767_225_600_000;

/// The hours of each device: enough that a move has several batches.
const HOURS: i64 = 750;

/// Adds readings to a model, and returns their JSON.
fn add(model: &mut Model, device: &str, readings: impl Iterator<Item = (i64, f64)>) -> Vec<Value> {
    let add = |(ts, value): (i64, f64)| {
        let values = BTreeMap::from([("t".to_owned(), value), ("x{core=1}".to_owned(), -value)]);
        let json = json!({"deviceId": device, "ts": ts, "values": values});
        model.insert(device, ts, values);
        json
    };
    readings.map(add).collect()
}

/// Checks the readings, the rollups and the metadata that a server answers with.
async fn check(model: &Model, server: &Server) {
    model.check(server).await;
    for device in model.devices() {
        let known = server.get_json(&format!("/v1/devices/{}", encoded(device))).await;
        assert_eq!(known["metadata"]["of"], *device, "{known}");
        assert_eq!(known["metrics"], json!(["t", "x{core=1}"]));
    }
}

/// The configuration files of a move.
pub(crate) struct Files {
    folder: TempDir,
    data_dir: PathBuf,
}

impl Files {
    pub(crate) fn of(server: &Server) -> Self {
        Self { folder: TempDir::new().expect("a temporary folder"), data_dir: server.data_dir() }
    }

    /// The arguments of a move between these stores.
    pub(crate) fn args(&self, from: &Setup, to: &Setup, kinds: [&str; 2]) -> Vec<String> {
        let file = |name: &str, setup: &Setup| {
            let path = self.folder.path().join(name);
            fs::write(&path, setup.to_toml()).expect("the folder is writable");
            path.display().to_string()
        };
        let [from, to] = [file("from.toml", from), file("to.toml", to)];
        let data_dir = self.data_dir.display().to_string();
        let given = ["move", "--from", kinds[0], "--to", kinds[1], "--config", &to, "--from-config", &from];
        given.into_iter().chain(["--data-dir", &data_dir]).map(str::to_owned).collect()
    }

    fn progress(&self) -> PathBuf {
        self.data_dir.join("move.json")
    }
}

pub(crate) async fn run_move(args: &[String]) -> Finished {
    run(&args.iter().map(String::as_str).collect::<Vec<_>>()).await
}

pub(crate) fn assert_complete(done: &Finished) {
    assert_eq!(done.code, Some(0), "{}{}", done.stdout, done.stderr);
    let nothing = "missing in the new store: 0 values, 0 rollups of expired readings, metadata of 0 devices; wrong \
                   stats of 0 device-hours";
    assert!(done.stdout.contains(nothing), "{}", done.stdout);
}

/// Sends readings with the metadata of their device.
async fn send(server: &Server, mut readings: Vec<Value>) {
    for reading in &mut readings {
        reading["metadata"] = json!({"of": reading["deviceId"]});
    }
    server.accepts(&json!(readings)).await;
}

/// Four moves, the first of them killed once, each while devices send.
#[tokio::test]
async fn a_round_trip_through_all_stores_is_exact_while_devices_send() {
    let databases = [Database::new(), Database::new(), Database::new()];
    let last = TempDir::new().expect("a temporary folder");
    let stages = [
        ("sqlite", Setup::sqlite()),
        ("mongodb", Setup::mongodb(&databases[0])),
        ("mongodb", Setup::packed(&databases[1])),
        ("mongodb-timeseries", Setup::timeseries(&databases[2])),
        ("sqlite", Setup::sqlite().set("sqlite.file", last.path().join("last.sqlite").display().to_string())),
    ];
    let mut model = Model::default();
    let mut server = Server::start(stages[0].1.clone()).await;
    let files = Files::of(&server);
    for (nth, device) in ["a", "a/1", "b"].into_iter().enumerate() {
        let value = |at: i64| (at as f64 + nth as f64) * 0.1;
        let readings =
            add(&mut model, device, (0..HOURS).map(|at| (START_MS + at * HOUR_MS + 7 * nth as i64, value(at))));
        send(&server, readings).await;
    }
    let name = json!({ "deviceId": "a", "change": { "keys": { "name": { "atMs": 1, "value": "Press 3" } } } });
    let unsent = json!({ "deviceId": "unsent", "change": { "keys": { "name": { "atMs": 1, "value": "Spare" } } } });
    let named = server.post("/v1/metadata", "application/x-ndjson", format!("{name}\n{unsent}\n")).await;
    assert_eq!((named.status, named.text()), (200, r#"{"accepted":2}"#));
    let dense = add(&mut model, "dense", (0..2_000).map(|at| (START_MS + at * 1_500, (at as f64).sin() * 1e-9)));
    send(&server, dense).await;
    for (step, pair) in stages.windows(2).enumerate() {
        let [(from_kind, from), (to_kind, to)] = pair else { unreachable!("windows of two") };
        server.terminate().await;
        server.start_again_with(to.clone()).await;
        let args = files.args(from, to, [from_kind, to_kind]);
        if step == 0 {
            kill_in_the_middle(&args, &databases[0]).await;
        }
        let first_ms = START_MS + HOURS * HOUR_MS + step as i64 * 50 * HOUR_MS;
        let live = async {
            let mut all = Vec::new();
            for at in 0..20 {
                // Later hours, hours that are moved at the same time, and one that both stores have.
                let hour_ms = START_MS + at * HOUR_MS;
                let late = (hour_ms + 100 + step as i64, 0.5);
                let known = (hour_ms, at as f64 * 0.1);
                let sent = add(&mut model, "a", [(first_ms + at * 60_000, at as f64), late, known].into_iter());
                send(&server, sent.clone()).await;
                all.extend(sent);
            }
            send(&server, all).await; // resent
        };
        let (done, ()) = tokio::join!(run_move(&args), live);
        assert_complete(&done);
        assert!(!files.progress().exists(), "the move is complete");
        server.settled().await;
        check(&model, &server).await;
        for (device, name) in [("a", "Press 3"), ("unsent", "Spare")] {
            let found = server.get_json(&format!("/v1/devices/{device}/metadata")).await;
            assert_eq!(found["metadata"]["name"], name, "{found}");
        }
        let again = run_move(&args).await;
        assert_complete(&again);
        assert!(again.stderr.contains(": 0 new"), "{}", again.stderr);
    }
    check(&model, &server).await;
}

/// Starts a move, and kills it once the new store has something.
async fn kill_in_the_middle(args: &[String], database: &Database) {
    let mut child =
        Command::new(binary()).args(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs");
    let buckets = database.handle().await.collection::<Document>("buckets");
    wait_until("something is copied", async || (buckets.count_documents(doc! {}).await.ok()? > 0).then_some(())).await;
    child.kill().expect("our child");
    let status = child.wait().expect("our child");
    assert_eq!(status.code(), None, "it was killed before its end");
}

/// The rollups of readings that have expired go along, to MongoDB and back.
#[tokio::test]
async fn rollups_of_expired_readings_are_moved() {
    let database = Database::new();
    let last = TempDir::new().expect("a temporary folder");
    let mut server = Server::start(Setup::sqlite()).await;
    let files = Files::of(&server);
    let path = "/v1/devices/a/rollups?from=2026-01-01T00:00:00Z&to=2026-01-03T00:00:00Z";
    send(&server, add(&mut Model::default(), "a", (0..48).map(|at| (START_MS + at * HOUR_MS / 2, at as f64)))).await;
    server.settled().await;
    let before = server.get_json(path).await;
    assert_eq!(before["metrics"]["t"].as_array().map(Vec::len), Some(24));
    server.terminate().await;
    let short = |setup: Setup| setup.set("retention.readings", "30d").set("retention.rollups", "forever");
    server.start_again_with(short(Setup::sqlite())).await;
    wait_until("the readings have expired", async || (server.readings("a").await == json!([])).then_some(())).await;
    assert_eq!(server.get_json(path).await, before);
    let back = short(Setup::sqlite()).set("sqlite.file", last.path().join("last.sqlite").display().to_string());
    let stages = [("sqlite", short(Setup::sqlite())), ("mongodb", short(Setup::mongodb(&database))), ("sqlite", back)];
    for pair in stages.windows(2) {
        let [(from_kind, from), (to_kind, to)] = pair else { unreachable!("windows of two") };
        server.terminate().await;
        server.start_again_with(to.clone()).await;
        let done = run_move(&files.args(from, to, [from_kind, to_kind])).await;
        assert_complete(&done);
        assert!(done.stderr.contains("24 hourly rollups of expired readings"), "{}", done.stderr);
        assert_eq!(server.get_json(path).await, before);
        assert_eq!(server.get_json("/v1/devices/a").await["metadata"], json!({"of": "a"}));
    }
}

/// The new store would lack what the service stores in the old one after the move.
#[tokio::test]
async fn a_move_before_the_restart_is_refused() {
    let database = Database::new();
    let mut server = Server::start(Setup::sqlite()).await;
    let files = Files::of(&server);
    send(&server, add(&mut Model::default(), "a", [(START_MS, 1.0)].into_iter())).await;
    let args = files.args(&Setup::sqlite(), &Setup::mongodb(&database), ["sqlite", "mongodb"]);
    let done = run_move(&args).await;
    assert_eq!(done.code, Some(64), "{}{}", done.stdout, done.stderr);
    assert!(done.stderr.contains("restart the service with the new store first"), "{}", done.stderr);
    server.terminate().await;
    assert_complete(&run_move(&args).await); // a service that is stopped writes to no store
}

/// The two databases have the same kind, and another name on the same server.
#[tokio::test]
async fn a_move_between_databases_before_the_restart_is_refused() {
    let databases = [Database::new(), Database::new()];
    let [old, new] = [&databases[0], &databases[1]].map(Setup::mongodb);
    let mut server = Server::start(old.clone()).await;
    send(&server, add(&mut Model::default(), "a", [(START_MS, 1.0)].into_iter())).await;
    server.settled().await;
    let record = server.data_dir().join("store.json");
    let noted = || fs::read_to_string(&record).is_ok_and(|known| known.contains("\"id\""));
    wait_until("the service notes its database", async || noted().then_some(())).await;
    let files = Files::of(&server);
    let args = files.args(&old, &new, ["mongodb", "mongodb"]);
    let refused = run_move(&args).await;
    assert_eq!(refused.code, Some(64), "{refused:?}");
    assert!(refused.stderr.contains("restart the service with the new store first"), "{refused:?}");
    server.start_again_after_stop(new).await;
    assert_complete(&run_move(&args).await);
    server.settled().await;
}

/// A comparison finds what is missing, and says where.
#[tokio::test]
async fn a_comparison_finds_a_reading_that_is_missing() {
    let database = Database::new();
    let mut server = Server::start(Setup::sqlite()).await;
    let files = Files::of(&server);
    send(&server, add(&mut Model::default(), "a", (0..48).map(|at| (START_MS + at * HOUR_MS / 2, at as f64)))).await;
    server.terminate().await;
    let args = files.args(&Setup::sqlite(), &Setup::mongodb(&database), ["sqlite", "mongodb"]);
    assert_complete(&run_move(&args).await);
    let buckets = database.handle().await.collection::<Document>("buckets");
    buckets.delete_one(doc! { "_id": "a/2026-01-01T05" }).await.expect("it is deleted");
    let only_compare: Vec<String> = args.iter().cloned().chain(["--verify".to_owned()]).collect();
    let rollups = database.handle().await.collection::<Document>("rollups");
    rollups.delete_many(doc! {}).await.expect("they are deleted");
    let done = run_move(&only_compare).await;
    assert_eq!(done.code, Some(1), "{}{}", done.stdout, done.stderr);
    assert!(done.stderr.contains("a, hour of 2026-01-01T05:00:00.000Z: 4 values are missing"), "{}", done.stderr);
    assert_complete(&run_move(&args).await);
    assert_complete(&run_move(&only_compare).await);
}

/// Moves these readings of the devices `bad` and `good` into a database that refuses what `validator` does
/// not match. Returns the server with that database too.
async fn move_with(
    validator: Document,
    database: &Database,
    readings: impl Iterator<Item = (i64, f64)> + Clone,
) -> (Finished, Server) {
    let mut server = Server::start(Setup::sqlite()).await;
    let files = Files::of(&server);
    for device in ["bad", "good"] {
        send(&server, add(&mut Model::default(), device, readings.clone())).await;
    }
    server.terminate().await;
    server.start_again_with(Setup::mongodb(database)).await;
    let refuse = doc! { "collMod": "buckets", "validator": validator };
    database.handle().await.run_command(refuse).await.expect("the collection is there");
    let args = files.args(&Setup::sqlite(), &Setup::mongodb(database), ["sqlite", "mongodb"]);
    (run_move(&args).await, server)
}

/// A bucket that is refused is taken apart as far as that may help, and its readings are counted.
#[tokio::test]
async fn readings_that_the_new_store_refuses_are_counted_by_reason() {
    let database = Database::new();
    let readings = (0..2_000).map(|at| (START_MS + at * 1_500, at as f64));
    let (done, _server) = move_with(doc! { "deviceId": { "$ne": "bad" } }, &database, readings).await;
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.stderr.contains("2000 new, 0 there already, 2000 refused (2000 validation)"), "{}", done.stderr);
    assert!(done.stderr.contains("readings of bad in the hour of 2026-01-01T00:00:00.000Z: "), "{}", done.stderr);
    assert!(!done.stderr.contains("refused: 1 reading of"), "one write for each reading: {}", done.stderr);
    assert!(done.stdout.contains("missing in the new store: 4000 values"), "{}", done.stdout);
}

/// The service does the same.
#[tokio::test]
async fn readings_are_moved_without_metadata_that_the_new_store_refuses() {
    let database = Database::new();
    let readings = (0..4).map(|at| (START_MS + at * HOUR_MS / 2, at as f64));
    let (done, server) = move_with(doc! { "metadata.of": { "$ne": "bad" } }, &database, readings).await;
    assert_complete(&done);
    assert!(done.stderr.contains("8 new, 0 there already, 0 refused"), "{}", done.stderr);
    let said = "the store refused the metadata of a device for good; its readings are stored without it";
    assert_eq!(done.stderr.matches(said).count(), 1, "once for the device: {}", done.stderr);
    for device in ["bad", "good"] {
        assert_eq!(server.readings(device).await.as_array().map(Vec::len), Some(4), "{device}");
    }
}

/// Either name may be wrong.
#[tokio::test]
async fn a_database_without_collections_and_a_folder_that_no_service_has_used_are_refused() {
    let database = Setup::mongodb(&Database::new());
    let server = Server::start(Setup::sqlite()).await;
    let mut files = Files::of(&server);
    let refused = run_move(&files.args(&database, &Setup::sqlite(), ["mongodb", "sqlite"])).await;
    assert!(refused.code == Some(64) && refused.stderr.contains("there is no store mongodb "), "{refused:?}");
    let file = server.data_dir().join("tidegauge.sqlite").display().to_string();
    let unused = TempDir::new().expect("a temporary folder");
    files.data_dir = unused.path().to_owned();
    let from = Setup::sqlite().set("sqlite.file", file);
    let refused = run_move(&files.args(&from, &database, ["sqlite", "mongodb"])).await;
    assert!(refused.code == Some(64) && refused.stderr.contains("no service has used the data folder"), "{refused:?}");
}

/// Such as after a restore of the readings only.
#[tokio::test]
async fn a_database_with_nothing_but_readings_is_not_called_missing() {
    let database = Database::new();
    let old = Setup::mongodb(&database);
    let mut server = Server::start(old.clone()).await;
    send(&server, add(&mut Model::default(), "a", [(START_MS, 1.0)].into_iter())).await;
    server.settled().await;
    server.start_again_after_stop(Setup::sqlite()).await;
    for name in ["devices", "rollups"] {
        database.handle().await.collection::<Document>(name).drop().await.expect("dropped");
    }
    let files = Files::of(&server);
    let refused = run_move(&files.args(&old, &Setup::sqlite(), ["mongodb", "sqlite"])).await;
    let says = "the device index of the old store lacks devices; first run: tidegauge check --rebuild-device-index";
    assert!(refused.code == Some(1) && refused.stderr.contains(says), "{refused:?}");
}

#[tokio::test]
async fn a_move_of_a_store_into_itself_is_refused() {
    let server = Server::start(Setup::sqlite()).await;
    let files = Files::of(&server);
    let same = run_move(&files.args(&Setup::sqlite(), &Setup::sqlite(), ["sqlite", "sqlite"])).await;
    assert_eq!(same.code, Some(64), "{}", same.stderr);
    assert!(same.stderr.contains("both stores are sqlite"), "{}", same.stderr);
}
