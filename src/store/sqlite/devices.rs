//! The device index: a row in `devices` for each device, and a row in `series` for each of its series.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::error::SqliteError;
use super::read::each_from_last;
use crate::model::{Day, Deletion, Hour, Metric};
use crate::store::device_index::MAX_SERIES;
use crate::store::{DeviceList, DeviceMetadata, DeviceSeries, DeviceSet, DeviceSummary};

/// Adds a note to the row of a device. It changes nothing if the row has all of it.
const PUT_DEVICE: &str = "INSERT INTO devices (device, metadata, metadata_hour, first_ts, last_ts)
    VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT (device) DO UPDATE SET
        metadata = CASE WHEN ?3 >= coalesce(metadata_hour, ?3) THEN ?2 ELSE metadata END,
        metadata_hour = coalesce(max(metadata_hour, ?3), metadata_hour, ?3),
        first_ts = min(first_ts, ?4),
        last_ts = max(last_ts, ?5)
    WHERE ?4 < first_ts OR ?5 > last_ts OR ?3 > coalesce(metadata_hour, ?3 - 1)
        OR (?3 = metadata_hour AND ?2 <> metadata)";
const PUT_SERIES: &str = "INSERT INTO series (device, series, last_day, measurement) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (device, series) DO UPDATE SET last_day = max(last_day, ?3), measurement = max(measurement, ?4)
    WHERE ?3 > last_day OR ?4 > measurement";
const COUNT_SERIES: &str = "SELECT count(*) FROM series WHERE device = ?1";
const OLDEST_SERIES: &str = "SELECT series FROM series WHERE device = ?1 ORDER BY last_day, series DESC LIMIT ?2";
const DELETE_ONE_SERIES: &str = "DELETE FROM series WHERE device = ?1 AND series = ?2";
const HAS_MORE_SERIES: &str = "UPDATE devices SET more_series = 1 WHERE device = ?1";

const LIST: &str = "SELECT device, metadata, metadata_hour, first_ts, last_ts, more_series FROM devices
    WHERE device >= ?1 ORDER BY device";
const ONE: &str =
    "SELECT device, metadata, metadata_hour, first_ts, last_ts, more_series FROM devices WHERE device = ?1";
const SERIES: &str = "SELECT series, last_day, measurement FROM series WHERE device = ?1 ORDER BY series";
const LAST_TS: &str = "SELECT last_ts FROM buckets WHERE device = ?1 ORDER BY hour DESC LIMIT 1";

/// The devices without a reading at `?1` or later. The hour of such a reading starts at `?2` or later.
const SILENT: &str = "SELECT device FROM devices
    WHERE NOT EXISTS (SELECT 1 FROM buckets WHERE device = devices.device AND hour >= ?2 AND last_ts >= ?1)";

/// Sets the last instant of a device to that of its buckets. Does the same with the first instant if it is
/// from `?2` to before `?3`.
const UPDATE_SPAN: &str = "UPDATE devices SET
        first_ts = CASE WHEN first_ts >= ?2 AND first_ts < ?3
            THEN (SELECT first_ts FROM buckets WHERE device = ?1 ORDER BY hour LIMIT 1) ELSE first_ts END,
        last_ts = (SELECT last_ts FROM buckets WHERE device = ?1 ORDER BY hour DESC LIMIT 1)
    WHERE device = ?1 AND EXISTS (SELECT 1 FROM buckets WHERE device = ?1)";
/// The series whose last day is from `?2` to before `?3`.
const SERIES_OF_DAYS: &str =
    "SELECT series, last_day FROM series WHERE device = ?1 AND last_day >= ?2 AND last_day < ?3";
const SET_LAST_DAY: &str = "UPDATE series SET last_day = ?3 WHERE device = ?1 AND series = ?2";
const HAS_BUCKET: &str = "SELECT 1 FROM buckets WHERE device = ?1 LIMIT 1";
const DELETE_DEVICE: &str = "DELETE FROM devices WHERE device = ?1";
const DELETE_SERIES: &str = "DELETE FROM series WHERE device = ?1";

/// The queries and statements that must seek in a key.
#[cfg(test)]
pub(super) const QUERIES: [&str; 11] = [
    COUNT_SERIES,
    DELETE_ONE_SERIES,
    HAS_MORE_SERIES,
    LIST,
    ONE,
    SERIES,
    LAST_TS,
    UPDATE_SPAN,
    SERIES_OF_DAYS,
    SET_LAST_DAY,
    HAS_BUCKET,
];

/// Adds notes to the index.
pub(super) fn note<'n>(
    connection: &Connection,
    notes: impl IntoIterator<Item = &'n DeviceSummary>,
) -> Result<(), SqliteError> {
    let mut put_device = connection.prepare_cached(PUT_DEVICE)?;
    let mut put_series = connection.prepare_cached(PUT_SERIES)?;
    for note in notes {
        let metadata = note.metadata.as_ref();
        let (text, hour) = (metadata.map(|of| &*of.text), metadata.map(|of| of.hour.start_ms()));
        put_device.execute(params![note.device, text, hour, note.first_ts_ms, note.last_ts_ms])?;
        let mut has_changed = false;
        for series in &note.series {
            let (name, measurement) = (&*series.metric, series.metric.measurement().map_or(0, str::len));
            let values = params![note.device, name, series.last_day.start_ms(), measurement as i64];
            has_changed |= put_series.execute(values)? > 0;
        }
        if note.has_more_series {
            connection.prepare_cached(HAS_MORE_SERIES)?.execute([&*note.device])?;
        }
        if has_changed {
            limit_series(connection, &note.device)?;
        }
    }
    Ok(())
}

/// Removes the series without a reading for longest if the device has too many.
fn limit_series(connection: &Connection, device: &str) -> Result<(), SqliteError> {
    let count: i64 = connection.prepare_cached(COUNT_SERIES)?.query_row([device], |row| row.get(0))?;
    let too_many = count - MAX_SERIES as i64;
    if too_many <= 0 {
        return Ok(());
    }
    let mut oldest = connection.prepare_cached(OLDEST_SERIES)?;
    let oldest = oldest.query_map(params![device, too_many], |row| row.get(0))?;
    let oldest: Vec<String> = oldest.collect::<Result<_, _>>()?;
    let mut delete = connection.prepare_cached(DELETE_ONE_SERIES)?;
    for series in oldest {
        delete.execute([device, &series])?;
    }
    connection.prepare_cached(HAS_MORE_SERIES)?.execute([device])?;
    Ok(())
}

/// Removes a device from the index if it has no bucket. Returns whether it had none.
pub(super) fn remove_without_buckets(connection: &Connection, device: &str) -> Result<bool, SqliteError> {
    if connection.prepare_cached(HAS_BUCKET)?.exists([device])? {
        return Ok(false);
    }
    connection.prepare_cached(DELETE_DEVICE)?.execute([device])?;
    connection.prepare_cached(DELETE_SERIES)?.execute([device])?;
    Ok(true)
}

/// Brings the entry of a device up to date after a deletion: its span, and the series that have lost their
/// last values. `has_damaged` says whether an hour stays as it is because of a damaged chunk.
pub(super) fn delete(connection: &Connection, deletion: &Deletion, has_damaged: bool) -> Result<(), SqliteError> {
    let device = &*deletion.device;
    if remove_without_buckets(connection, device)? {
        return Ok(());
    }
    let (start, end) = deletion.range_ms.as_ref().map_or((i64::MIN, i64::MAX), |range| (range.start, range.end));
    connection.prepare_cached(UPDATE_SPAN)?.execute(params![device, start, end])?;
    let first_day = deletion.range_ms.as_ref().map_or(i64::MIN, |range| Day::of(Hour::of(range.start)).start_ms());
    let mut of_days = connection.prepare_cached(SERIES_OF_DAYS)?;
    let of_days = of_days.query_map(params![device, first_day, end], |row| row.get(0))?;
    let mut left: BTreeSet<String> = of_days.collect::<Result<_, _>>()?;
    left.retain(|series| deletion.series.matches(series));
    // After a deletion of all times, only a damaged hour has values of these series.
    if deletion.range_ms.is_some() || has_damaged {
        set_last_days(connection, device, &mut left)?;
    }
    let mut delete = connection.prepare_cached(DELETE_ONE_SERIES)?;
    for series in &left {
        delete.execute([device, series])?;
    }
    Ok(())
}

/// Sets the last day of each of these series that still has a value, and takes that series out of `series`.
fn set_last_days(connection: &Connection, device: &str, series: &mut BTreeSet<String>) -> Result<(), SqliteError> {
    if series.is_empty() {
        return Ok(());
    }
    let mut found = Vec::new();
    each_from_last(connection, device, &Hour::ALL, |hour, metric| {
        found.extend(series.take(metric).map(|series| (series, Day::of(hour))));
        if series.is_empty() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    let mut set = connection.prepare_cached(SET_LAST_DAY)?;
    for (series, day) in found {
        set.execute(params![device, series, day.start_ms()])?;
    }
    Ok(())
}

/// See [`crate::store::Store::entries`].
pub(super) fn list(
    connection: &mut Connection,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<DeviceList, SqliteError> {
    let transaction = connection.transaction()?;
    let mut statement = transaction.prepare_cached(LIST)?;
    let from = after.map(successor).filter(|after| after.as_str() > prefix).unwrap_or_else(|| prefix.to_owned());
    let mut rows = statement.query([&from])?;
    let (mut list, mut bytes) = (DeviceList::default(), 0);
    while list.devices.len() < limit
        && let Some(row) = rows.next()?
    {
        let found = summary(&transaction, row)?;
        if !found.device.starts_with(prefix) || !list.push(found, &mut bytes) {
            break;
        }
    }
    Ok(list)
}

/// The first string after `text`, bytewise.
pub(super) fn successor(text: &str) -> String {
    format!("{text}\0")
}

/// See [`crate::store::Store::entries_of`].
pub(super) fn some(connection: &mut Connection, devices: &[Arc<str>]) -> Result<Vec<DeviceSummary>, SqliteError> {
    let transaction = connection.transaction()?;
    let mut statement = transaction.prepare_cached(ONE)?;
    let mut found = Vec::new();
    for device in devices {
        let mut rows = statement.query([device])?;
        if let Some(row) = rows.next()? {
            found.push(summary(&transaction, row)?);
        }
    }
    Ok(found)
}

/// See [`crate::store::Store::last_instants`]. Each device has the last instant of its entry beside it.
pub(super) fn last_instants(connection: &mut Connection, entries: &[(Arc<str>, i64)]) -> Result<Vec<i64>, SqliteError> {
    let transaction = connection.transaction()?;
    let mut statement = transaction.prepare_cached(LAST_TS)?;
    let mut instants = Vec::with_capacity(entries.len());
    for (device, of_entry) in entries {
        let last_ts_ms = statement.query_row([device], |row| row.get(0)).optional()?;
        instants.push(last_ts_ms.unwrap_or(*of_entry));
    }
    Ok(instants)
}

/// See [`crate::store::Store::count_silent`].
pub(super) fn count_silent(connection: &Connection, since_ms: i64, active: &DeviceSet) -> Result<u64, SqliteError> {
    let mut statement = connection.prepare_cached(SILENT)?;
    let mut rows = statement.query(params![since_ms, Hour::of(since_ms).start_ms()])?;
    let mut silent = 0;
    while let Some(row) = rows.next()? {
        let device = row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?;
        silent += u64::from(!active.contains(device));
    }
    Ok(silent)
}

/// The summary of a row of [`LIST`] or [`ONE`].
fn summary(connection: &Connection, row: &Row<'_>) -> Result<DeviceSummary, SqliteError> {
    let device: String = row.get(0)?;
    let metadata = match (row.get::<_, Option<Arc<str>>>(1)?, row.get(2)?) {
        (Some(text), Some(hour)) => Some(DeviceMetadata { hour: Hour::of(hour), text }),
        _ => None,
    };
    let mut statement = connection.prepare_cached(SERIES)?;
    let series = statement.query_map([&device], |row| {
        let metric = Metric::of_measurement(row.get_ref(0)?.as_str()?, row.get(2)?);
        Ok(DeviceSeries { metric, last_day: Day::of(Hour::of(row.get(1)?)) })
    })?;
    Ok(DeviceSummary {
        series: series.collect::<Result<_, _>>()?,
        metadata,
        first_ts_ms: row.get(3)?,
        last_ts_ms: row.get(4)?,
        removed_until: None, // a deletion sets the last instant
        has_more_series: row.get(5)?,
        device: device.into(),
    })
}
