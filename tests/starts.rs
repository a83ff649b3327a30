//! Warnings of a start if the store is not the one that the data folder knows, and their absence otherwise;
//! the refusal of a start if the log is gone.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Database, Server, Setup, run, wait_until};

const NEW_STORE: &str = "a new, empty store was created";
const OTHER_FILE: &str = "this is not the SQLite file of the last start";
const OLDER_FILE: &str = "this SQLite file is older than at the last start";
const NOT_SERVED: &str = "this SQLite file has readings that are not served";
const OTHER_STORE: &str = "the last start used another store";

#[tokio::test]
async fn an_ordinary_start_logs_no_warning() {
    let mut server = Server::start(Setup::sqlite()).await;
    store_one(&server, 1).await;
    server.terminate().await;
    server.start_again().await;
    store_one(&server, 2).await;
    server.kill9();
    server.start_again().await;
    wait_until("the third start", async || (server.log().matches("serve: started").count() == 3).then_some(())).await;
    for said in [NEW_STORE, OTHER_FILE, OLDER_FILE, NOT_SERVED, OTHER_STORE, "is overridden by"] {
        assert!(!server.log().contains(said), "{said} in\n{}", server.log());
    }
}

#[tokio::test]
async fn a_new_store_with_a_used_log_is_reported() {
    let mut server = Server::start(Setup::sqlite()).await;
    for known in [true, false] {
        store_one(&server, 1).await;
        server.terminate().await;
        fs::remove_file(database(&server)).expect("the database");
        if !known {
            fs::remove_file(server.data_dir().join("store.json")).expect("what is known of the store");
        }
        server.start_again().await;
        let log = server.logged(NEW_STORE).await;
        assert_eq!(log.matches(NEW_STORE).count(), if known { 1 } else { 2 }, "{log}");
    }
}

#[tokio::test]
async fn a_store_restored_from_a_backup_is_reported() {
    let mut server = Server::start(Setup::sqlite()).await;
    store_one(&server, 1).await;
    server.terminate().await;
    let backup = server.data_dir().join("backup");
    fs::copy(database(&server), &backup).expect("the folder is writable");
    for value in 2..5 {
        server.start_again().await; // each start notes what the ones before have stored
        store_one(&server, value).await;
        server.terminate().await;
    }
    assert!(!server.log().contains(OLDER_FILE), "{}", server.log());
    fs::copy(&backup, database(&server)).expect("the folder is writable");
    server.start_again().await;
    server.logged(OLDER_FILE).await;

    server.terminate().await;
    fs::remove_file(database(&server)).expect("the database");
    let other = Server::start(Setup::sqlite()).await;
    store_one(&other, 9).await;
    let (from, to) = (database(&other), database(&server));
    let mut other = other;
    other.terminate().await;
    fs::copy(from, to).expect("the folder is writable");
    server.start_again().await;
    server.logged(OTHER_FILE).await;
}

#[tokio::test]
async fn readings_in_an_unused_store_are_reported() {
    let mut server = Server::start(Setup::sqlite()).await;
    store_one(&server, 1).await;
    server.terminate().await;
    let mongodb = Database::new();
    server.start_again_with(Setup::mongodb(&mongodb)).await;
    let log = server.logged(OTHER_STORE).await;
    assert!(log.contains(NOT_SERVED) && log.contains("tidegauge.sqlite"), "{log}");
    wait_until("it notes the store", async || known(&server).contains("\"mongodb\"").then_some(())).await;
    server.terminate().await;
    server.start_again_with(Setup::sqlite()).await;
    wait_until("it tells of MongoDB", async || (server.log().matches(OTHER_STORE).count() == 2).then_some(())).await;
}

#[tokio::test]
async fn a_lost_log_refuses_the_start_until_it_is_back_or_given_up() {
    let mut server = Server::start(Setup::sqlite().all_pending()).await;
    assert_eq!(server.ingest(&json!([{"deviceId": "a", "ts": 1_713_621_600_000_i64, "value": 1}])).await.status, 200);
    server.kill9();
    let data = server.data_dir();
    let (log, away) = (data.join("log"), data.join("away"));
    let path = data.to_str().expect("UTF-8");
    fs::rename(&log, &away).expect("our folder");
    for has_folder in [false, true] {
        if has_folder {
            fs::create_dir(&log).expect("our folder"); // as if a volume was not mounted
        }
        let refused = run(&["serve", "--http", "127.0.0.1:0", "--udp", "off", "--data-dir", path]).await;
        let says = |what: &str| refused.stderr.contains(what);
        assert!(refused.code == Some(1) && says("the log is missing: ") && says("--quarantine"), "{refused:?}");
        let checked = run(&["check", "--full", "--data-dir", path]).await;
        assert!(checked.code == Some(1) && checked.stdout.contains("error    log-segments"), "{checked:?}");
    }
    fs::remove_dir(&log).expect("it is empty");
    fs::rename(&away, &log).expect("our folder");
    server.start_again_with(Setup::sqlite()).await;
    server.logged("the log contains readings").await;
    assert_eq!(server.readings("a").await.as_array().map(Vec::len), Some(1));

    assert!(server.terminate().await.success());
    fs::remove_dir_all(&log).expect("our folder");
    let begun = run(&["check", "--log", "--quarantine", "--data-dir", path]).await;
    assert!(begun.code == Some(0) && begun.stdout.contains("is a new, empty log"), "{begun:?}");
    server.start_again().await;
    assert_eq!(server.readings("a").await.as_array().map(Vec::len), Some(1), "the store has it");
}

#[tokio::test]
async fn a_start_with_the_sqlite_file_of_another_service_is_refused() {
    let server = Server::start(Setup::sqlite()).await;
    let other = TempDir::new().expect("a temporary folder");
    let [config, data] = ["config.toml", "data"].map(|name| other.path().join(name));
    let setup = Setup::sqlite().set("sqlite.file", database(&server).display().to_string());
    fs::write(&config, setup.to_toml()).expect("our folder");
    let [config, data] = [&config, &data].map(|path| path.to_str().expect("UTF-8"));
    let args = ["serve", "--http", "127.0.0.1:0", "--udp", "off", "--config", config, "--data-dir", data];
    let refused = run(&args).await;
    let says = refused.stderr.contains("another tidegauge uses this SQLite file: ");
    assert!(refused.code == Some(1) && says, "{refused:?}");
}

#[tokio::test]
async fn a_flag_that_overrides_a_value_of_the_file_is_reported() {
    let server = Server::start(Setup::sqlite().set("server.data_dir", "./elsewhere")).await;
    let log = server.logged("is overridden by --data-dir").await;
    assert!(log.contains("server.data_dir = \"./elsewhere\"") && log.contains("config.toml:"), "{log}");
}

/// Its newest segment alone is larger than the new limit.
#[tokio::test]
async fn a_log_above_its_new_limit_takes_readings_when_it_is_stored() {
    let mut server = Server::start(Setup::sqlite()).await;
    wait_until("the log is larger than its later limit", async || {
        let readings: Vec<_> = (0..1_000).map(|at| json!({ "ts": 1_713_621_600_000_i64 + at, "value": at })).collect();
        assert_eq!(server.ingest(&json!({ "deviceId": "d", "readings": readings })).await.status, 200);
        (server.metrics().await.count("tidegauge_log_bytes") > 128 << 10).then_some(())
    })
    .await;
    let smaller = Setup::sqlite().set("log.segment_bytes", "64KiB").set("log.max_bytes", "128KiB");
    server.start_again_after_stop(smaller).await;
    wait_until("the log takes readings", async || {
        let answer = server.ingest(&json!([{ "deviceId": "e", "ts": 1_713_621_600_000_i64, "value": 1 }])).await;
        (answer.status == 200).then_some(())
    })
    .await;
}

/// Stores a reading.
async fn store_one(server: &Server, value: i32) {
    server.accepts(&json!([{"deviceId": "a", "ts": value, "value": value}])).await;
    wait_until("the reading is stored", async || {
        (server.metrics().await.value("tidegauge_readings_pending") == Some(0.0)).then_some(())
    })
    .await;
}

fn database(server: &Server) -> PathBuf {
    server.data_dir().join("tidegauge.sqlite")
}

fn known(server: &Server) -> String {
    let file: &Path = &server.data_dir().join("store.json");
    fs::read_to_string(file).unwrap_or_default()
}
