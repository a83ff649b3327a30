//! Reads the collections of MongoDB, document by document.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bson::{Bson, Document, doc};

use super::{Findings, Fold, Found, HOUR_MS, Stats, Stored, add, chunk, differences, fold, known};
use crate::faults::fault_test::closed_before_ms;
use crate::harness::Database;

/// Reads the buckets, whose stats must be the fold of their readings, and the rollups.
pub(super) async fn in_buckets(database: &Database, findings: &mut Findings) -> Stored {
    let mut readings = Found::new();
    let mut unpacked = unpacked(database).await;
    for mut bucket in database.aggregate("buckets", vec![doc! { "$match": {} }]).await {
        let id = bucket.get_str("_id").expect("an _id").to_owned();
        if let Some(readings) = unpacked.remove(&id) {
            bucket.insert("readings", readings);
        }
        let device: Arc<str> = bucket.get_str("deviceId").expect("a device").into();
        let mut own = Found::new();
        for reading in bucket.get_array("readings").expect("readings") {
            let reading = reading.as_document().expect("a reading");
            let ts_ms = reading.get_datetime("ts").expect("a time").timestamp_millis();
            for (metric, value) in reading.iter().filter(|(key, _)| *key != "ts") {
                let identity = (Arc::clone(&device), ts_ms, known(metric));
                add(identity.clone(), number(value), &mut readings, findings);
                own.insert(identity, number(value));
            }
        }
        let hour_ms = bucket.get_datetime("bucket").expect("an hour").timestamp_millis();
        let mut stats = Stats::new();
        add_stats(bucket.get_document("stats").expect("stats"), &device, hour_ms, &mut stats);
        if stats != fold(&own) {
            let id = bucket.get("_id");
            findings.wrong.push(differences(&format!("stats of {id:?}"), &stats, "fold of its readings", &fold(&own)));
        }
    }
    with_rollups(readings, database, findings).await
}

/// The readings of packed documents, by `_id`, as the server unpacks them.
async fn unpacked(database: &Database) -> HashMap<String, Vec<Document>> {
    let stages = vec![
        doc! { "$match": { "control": { "$exists": true } } },
        doc! { "$set": { "meta": "$_id" } },
        doc! { "$_unpackBucket": { "timeField": "ts", "metaField": "bucket" } },
    ];
    let mut unpacked: HashMap<String, Vec<Document>> = HashMap::new();
    for mut reading in database.aggregate("buckets", stages).await {
        let id = reading.remove("bucket").expect("the _id of the document");
        unpacked.entry(id.as_str().expect("a text").to_owned()).or_default().push(reading);
    }
    unpacked
}

/// Reads the time-series collection and the rollups.
pub(super) async fn in_measurements(database: &Database, findings: &mut Findings) -> Stored {
    let mut readings = Found::new();
    for measurement in database.aggregate("readings", vec![doc! { "$match": {} }]).await {
        let meta = measurement.get_document("meta").expect("meta");
        let device: Arc<str> = meta.get_str("deviceId").expect("a device").into();
        let ts_ms = measurement.get_datetime("ts").expect("a time").timestamp_millis();
        for (metric, value) in measurement.iter().filter(|(key, _)| !["_id", "ts", "meta"].contains(&key.as_str())) {
            add((Arc::clone(&device), ts_ms, known(metric)), number(value), &mut readings, findings);
        }
    }
    with_rollups(readings, database, findings).await
}

/// Reads the rollups. Each hour of a closed day must have one: its readings stay pending until it is rolled
/// up. Hours of the current day need none.
async fn with_rollups(readings: Found, database: &Database, findings: &mut Findings) -> Stored {
    let rollups = rollups(database).await;
    let closed_before_ms = closed_before_ms();
    let folded = fold(&readings);
    let closed = folded.keys().filter(|(_, hour_ms, _)| *hour_ms < closed_before_ms);
    for hour in closed.filter(|hour| !rollups.contains_key(*hour)) {
        findings.wrong.push(format!("{hour:?} of a closed day has readings and no rollup"));
    }
    Stored { readings, rollups }
}

async fn rollups(database: &Database) -> Stats {
    let mut stats = Stats::new();
    for day in database.aggregate("rollups", vec![doc! { "$match": {} }]).await {
        let device = day.get_str("deviceId").expect("a device").into();
        let start_ms = day.get_datetime("day").expect("a day").timestamp_millis();
        if let Some(Bson::Binary(columns)) = day.get("columns") {
            add_columns(&columns.bytes, day.get_array("metrics").expect("metrics"), &device, start_ms, &mut stats);
        }
        for (of_day, hour) in day.get_document("hours").expect("hours") {
            let hour_ms = start_ms + of_day.parse::<i64>().expect("an hour of the day") * HOUR_MS;
            let hour = hour.as_document().expect("an hour");
            add_stats(hour.get_document("stats").expect("stats"), &device, hour_ms, &mut stats);
        }
    }
    stats
}

/// Adds the hours of a packed document. Those in `hours` are newer.
fn add_columns(mut columns: &[u8], metrics: &[Bson], device: &Arc<str>, start_ms: i64, stats: &mut Stats) {
    let numbers: Vec<String> = (0..3 + 8 * metrics.len()).map(|number| number.to_string()).collect();
    let mut samples = Vec::new();
    chunk::decode_block(&mut columns, &numbers, &mut samples);
    let values: BTreeMap<(u32, usize), f64> = samples
        .iter()
        .map(|sample| ((sample.offset, sample.metric.parse().expect("a number")), sample.value))
        .collect();
    for (place, metric) in metrics.iter().enumerate() {
        for hour in 0..24 {
            let of = |field: usize| values.get(&(hour, 3 + 8 * place + field)).copied();
            let Some(count) = of(0) else { continue };
            let number = |field| of(field).expect("complete stats");
            let hour_ms = start_ms + i64::from(hour) * HOUR_MS;
            let ends = [4, 6].map(|field| (hour_ms + number(field) as i64, number(field + 1)));
            let fold = Fold { count: count as u64, min: number(1), max: number(2), sum: number(3), ends: Some(ends) };
            stats.insert((Arc::clone(device), hour_ms, known(metric.as_str().expect("a name"))), fold);
        }
    }
}

fn add_stats(of: &Document, device: &Arc<str>, hour_ms: i64, stats: &mut Stats) {
    for (metric, of) in of {
        let of = of.as_document().expect("stats");
        let number = |key: &str| number(of.get(key).unwrap_or_else(|| panic!("no {key} in {of}")));
        let end = |key: &str| {
            let end = of.get_document(key).unwrap_or_else(|_| panic!("no {key} in {of}"));
            (end.get_datetime("ts").expect("a time").timestamp_millis(), end.get_f64("value").expect("a value"))
        };
        let fold = Fold {
            count: number("count") as u64,
            min: number("min"),
            max: number("max"),
            sum: number("sum"),
            ends: Some([end("first"), end("last")]),
        };
        stats.insert((Arc::clone(device), hour_ms, known(metric)), fold);
    }
}

fn number(value: &Bson) -> f64 {
    match value {
        Bson::Double(value) => *value,
        Bson::Int64(value) => *value as f64,
        Bson::Int32(value) => f64::from(*value),
        other => panic!("{other} is no number"),
    }
}
