//! A repeated dead letter replaces nothing that was accepted after it, whatever the store, and replaces what
//! was accepted before it.

use std::collections::BTreeMap;

use bson::doc;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

use super::{START_MS, dead_letters, refuse_bad, retry, wait_for};
use crate::harness::{Database, Server, Setup};

/// A line of a dead-letter file of the device `d`.
fn letter(readings: &Value, replaces: &Value) -> String {
    let head = r#""refusedAt":"2024-04-20T14:00:00.000Z","reason":"validation","detail":"","replaces""#;
    format!("{{{head}:{replaces},\"deviceId\":\"d\",\"readings\":{readings}}}\n")
}

/// The values of a device by instant and metric.
async fn values(server: &Server, device: &str) -> BTreeMap<(i64, String), f64> {
    let mut found = BTreeMap::new();
    for reading in server.readings(device).await.as_array().expect("readings") {
        let ts: jiff::Timestamp = reading["ts"].as_str().expect("a time").parse().expect("a time");
        for (metric, value) in reading["values"].as_object().expect("values") {
            found.insert((ts.as_millisecond() - START_MS, metric.clone()), value.as_f64().expect("a number"));
        }
    }
    found
}

async fn ingest(server: &Server, values: &BTreeMap<(i64, String), f64>) {
    let mut body = Vec::new();
    for ((at, metric), value) in values {
        body.push(json!({ "deviceId": "d", "ts": START_MS + at, "values": { metric: value } }));
    }
    server.accepts(&json!(body)).await;
}

const fn is_same(one: f64, other: f64) -> bool {
    one.to_bits() == other.to_bits()
}

/// Values of some of the identities, each with another number.
fn some(dice: &mut StdRng, share: f64, next: &mut f64) -> BTreeMap<(i64, String), f64> {
    let identities = (0..30).flat_map(|at| ["m", "n"].map(|metric| (at, metric.to_owned())));
    let mut some = BTreeMap::new();
    for identity in identities {
        if dice.random_bool(share) {
            *next += 1.0;
            some.insert(identity, *next);
        }
    }
    some
}

/// Stores values, accepts others, and retries letters of the same identities; then compares with a map.
async fn retries(setup: Setup, keeps_first: bool, seed: u64) {
    let mut dice = StdRng::seed_from_u64(seed);
    let mut next = 0.0;
    let mut server = Server::start(setup.clone()).await;
    let stored = some(&mut dice, 0.5, &mut next);
    ingest(&server, &stored).await;
    server.settled().await;
    server.start_again_after_stop(setup.clone().all_pending()).await;
    let pending = some(&mut dice, 0.3, &mut next);
    ingest(&server, &pending).await;
    let mut known = stored.clone();
    for (identity, value) in &pending {
        if !(keeps_first && known.contains_key(identity)) {
            known.insert(identity.clone(), *value);
        }
    }

    // Letters of one value each: more than a request has.
    let (mut lines, mut expected, mut older) = (String::new(), known.clone(), 0);
    for round in 0..2 {
        for ((at, metric), value) in some(&mut dice, 0.6, &mut next) {
            let identity = (at, metric.clone());
            let current = known.get(&identity).copied();
            let value = if round == 0 && dice.random_bool(0.2) { current.unwrap_or(value) } else { value };
            // The stored value when the letter was written: the one of now, an older one, or none.
            let replaced = match dice.random_range(0..3) {
                0 => current,
                1 => Some(-1.0),
                _ => None,
            };
            let replaces = replaced.map_or(json!({}), |old| json!({(START_MS + at).to_string(): {(&metric): old}}));
            lines += &letter(&json!([{"ts": START_MS + at, "values": {(&metric): value}}]), &replaces);
            if current.is_none_or(|current| is_same(current, value) || Some(current) == replaced) {
                if keeps_first {
                    expected.entry(identity).or_insert(value);
                } else {
                    expected.insert(identity, value); // the last of several letters stays
                }
            } else {
                older += 1;
            }
        }
    }
    std::fs::write(server.data_dir().join("dead-letters.ndjson"), &lines).expect("our folder");
    let (code, told) = retry(&server).await;
    assert_eq!(code, Some(0), "seed {seed}: {told}");
    assert!(told.contains(", 0 dead letters kept"), "seed {seed}: {told}");
    let found = values(&server, "d").await;
    // The last of several letters of one identity is sent first, so the others may count as older.
    let counted: u64 = told
        .split(", ")
        .find_map(|part| part.split(' ').next().filter(|_| part.contains("older"))?.parse().ok())
        .unwrap_or(0);
    assert!(counted >= older, "seed {seed}: {counted} of {older}: {told}");
    if keeps_first {
        // Either of two letters without a stored value may be the first.
        for (identity, value) in &found {
            assert!(known.get(identity).is_none_or(|known| is_same(*known, *value)), "seed {seed}: {identity:?}");
        }
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "seed {seed}");
    } else {
        assert_eq!(found, expected, "seed {seed}");
    }
    server.start_again_after_stop(setup).await;
    server.settled().await;
    assert_eq!(values(&server, "d").await, found, "seed {seed}, stored");
}

#[tokio::test]
async fn a_retry_on_sqlite_agrees_with_a_map() {
    for seed in 0..3 {
        retries(Setup::sqlite(), false, seed).await;
    }
}

#[tokio::test]
async fn a_retry_on_mongodb_agrees_with_a_map() {
    let [readable, packed, series] = [Database::new(), Database::new(), Database::new()];
    retries(Setup::mongodb(&readable), false, 10).await;
    retries(Setup::packed(&packed), false, 11).await;
    retries(Setup::timeseries(&series), true, 12).await;
}

/// The value of the device `bad-1` at the start.
async fn value_of_bad(server: &Server) -> Option<f64> {
    let readings = server.readings("bad-1").await;
    readings[0]["values"]["value"].as_f64()
}

async fn send_bad(server: &Server, value: f64) {
    server.accepts(&json!({"deviceId": "bad-1", "ts": START_MS, "value": value})).await;
}

async fn corrections(database: &Database, setup: Setup) {
    let server = Server::start(setup).await;
    send_bad(&server, 1.0).await;
    server.settled().await;

    // A correction is refused. The stored value is older than its letter.
    refuse_bad(database, true).await;
    send_bad(&server, 2.0).await;
    wait_for(&server, "tidegauge_readings_dead_lettered_total", 1).await;
    server.settled().await;
    assert_eq!(value_of_bad(&server).await, Some(1.0));
    refuse_bad(database, false).await;
    let (code, told) = retry(&server).await;
    assert_eq!((code, told.contains("1 reading accepted, 0 dead letters kept")), (Some(0), true), "{told}");
    server.settled().await;
    assert_eq!(value_of_bad(&server).await, Some(2.0));

    // Another one is refused, and a third one follows. The stored value is newer than the letter.
    refuse_bad(database, true).await;
    send_bad(&server, 3.0).await;
    wait_for(&server, "tidegauge_readings_dead_lettered_total", 2).await;
    server.settled().await;
    refuse_bad(database, false).await;
    send_bad(&server, 4.0).await;
    let (code, told) = retry(&server).await;
    let expected = "0 readings accepted, 1 reading older than what the server has, 0 dead letters kept";
    assert_eq!((code, told.contains(expected)), (Some(0), true), "{told}");
    server.settled().await;
    assert_eq!(value_of_bad(&server).await, Some(4.0));
    let (_, listed) = dead_letters(&server, &["list"]).await;
    assert!(listed.contains("0 dead letters with 0 readings"), "{listed}");
    let stored = doc! { "$match": { "deviceId": "bad-1" } };
    assert_eq!(database.aggregate("buckets", vec![stored]).await.len(), 1);
}

#[tokio::test]
async fn a_letter_replaces_the_value_that_was_stored_before_it_and_none_after_it() {
    let (readable, packed) = (Database::new(), Database::new());
    tokio::join!(corrections(&readable, Setup::mongodb(&readable)), corrections(&packed, Setup::packed(&packed)));
}
