//! Plants what an audit must find, in the store itself: past tidegauge, as nothing in it would.

use std::path::Path;

use bson::{DateTime, Document, doc};
use rusqlite::{Connection, params};

use super::chunk::{self, Sample};
use super::{HOUR_MS, sqlite};
use crate::fire::store::Store;
use crate::harness::Database;

/// Something that is wrong with the reading of a device at an instant. The value of metric `a` is the one to
/// change.
#[derive(Debug, Clone, Copy)]
pub(super) enum Plant {
    Loss,
    Duplicate,
    /// It has this value.
    Value(f64),
    /// There is none, and now there is one with this value.
    Reading(f64),
    /// Its hour's rollup has another sum.
    Rollup,
}

/// Plants something for the reading of a device at `ts_ms`.
pub(super) async fn plant(what: Plant, store: Store<'_>, data_dir: &Path, device: &str, ts_ms: i64) {
    let changed = match store {
        Store::Sqlite => in_sqlite(what, data_dir, device, ts_ms),
        Store::Mongodb(database) | Store::Timeseries(database) if matches!(what, Plant::Rollup) => {
            in_rollups(database, device, ts_ms).await
        }
        Store::Mongodb(database) => in_bucket(what, database, device, ts_ms).await,
        Store::Timeseries(database) => in_measurements(what, database, device, ts_ms).await,
    };
    assert_ne!(changed, 0, "{what:?} was not planted for {device} at {ts_ms}");
}

fn in_sqlite(what: Plant, data_dir: &Path, device: &str, ts_ms: i64) -> usize {
    let mut connection = Connection::open(sqlite::file_in(data_dir)).expect("the file is there");
    connection.busy_timeout(std::time::Duration::from_secs(5)).expect("a timeout");
    let transaction = connection.transaction().expect("a transaction");
    let (hour, offset) = (ts_ms - ts_ms.rem_euclid(HOUR_MS), ts_ms.rem_euclid(HOUR_MS) as u32);
    if matches!(what, Plant::Rollup) {
        let sql = "UPDATE rollups SET sum = sum + 1 WHERE device = ?1 AND hour = ?2 AND metric = 'a'";
        let changed = transaction.execute(sql, params![device, hour]).expect("it is changed");
        transaction.commit().expect("it is stored");
        return changed;
    }
    let mut values = Vec::new();
    {
        let sql = "SELECT data FROM chunks WHERE device = ?1 AND hour = ?2 ORDER BY seq";
        let mut statement = transaction.prepare(sql).expect("the tables are there");
        let rows = statement.query_map(params![device, hour], |row| row.get::<_, Vec<u8>>(0)).expect("rows");
        for row in rows {
            values.extend(chunk::decode(&row.expect("a row")));
        }
    }
    let changed = change(what, &mut values, offset);
    transaction.execute("DELETE FROM chunks WHERE device = ?1 AND hour = ?2", params![device, hour]).expect("deleted");
    for (seq, value) in values.iter().enumerate() {
        let sql = "INSERT INTO chunks (device, hour, seq, data) VALUES (?1, ?2, ?3, ?4)";
        transaction.execute(sql, params![device, hour, seq as i64, chunk::encode(value)]).expect("inserted");
    }
    transaction.commit().expect("it is stored");
    changed
}

/// Changes the values of an hour, and says how many.
fn change(what: Plant, values: &mut Vec<Sample>, offset: u32) -> usize {
    let (mut found, others): (Vec<_>, Vec<_>) = values.drain(..).partition(|value| value.offset == offset);
    *values = others;
    let changed = found.len();
    match what {
        Plant::Loss => found.clear(),
        Plant::Duplicate => found.extend_from_within(..),
        Plant::Value(value) => {
            found.iter_mut().filter(|found| found.metric == "a").for_each(|found| found.value = value);
        }
        Plant::Reading(value) => found.push(Sample { offset, metric: "a".to_owned(), value }),
        Plant::Rollup => unreachable!("not among the values"),
    }
    values.append(&mut found);
    changed.max(usize::from(matches!(what, Plant::Reading(_))))
}

async fn in_rollups(database: &Database, device: &str, ts_ms: i64) -> usize {
    let day_ms = ts_ms - ts_ms.rem_euclid(24 * HOUR_MS);
    let sum = format!("hours.{:02}.stats.a.sum", (ts_ms - day_ms) / HOUR_MS);
    let of_day = doc! { "deviceId": device, "day": DateTime::from_millis(day_ms), &sum: { "$exists": true } };
    update(database, "rollups", of_day, doc! { "$inc": { &sum: 1.0 } }).await
}

async fn in_bucket(what: Plant, database: &Database, device: &str, ts_ms: i64) -> usize {
    let ts = DateTime::from_millis(ts_ms);
    let with_reading = doc! { "deviceId": device, "readings.ts": ts };
    let of_hour = doc! { "deviceId": device, "bucket": DateTime::from_millis(ts_ms - ts_ms.rem_euclid(HOUR_MS)) };
    let (filter, change) = match what {
        Plant::Loss => (with_reading, doc! { "$pull": { "readings": { "ts": ts } } }),
        Plant::Duplicate => {
            let found = database.aggregate("buckets", vec![doc! { "$match": with_reading.clone() }]).await;
            let mut readings =
                found[0].get_array("readings").expect("readings").iter().filter_map(bson::Bson::as_document);
            let again = readings.find(|reading| is_at(reading, ts)).cloned();
            (with_reading, doc! { "$push": { "readings": again } })
        }
        Plant::Value(value) => (with_reading, doc! { "$set": { "readings.$.a": value } }),
        Plant::Reading(value) => (of_hour, doc! { "$push": { "readings": { "ts": ts, "a": value } } }),
        Plant::Rollup => unreachable!("not in the buckets"),
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

/// A measurement cannot be changed or removed by itself, so all of the device are taken out and put back.
async fn in_measurements(what: Plant, database: &Database, device: &str, ts_ms: i64) -> usize {
    let of_device = doc! { "meta.deviceId": device };
    let all = database.aggregate("readings", vec![doc! { "$match": of_device.clone() }]).await;
    let ts = DateTime::from_millis(ts_ms);
    let meta = all[0].get_document("meta").expect("meta").clone();
    let (mut found, mut others): (Vec<_>, Vec<_>) = all.into_iter().partition(|measurement| is_at(measurement, ts));
    let changed = found.len();
    match what {
        Plant::Loss => found.clear(),
        Plant::Duplicate => found.extend_from_within(..),
        Plant::Value(value) => {
            let with_a = found.iter_mut().filter(|measurement| measurement.contains_key("a"));
            with_a.for_each(|measurement| drop(measurement.insert("a", value)));
        }
        Plant::Reading(value) => found.push(doc! { "ts": ts, "meta": meta, "a": value }),
        Plant::Rollup => unreachable!("not among the measurements"),
    }
    others.append(&mut found);
    for measurement in &mut others {
        measurement.remove("_id");
    }
    let collection = database.handle().await.collection::<Document>("readings");
    collection.delete_many(of_device).await.expect("deleted");
    collection.insert_many(others).await.expect("inserted");
    changed.max(usize::from(matches!(what, Plant::Reading(_))))
}
