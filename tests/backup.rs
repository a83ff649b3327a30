//! `tidegauge backup` and `tidegauge restore`, as docs/operations.md shows them, beside a running service.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use reqwest::Method;
use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Database, Finished, Server, Setup, binary, run, wait_until};
use crate::pages::in_repository;

/// 2024-01-01T00:00:00Z.
const START_MS: i64 = 1_704_067_200_000;

/// A plain model of readings: the value by device and time.
type Readings = BTreeMap<(String, i64), f64>;

/// Runs the command of the page that starts like this, with other paths.
async fn as_documented(start: &str, paths: &[(&str, &Path)]) -> Finished {
    let page = fs::read_to_string(in_repository("docs/operations.md")).expect("the page");
    let command = page.lines().find_map(|line| line.strip_prefix("sudo -u tidegauge tidegauge ")?.strip_prefix(start));
    let rest = command.unwrap_or_else(|| panic!("docs/operations.md has no command {start}"));
    let words = format!("{start}{rest}");
    let words: Vec<String> = words
        .split_whitespace()
        .map(|word| {
            let path = paths.iter().find(|(documented, _)| *documented == word);
            path.map_or_else(|| word.to_owned(), |(_, path)| path.display().to_string())
        })
        .collect();
    run(&words.iter().map(String::as_str).collect::<Vec<_>>()).await
}

/// The paths of the page, for a server and a folder of its backup.
async fn back_up(server: &Server, to: &Path) -> Finished {
    let (config, data) = (config_of(server), server.data_dir());
    let paths = [
        ("/etc/tidegauge/tidegauge.toml", config.as_path()),
        ("/var/lib/tidegauge", &data),
        ("/var/backups/tidegauge/monday", to),
    ];
    as_documented("backup ", &paths).await
}

async fn restore(from: &Path, config: &Path, data: &Path) -> Finished {
    let paths = [
        ("/etc/tidegauge/tidegauge.toml", config),
        ("/var/lib/tidegauge", data),
        ("/var/backups/tidegauge/monday", from),
    ];
    as_documented("restore ", &paths).await
}

fn config_of(server: &Server) -> PathBuf {
    server.data_dir().with_file_name("config.toml")
}

/// Stops the server, replaces its data by the backup, and starts it.
async fn replace_by(server: &mut Server, backup: &Path) {
    server.terminate().await;
    fs::remove_dir_all(server.data_dir()).expect("our folder");
    let restored = restore(backup, &config_of(server), &server.data_dir()).await;
    assert_eq!(restored.code, Some(0), "{restored:?}");
    server.start_again().await;
}

/// Sends readings until `stop`, and adds the acknowledged ones to `acknowledged`, all of them to `sent`.
async fn send(server: &Server, stop: &Cell<bool>, acknowledged: &Cell<Readings>, sent: &mut Readings) {
    for round in 0.. {
        if stop.get() {
            return;
        }
        let batch: Vec<_> =
            (0..20).map(|nth| (format!("d{}", nth % 4), START_MS + round * 20 + nth, nth as f64)).collect();
        let body = batch.iter().map(|(device, ts, value)| json!({"deviceId": device, "ts": ts, "value": value}));
        let answer = server.ingest(&body.collect()).await;
        let new = batch.into_iter().map(|(device, ts, value)| ((device, ts), value));
        sent.extend(new.clone());
        if answer.status == 200 {
            let mut all = acknowledged.take();
            all.extend(new);
            acknowledged.set(all);
        }
    }
}

/// Everything that a server has, with the counts of the rollups as a check that no reading is there twice.
async fn readings_of(server: &Server) -> Readings {
    let mut found = Readings::new();
    for device in ["d0", "d1", "d2", "d3"] {
        let readings = server.readings(device).await;
        let readings = readings.as_array().expect("readings");
        for reading in readings {
            let ts: jiff::Timestamp = reading["ts"].as_str().expect("a time").parse().expect("a time");
            let before = found.insert(
                (device.to_owned(), ts.as_millisecond()),
                reading["values"]["value"].as_f64().expect("a value"),
            );
            assert_eq!(before, None, "{device} has a reading twice: {reading}");
        }
        let range = "from=2024-01-01T00:00:00Z&to=2024-01-02T00:00:00Z&step=1d";
        let rollups = server.get_json(&format!("/v1/devices/{device}/rollups?{range}")).await;
        assert_eq!(rollups["metrics"]["value"][0]["count"], json!(readings.len()), "{rollups}");
    }
    found
}

#[tokio::test]
async fn a_backup_under_load_has_each_reading_acknowledged_before_it_began_once() {
    let setup = Setup::sqlite().set("log.segment_bytes", "64KiB").set("flush.max_readings", 100);
    let mut server = Server::start(setup).await;
    let place = TempDir::new().expect("a temporary folder");
    let backup = place.path().join("a/backup");
    let (stop, acknowledged, mut sent) = (Cell::new(false), Cell::default(), Readings::new());
    let back_up = async {
        let before = wait_until("there are readings", async || {
            let now: Readings = acknowledged.take();
            acknowledged.set(now.clone());
            (now.len() > 2_000).then_some(now)
        })
        .await;
        let made = back_up(&server, &backup).await;
        stop.set(true);
        (before, made)
    };
    let ((), (before, made)) = tokio::join!(send(&server, &stop, &acknowledged, &mut sent), back_up);
    assert_eq!(made.code, Some(0), "{made:?}");
    assert!(made.stdout.contains("is a backup: "), "{made:?}");
    replace_by(&mut server, &backup).await;
    let restored = readings_of(&server).await;
    let lost: Vec<_> = before.iter().filter(|(key, value)| restored.get(key) != Some(value)).collect();
    assert!(lost.is_empty(), "{} of {} readings are lost: {lost:?}", lost.len(), before.len());
    let invented: Vec<_> = restored.iter().filter(|(key, value)| sent.get(key) != Some(value)).collect();
    assert!(invented.is_empty(), "{} readings are invented: {invented:?}", invented.len());

    server.terminate().await;
    server.start_again().await; // replays the restored log no more
    assert_eq!(readings_of(&server).await, restored);
}

#[tokio::test]
async fn a_backup_that_is_killed_is_refused_and_a_part_of_a_backup_is_not_served() {
    let mut server = Server::start(Setup::sqlite()).await;
    let readings: Vec<_> =
        (0..4_000).map(|nth| json!({"deviceId": "d0", "ts": START_MS + nth, "value": nth})).collect();
    assert_eq!(server.ingest(&json!(readings)).await.status, 200);
    let place = TempDir::new().expect("a temporary folder");
    let (config, data) = (config_of(&server), place.path().join("data"));
    for attempt in 0.. {
        let backup = place.path().join(format!("killed-{attempt}"));
        let mut command = Command::new(binary());
        command
            .args(["backup", "--config"])
            .arg(&config)
            .arg("--data-dir")
            .arg(server.data_dir())
            .arg("--to")
            .arg(&backup);
        let mut child = command.stdout(Stdio::null()).spawn().expect("the binary runs");
        while !backup.join("log").exists() && child.try_wait().expect("our child").is_none() {
            std::thread::yield_now();
        }
        child.kill().expect("our child");
        child.wait().expect("our child");
        if backup.join("backup.json").exists() {
            continue; // it was quicker
        }
        let refused = restore(&backup, &config, &data).await;
        assert!(refused.code == Some(1) && refused.stderr.contains("has no backup.json"), "{refused:?}");
        assert!(!data.exists(), "it has begun");
        let refused = back_up(&server, &backup).await;
        assert!(refused.code == Some(64) && refused.stderr.contains("is not empty"), "{refused:?}");
        break;
    }

    let backup = place.path().join("whole");
    let made = back_up(&server, &backup).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    let database = backup.join("tidegauge.sqlite");
    let whole = fs::read(&database).expect("the copy");
    for damaged in [&whole[..whole.len() - 1], &[&whole[..9_000], &[whole[9_000] ^ 1], &whole[9_001..]].concat()] {
        fs::write(&database, damaged).expect("our folder");
        let refused = restore(&backup, &config, &data).await;
        assert!(refused.code == Some(1) && refused.stderr.contains("tidegauge.sqlite is damaged"), "{refused:?}");
        let data = data.display().to_string();
        let started = run(&["serve", "--http", "127.0.0.1:0", "--udp", "off", "--data-dir", &data]).await;
        assert!(started.code == Some(1) && started.stderr.contains("did not end: empty the folder"), "{started:?}");
        fs::remove_dir_all(&data).expect("our folder");
    }
    fs::write(&database, whole).expect("our folder");
    let refused = restore(&backup, &config, &server.data_dir()).await;
    assert!(refused.stderr.contains("another tidegauge uses this data folder"), "{refused:?}");
    server.terminate().await;
    let refused = restore(&backup, &config, &server.data_dir()).await;
    assert!(refused.code == Some(64) && refused.stderr.contains("is not empty"), "{refused:?}");
    fs::create_dir_all(data.join("lost+found")).expect("a folder, as of a new volume");
    let restored = restore(&backup, &config, &data).await;
    assert_eq!(restored.code, Some(0), "{restored:?}");
}

#[tokio::test]
async fn a_backup_beside_mongodb_has_the_log_and_the_dead_letters() {
    let mongodb = Database::new();
    let mut server = Server::start(Setup::mongodb(&mongodb).all_pending()).await;
    let reading = json!({"deviceId": "d0", "ts": START_MS, "value": 7});
    assert_eq!(server.ingest(&reading).await.status, 200);
    let letters =
        r#"{"refusedAt":"2024-01-01T00:00:00.000Z","reason":"too_large","detail":"","deviceId":"d1","readings":[]}"#;
    fs::write(server.data_dir().join("dead-letters.ndjson"), format!("{letters}\n")).expect("our folder");
    let place = TempDir::new().expect("a temporary folder");
    let backup = place.path().join("backup");
    let made = back_up(&server, &backup).await;
    assert!(made.code == Some(0) && made.stdout.contains("mongodump"), "{made:?}");
    assert!(!backup.join("tidegauge.sqlite").exists());

    let other = Setup::sqlite().to_toml();
    let config = place.path().join("other.toml");
    fs::write(&config, other).expect("our folder");
    let refused = restore(&backup, &config, &place.path().join("data")).await;
    assert!(refused.code == Some(64) && refused.stderr.contains(r#"store.kind = "mongodb""#), "{refused:?}");

    server.kill9();
    fs::remove_dir_all(server.data_dir()).expect("our folder");
    let restored = restore(&backup, &config_of(&server), &server.data_dir()).await;
    assert!(
        restored.code == Some(0) && restored.stdout.contains("1 readings that the store may not have"),
        "{restored:?}"
    );
    server.start_again().await;
    assert_eq!(server.readings("d0").await.as_array().map(Vec::len), Some(1));
    let kept = fs::read_to_string(server.data_dir().join("dead-letters.ndjson")).expect("the file");
    assert_eq!(kept.trim_end(), letters);
}

#[tokio::test]
async fn the_database_of_a_backup_is_put_beside_a_newer_log() {
    let mut server = Server::start(Setup::sqlite().set("flush.max_age", "1d")).await;
    let readings = |values: std::ops::Range<i64>| {
        values.map(|nth| json!({"deviceId": "d0", "ts": START_MS + nth, "value": nth})).collect::<serde_json::Value>()
    };
    assert_eq!(server.ingest(&readings(0..100)).await.status, 200);
    server.terminate().await; // stores what is pending
    server.start_again().await;
    let place = TempDir::new().expect("a temporary folder");
    let backup = place.path().join("backup");
    let made = back_up(&server, &backup).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    assert_eq!(server.ingest(&readings(100..150)).await.status, 200);
    server.kill9();
    for file in ["tidegauge.sqlite", "tidegauge.sqlite-wal", "tidegauge.sqlite-shm"] {
        drop(fs::remove_file(server.data_dir().join(file))); // the last two are there after a crash only
    }
    fs::copy(backup.join("tidegauge.sqlite"), server.data_dir().join("tidegauge.sqlite")).expect("our folder");
    server.start_again().await;
    assert_eq!(server.readings("d0").await.as_array().map(Vec::len), Some(150));
}

#[tokio::test]
async fn a_database_that_the_service_does_not_use_is_no_backup() {
    let place = TempDir::new().expect("a temporary folder");
    let (old, new) = (place.path().join("old.sqlite"), place.path().join("new.sqlite"));
    let using = |file: &Path| Setup::sqlite().set("sqlite.file", file.to_str().expect("UTF-8"));
    let mut server = Server::start(using(&old)).await;
    store_one(&server, START_MS).await;
    let data = server.data_dir();
    let known = || fs::read_to_string(data.join("store.json")).expect("the record");
    let before = known();
    server.terminate().await;
    server.start_again_with(using(&new)).await;
    wait_until("the new store is recorded", async || (known() != before).then_some(())).await;
    let config = place.path().join("config.toml");
    let to = place.path().join("backup");
    let back_up = async |setup: Setup| {
        fs::write(&config, setup.to_toml()).expect("our folder");
        let [config, data, to] = [&config, &data, &to].map(|path| path.to_str().expect("UTF-8"));
        run(&["backup", "--config", config, "--data-dir", data, "--to", to]).await
    };
    let refused = back_up(using(&old)).await;
    let says = refused.stderr.contains("is not the SQLite file that the service has used");
    assert!(refused.code == Some(64) && says && !to.exists(), "{refused:?}");
    let refused = back_up(Setup::mongodb(&Database::new())).await;
    assert!(refused.code == Some(64) && refused.stderr.contains("has used the store sqlite"), "{refused:?}");
    let made = back_up(using(&new)).await;
    assert_eq!(made.code, Some(0), "{made:?}");

    // A restore that is refused for a file outside of the data folder can be repeated.
    let restored = place.path().join("restored");
    let restore = async || {
        let [config, data, from] = [&config, &restored, &to].map(|path| path.to_str().expect("UTF-8"));
        run(&["restore", "--config", config, "--data-dir", data, "--from", from]).await
    };
    let refused = restore().await;
    assert!(refused.code == Some(1) && refused.stderr.contains("new.sqlite exists; move it away"), "{refused:?}");
    fs::write(&config, using(&place.path().join("none/new.sqlite")).to_toml()).expect("our folder");
    let refused = restore().await;
    assert!(refused.code == Some(1) && refused.stderr.contains("sqlite.file, which has to exist: "), "{refused:?}");
    fs::write(&config, using(&new).to_toml()).expect("our folder");
    server.terminate().await;
    for file in [&new, &new.with_extension("sqlite-wal"), &new.with_extension("sqlite-shm")] {
        drop(fs::remove_file(file));
    }
    std::os::unix::fs::symlink("linked.sqlite", &new).expect("our folder");
    let done = restore().await;
    assert!(done.code == Some(0) && place.path().join("linked.sqlite").is_file(), "{done:?}");
}

#[tokio::test]
async fn a_database_that_cannot_be_seen_is_not_called_missing() {
    let place = TempDir::new().expect("a temporary folder");
    let config = place.path().join("config.toml");
    // Like EACCES, this is another error than that of a missing file.
    let setup = Setup::sqlite().set("sqlite.file", config.join("db").display().to_string());
    fs::write(&config, setup.to_toml()).expect("our folder");
    let to = place.path().join("backup");
    let [config, data, to] = [config.as_path(), place.path(), &to].map(|path| path.to_str().expect("UTF-8"));
    let refused = run(&["backup", "--config", config, "--data-dir", data, "--to", to]).await;
    let says = refused.stderr.contains("cannot look for ") && refused.stderr.contains("as the user of the service");
    assert!(refused.code == Some(1) && says, "{refused:?}");
}

/// Stores a reading.
async fn store_one(server: &Server, ts: i64) {
    server.accepts(&json!({"deviceId": "a", "ts": ts, "value": 1})).await;
    server.settled().await;
}

#[tokio::test]
async fn a_restored_log_puts_its_values_over_newer_ones_in_a_database_that_was_not_restored() {
    let database = Database::new();
    let mut server = Server::start(Setup::mongodb(&database).all_pending()).await;
    let send = async |server: &Server, value: f64| {
        server.accepts(&json!({"deviceId": "d", "ts": START_MS, "value": value})).await;
    };
    send(&server, 1.0).await;
    let place = TempDir::new().expect("a temporary folder");
    let backup = place.path().join("backup");
    let done = back_up(&server, &backup).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    server.start_again_after_stop(Setup::mongodb(&database)).await;
    send(&server, 2.0).await;
    server.settled().await;
    replace_by(&mut server, &backup).await;
    server.settled().await;
    assert_eq!(server.readings("d").await[0]["values"]["value"], json!(1.0));
}

/// A restored instance has a new name, and the deletion is noted for the old one.
#[tokio::test]
async fn a_restored_log_brings_nothing_back_that_was_deleted_while_its_instance_was_away() {
    let database = Database::new();
    let setup = Setup::mongodb(&database).set("mongodb.timeout", "1s");
    let (one, mut other) = tokio::join!(Server::start(setup.clone()), Server::start(setup.clone().all_pending()));
    for device in ["deleted", "kept"] {
        let reading = json!({"deviceId": device, "ts": START_MS, "value": 1});
        assert_eq!(other.ingest(&reading).await.status, 200);
    }
    other.kill9();
    wait_until("the other instance is taken for dead", async || {
        let answer = one.send(one.request(Method::DELETE, "/v1/devices/deleted")).await;
        (answer.status == 200).then_some(())
    })
    .await;
    let place = TempDir::new().expect("a temporary folder");
    let backup = place.path().join("backup");
    let made = back_up(&other, &backup).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    fs::remove_dir_all(other.data_dir()).expect("our folder");
    let restored = restore(&backup, &config_of(&other), &other.data_dir()).await;
    assert_eq!(restored.code, Some(0), "{restored:?}");
    other.start_again_with(setup).await;
    other.settled().await;
    for server in [&one, &other] {
        assert_eq!(server.get("/v1/devices/deleted/latest").await.status, 404);
        assert_eq!(server.get("/v1/devices/kept/latest").await.status, 200);
    }
}
