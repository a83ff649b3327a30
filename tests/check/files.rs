//! Data folders in which something is broken: SQLite, the log, its disk.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::check::{check, check_with, small, with_readings};
use crate::harness::{Server, Setup, binary};

/// Overwrites bytes in the middle of a file.
fn damage(file: &Path, at: u64, bytes: usize) {
    let open = fs::File::options().write(true).open(file).expect("the file is there");
    open.write_all_at(&vec![0xA5; bytes], at).expect("it is writable");
}

/// The largest file of the log.
fn segment(data: &Path) -> PathBuf {
    let files = fs::read_dir(data.join("log")).expect("a log").map(|file| file.expect("a file").path());
    let logs = files.filter(|file| file.extension().is_some_and(|ending| ending == "log"));
    logs.max_by_key(|file| file.metadata().expect("a file").len()).expect("a segment")
}

#[tokio::test]
async fn a_damaged_page_of_sqlite_is_found() {
    let setup = small(Setup::sqlite());
    let mut server = with_readings(&setup).await;
    let many: Vec<_> = (0..5_000).map(|n| json!({ "deviceId": format!("device-{n}"), "value": 1 })).collect();
    assert_eq!(server.ingest(&many.into()).await.status, 200);
    server.settled().await;
    assert!(server.terminate().await.success());
    let file = server.data_dir().join("tidegauge.sqlite");
    let pages = file.metadata().expect("a file").len() / 4_096;
    damage(&file, pages / 2 * 4_096, 4_096);
    let mend = check(&setup, &server.data_dir()).await.has("error", "sqlite-integrity", "is damaged").to_owned();
    assert!(mend.contains(".recover"), "{mend}");
}

#[tokio::test]
async fn a_damaged_log_dead_letters_and_quarantine_are_found() {
    let setup = small(Setup::sqlite()).all_pending();
    let mut server = Server::start(setup.clone()).await;
    for n in 0..3 {
        assert_eq!(server.ingest(&json!({ "deviceId": "a", "values": { "v": n } })).await.status, 200);
    }
    server.kill9();
    let data = server.data_dir();
    fs::create_dir(data.join("quarantine")).expect("the folder is writable");
    for (name, bytes) in [
        ("00000000000000000032-7.bytes", "damaged"),
        ("00000000000000000064-8.bytes.put-back", "put back"),
        ("checkpoint-5.bytes", "short"),
    ] {
        fs::write(data.join("quarantine").join(name), bytes).expect("the folder is writable");
    }
    for name in ["dead-letters.ndjson", "dead-letters.retrying.ndjson"] {
        fs::write(data.join(name), "{}\n").expect("the folder is writable");
    }
    damage(&segment(&data), 60, 4);
    let found = check(&setup, &data).await;
    let mend = found.has("error", "log-segments", "the log is damaged in 1 place, first in ");
    assert!(mend.contains("tidegauge check --log --data-dir") && mend.contains("--quarantine"), "{mend}");
    let mend = found.has("warning", "log-dead-letters", "6 B of them are kept");
    assert!(mend.contains("tidegauge dead-letters list"), "{mend}");
    let all = found.report["findings"].as_array().expect("findings").iter();
    let of_quarantine = all.filter(|finding| finding["part"] == "log-quarantine");
    let noted: Vec<_> = of_quarantine.map(|finding| finding["found"].as_str().expect("text")).collect();
    assert!(noted.len() == 2 && noted[0].starts_with("7 B ") && noted[0].ends_with("their readings are lost"));
    assert!(noted[1].starts_with("8 B ") && noted[1].ends_with("whole records were put back"), "{noted:?}");

    fs::write(data.join("log/checkpoint"), "short").expect("the folder is writable");
    check(&setup, &data).await.has("error", "log-segments", "checkpoint is damaged");
}

#[tokio::test]
async fn a_log_larger_than_its_disk_and_a_full_disk_are_found() {
    let setup = small(Setup::sqlite()).set("log.min_free_bytes", "4MiB");
    let server = Server::start_with_disk_of_data(setup.clone(), 48).await;
    let data = server.disk().folder().to_owned();
    let look = async || check_with(&setup, &data, server.disk().run(&binary())).await;
    let mend = look().await.has("warning", "log-disk", "and log.max_bytes is 64.00 MiB").to_owned();
    assert!(mend.starts_with("set log.max_bytes = \"4"), "{mend}");
    server.disk().fill(3 << 20);
    let found = look().await;
    found.has("error", "log-disk", "readings are refused");
    found.has("error", "sqlite-disk", " free of 48.00 MiB");
    server.disk().free();
}

/// A command that runs the binary without the right of root to read everything.
fn without_rights() -> Command {
    if fs::metadata("/proc/self").expect("Linux").uid() != 0 {
        return Command::new(binary());
    }
    let mut command = Command::new("setpriv"); // of util-linux
    command.arg("--bounding-set=-dac_override,-dac_read_search").arg(binary());
    command
}

#[tokio::test]
async fn a_data_folder_that_another_user_owns_is_found() {
    let setup = small(Setup::sqlite());
    let mut server = with_readings(&setup).await;
    assert!(server.terminate().await.success());
    let data = server.data_dir();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o000)).expect("our folder");
    let found = check_with(&setup, &data, without_rights()).await;
    fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).expect("our folder");
    for part in ["sqlite-file", "log-segments"] {
        let mend = found.has("error", part, "ermission denied");
        assert!(mend.contains("as the user of the service"), "{mend}");
    }
}

#[tokio::test]
async fn a_data_folder_that_cannot_be_written_is_found() {
    let setup = small(Setup::sqlite());
    let mut server = with_readings(&setup).await;
    assert!(server.terminate().await.success());
    let data = server.data_dir();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o500)).expect("our folder");
    let there = check_with(&setup, &data, without_rights()).await;
    let missing = check_with(&setup, &data.join("missing"), without_rights()).await;
    fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).expect("our folder");
    for part in ["configuration", "sqlite-file"] {
        let mend = there.has("error", part, "cannot be written: ");
        assert!(mend.contains("as the user of the service"), "{mend}");
    }
    let mend = missing.has("error", "configuration", ", and this user cannot create it: ");
    assert!(mend.contains("--data-dir or --config"), "{mend}");
}

#[tokio::test]
async fn a_read_only_disk_is_found_and_its_log_is_checked_all_the_same() {
    let setup = small(Setup::sqlite());
    let mut server = Server::start_with_disk_of_data(setup.clone(), 48).await;
    server.accepts(&json!({ "deviceId": "a", "value": 1 })).await;
    assert!(server.terminate().await.success());
    let (disk, data) = (server.disk(), server.disk().folder());
    disk.remount("ro");
    check_with(&setup, data, disk.run(&binary())).await.has("error", "configuration", "Read-only file system");
    for has_lock in [true, false] {
        if !has_lock {
            disk.remount("rw");
            fs::remove_file(disk.seen(data).join("lock")).expect("our disk");
            disk.remount("ro");
        }
        let mut command = disk.run(&binary());
        let log = command.args(["check", "--log", "--data-dir"]).arg(data).output().expect("the binary runs");
        assert!(log.status.success() && String::from_utf8_lossy(&log.stdout).ends_with("the log is good\n"), "{log:?}");
    }
}

#[tokio::test]
async fn a_lost_database_and_one_of_another_service_are_found() {
    let setup = small(Setup::sqlite());
    let mut server = with_readings(&setup).await;
    assert!(server.terminate().await.success());
    let (data, mut other) = (server.data_dir(), Server::start(setup.clone()).await);
    let file = data.join("tidegauge.sqlite");
    fs::rename(&file, data.join("away")).expect("our file");
    let mend = check(&setup, &data).await.has("error", "sqlite-file", "there is no file ").to_owned();
    assert!(mend.contains("put the file back"), "{mend}");
    assert!(other.terminate().await.success());
    fs::copy(other.data_dir().join("tidegauge.sqlite"), &file).expect("our file");
    check(&setup, &data).await.has("warning", "store-record", "is not the SQLite file that the service has used");
    fs::rename(data.join("away"), &file).expect("our file");
    assert_eq!(check(&setup, &data).await.bad(), [] as [&serde_json::Value; 0]);
}

#[tokio::test]
async fn clients_without_a_token_and_expired_tokens_are_noted() {
    let data = tempfile::tempdir().expect("a temporary folder");
    let note = async |setup: Setup, found: &str| {
        let checked = check(&small(setup), data.path()).await;
        assert!(checked.bad().is_empty(), "{checked:#?}");
        let all = checked.report["findings"].as_array().expect("findings").iter();
        let noted = all.filter(|finding| finding["severity"] == "note" && finding["mend"].is_string());
        let noted: Vec<_> = noted.map(|finding| finding["found"].as_str().expect("text")).collect();
        assert!(noted.iter().any(|noted| noted.contains(found)), "{found} in {noted:?}");
    };
    let open = Setup::sqlite().set("http.listen", "0.0.0.0:1").set("auth.allow_anonymous", true);
    note(open, "admits every client of http.listen, which is 0.0.0.0:1").await;
    let devices = Setup::sqlite().mqtt_listener("listen = '0.0.0.0:2'\n[[topics]]\ntopic = 'own/#'\n");
    let devices = devices.set("auth.allow_anonymous", true);
    note(devices, "admits every client of mqtt_listener.listen, which is 0.0.0.0:2").await;
    let old = "scopes = ['ingest']\nexpires = '2020-01-01T00:00:00Z'";
    let setup = Setup::sqlite().token("old", old).token("new", "scopes = ['ingest']");
    note(setup, "these tokens and keys have expired (1 in all): token old").await;
}
