//! Runs each target on its corpus and on mutations of it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{TARGETS, Target};

/// The number of mutations for each target.
const MUTATIONS: u64 = 1_000;

/// The length limit of an input.
const MAX_BYTES: usize = 64 << 10;

/// Byte sequences that are difficult for parsers.
const PIECES: [&[u8]; 24] = [
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b"\r\n",
    b"\"",
    b"\\",
    b"\\ud800",
    b"[[[[",
    b"}",
    b",",
    b" ",
    b"#",
    b"=",
    b"-",
    b"1e999",
    b"-0",
    b"9223372036854775808",
    b"NaN",
    b"&",
    b"%f",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\x7f",
];

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

fn run(target: &Target, input: &[u8], what: &str) {
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    assert!(outcome.is_ok(), "{} breaks an invariant on {what}: {}", target.name, input.escape_ascii());
}

/// Makes one to four changes.
fn mutate(input: &mut Vec<u8>, others: &[(PathBuf, Vec<u8>)], dice: &mut StdRng) {
    for _ in 0..dice.random_range(1..=4) {
        let at = dice.random_range(0..=input.len());
        let to = dice.random_range(at..=input.len().min(at + 40));
        match dice.random_range(0..8) {
            0 if at < input.len() => input[at] ^= 1 << dice.random_range(0..8),
            1 if at < input.len() => input[at] = dice.random(),
            2 => drop(input.drain(at..to)),
            3 => input.extend_from_within(at..to),
            4 => {
                let again = input[at..to].to_vec();
                input.splice(at..at, again);
            }
            5 => input.truncate(at),
            6 => {
                let (_, other) = &others[dice.random_range(0..others.len())];
                let from = dice.random_range(0..=other.len());
                let until = dice.random_range(from..=other.len());
                input.splice(at..to, other[from..until].iter().copied());
            }
            _ => drop(input.splice(at..to, PIECES[dice.random_range(0..PIECES.len())].iter().copied())),
        }
    }
    input.truncate(MAX_BYTES);
}

fn replay_and_mutate(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target");
    let corpus = corpus(name);
    assert!(!corpus.is_empty(), "{name} has no corpus");
    for (path, input) in &corpus {
        run(target, input, &path.display().to_string());
    }
    run(target, b"", "nothing");
    for seed in 0..MUTATIONS {
        let mut dice = StdRng::seed_from_u64(seed);
        let mut input = corpus[dice.random_range(0..corpus.len())].1.clone();
        mutate(&mut input, &corpus, &mut dice);
        run(target, &input, &format!("mutation {seed}"));
    }
}

macro_rules! test_each_target {
    ($($name:ident)*) => {
        $(#[test] fn $name() { replay_and_mutate(stringify!($name)); })*

        #[test]
        fn every_target_is_tested() {
            assert_eq!(TARGETS.map(|target| target.name), [$(stringify!($name)),*]);
        }
    };
}

test_each_target! {
    json ndjson line_protocol senml_json senml_cbor remote_write_1 remote_write_2 remote_read otlp otlp_json webhook
    timestamp signed_datagram datagram mqtt mqtt_device log checkpoint blocks bson_column chunk payload config units
    query_string influxql authorization certificate bson
}
