//! Log files that were torn or damaged while tidegauge was down. A torn tail, which nobody was promised, costs nothing.
//! Damage stops the start and is named; once it is quarantined, the readings of that record are gone, and only they.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use super::siege::{Siege, seed};
use super::store::Store;
use crate::harness::{Database, Server, Setup, run};

/// What stands at the start of each record, and how long its header is.
const MAGIC: &[u8] = b"TGR1";
const HEADER_BYTES: usize = 24;
/// How long the header of a segment is.
const SEGMENT_HEADER_BYTES: usize = 32;

#[tokio::test]
async fn torn_tails_with_sqlite() {
    torn(Store::Sqlite).await;
}

#[tokio::test]
async fn torn_tails_with_mongodb() {
    torn(Store::Mongodb(&Database::new())).await;
}

async fn torn(store: Store<'_>) {
    // So that the log is what counts.
    let setup = store.setup().all_pending().set("mongodb.max_readings_per_document", 3_600);
    let mut siege = Siege::begin_set_up("kill -9, a torn tail in the log", store, setup).await;
    while siege.goes_on(3) {
        siege.some_acked(300).await;
        siege.kill(0);
        let segments = segments(&siege.servers[0]);
        let newest = segments.last().expect("a segment");
        let mut bytes = fs::read(newest).expect("it can be read");
        let record = some_record(&segments);
        let torn = 1 + siege.one_of(record.len().min(400) - 1);
        if bytes.len() >= SEGMENT_HEADER_BYTES {
            bytes.extend_from_slice(&record[..torn]);
            fs::write(newest, bytes).expect("it can be written");
        } // else the kill came while the segment was made, and no record is written before its header is synced
        siege.restart(0).await;
    }
    siege.set_up_again(store.setup()).await;
    siege.audit().await;
}

#[tokio::test]
async fn a_flipped_bit_costs_the_readings_of_its_record_and_no_others() {
    const RECORDS: usize = 12;
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    for flip in 0..4 {
        let mut server = Server::start(Setup::sqlite().all_pending()).await;
        for record in 0..RECORDS {
            let readings = json!({ "deviceId": "a", "ts": 1_713_621_600_000_i64 + record as i64, "value": record });
            assert_eq!(server.ingest(&readings).await.status, 200);
        }
        server.kill9();
        let path = segments(&server).pop().expect("a segment");
        let mut bytes = fs::read(&path).expect("it can be read");
        let places = records(&bytes);
        assert_eq!(places.len(), RECORDS, "a request is a record");
        let victim = rng.random_range(0..RECORDS - 2); // the log knows it as durable
        let at = places[victim] + rng.random_range(0..HEADER_BYTES + 8);
        bytes[at] ^= 1 << rng.random_range(0..8);
        fs::write(&path, bytes).expect("it can be written");

        let data_dir = server.data_dir();
        let data_dir = data_dir.to_str().expect("UTF-8");
        let named = format!("byte {}", places[victim]);
        let finished = run(&["serve", "--http", "127.0.0.1:0", "--udp", "off", "--data-dir", data_dir]).await;
        assert!(
            finished.code != Some(0) && finished.stderr.contains(&named),
            "flip {flip} at {at}, FIRE_SEED={seed}: {finished:?}"
        );
        let check = ["check", "--log", "--data-dir", data_dir];
        assert_ne!(run(&check).await.code, Some(0), "damage is an error");
        let mended = run(&[&check[..], &["--quarantine"]].concat()).await;
        assert_eq!(mended.code, Some(0), "{mended:?}");
        server.start_again_with(Setup::sqlite()).await;
        server.settled().await;
        let found: BTreeMap<String, f64> =
            server.readings("a").await.as_array().expect("readings").iter().map(value).collect();
        let found: Vec<usize> = found.into_values().map(|value| value as usize).collect();
        let expected: Vec<usize> = (0..RECORDS).filter(|record| *record != victim).collect();
        assert_eq!(found, expected, "bit flipped at {at}, in record {victim}, FIRE_SEED={seed}");
    }
}

fn value(reading: &serde_json::Value) -> (String, f64) {
    (reading["ts"].to_string(), reading["values"]["value"].as_f64().expect("a number"))
}

fn segments(server: &Server) -> Vec<PathBuf> {
    let files = fs::read_dir(server.data_dir().join("log")).expect("the log").map(|file| file.expect("a file").path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|end| end == "log")).collect();
    files.sort();
    files
}

/// The last of the segments that has records, from its first record on: the newest may have none yet.
fn some_record(segments: &[PathBuf]) -> Vec<u8> {
    let first_of = |path: &PathBuf| {
        let bytes = fs::read(path).expect("it can be read");
        records(&bytes).first().map(|&first| bytes[first..].to_vec())
    };
    segments.iter().rev().find_map(first_of).expect("a record")
}

/// Where the records of a segment begin.
fn records(bytes: &[u8]) -> Vec<usize> {
    (0..bytes.len()).step_by(8).filter(|at| bytes[*at..].starts_with(MAGIC)).collect()
}
