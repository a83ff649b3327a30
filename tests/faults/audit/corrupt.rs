//! Corrupts a store directly, so that an audit must find it.

use std::path::Path;

use bson::{DateTime, Document, doc};
use rusqlite::{Connection, params};

use super::chunk::{self, Sample};
use super::{HOUR_MS, sqlite};
use crate::faults::store::Store;
use crate::harness::Database;

/// A corruption of a device's reading at an instant. Changes apply to the value of metric `a`.
#[derive(Debug, Clone, Copy)]
pub(super) enum Corruption {
    Loss,
    Duplicate,
    /// The reading gets this value.
    Value(f64),
    /// A reading with this value appears at an instant without one.
    Reading(f64),
    /// The rollup of the reading's hour gets another sum.
    Rollup,
}

/// Corrupts the reading of a device at `ts_ms`.
pub(super) async fn corrupt(what: Corruption, store: Store<'_>, data_dir: &Path, device: &str, ts_ms: i64) {
    let changed = match store {
        Store::Sqlite => in_sqlite(what, data_dir, device, ts_ms),
        Store::Mongodb(database) | Store::Packed(database) | Store::Timeseries(database)
            if matches!(what, Corruption::Rollup) =>
        {
            in_rollups(database, device, ts_ms).await
        }
        Store::Mongodb(database) | Store::Packed(database) => in_bucket(what, database, device, ts_ms).await,
        Store::Timeseries(database) => in_measurements(what, database, device, ts_ms).await,
    };
    assert_ne!(changed, 0, "{what:?} did not change {device} at {ts_ms}");
}

fn in_sqlite(what: Corruption, data_dir: &Path, device: &str, ts_ms: i64) -> usize {
    let mut connection = Connection::open(sqlite::file_in(data_dir)).expect("the file is there");
    connection.busy_timeout(std::time::Duration::from_secs(5)).expect("a timeout");
    let transaction = connection.transaction().expect("a transaction");
    let (hour, offset) = (ts_ms - ts_ms.rem_euclid(HOUR_MS), ts_ms.rem_euclid(HOUR_MS) as u32);
    if matches!(what, Corruption::Rollup) {
        let sql = "UPDATE rollups SET sum = sum + 1 WHERE device = ?1 AND hour = ?2 AND metric = 'a'";
        let changed = transaction.execute(sql, params![device, hour]).expect("it is changed");
        transaction.commit().expect("it is stored");
        return changed;
    }
    let mut values = Vec::new();
    {
        let sql = "SELECT data FROM buckets JOIN first_chunks ON id = first_chunk WHERE device = ?1 AND hour = ?2
            UNION ALL SELECT data FROM chunks WHERE device = ?1 AND hour = ?2";
        let mut statement = transaction.prepare(sql).expect("the tables are there");
        let rows = statement.query_map(params![device, hour], |row| row.get::<_, Vec<u8>>(0)).expect("rows");
        for row in rows {
            values.extend(chunk::decode(&row.expect("a row")));
        }
    }
    let changed = change(what, &mut values, offset);
    for sql in [
        "DELETE FROM first_chunks WHERE id = (SELECT first_chunk FROM buckets WHERE device = ?1 AND hour = ?2)",
        "UPDATE buckets SET first_chunk = NULL WHERE device = ?1 AND hour = ?2",
        "DELETE FROM chunks WHERE device = ?1 AND hour = ?2",
    ] {
        transaction.execute(sql, params![device, hour]).expect("deleted");
    }
    for (seq, value) in values.iter().enumerate() {
        let sql = "INSERT INTO chunks (device, hour, seq, data) VALUES (?1, ?2, ?3, ?4)";
        transaction.execute(sql, params![device, hour, seq as i64, chunk::encode(value)]).expect("inserted");
    }
    transaction.commit().expect("it is stored");
    changed
}

/// Changes the values of an hour and returns their number.
fn change(what: Corruption, values: &mut Vec<Sample>, offset: u32) -> usize {
    let (mut found, others): (Vec<_>, Vec<_>) = values.drain(..).partition(|value| value.offset == offset);
    *values = others;
    let changed = found.len();
    match what {
        Corruption::Loss => found.clear(),
        Corruption::Duplicate => found.extend_from_within(..),
        Corruption::Value(value) => {
            found.iter_mut().filter(|found| found.metric == "a").for_each(|found| found.value = value);
        }
        Corruption::Reading(value) => found.push(Sample { offset, metric: "a".to_owned(), value }),
        Corruption::Rollup => unreachable!("not among the values"),
    }
    values.append(&mut found);
    changed.max(usize::from(matches!(what, Corruption::Reading(_))))
}

async fn in_rollups(database: &Database, device: &str, ts_ms: i64) -> usize {
    let day_ms = ts_ms - ts_ms.rem_euclid(24 * HOUR_MS);
    let sum = format!("hours.{:02}.stats.a.sum", (ts_ms - day_ms) / HOUR_MS);
    let of_day = doc! { "deviceId": device, "day": DateTime::from_millis(day_ms), &sum: { "$exists": true } };
    update(database, "rollups", of_day, doc! { "$inc": { &sum: 1.0 } }).await
}

async fn in_bucket(what: Corruption, database: &Database, device: &str, ts_ms: i64) -> usize {
    let ts = DateTime::from_millis(ts_ms);
    let with_reading = doc! { "deviceId": device, "readings.ts": ts };
    let of_hour = doc! { "deviceId": device, "bucket": DateTime::from_millis(ts_ms - ts_ms.rem_euclid(HOUR_MS)) };
    let (filter, change) = match what {
        Corruption::Loss => (with_reading, doc! { "$pull": { "readings": { "ts": ts } } }),
        Corruption::Duplicate => {
            let found = database.aggregate("buckets", vec![doc! { "$match": with_reading.clone() }]).await;
            let mut readings =
                found[0].get_array("readings").expect("readings").iter().filter_map(bson::Bson::as_document);
            let again = readings.find(|reading| is_at(reading, ts)).cloned();
            (with_reading, doc! { "$push": { "readings": again } })
        }
        Corruption::Value(value) => (with_reading, doc! { "$set": { "readings.$.a": value } }),
        Corruption::Reading(value) => (of_hour, doc! { "$push": { "readings": { "ts": ts, "a": value } } }),
        Corruption::Rollup => unreachable!("not in the buckets"),
    };
    update(database, "buckets", filter, change).await
}

fn is_at(reading: &Document, ts: DateTime) -> bool {
    reading.get_datetime("ts").is_ok_and(|found| *found == ts)
}

async fn update(database: &Database, collection: &str, filter: Document, change: Document) -> usize {
    let collection = database.handle().await.collection::<Document>(collection);
    collection.update_one(filter, change).await.expect("it is changed").modified_count as usize
}

/// MongoDB does not update single measurements, so this deletes and reinserts all of the device.
async fn in_measurements(what: Corruption, database: &Database, device: &str, ts_ms: i64) -> usize {
    let of_device = doc! { "meta.deviceId": device };
    let all = database.aggregate("readings", vec![doc! { "$match": of_device.clone() }]).await;
    let ts = DateTime::from_millis(ts_ms);
    let meta = all[0].get_document("meta").expect("meta").clone();
    let (mut found, mut others): (Vec<_>, Vec<_>) = all.into_iter().partition(|measurement| is_at(measurement, ts));
    let changed = found.len();
    match what {
        Corruption::Loss => found.clear(),
        Corruption::Duplicate => found.extend_from_within(..),
        Corruption::Value(value) => {
            let with_a = found.iter_mut().filter(|measurement| measurement.contains_key("a"));
            with_a.for_each(|measurement| drop(measurement.insert("a", value)));
        }
        Corruption::Reading(value) => found.push(doc! { "ts": ts, "meta": meta, "a": value }),
        Corruption::Rollup => unreachable!("not among the measurements"),
    }
    others.append(&mut found);
    for measurement in &mut others {
        measurement.remove("_id");
    }
    let collection = database.handle().await.collection::<Document>("readings");
    collection.delete_many(of_device).await.expect("deleted");
    collection.insert_many(others).await.expect("inserted");
    changed.max(usize::from(matches!(what, Corruption::Reading(_))))
}
