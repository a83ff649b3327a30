//! The readings and rejections of packs.

mod cbor;
mod json;
mod random;
mod rfc;

use super::*;
use crate::wire::recording_sink::RecordingSink;

const NOW_MS: i64 = 1_776_693_610_000;

fn options() -> Options<'static> {
    Options {
        device: None,
        split: NameSplit::default(),
        now_ms: NOW_MS,
        max_readings: 100_000,
        max_metrics: 256,
        max_metadata_bytes: 4096,
    }
}

/// The entries of a pack in JSON, or the code and the text of its refusal.
fn json(body: impl AsRef<[u8]>) -> Result<Vec<String>, (&'static str, String)> {
    json_with(&options(), body)
}

fn json_with(options: &Options<'_>, body: impl AsRef<[u8]>) -> Result<Vec<String>, (&'static str, String)> {
    let mut entries = RecordingSink::default();
    finish(parse_json(body.as_ref(), options, &mut entries), entries)
}

/// The entries of a pack in CBOR.
fn cbor(body: impl AsRef<[u8]>) -> Result<Vec<String>, (&'static str, String)> {
    let mut entries = RecordingSink::default();
    finish(parse_cbor(body.as_ref(), &options(), &mut entries), entries)
}

fn finish(outcome: Result<(), SenmlError>, entries: RecordingSink) -> Result<Vec<String>, (&'static str, String)> {
    match outcome {
        Ok(()) => Ok(entries.0),
        Err(error) => {
            assert_eq!(entries.0, [""; 0], "a refused pack yields nothing");
            Err((error.code().as_str(), error.to_string()))
        }
    }
}

/// Asserts the entries of a pack in JSON.
#[track_caller]
fn assert_json(body: &str, entries: &[&str]) {
    assert_eq!(json(body), Ok(entries.iter().map(ToString::to_string).collect()), "{body}");
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16).unwrap() as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}
