//! What packs mean.

mod cbor;
mod json;
mod random;
mod rfc;

use super::*;
use crate::wire::notes::Notes;

const NOW_MS: i64 = 1_776_693_610_000;

fn options() -> Options {
    Options {
        split: NameSplit::default(),
        now_ms: NOW_MS,
        max_readings: 100_000,
        max_metrics: 256,
        max_metadata_bytes: 4096,
    }
}

/// What a pack in JSON comes to, or the code and the words of its refusal.
fn json(body: impl AsRef<[u8]>) -> Result<Vec<String>, (&'static str, String)> {
    json_with(&options(), body)
}

fn json_with(options: &Options, body: impl AsRef<[u8]>) -> Result<Vec<String>, (&'static str, String)> {
    let mut notes = Notes::default();
    finish(parse_json(body.as_ref(), options, &mut notes), notes)
}

/// What a pack in CBOR comes to.
fn cbor(body: impl AsRef<[u8]>) -> Result<Vec<String>, (&'static str, String)> {
    let mut notes = Notes::default();
    finish(parse_cbor(body.as_ref(), &options(), &mut notes), notes)
}

fn finish(outcome: Result<(), SenmlError>, notes: Notes) -> Result<Vec<String>, (&'static str, String)> {
    match outcome {
        Ok(()) => Ok(notes.0),
        Err(error) => {
            assert_eq!(notes.0, [""; 0], "nothing is handed on from a refused pack");
            Err((error.code().as_str(), error.to_string()))
        }
    }
}

/// Asserts what a pack in JSON comes to.
#[track_caller]
fn assert_json(body: &str, notes: &[&str]) {
    assert_eq!(json(body), Ok(notes.iter().map(ToString::to_string).collect()), "{body}");
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16).unwrap() as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}
