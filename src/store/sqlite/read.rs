//! Answers queries.
//!
//! Each query runs in one read transaction, so that it reads one state of all tables. Each seeks in the
//! primary keys, and reads no other rows than it needs, except rollups of other metrics.

use std::ops::Range;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::error::SqliteError;
use crate::model::{Contents, Hour, Metric, Stats};
use crate::store::hour_samples::HourSamples;
use crate::store::metric_names::MetricNames;
use crate::store::readings::{FirstReadings, FirstReadingsBuilder, ReadingsQuery};
use crate::store::{DeviceSummary, HourStats, UnreadableDocuments};

const HOURS: &str = "SELECT hour, last_ts FROM buckets WHERE device = ?1 AND hour >= ?2 AND hour < ?3 ORDER BY hour";
const ROLLUPS: &str = "SELECT hour, metric, count, min, max, sum FROM rollups
    WHERE device = ?1 AND hour >= ?2 AND hour < ?3 ORDER BY hour, metric";
const CHUNKS: &str = "SELECT hour, data FROM chunks WHERE device = ?1 AND hour >= ?2 AND hour < ?3 ORDER BY hour, seq";
const LAST_BUCKET: &str = "SELECT hour, last_ts, CASE outlived WHEN 1 THEN NULL ELSE metadata END FROM buckets
    WHERE device = ?1 ORDER BY hour DESC LIMIT 1";
const LAST_READINGS: &str = "SELECT hour FROM buckets WHERE device = ?1 AND outlived <> 1 ORDER BY hour DESC LIMIT 1";
const NEXT_DEVICE: &str = "SELECT device, first_ts FROM buckets WHERE device >= ?1 ORDER BY device, hour LIMIT 1";
const METRICS: &str = "SELECT metric FROM rollups WHERE device = ?1 AND hour = ?2 ORDER BY metric";
const ANYTHING: &str = "SELECT 1 FROM buckets LIMIT 1";

/// The stats that start at the column `at` of a row: count, min, max, sum.
pub(super) fn stats_at(row: &Row<'_>, at: usize) -> rusqlite::Result<Stats> {
    let count: i64 = row.get(at)?;
    Ok(Stats { count: count.cast_unsigned(), min: row.get(at + 1)?, max: row.get(at + 2)?, sum: row.get(at + 3)? })
}

/// See [`crate::store::Store::hour_stats`].
pub(super) fn hour_stats(
    connection: &mut Connection,
    devices: &[Arc<str>],
    hours: &Range<Hour>,
    metrics: &[Metric],
) -> Result<Vec<Vec<HourStats>>, SqliteError> {
    let transaction = connection.transaction()?;
    let mut names = MetricNames::new(metrics);
    devices.iter().map(|device| hour_stats_of(&transaction, device, hours, &mut names)).collect()
}

/// The stats of one device. Two scans run side by side: one for the hours, one for their rollups.
fn hour_stats_of(
    connection: &Connection,
    device: &str,
    hours: &Range<Hour>,
    names: &mut MetricNames,
) -> Result<Vec<HourStats>, SqliteError> {
    let range = params![device, hours.start.start_ms(), hours.end.start_ms()];
    let mut statement = connection.prepare_cached(HOURS)?;
    let found = statement.query_map(range, |row| {
        Ok(HourStats { hour: Hour::of(row.get(0)?), last_ts_ms: row.get(1)?, stats: Vec::new() })
    })?;
    let mut found = found.collect::<Result<Vec<_>, _>>()?;

    let mut at = 0;
    let mut statement = connection.prepare_cached(ROLLUPS)?;
    let mut rows = statement.query(range)?;
    while let Some(row) = rows.next()? {
        let Some(metric) = names.get(row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?) else { continue };
        let hour = Hour::of(row.get(0)?);
        at += found[at..].iter().take_while(|stats| stats.hour < hour).count();
        if let Some(stats) = found.get_mut(at).filter(|stats| stats.hour == hour) {
            stats.stats.push((metric, stats_at(row, 2)?));
        }
    }
    Ok(found)
}

/// See [`crate::store::Store::readings`]. Decompresses one chunk after the other: memory holds one chunk, of
/// at most an hour, and the gathered readings.
pub(super) fn readings(
    connection: &Connection,
    query: &ReadingsQuery,
    unreadable: &UnreadableDocuments,
) -> Result<FirstReadings, SqliteError> {
    let hours = query.hours();
    let mut gathered = FirstReadingsBuilder::new(query);
    let mut statement = connection.prepare_cached(CHUNKS)?;
    let mut rows = statement.query(params![&*query.device, hours.start.start_ms(), hours.end.start_ms()])?;
    while let Some(row) = rows.next()? {
        let Some(samples) = gathered.hour(Hour::of(row.get(0)?)) else { break };
        add_chunk(row, &query.device, samples, unreadable);
    }
    Ok(gathered.finish())
}

/// See [`crate::store::Store::latest`].
pub(super) fn latest(
    connection: &Connection,
    device: &str,
    hour: Hour,
    unreadable: &UnreadableDocuments,
) -> Result<Contents, SqliteError> {
    let mut samples = HourSamples::last_of_each_metric(hour);
    let mut statement = connection.prepare_cached(CHUNKS)?;
    let mut rows = statement.query(params![device, hour.start_ms(), hour.end_ms()])?;
    while let Some(row) = rows.next()? {
        add_chunk(row, device, &mut samples, unreadable);
    }
    Ok(samples.finish().0)
}

/// Adds the samples of a row of [`CHUNKS`], unless it is damaged.
fn add_chunk(row: &Row<'_>, device: &str, into: &mut HourSamples, unreadable: &UnreadableDocuments) {
    let chunk = row.get_ref(1).and_then(|value| Ok(value.as_blob()?)).map_err(SqliteError::from);
    if let Err(error) = chunk.and_then(|chunk| into.add_chunk(chunk).map_err(SqliteError::Chunk)) {
        unreadable.skip(|| format!("a chunk of device {device}, hour {}", into.hour().start_ms()), &error);
    }
}

/// See [`crate::store::Store::last_hour`].
pub(super) fn last_hour(connection: &Connection, device: &str) -> Result<Option<Hour>, SqliteError> {
    let hour = connection.prepare_cached(LAST_READINGS)?.query_row([device], |row| row.get(0)).optional()?;
    Ok(hour.map(Hour::of))
}

/// See [`crate::store::Store::devices`]. Seeks from device to device, however many hours each has.
pub(super) fn devices(
    connection: &mut Connection,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<DeviceSummary>, SqliteError> {
    let transaction = connection.transaction()?;
    let mut statement = transaction.prepare_cached(NEXT_DEVICE)?;
    let mut from = after.map(successor).filter(|after| after.as_str() > prefix).unwrap_or_else(|| prefix.to_owned());
    let mut found = Vec::new();
    while found.len() < limit {
        let next = statement.query_row([&from], |row| Ok((row.get::<_, String>(0)?, row.get(1)?))).optional()?;
        let Some((device, first_ts_ms)) = next.filter(|(device, _)| device.starts_with(prefix)) else { break };
        from = successor(&device);
        found.push(summary(&transaction, &device, first_ts_ms)?);
    }
    Ok(found)
}

/// The first string after `text`, bytewise.
fn successor(text: &str) -> String {
    format!("{text}\0")
}

fn summary(connection: &Connection, device: &str, first_ts_ms: i64) -> Result<DeviceSummary, SqliteError> {
    let (hour, last_ts_ms, metadata) = connection
        .prepare_cached(LAST_BUCKET)?
        .query_row([device], |row| Ok((row.get::<_, i64>(0)?, row.get(1)?, row.get(2)?)))?;
    let mut statement = connection.prepare_cached(METRICS)?;
    let metrics = statement.query_map(params![device, hour], |row| row.get::<_, String>(0))?;
    let metrics = metrics.map(|metric| Ok(metric?.into())).collect::<Result<_, SqliteError>>()?;
    Ok(DeviceSummary { device: device.into(), metadata, metrics, first_ts_ms, last_ts_ms })
}

/// See [`crate::store::Store::ping`].
pub(super) fn ping(connection: &Connection) -> Result<(), SqliteError> {
    connection.prepare_cached(ANYTHING)?.exists([])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::sqlite::{bucket, expire, schema};

    #[test]
    fn every_query_seeks_in_a_key_and_sorts_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let connection = schema::open_writer(&folder.path().join("db"), Duration::from_secs(5)).unwrap();
        let reading = [HOURS, ROLLUPS, CHUNKS, LAST_BUCKET, LAST_READINGS, NEXT_DEVICE, METRICS];
        let writing = [
            bucket::BUCKET,
            bucket::ROLLUPS,
            bucket::LAST_SEQ,
            bucket::CHUNKS_BELOW,
            bucket::DELETE_CHUNK,
            bucket::HAS_LATE_READINGS,
        ];
        for sql in reading.iter().chain(&writing).chain(&expire::queries()) {
            let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let nulls = vec![rusqlite::types::Null; statement.parameter_count()];
            let steps = statement.query_map(rusqlite::params_from_iter(nulls), |row| row.get::<_, String>(3)).unwrap();
            for step in steps {
                let step = step.unwrap();
                assert!(
                    step.starts_with("SEARCH") && step.contains("device") || step.contains("hour<"),
                    "{sql}: {step}"
                );
            }
        }
    }
}
