//! Answers queries.
//!
//! Each query runs in one read transaction, so that it reads one state of all tables. Each seeks in the
//! primary keys, and reads no other rows than it needs, except rollups of other series of an hour.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, Rows, params};

use super::devices::successor;
use super::error::SqliteError;
use crate::model::{Contents, Hour, Metric, SeriesFilter, Stats, ValueAt, Wanted, series};
use crate::store::hour_samples::HourSamples;
use crate::store::metric_names::MetricNames;
use crate::store::readings::{FirstReadings, FirstReadingsBuilder, ReadingsQuery};
use crate::store::{HourStats, StatsNeeds, UnreadableDocuments};

/// The rollups of all metrics: numbers only, or with the first and the last value. Every hour has a rollup,
/// so these queries need no row of `buckets`.
const NUMBERS: &str = "SELECT hour, last_at, metric, count, min, max, sum FROM rollups
    WHERE device = ?1 AND hour >= ?2 AND hour < ?3 ORDER BY hour, metric";
const ROLLUPS: &str = "SELECT hour, last_at, metric, count, min, max, sum, first_at, first_value, last_at, last_value
    FROM rollups WHERE device = ?1 AND hour >= ?2 AND hour < ?3 ORDER BY hour, metric";
/// The rollups of the metrics from `?4` to before `?5`, with one seek for each hour. An hour without any of
/// them has a row with NULLs.
const NUMBERS_OF_METRICS: &str = "SELECT buckets.hour, last_ts, metric, count, min, max, sum FROM buckets
    LEFT JOIN rollups ON rollups.device = ?1 AND rollups.hour = buckets.hour AND metric >= ?4 AND metric < ?5
    WHERE buckets.device = ?1 AND buckets.hour >= ?2 AND buckets.hour < ?3 ORDER BY buckets.hour";
const ROLLUPS_OF_METRICS: &str = "SELECT buckets.hour, last_ts, metric, count, min, max, sum,
        first_at, first_value, last_at, last_value FROM buckets
    LEFT JOIN rollups ON rollups.device = ?1 AND rollups.hour = buckets.hour AND metric >= ?4 AND metric < ?5
    WHERE buckets.device = ?1 AND buckets.hour >= ?2 AND buckets.hour < ?3 ORDER BY buckets.hour";
const CHUNKS: &str = "SELECT hour, data FROM buckets CROSS JOIN first_chunks ON id = first_chunk
        WHERE device = ?1 AND hour >= ?2 AND hour < ?3
    UNION ALL SELECT hour, data FROM chunks WHERE device = ?1 AND hour >= ?2 AND hour < ?3 ORDER BY hour";
const LAST_READINGS: &str =
    "SELECT hour FROM buckets WHERE device = ?1 AND readings_state <> 1 ORDER BY hour DESC LIMIT 1";
pub(super) const ROLLUPS_FROM_LAST: &str =
    "SELECT hour, metric FROM rollups WHERE device = ?1 AND hour >= ?2 AND hour < ?3 ORDER BY hour DESC";
const ANYTHING: &str = "SELECT 1 FROM buckets LIMIT 1";

/// The most metrics that a query seeks one by one in each hour. With more, it scans all rollups of the hour.
const MAX_SEEKS_PER_HOUR: usize = 8;

/// The stats that start at the column `at` of a row: count, min, max, sum, and the instant and the value of
/// the first and of the last reading.
pub(super) fn stats_at(row: &Row<'_>, at: usize) -> rusqlite::Result<Stats> {
    let value_at = |at| -> rusqlite::Result<ValueAt> { Ok(ValueAt { ts_ms: row.get(at)?, value: row.get(at + 1)? }) };
    numbers_at(row, at, value_at(at + 4)?, value_at(at + 6)?)
}

/// The numbers that start at the column `at`, with this first and last value.
fn numbers_at(row: &Row<'_>, at: usize, first: ValueAt, last: ValueAt) -> rusqlite::Result<Stats> {
    let count: i64 = row.get(at)?;
    let [min, max, sum] = [row.get(at + 1)?, row.get(at + 2)?, row.get(at + 3)?];
    Ok(Stats { count: count.cast_unsigned(), min, max, sum, first, last })
}

/// See [`crate::store::Store::hour_stats`].
pub(super) fn hour_stats(
    connection: &mut Connection,
    devices: &[Arc<str>],
    hours: &Range<Hour>,
    series: &SeriesFilter,
    needs: StatsNeeds,
) -> Result<Vec<Vec<HourStats>>, SqliteError> {
    let transaction = connection.transaction()?;
    let mut names = MetricNames::new(series);
    devices.iter().map(|device| hour_stats_of(&transaction, device, hours, series, needs, &mut names)).collect()
}

/// The stats of one device.
fn hour_stats_of(
    connection: &Connection,
    device: &str,
    hours: &Range<Hour>,
    series: &SeriesFilter,
    needs: StatsNeeds,
    names: &mut MetricNames,
) -> Result<Vec<HourStats>, SqliteError> {
    let (all_metrics, of_metrics) = match needs {
        StatsNeeds::Numbers => (NUMBERS, NUMBERS_OF_METRICS),
        StatsNeeds::All => (ROLLUPS, ROLLUPS_OF_METRICS),
    };
    let range = params![device, hours.start.start_ms(), hours.end.start_ms()];
    let mut found = Vec::new();
    let wanted: Option<Vec<_>> = series.metrics().map(|wanted| wanted.take(MAX_SEEKS_PER_HOUR + 1).collect());
    let Some(wanted) = wanted.filter(|wanted| wanted.len() <= MAX_SEEKS_PER_HOUR) else {
        let mut statement = connection.prepare_cached(all_metrics)?;
        add_rollups(statement.query(range)?, needs, &mut found, |text| names.get(text))?;
        return Ok(found);
    };
    let mut statement = connection.prepare_cached(of_metrics)?;
    for wanted in &wanted {
        let ([first, end], is_wanted) = key_range(*wanted);
        let range = params![device, hours.start.start_ms(), hours.end.start_ms(), first, end];
        let metric_of = |text: &str| if is_wanted(text) { names.get(text) } else { None };
        add_rollups(statement.query(range)?, needs, &mut found, metric_of)?;
    }
    Ok(found)
}

/// A range of keys, from the first to before the second, that has the keys of all wanted series; and a
/// function that tells whether a key in this range is wanted.
fn key_range(wanted: Wanted<'_>) -> ([String; 2], impl Fn(&str) -> bool) {
    let keys = match wanted {
        Wanted::Name(name) => [name.to_owned(), format!("{name}|")], // `|` follows `{`, which labels begin with
        Wanted::Text(text) => [text.to_owned(), successor(text)],
    };
    (keys, move |text: &str| match wanted {
        Wanted::Name(name) => series::metric_of(text) == name,
        Wanted::Text(wanted) => text == wanted,
    })
}

/// Adds rows of rollups to `found`, with the stats that `needs` asks for. `found` is empty, or has all hours
/// of the rows already.
fn add_rollups(
    mut rows: Rows<'_>,
    needs: StatsNeeds,
    found: &mut Vec<HourStats>,
    mut metric_of: impl FnMut(&str) -> Option<Metric>,
) -> Result<(), SqliteError> {
    let (mut at, mut of_last_hour) = (0, 0);
    while let Some(row) = rows.next()? {
        let hour = Hour::of(row.get(0)?);
        while found.get(at).is_some_and(|stats| stats.hour < hour) {
            of_last_hour = found[at].stats.len();
            at += 1;
        }
        let last_ts_ms = row.get(1)?;
        if at == found.len() {
            found.push(HourStats { hour, last_ts_ms, stats: Vec::new() });
        }
        let of_hour = &mut found[at];
        of_hour.last_ts_ms = of_hour.last_ts_ms.max(last_ts_ms);
        let Some(name) = row.get_ref(2)?.as_str_or_null().map_err(rusqlite::Error::from)? else { continue };
        let Some(metric) = metric_of(name) else { continue };
        if of_hour.stats.is_empty() {
            of_hour.stats.reserve_exact(of_last_hour); // as a rule, it has as many
        }
        let unknown = ValueAt::unknown(hour.start_ms());
        let stats = match needs {
            StatsNeeds::Numbers => numbers_at(row, 3, unknown, unknown)?,
            StatsNeeds::All => stats_at(row, 3)?,
        };
        of_hour.stats.push((metric, stats));
    }
    Ok(())
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

/// See [`crate::store::Store::last_hour_with`].
pub(super) fn last_hour_with(
    connection: &Connection,
    device: &str,
    series: &BTreeSet<Metric>,
    hours: &Range<Hour>,
) -> Result<Option<Hour>, SqliteError> {
    let mut last = None;
    each_from_last(connection, device, hours, |hour, metric| {
        last = series.contains(metric).then_some(hour);
        if last.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(last)
}

/// Visits each hour and metric that has stats, from the last hour to the first.
///
/// It ends when `visit` breaks.
pub(super) fn each_from_last(
    connection: &Connection,
    device: &str,
    hours: &Range<Hour>,
    mut visit: impl FnMut(Hour, &str) -> ControlFlow<()>,
) -> Result<(), SqliteError> {
    let mut statement = connection.prepare_cached(ROLLUPS_FROM_LAST)?;
    let mut rows = statement.query(params![device, hours.start.start_ms(), hours.end.start_ms()])?;
    while let Some(row) = rows.next()? {
        let metric = row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?;
        if visit(Hour::of(row.get(0)?), metric).is_break() {
            break;
        }
    }
    Ok(())
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
    use crate::common::counting::counted;
    use crate::store::sqlite::{bucket, delete, devices, expire, operator_metadata, schema};

    #[test]
    fn every_query_seeks_in_a_key_and_sorts_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let connection = schema::open_writer(&folder.path().join("db"), Duration::from_secs(5)).unwrap();
        let reading =
            [NUMBERS, NUMBERS_OF_METRICS, ROLLUPS, ROLLUPS_OF_METRICS, CHUNKS, LAST_READINGS, ROLLUPS_FROM_LAST];
        let others =
            [&expire::queries()[..], &devices::QUERIES, &delete::QUERIES, &operator_metadata::QUERIES].concat();
        for sql in reading.iter().chain(&bucket::rows::QUERIES).chain(&others) {
            let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let nulls = vec![rusqlite::types::Null; statement.parameter_count()];
            let steps = statement.query_map(rusqlite::params_from_iter(nulls), |row| row.get::<_, String>(3)).unwrap();
            for step in steps {
                let step = step.unwrap();
                let is_search = step.starts_with("SEARCH")
                    && ["device", "hour<", "first_chunks USING INTEGER PRIMARY KEY"].iter().any(|by| step.contains(by));
                let is_composed = [
                    "MERGE (UNION ALL)",
                    "LEFT",
                    "RIGHT",
                    "SCALAR SUBQUERY 1",
                    "SCALAR SUBQUERY 2",
                    "SCALAR SUBQUERY 3",
                ]
                .contains(&&*step);
                assert!(is_search || is_composed, "{sql}: {step}");
            }
        }
    }

    #[test]
    fn wanted_metrics_are_not_copied_for_each_device() {
        let folder = tempfile::tempdir().unwrap();
        let mut connection = schema::open_writer(&folder.path().join("db"), Duration::from_secs(5)).unwrap();
        let devices: Vec<Arc<str>> = (0..100).map(|at| format!("d{at}").into()).collect();
        let metrics: Vec<String> = (0..10_000).map(|at| format!("m{at}")).collect();
        let (hours, wanted) = (Hour(0)..Hour(9), SeriesFilter::new(metrics.iter().map(String::as_str), []).unwrap());
        let (found, allocated) =
            counted(|| hour_stats(&mut connection, &devices, &hours, &wanted, StatsNeeds::All).unwrap());
        assert_eq!(found.len(), devices.len());
        assert!(allocated.total < 1_000 * devices.len(), "{allocated:?}");
    }

    #[test]
    fn a_statement_is_compiled_once_for_all_devices() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        let writer = schema::open_writer(&path, Duration::from_secs(5)).unwrap();
        // Only with statistics may a plan depend on what is bound.
        let analyzed = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
            INSERT INTO rollups SELECT 'S' || (i % 20), i * 3600000, 'temp', 1, 1, 1, 1, 0, 1, 0, 1 FROM n;
            ANALYZE;";
        writer.execute_batch(analyzed).unwrap();
        let connection = schema::open_reader(&path, Duration::from_secs(5)).unwrap();
        let reading = [NUMBERS, NUMBERS_OF_METRICS, ROLLUPS, ROLLUPS_OF_METRICS, CHUNKS, LAST_READINGS];
        for sql in reading.iter().chain(&devices::QUERIES).filter(|sql| sql.starts_with("SELECT")) {
            let mut statement = connection.prepare(sql).unwrap();
            for device in ["S1", "S2", "S3"] {
                let range = [device, "0", "3600000", "temp", "temp|"];
                let parameters = rusqlite::params_from_iter(&range[..statement.parameter_count()]);
                statement.exists(parameters).unwrap();
            }
            assert_eq!(statement.get_status(rusqlite::StatementStatus::RePrepare), 0, "{sql}");
        }
    }
}
