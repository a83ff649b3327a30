//! Files of a data folder, or of a backup, that are not what they should be: nothing waits for a FIFO, and
//! nothing takes memory for the size that a file claims.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Server, Setup, binary};

/// A command that would wait for a FIFO ends after this many seconds with the exit code 124.
const SECONDS: &str = "20";

/// Runs `tidegauge` below another command, such as `timeout`, and returns its exit code and all that it said.
fn run_below(command: &[&str], args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(command[0]).args(&command[1..]).arg(binary()).args(args).output().expect("it is there");
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (output.status.code(), said.concat())
}

/// The data of a service that has stopped: readings in the log and in SQLite, and a file of dead letters.
async fn data_of_a_service(place: &Path) -> PathBuf {
    let mut server = Server::start(Setup::sqlite().all_pending()).await;
    assert_eq!(server.ingest(&json!({"deviceId": "d", "ts": 1_704_067_200_000_i64, "value": 1})).await.status, 200);
    server.kill9(); // the log still has the reading
    fs::write(server.data_dir().join("dead-letters.ndjson"), "").expect("our folder");
    let data = place.join("data");
    let copied = Command::new("cp").arg("-r").args([&server.data_dir(), &data]).status();
    assert!(copied.expect("cp").success());
    data
}

/// The only segment of a log.
fn segment(data: &Path) -> PathBuf {
    let files = fs::read_dir(data.join("log")).expect("the log").map(|file| file.expect("a file").path());
    let mut segments = files.filter(|path| path.extension().is_some_and(|is| is == "log"));
    let (first, second) = (segments.next().expect("a segment"), segments.next());
    assert_eq!(second, None);
    first
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn make_fifo(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status().expect("mkfifo");
    assert!(made.success());
}

#[tokio::test]
async fn a_fifo_in_the_place_of_any_file_is_named_and_nothing_waits_for_it() {
    let place = TempDir::new().expect("a temporary folder");
    let data = data_of_a_service(place.path()).await;
    let (backup, restored) = (place.path().join("backup"), place.path().join("restored"));
    let back_up = |to: &Path| {
        drop(fs::remove_dir_all(to)); // what an attempt before has left
        run_below(&["timeout", SECONDS], &["backup", "--data-dir", text(&data), "--to", text(to)])
    };
    let check = || run_below(&["timeout", SECONDS], &["check", "--log", "--data-dir", text(&data)]);
    let restore = || {
        drop(fs::remove_dir_all(&restored));
        run_below(&["timeout", SECONDS], &["restore", "--data-dir", text(&restored), "--from", text(&backup)])
    };
    assert_eq!(back_up(&backup).0, Some(0));
    let names = |path: &Path, (code, said): (Option<i32>, String)| {
        let kind = said.contains("this is a FIFO, and a regular file is expected");
        assert!(code == Some(1) && kind && said.contains(text(path)), "{}: {code:?}: {said}", path.display());
    };
    let as_fifo = |path: PathBuf, refused: &[&dyn Fn() -> (Option<i32>, String)]| {
        let aside = path.with_extension("aside");
        let was_there = fs::rename(&path, &aside).is_ok();
        make_fifo(&path);
        for run in refused {
            names(&path, run());
        }
        fs::remove_file(&path).expect("our FIFO");
        if was_there {
            fs::rename(&aside, &path).expect("our file");
        }
    };
    let back_up_again = || back_up(&place.path().join("other"));
    as_fifo(segment(&data), &[&back_up_again, &check]);
    as_fifo(data.join("log/checkpoint"), &[&back_up_again, &check]);
    as_fifo(data.join("log/follower"), &[&back_up_again, &check]);
    as_fifo(data.join("lock"), &[&check]);
    for name in ["store.json", "dead-letters.ndjson", "tidegauge.sqlite", "tidegauge.sqlite-journal"] {
        as_fifo(data.join(name), &[&back_up_again]);
    }
    as_fifo(segment(&backup), &[&restore]);
    for name in ["backup.json", "tidegauge.sqlite", "log/checkpoint"] {
        as_fifo(backup.join(name), &[&restore]);
    }
    let (code, said) = restore();
    assert_eq!(code, Some(0), "{said}");
}

#[tokio::test]
async fn the_size_that_a_segment_claims_takes_no_memory() {
    let place = TempDir::new().expect("a temporary folder");
    let data = data_of_a_service(place.path()).await;
    let backup = place.path().join("backup");
    let file = fs::File::options().write(true).open(segment(&data)).expect("the segment");
    file.write_all_at(b"TGR1", 256 << 20).expect("our file"); // sparse
    // Each thread takes some of it, and there would be one for each core.
    let little = ["env", "TOKIO_WORKER_THREADS=2", "prlimit", "--as=200000000"];
    let (code, said) = run_below(&little, &["check", "--log", "--data-dir", text(&data)]);
    assert!(code == Some(0) && said.contains("torn tail: "), "{said}");
    let (code, said) = run_below(&little, &["backup", "--data-dir", text(&data), "--to", text(&backup)]);
    assert_eq!(code, Some(0), "{said}");
    assert!(segment(&backup).metadata().expect("the copy").len() < 1 << 20, "the torn tail was cut off");
    let restored = place.path().join("restored");
    let (code, said) = run_below(&little, &["restore", "--data-dir", text(&restored), "--from", text(&backup)]);
    assert!(code == Some(0) && said.contains("the log has 1 readings"), "{said}");
}

#[tokio::test]
async fn a_list_from_which_a_file_of_the_backup_was_removed_is_refused() {
    let place = TempDir::new().expect("a temporary folder");
    let data = data_of_a_service(place.path()).await;
    let (backup, restored) = (place.path().join("backup"), place.path().join("restored"));
    let (code, said) = run_below(&["env"], &["backup", "--data-dir", text(&data), "--to", text(&backup)]);
    assert_eq!(code, Some(0), "{said}");
    let list = backup.join("backup.json");
    let whole = fs::read(&list).expect("the list");
    let parsed: Value = serde_json::from_slice(&whole).expect("JSON");
    let files = parsed["files"].as_array().expect("an array");
    assert_eq!(files.len(), 4, "{parsed}");
    let restore = || {
        drop(fs::remove_dir_all(&restored));
        run_below(&["env"], &["restore", "--data-dir", text(&restored), "--from", text(&backup)])
    };
    for (at, file) in files.iter().enumerate() {
        let mut shorter = parsed.clone();
        shorter["files"].as_array_mut().expect("an array").remove(at);
        fs::write(&list, shorter.to_string()).expect("our file");
        let (code, said) = restore();
        let path = file["path"].as_str().expect("a path");
        assert!(code == Some(1) && said.contains(&format!("does not list the file {path}")), "{said}");

        // The file is removed from the folder, too.
        let (file, aside) = (backup.join(path), place.path().join("aside"));
        fs::rename(&file, &aside).expect("our file");
        let (code, said) = restore();
        let is_empty = path == "dead-letters.ndjson"; // nobody misses it
        assert_eq!(code, Some(i32::from(!is_empty)), "{path}: {said}");
        fs::rename(&aside, &file).expect("our file");
    }
    fs::write(&list, whole).expect("our file");
    let (code, said) = restore();
    assert_eq!(code, Some(0), "{said}");
}
