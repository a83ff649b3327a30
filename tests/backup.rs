//! The steps of docs/operations.md for backups, while the service runs.

use std::fs;

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::harness::{Server, Setup, wait_until};
use crate::pages::in_repository;

/// The SQL of the page, with this path as the path of the backup.
fn sql_of_the_page(start: &str) -> String {
    let page = fs::read_to_string(in_repository("docs/operations.md")).expect("the page");
    let at = page.find(start).unwrap_or_else(|| panic!("docs/operations.md has no {start}"));
    page[at..].split('"').next().expect("it ends with a quote").to_owned()
}

async fn stored(server: &Server, device: &str, values: std::ops::Range<i32>) {
    let readings: Vec<Value> = values
        .map(|value| json!({"deviceId": device, "ts": value, "value": value, "metadata": {"floor": 2}}))
        .collect();
    assert_eq!(server.ingest(&json!(readings)).await.status, 200);
    wait_until("the readings are stored", async || {
        (server.metrics().await.value("tidegauge_readings_pending") == Some(0.0)).then_some(())
    })
    .await;
}

async fn count(server: &Server, device: &str) -> usize {
    let path = format!("/v1/devices/{device}/readings?from=1970-01-01T00:00:00Z&to=1970-01-02T00:00:00Z");
    server.get_json(&path).await["readings"].as_array().expect("readings").len()
}

#[tokio::test]
async fn a_backup_of_a_running_service_is_restored_and_the_log_stays() {
    let mut server = Server::start(Setup::sqlite()).await;
    stored(&server, "a", 0..100).await;
    let database = server.data_dir().join("tidegauge.sqlite");
    let backup = server.data_dir().join("backup.sqlite");
    let sql = sql_of_the_page("VACUUM INTO '").replace("/var/backups/tidegauge.sqlite", &backup.display().to_string());
    Connection::open(&database).expect("a database").execute_batch(&sql).expect("a backup");
    stored(&server, "a", 100..150).await;
    server.terminate().await;
    for file in ["tidegauge.sqlite", "tidegauge.sqlite-wal", "tidegauge.sqlite-shm"] {
        drop(fs::remove_file(server.data_dir().join(file))); // the last two are there after a crash only
    }
    fs::copy(&backup, &database).expect("the folder is writable");
    server.start_again().await;
    assert_eq!(count(&server, "a").await, 100);
    let rollups = server.get_json("/v1/devices/a/rollups?from=1970-01-01T00:00:00Z&to=1970-01-01T01:00:00Z").await;
    assert_eq!(rollups["metrics"]["value"][0]["count"], 100, "{rollups}");
    stored(&server, "a", 50..200).await; // sent again: what is there already is not stored twice
    assert_eq!(count(&server, "a").await, 200);
}
