//! Log files that were torn or damaged while tidegauge was down. A torn tail was never acknowledged and loses
//! nothing. Damage, also at the end of the log, refuses the start with its place; after quarantine exactly
//! the readings of the damaged records are missing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use tidegauge::log::recovery::extent;

use super::fault_test::{FaultTest, seed};
use super::store::{Store, on_stores};
use crate::harness::{Server, Setup, run, wait_until};

/// The first bytes of a record, and the size of its header.
const MAGIC: &[u8] = b"TGR1";
const HEADER_BYTES: usize = 24;
/// The size of a segment's header.
const SEGMENT_HEADER_BYTES: usize = 32;

on_stores!(torn_tails, super::torn, [sqlite, packed]);

async fn torn(store: Store<'_>) {
    let setup = store.setup_all_pending();
    let mut test = FaultTest::start_with_setup("kill -9, a torn tail in the log", store, setup).await;
    while test.next_fault(3) {
        test.wait_for_some_acks(300).await;
        test.kill(0);
        let segments = segments(&test.servers[0]);
        let newest = segments.last().expect("a segment");
        let mut bytes = fs::read(newest).expect("it can be read");
        let end = (log_end(&test.servers[0]) - base_of(newest)) as usize;
        let record = some_record(&segments);
        let torn = 1 + test.random_below(record.len().min(400) - 1);
        if bytes.len() >= SEGMENT_HEADER_BYTES {
            bytes.resize(bytes.len().max(end + torn), 0); // the file may have room behind its records
            bytes[end..end + torn].copy_from_slice(&record[..torn]);
            fs::write(newest, bytes).expect("it can be written");
        } // else the kill hit the creation of the segment; records follow only after its header is synced
        test.restart(0).await;
    }
    test.restart_with_setup(store.setup()).await;
    test.audit().await;
}

on_stores!(damaged_tails, super::damaged, [sqlite, mongodb]);

/// Destroys the end of the log within the part that the log has recorded as durable. Each start is refused;
/// the restored log loses nothing.
async fn damaged(store: Store<'_>) {
    let setup = store.setup_all_pending();
    let mut test = FaultTest::start_with_setup("kill -9, a damaged tail in the log", store, setup).await;
    while test.next_fault(5) {
        test.wait_for_some_acks(300).await;
        let end = log_end(&test.servers[0]);
        wait_until("the end of the log is recorded", async || (recorded_end(&test.servers[0]) >= end).then_some(()))
            .await;
        test.kill(0);
        let whole = contents(&test.servers[0]);
        let what = destroy_tail(&mut test, &whole, end);
        refused(&test.servers[0], &what).await;
        for (path, bytes) in &whole {
            fs::write(path, bytes).expect("it can be written");
        }
        test.restart(0).await;
    }
    test.restart_with_setup(store.setup()).await;
    test.audit().await;
}

/// Damages the log before the position `end` in one of five ways, and describes it.
fn destroy_tail(test: &mut FaultTest<'_>, whole: &BTreeMap<PathBuf, Vec<u8>>, end: u64) -> String {
    let log: Vec<(&PathBuf, &Vec<u8>)> = whole.iter().filter(|(path, _)| is_segment(path)).collect();
    let before_end: Vec<(usize, usize)> = log
        .iter()
        .enumerate()
        .flat_map(|(segment, (path, bytes))| {
            let places = records(bytes).into_iter().filter(|at| base_of(path) + (*at as u64) < end);
            places.map(move |at| (segment, at)).collect::<Vec<_>>()
        })
        .collect();
    let kind = test.random_below(5);
    let which = if kind == 3 { before_end.len() - 1 } else { test.random_below(before_end.len()) };
    let (segment, at) = before_end[which];
    let (path, bytes) = log[segment];
    let delete_from = |first: usize| log[first..].iter().for_each(|(path, _)| fs::remove_file(path).expect("a file"));
    let mut bytes = bytes.clone();
    match kind {
        0 => {
            bytes[at..].fill(0);
            for (path, bytes) in &log[segment + 1..] {
                fs::write(path, vec![0; bytes.len()]).expect("it can be written");
            }
        }
        1 => {
            bytes.truncate(at + test.random_below(HEADER_BYTES));
            delete_from(segment + 1);
        }
        2 => delete_from(segment),
        3 => bytes[at + test.random_below(HEADER_BYTES + 8)] ^= 1 << test.random_below(8),
        _ => delete_from(0),
    }
    if path.exists() {
        fs::write(path, bytes).expect("it can be written");
    }
    let way =
        ["zeroed from", "cut off at", "files deleted from", "bit flipped in the last record,", "all files deleted,"];
    format!("{} byte {at} of {} of {}", way[kind], segment + 1, log.len())
}

/// Asserts that the server refuses to start on a damaged log and that `check --log` shows the reason.
async fn refused(server: &Server, what: &str) {
    let data_dir = server.data_dir();
    let data_dir = data_dir.to_str().expect("UTF-8");
    let finished = run(&["serve", "--http", "127.0.0.1:0", "--udp", "off", "--data-dir", data_dir]).await;
    let is_named = finished.stderr.contains("the log is damaged: ") && finished.stderr.contains(", byte ");
    assert!(finished.code != Some(0) && is_named, "{what}: {finished:?}");
    let checked = run(&["check", "--log", "--data-dir", data_dir]).await;
    assert!(checked.code != Some(0) && checked.stdout.contains("  damaged: "), "{what}: {checked:?}");
}

/// The end of the records: a position that is durable now or soon.
fn log_end(server: &Server) -> u64 {
    extent(&server.data_dir().join("log")).expect("it can be read").expect("a log").end.0
}

/// The durable end of the log according to its checkpoint.
fn recorded_end(server: &Server) -> u64 {
    let bytes = fs::read(server.data_dir().join("log/checkpoint")).expect("it can be read");
    let slots = [0, 4096].map(|at| u64::from_le_bytes(bytes[at + 16..at + 24].try_into().expect("eight bytes")));
    slots[0].max(slots[1])
}

fn base_of(segment: &Path) -> u64 {
    segment.file_stem().and_then(|stem| stem.to_str()?.parse().ok()).expect("a position")
}

fn is_segment(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "log")
}

/// The files of the log.
fn contents(server: &Server) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = fs::read_dir(server.data_dir().join("log")).expect("the log").map(|file| file.expect("a file").path());
    files.map(|path| (path.clone(), fs::read(path).expect("it can be read"))).collect()
}

#[tokio::test]
async fn a_flipped_bit_loses_its_record_and_no_others() {
    const RECORDS: usize = 12;
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    for flip in 0..4 {
        let mut server = Server::start(Setup::sqlite().all_pending()).await;
        for record in 0..RECORDS {
            let readings = json!({ "deviceId": "a", "ts": 1_713_621_600_000_i64 + record as i64, "value": record });
            assert_eq!(server.ingest(&readings).await.status, 200);
        }
        wait_until("the last record is recorded as durable", async || {
            (recorded_end(&server) >= log_end(&server)).then_some(())
        })
        .await;
        server.kill9();
        let path = segments(&server).pop().expect("a segment");
        let mut bytes = fs::read(&path).expect("it can be read");
        let places = records(&bytes);
        assert_eq!(places.len(), RECORDS, "a request is a record");
        let victim = rng.random_range(0..RECORDS);
        let at = places[victim] + rng.random_range(0..HEADER_BYTES + 8);
        bytes[at] ^= 1 << rng.random_range(0..8);
        fs::write(&path, bytes).expect("it can be written");

        let data_dir = server.data_dir();
        let data_dir = data_dir.to_str().expect("UTF-8");
        let named = format!("byte {}", places[victim]);
        let finished = run(&["serve", "--http", "127.0.0.1:0", "--udp", "off", "--data-dir", data_dir]).await;
        assert!(
            finished.code != Some(0) && finished.stderr.contains(&named),
            "flip {flip} at {at}, FAULT_SEED={seed}: {finished:?}"
        );
        let check = ["check", "--log", "--data-dir", data_dir];
        assert_ne!(run(&check).await.code, Some(0), "`check --log` fails on damage");
        let quarantined = run(&[&check[..], &["--quarantine"]].concat()).await;
        assert_eq!(quarantined.code, Some(0), "{quarantined:?}");
        server.start_again_with(Setup::sqlite()).await;
        server.settled().await;
        let found: BTreeMap<String, f64> =
            server.readings("a").await.as_array().expect("readings").iter().map(value).collect();
        let found: Vec<usize> = found.into_values().map(|value| value as usize).collect();
        let expected: Vec<usize> = (0..RECORDS).filter(|record| *record != victim).collect();
        assert_eq!(found, expected, "bit flipped at {at}, in record {victim}, FAULT_SEED={seed}");
    }
}

fn value(reading: &serde_json::Value) -> (String, f64) {
    (reading["ts"].to_string(), reading["values"]["value"].as_f64().expect("a number"))
}

fn segments(server: &Server) -> Vec<PathBuf> {
    let files = fs::read_dir(server.data_dir().join("log")).expect("the log").map(|file| file.expect("a file").path());
    let mut files: Vec<PathBuf> = files.filter(|path| is_segment(path)).collect();
    files.sort();
    files
}

/// The newest segment with records, from its first record on.
fn some_record(segments: &[PathBuf]) -> Vec<u8> {
    let first_of = |path: &PathBuf| {
        let bytes = fs::read(path).expect("it can be read");
        records(&bytes).first().map(|&first| bytes[first..].to_vec())
    };
    segments.iter().rev().find_map(first_of).expect("a record")
}

/// The offsets of the records in a segment.
fn records(bytes: &[u8]) -> Vec<usize> {
    (0..bytes.len()).step_by(8).filter(|at| bytes[*at..].starts_with(MAGIC)).collect()
}
