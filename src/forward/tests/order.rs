//! The order of one device's readings at a server that fails, refuses and limits as it likes.
//!
//! The server is a plain map: the last value that it takes of an identity stays.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

use super::{Answer, Case, failed};
use crate::forward::batch::Batch;

/// The value of each identity, and the last metadata of each device.
#[derive(Debug, Default, PartialEq, Eq)]
struct Known {
    values: BTreeMap<(String, i64, String), u64>,
    metadata: BTreeMap<String, u64>,
}

/// A reading. Its number is its value in each series, and in its metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sent {
    number: u64,
    device: String,
    ts_ms: i64,
    series: Vec<String>,
    metadata: Option<u64>,
}

impl Known {
    fn take(&mut self, sent: &Sent) {
        for series in &sent.series {
            self.values.insert((sent.device.clone(), sent.ts_ms, series.clone()), sent.number);
        }
        if let Some(metadata) = sent.metadata {
            self.metadata.insert(sent.device.clone(), metadata);
        }
    }
}

/// The readings of NDJSON.
fn readings_in(body: &[u8]) -> Vec<Sent> {
    let mut found = Vec::new();
    for line in std::str::from_utf8(body).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        for reading in line["readings"].as_array().unwrap() {
            let values = reading["values"].as_object().unwrap();
            found.push(Sent {
                number: values.values().next().unwrap().as_f64().unwrap() as u64,
                device: line["deviceId"].as_str().unwrap().to_owned(),
                ts_ms: reading["ts"].as_i64().unwrap(),
                series: values.keys().cloned().collect(),
                metadata: line["metadata"]["number"].as_u64(),
            });
        }
    }
    found
}

/// Some readings of few identities.
fn random_readings(dice: &mut StdRng, first: u64) -> Vec<Sent> {
    let one = |number, dice: &mut StdRng| Sent {
        number,
        device: ["a", "b", "c"][dice.random_range(0..3)].to_owned(),
        ts_ms: dice.random_range(0..4),
        series: [vec!["m"], vec!["n"], vec!["m", "n"]][dice.random_range(0..3)]
            .iter()
            .map(ToString::to_string)
            .collect(),
        metadata: dice.random_bool(0.3).then_some(number),
    };
    let count = dice.random_range(1..20);
    (first..first + count).map(|number| one(number, dice)).collect()
}

fn batch_of(readings: &[Sent]) -> Batch {
    let mut batch = Batch::default();
    for Sent { number, device, ts_ms, series, metadata } in readings {
        let metadata = metadata.map(|number| format!(r#"{{"number":{number}}}"#));
        let values = series.iter().map(|series| (&**series, *number as f64));
        batch.push_owner(device, metadata.as_deref());
        batch.push_reading(*ts_ms, 0, values);
    }
    batch
}

/// A server with its own rules, drawn from a seed.
struct Centre {
    dice: StdRng,
    known: Known,
    /// Whether its last answer was a failure that a repetition does not have.
    has_just_failed: bool,
    /// The server fails on one reading of this many.
    fails_on_one_of: u64,
    /// The server refuses one reading of this many.
    refuses_one_of: u64,
    max_readings: usize,
    max_listed: usize,
}

impl Centre {
    fn new(seed: u64) -> Self {
        let mut dice = StdRng::seed_from_u64(seed);
        Self {
            fails_on_one_of: [3, 7, 20, u64::MAX][dice.random_range(0..4)],
            refuses_one_of: [5, 11, u64::MAX][dice.random_range(0..3)],
            max_readings: [1, 4, 100][dice.random_range(0..3)],
            max_listed: [1, 100][dice.random_range(0..2)],
            known: Known::default(),
            has_just_failed: false,
            dice,
        }
    }

    const fn fails_on(&self, number: u64) -> bool {
        number % self.fails_on_one_of == 1
    }

    const fn refuses(&self, number: u64) -> bool {
        number % self.refuses_one_of == 2
    }

    fn answer(&mut self, body: &[u8]) -> Answer {
        let sent = readings_in(body);
        if !std::mem::replace(&mut self.has_just_failed, false) && self.dice.random_bool(0.2) {
            self.has_just_failed = true;
            return if self.dice.random_bool(0.5) { failed() } else { (503, 0, json!("away")) };
        }
        if sent.len() > self.max_readings {
            return (413, 0, json!("too many"));
        }
        if sent.iter().any(|sent| self.fails_on(sent.number)) {
            return failed();
        }
        let is_limited = self.dice.random_bool(0.2);
        let mut errors = Vec::new();
        for (index, sent) in sent.iter().enumerate() {
            let code = if self.refuses(sent.number) {
                "timestamp_too_old"
            } else if is_limited && self.dice.random_bool(0.5) {
                "device_rate_limited"
            } else {
                self.known.take(sent);
                continue;
            };
            errors.push(json!({ "index": index, "code": code, "detail": "why" }));
        }
        let rejected = errors.len();
        errors.truncate(self.max_listed);
        (400, 0, json!({ "accepted": sent.len() - rejected, "rejected": rejected, "errors": errors }))
    }
}

/// The numbers of the readings in the dead letters.
fn letters(case: &Case) -> BTreeSet<u64> {
    let text = std::fs::read(case.folder.path().join("letters.ndjson")).unwrap_or_default();
    readings_in(&text).into_iter().map(|sent| sent.number).collect()
}

#[tokio::test]
async fn the_last_value_of_each_identity_stays_at_a_server_that_fails_on_parts() {
    for seed in 0..24 {
        let centre = Arc::new(Mutex::new(Centre::new(seed)));
        let answering = Arc::clone(&centre);
        let mut case = Case::answering(move |_, body| answering.lock().unwrap().answer(body)).await;
        let mut dice = StdRng::seed_from_u64(!seed);
        let mut sent = Vec::new();
        for _ in 0..3 {
            let readings = random_readings(&mut dice, sent.len() as u64);
            assert!(case.delivery.deliver(&batch_of(&readings), &mut case.progress).await.is_continue());
            sent.extend(readings);
        }
        let letters = letters(&case);
        let mut expected = Known::default();
        sent.iter().filter(|sent| !letters.contains(&sent.number)).for_each(|sent| expected.take(sent));
        let centre = centre.lock().unwrap();
        assert_eq!(centre.known, expected, "seed {seed}, sent {sent:?}, letters {letters:?}");
        let is_due = |sent: &Sent| centre.fails_on(sent.number) || centre.refuses(sent.number);
        let due: BTreeSet<u64> = sent.iter().filter(|sent| is_due(sent)).map(|sent| sent.number).collect();
        assert!(letters.is_superset(&due), "seed {seed}: {letters:?} lacks some of {due:?}");
    }
}
