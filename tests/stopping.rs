//! A stop (SIGTERM) while the store is away: it does not wait for the store, and nothing is lost.
//!
//! All limits of time in the configuration are an hour, longer than the deadline of the harness. So a stop
//! that waits for one of them fails its test, however fast the machine is.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use bson::doc;
use serde_json::json;
use tempfile::TempDir;

use crate::harness::disk::Disk;
use crate::harness::mongod::kill_on_exit::KillOnExit;
use crate::harness::{Answer, Database, Killed, Mongod, ReplicaSet, Server, Setup, binary, mongod, wait_until};
use crate::mongodb_connection::Guarded;

const START_MS: i64 = 1_713_621_600_000; // 2024-04-20T14:00:00Z

/// The time for which a stop waits for a sign that the store takes writes.
const NO_WRITES: &str = "it has taken no writes for 2s";

fn patient(setup: Setup) -> Setup {
    let setup = setup.set("server.shutdown_grace", "1h").set("mongodb.timeout", "1h");
    setup.set("query.timeout", "1h").set("flush.retry_max", "1h")
}

async fn send(server: &Server, at: i64) {
    let reading = json!({ "deviceId": "d", "ts": START_MS + at, "value": at });
    assert_eq!(server.ingest(&reading).await.status, 200);
}

/// A server with two stored readings of the device `d`.
async fn with_stored(setup: Setup) -> Server {
    let server = Server::start(patient(setup)).await;
    send(&server, 0).await;
    send(&server, 1).await;
    server.settled().await;
    server
}

async fn known_to_be_away(server: &Server) {
    wait_until("the store is known to be away", async || {
        (server.metrics().await.count("tidegauge_store_up") == 0).then_some(())
    })
    .await;
}

/// Stops a server whose store is away, with these pending readings. Returns why it did not wait.
async fn stops(server: &mut Server, pending: u64) -> String {
    let ends = |log: &str| log.matches("stopped pending_readings=").count();
    let before = ends(&server.log());
    assert!(server.terminate().await.success(), "{}", server.log());
    let log = wait_until("it logs its end", async || Some(server.log()).filter(|log| ends(log) > before)).await;
    let mut last = log.lines().rev();
    assert!(last.next().is_some_and(|line| line.ends_with(&format!("stopped pending_readings={pending}"))), "{log}");
    if pending == 0 {
        return String::new();
    }
    let warning = last.next().unwrap_or_default();
    let said = "the store is away: these readings stay in the log for the next start";
    assert!(warning.contains(&format!("{said} readings={pending} ")), "{log}");
    warning.split_once("why=").expect("a reason").1.trim_matches('"').to_owned()
}

/// Starts again with a healthy store, and asserts that nothing is lost.
async fn has_all(server: &mut Server, readings: usize) {
    server.start_again().await;
    server.settled().await;
    assert_eq!(server.readings("d").await.as_array().map(Vec::len), Some(readings));
}

/// Stops at several moments of an outage, which `begin` begins and `end` ends.
async fn at_each_moment<S>(setup: Setup, store: &mut S, begin: impl Fn(&mut S), end: impl Fn(&mut S)) {
    let mut server = with_stored(setup).await;
    begin(store);
    send(&server, 2).await;
    stops(&mut server, 1).await;
    server.start_again().await;
    stops(&mut server, 1).await;
    server.start_again().await;
    send(&server, 3).await;
    known_to_be_away(&server).await;
    stops(&mut server, 2).await;
    server.start_again().await;
    known_to_be_away(&server).await;
    send(&server, 4).await;
    stops(&mut server, 3).await;
    tokio::task::block_in_place(|| end(store));
    has_all(&mut server, 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_does_not_wait_for_a_mongod_that_was_killed() {
    let mut mongod = Mongod::start();
    let database = Database::on(&mongod);
    at_each_moment(Setup::mongodb(&database), &mut mongod, Mongod::kill9, Mongod::start_again).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_does_not_wait_for_a_time_series_whose_mongod_was_killed() {
    let mut mongod = Mongod::start();
    let database = Database::on(&mongod);
    at_each_moment(Setup::timeseries(&database), &mut mongod, Mongod::kill9, Mongod::start_again).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_does_not_wait_for_a_mongod_that_hangs() {
    let mut mongod = Mongod::start();
    let database = Database::on(&mongod);
    let setup = Setup::packed(&database);
    at_each_moment(setup, &mut mongod, |mongod| mongod.freeze(), |mongod| mongod.thaw()).await;
}

/// After the line that the test waits for, a start without a store waits a second for other instances.
#[test]
fn a_stop_during_the_start_is_no_failure() {
    let folder = TempDir::new().expect("a temporary folder");
    let setup = Setup::sqlite().set("mongodb.uri", format!("mongodb://127.0.0.1:{}/", mongod::free_port()));
    let setup = setup.token("operator", "scopes = ['admin']").set("auth.allow_anonymous", true);
    let config = folder.path().join("config.toml");
    std::fs::write(&config, patient(setup).to_toml()).expect("the folder is writable");
    let mut command = Command::new(binary());
    command.args(["serve", "--http", "127.0.0.1:0", "--udp", "off", "--config"]).arg(&config);
    command.arg("--data-dir").arg(folder.path().join("data"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    let _kill_on_exit = KillOnExit::new(&child, folder.path());
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines().map(|line| line.expect("text"));
    assert!(lines.any(|line| line.contains("auth.allow_anonymous admits every client")), "it has begun");
    mongod::signal(&child, "TERM");
    let rest: Vec<String> = lines.collect();
    assert!(child.wait().expect("our child").success(), "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("stopped ")), "{rest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_with_nothing_pending_does_not_wait_for_a_mongod_that_hangs() {
    let mongod = Mongod::start();
    let database = Database::on(&mongod);
    let mut server = with_stored(Setup::mongodb(&database)).await;
    mongod.freeze();
    stops(&mut server, 0).await;
    mongod.thaw();
    has_all(&mut server, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_answers_requests_that_wait_for_a_mongod_that_hangs() {
    let mongod = Mongod::start();
    let database = Database::on(&mongod);
    let mut server = with_stored(Setup::mongodb(&database)).await;
    mongod.freeze();
    let query = server.request(reqwest::Method::GET, "/v1/devices/d/latest").send();
    let deletion = server.request(reqwest::Method::DELETE, "/v1/devices/d/readings?all=true").send();
    let [query, deletion] = [tokio::spawn(query), tokio::spawn(deletion)];
    wait_until("both are in progress", async || {
        (server.metrics().await.count("tidegauge_http_connections") >= 3).then_some(())
    })
    .await;
    stops(&mut server, 0).await;
    let [query, deletion] = [query, deletion].map(async |answer| Answer::of(answer.await.expect("no panic")).await);
    let (query, deletion) = (query.await.expect("an answer"), deletion.await.expect("an answer"));
    assert_eq!((query.status, &query.json()["code"]), (503, &json!("store_unavailable")), "{}", query.text());
    assert_eq!((deletion.status, &deletion.json()["pending"]), (202, &json!(true)), "{}", deletion.text());
    mongod.thaw();
    server.start_again().await;
    wait_until("the deletion is executed", async || {
        server.readings("d").await.as_array().is_some_and(Vec::is_empty).then_some(())
    })
    .await;
}

/// `fsyncLock`, which backups use, blocks all writes. The server goes on to answer pings and queries.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_does_not_wait_for_a_mongod_whose_writes_are_locked() {
    let mongod = Mongod::start();
    let database = Database::on(&mongod);
    let mut server = with_stored(Setup::mongodb(&database)).await;
    let admin = mongodb::Client::with_uri_str(mongod.uri()).await.expect("a URI").database("admin");
    admin.run_command(doc! { "fsync": 1, "lock": true }).await.expect("writes are locked");
    send(&server, 2).await;
    assert_eq!(stops(&mut server, 1).await, NO_WRITES);
    admin.run_command(doc! { "fsyncUnlock": 1 }).await.expect("writes go on");
    has_all(&mut server, 3).await;
}

/// Before the primary steps down, it answers pings and queries.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_does_not_wait_for_a_replica_set_that_has_lost_its_majority() {
    let mut set = tokio::task::block_in_place(ReplicaSet::start);
    let database = Database::at(set.uri());
    let mut server = with_stored(Setup::mongodb(&database)).await;
    let primary = set.primary();
    let [one, other] = [(primary + 1) % 3, (primary + 2) % 3];
    set.freeze(one);
    set.kill9(other);
    send(&server, 2).await;
    stops(&mut server, 1).await;
    server.start_again().await;
    known_to_be_away(&server).await;
    stops(&mut server, 1).await;
    set.thaw(one);
    tokio::task::block_in_place(|| set.primary());
    has_all(&mut server, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_does_not_wait_for_a_server_that_knows_the_user_no_more() {
    let guarded = Guarded::start().await;
    let admin = guarded.admin().await;
    let user = doc! { "createUser": "bob", "pwd": "hunter3", "roles": [{ "role": "readWrite", "db": "plant" }] };
    admin.run_command(user.clone()).await.expect("ann may do that");
    let setup = Setup::sqlite().set("mongodb.uri", guarded.uri("bob:hunter3@", "&authSource=admin"));
    let mut server = with_stored(setup.set("mongodb.database", "plant")).await;
    admin.run_command(doc! { "dropUser": "bob" }).await.expect("ann may do that");
    send(&server, 2).await;
    stops(&mut server, 1).await;
    server.start_again().await;
    let why = stops(&mut server, 1).await;
    assert!(why.contains("auth"), "{why}: {}", server.log());
    server.start_again().await;
    known_to_be_away(&server).await;
    stops(&mut server, 1).await;
    admin.run_command(user).await.expect("ann may do that");
    has_all(&mut server, 3).await;
}

/// A mongod whose disk is full ends by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_does_not_wait_for_a_mongod_whose_disk_is_full() {
    let mut mongod = OnDisk::start();
    let setup = Setup::sqlite().set("mongodb.uri", format!("mongodb://127.0.0.1:{}/", mongod.port));
    let mut server = with_stored(setup).await;
    mongod.disk.fill(0);
    let mut sent = 2;
    wait_until("mongod has ended", async || {
        send(&server, sent).await;
        sent += 1;
        mongod.process.0.0.try_wait().expect("our child")
    })
    .await;
    server.terminate().await;
    mongod.disk.free();
    mongod.spawn();
    has_all(&mut server, usize::try_from(sent).expect("small")).await;
}

/// A mongod with a disk of its own.
struct OnDisk {
    port: u16,
    /// It ends before its disk.
    process: (Killed, KillOnExit),
    disk: Disk,
    folder: TempDir,
}

impl OnDisk {
    fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("tidegauge-disk-").tempdir().expect("a temporary folder");
        let (port, data) = (mongod::free_port(), folder.path().join("db"));
        let disk = Disk::mount(&data, 512);
        let process = Self::run(&disk, port, folder.path());
        Self { port, process, disk, folder }
    }

    fn spawn(&mut self) {
        self.process = Self::run(&self.disk, self.port, self.folder.path());
    }

    /// It writes a checkpoint every second.
    fn run(disk: &Disk, port: u16, folder: &Path) -> (Killed, KillOnExit) {
        let mut command = disk.run(mongod::binary());
        command.args(["--bind_ip", "127.0.0.1", "--nounixsocket", "--port", &port.to_string(), "--syncdelay", "1"]);
        command.args(["--wiredTigerCacheSizeGB", "0.25", "--logpath"]).arg(folder.join("log"));
        command.args(["--setParameter", "diagnosticDataCollectionEnabled=false"]).arg("--logappend");
        command.arg("--dbpath").arg(disk.folder()).stdin(Stdio::null()).stdout(Stdio::null());
        let child = Killed(command.spawn().expect("mongod runs"));
        let kill_on_exit = KillOnExit::new(&child.0, folder);
        (child, kill_on_exit)
    }
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_file_that_another_program_has_locked() {
    let mut server = with_stored(Setup::sqlite()).await;
    let path = server.data_dir().join("tidegauge.sqlite");
    let lock = || {
        let file = rusqlite::Connection::open(&path).expect("the file of the server");
        file.execute_batch("PRAGMA busy_timeout = 60000; BEGIN IMMEDIATE").expect("nobody else writes for long");
        file
    };
    let locked = lock();
    send(&server, 2).await;
    assert_eq!(stops(&mut server, 1).await, NO_WRITES);
    drop(locked);

    server.start_again_with(patient(Setup::sqlite()).all_pending()).await;
    let locked = lock();
    assert_eq!(stops(&mut server, 1).await, NO_WRITES, "the write begins with the stop");
    drop(locked);

    server.start_again_with(patient(Setup::sqlite()).set("flush.retry_max", "100ms")).await;
    server.settled().await;
    let locked = lock();
    stops(&mut server, 0).await;
    drop(locked);

    server.start_again().await;
    let locked = lock();
    send(&server, 3).await;
    known_to_be_away(&server).await;
    stops(&mut server, 1).await;
    drop(locked);
    has_all(&mut server, 4).await;
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_full_disk_of_sqlite() {
    let mut server = Server::start_with_disk_of_data(patient(Setup::sqlite()).all_pending(), 24).await;
    send(&server, 0).await;
    server.disk().fill(0);
    assert!(server.terminate().await.success(), "{}", server.log());
    server.logged("stopped pending_readings=").await;
    server.disk().free();
    has_all(&mut server, 1).await;
}

/// Each write takes longer than a stop waits for a sign that the store takes writes.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_waits_for_a_mongod_that_is_slow() {
    let mongod = Mongod::start();
    let database = Database::on(&mongod);
    let setup = Setup::mongodb(&database).all_pending().set("flush.max_buckets_per_write", 2);
    let mut server = Server::start(patient(setup)).await;
    for at in 0..3 {
        let readings =
            ["a", "b", "c", "d"].map(|device| json!({ "deviceId": device, "ts": START_MS + at, "value": at }));
        assert_eq!(server.ingest(&json!(readings)).await.status, 200);
    }
    let admin = mongodb::Client::with_uri_str(mongod.uri()).await.expect("a MongoDB URI").database("admin");
    let data = doc! { "failCommands": ["insert", "update"], "blockConnection": true, "blockTimeMS": 2_500 };
    let slow = doc! { "configureFailPoint": "failCommand", "mode": "alwaysOn", "data": data };
    admin.run_command(slow).await.expect("the fail point is there");
    assert!(server.terminate().await.success(), "{}", server.log());
    server.logged("stopped pending_readings=0").await;
    assert_eq!(database.aggregate("buckets", vec![]).await.len(), 4);
}
