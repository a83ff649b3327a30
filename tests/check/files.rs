//! Data folders in which something is broken: SQLite, the log, its disk.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

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
    fs::write(data.join("quarantine/bytes"), "damaged").expect("the folder is writable");
    fs::write(data.join("dead-letters.ndjson"), "{}\n").expect("the folder is writable");
    damage(&segment(&data), 60, 4);
    let found = check(&setup, &data).await;
    let mend = found.has("error", "log-segments", "the log is damaged in 1 place, first in ");
    assert!(mend.contains("tidegauge check --log --data-dir") && mend.contains("--quarantine"), "{mend}");
    let mend = found.has("warning", "log-dead-letters", "3 B of them are kept");
    assert!(mend.contains("tidegauge dead-letters list"), "{mend}");
    assert!(found.report.to_string().contains("7 B of damaged bytes were set aside"), "{found:#?}");

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
