//! The rollup document: its fields, written and read.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bson::{RawBsonRef, RawDocument};

use super::super::collection::CREATED_AT;
use super::super::decode::{DecodeError, UsualElements, check_version, elements, expect_version, integer};
use super::super::encode::Encoder;
use super::super::names;
use super::super::stats::{decode_stats, encode_stats};
use super::HourRollup;
use super::columns::{self, Packed, PackedDay, PackedHour};
use crate::config::BucketLayout;
use crate::model::{Hour, SeriesFilter};
use crate::store::metric_names::MetricNames;
use crate::store::{HourStats, StatsNeeds};

#[cfg(test)]
mod tests;

/// The schema version of the documents, readable and packed.
const SCHEMA_VERSION: i32 = 1;

/// The field of an hour that has no rollup, because the document would be too large with it.
const LEFT_OUT: &str = "tooLarge";

/// The key of each hour of a day: all of one width, so that their sorted order is the order of time.
const KEYS: [&str; 24] = [
    "00", "01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11", "12", "13", "14", "15", "16", "17", "18",
    "19", "20", "21", "22", "23",
];

/// The day of an hour, in days since 1970-01-01.
pub(super) const fn day_of(hour: Hour) -> i32 {
    hour.0.div_euclid(24)
}

pub(super) const fn start_of(day: i32) -> Hour {
    Hour(day * 24)
}

/// The key of an hour in the field `hours` of its day: `14` for 14:00.
pub(super) const fn key_of(hour: Hour) -> &'static str {
    KEYS[hour.0.rem_euclid(24) as usize]
}

/// Writes the document of a device and day with these hours (at least one): packed if `layout` is packed and
/// the hours fit into columns, else readable.
pub(super) fn insert(document: &mut Encoder, hours: &[&HourRollup], layout: BucketLayout) {
    let Some(HourRollup { device, stats, .. }) = hours.first() else { return };
    let day = day_of(stats.hour);
    document.string("_id", &names::day_id(device, day));
    document.string("deviceId", device);
    encode_constant_fields(document, device, day);
    let packed = if layout == BucketLayout::Packed { Packed::of(hours) } else { None };
    document.int32("schemaVersion", SCHEMA_VERSION);
    if let Some(packed) = packed {
        packed.encode(document);
        return document.document("hours", |_| {});
    }
    document.document("hours", |of_day| {
        for rollup in hours {
            of_day.document(key_of(rollup.stats.hour), |hour| encode_hour(hour, rollup));
        }
    });
}

/// Writes the statement that puts hours of a device, all of one day, into its document. An hour whose stored
/// rollup is as new stays as it is.
pub(super) fn put(statement: &mut Encoder, hours: &[&HourRollup]) {
    put_as(statement, hours, encode_hour);
}

/// Writes the statement of [`put`]. `encode` writes the fields of each hour.
fn put_as(statement: &mut Encoder, hours: &[&HourRollup], encode: impl Fn(&mut Encoder, &HourRollup)) {
    let Some(HourRollup { device, stats, .. }) = hours.first() else { return };
    let day = day_of(stats.hour);
    statement.document("q", |filter| {
        filter.string("_id", &names::day_id(device, day));
        filter.string("deviceId", device);
    });
    statement.array("u", |stages| {
        stages.document(0, |stage| {
            stage.document("$set", |set| {
                encode_constant_fields(set, device, day);
                set.document("schemaVersion", |is| {
                    is.array("$ifNull", |of| {
                        of.string(0, "$schemaVersion"); // a document of an unknown version stays one
                        of.int32(1, SCHEMA_VERSION);
                    });
                });
                for rollup in hours {
                    let key = key_of(rollup.stats.hour);
                    set.document(["hours.", key], |is| {
                        is.array("$cond", |cond| {
                            cond.document(0, |is| {
                                is.array("$gte", |revs| {
                                    revs.string(0, &format!("$hours.{key}.rev")); // a missing one is lower
                                    revs.int64(1, rollup.rev);
                                });
                            });
                            cond.string(1, &format!("$hours.{key}"));
                            cond.document(2, |is| is.document("$literal", |hour| encode(hour, rollup)));
                        });
                    });
                }
            });
        });
    });
    statement.boolean("upsert", true);
}

/// Writes the statement that leaves an hour out of its document, because this would be too large with it. An
/// hour whose stored rollup is as new stays as it is. The stored `rev` keeps older rollups away later.
pub(super) fn leave_out(statement: &mut Encoder, rollup: &HourRollup) {
    put_as(statement, &[rollup], |hour, rollup| {
        hour.int64("rev", rollup.rev);
        hour.boolean(LEFT_OUT, true);
    });
}

/// Writes the fields that all rollups of a device and day have in common, except `_id` and `deviceId`.
fn encode_constant_fields(fields: &mut Encoder, device: &str, day: i32) {
    fields.datetime("day", start_of(day).start_ms());
    fields.datetime(CREATED_AT, names::day_created_at_ms(device, day));
}

fn encode_hour(hour: &mut Encoder, HourRollup { rev, first_ts_ms, stats, .. }: &HourRollup) {
    hour.int64("rev", *rev);
    hour.datetime("firstTs", *first_ts_ms);
    hour.datetime("lastTs", stats.last_ts_ms);
    encode_stats(hour, "stats", &stats.stats);
}

/// Adds the hours of a document that are in `hours` to the hours of its device.
///
/// `found` returns the hours of a device. If an hour cannot be read, all other hours are added. Hours in
/// columns have only the stats that `needs` asks for.
pub(super) fn add_hours<'f>(
    document: &RawDocument,
    hours: &Range<Hour>,
    metrics: &mut MetricNames,
    needs: StatsNeeds,
    found: impl FnOnce(&str) -> Result<&'f mut Vec<HourStats>, DecodeError>,
) -> Result<(), DecodeError> {
    let (mut device, mut version, mut day, mut of_day) = (None, None, None, None);
    for element in elements(document) {
        match element? {
            (b"deviceId", RawBsonRef::String(id)) => device = Some(id),
            (b"schemaVersion", value) => version = Some(value),
            (b"day", RawBsonRef::DateTime(start)) => day = Some(Hour::of(start.timestamp_millis())),
            (b"hours", RawBsonRef::Document(hours)) => of_day = Some(hours),
            _ => {}
        }
    }
    check_version(version, SCHEMA_VERSION)?;
    let (Some(device), Some(start), Some(of_day)) = (device, day, of_day) else {
        return Err(DecodeError("it is no rollup of a day".into()));
    };
    let found = found(device)?;
    let (mut packed, mut outcome) = packed_day(document, start, metrics, needs);
    for element in elements(of_day) {
        let (key, value) = element?;
        if supersedes(start, key, value, &mut packed)? {
            match decode_hour(start, key, value, hours, metrics) {
                Ok(stats) => found.extend(stats),
                Err(error) => outcome = Err(error),
            }
        }
    }
    found.extend(packed.into_iter().flatten().map(|hour| hour.stats).filter(|stats| hours.contains(&stats.hour)));
    outcome
}

/// The hours in the columns of a document. If the columns cannot be read: no hours, and the error.
fn packed_day(
    document: &RawDocument,
    start: Hour,
    metrics: &mut MetricNames,
    needs: StatsNeeds,
) -> (PackedDay, Result<(), DecodeError>) {
    const NONE: PackedDay = [const { None }; 24];
    columns::decode(document, start, metrics, needs).map_or_else(|error| (NONE, Err(error)), |day| (day, Ok(())))
}

/// Whether an entry of `hours` is newer than its hour in the columns. If so, removes the hour from `packed`.
fn supersedes(start: Hour, key: &[u8], entry: RawBsonRef<'_>, packed: &mut PackedDay) -> Result<bool, DecodeError> {
    let in_columns = &mut packed[(hour_at(start, key)?.0 - start.0).unsigned_abs() as usize % 24];
    let is_newer = match in_columns {
        Some(hour) => integer(entry_of(entry)?, "rev")? > hour.rev,
        None => true,
    };
    if is_newer {
        *in_columns = None;
    }
    Ok(is_newer)
}

/// The hour of an entry of a day, if it is in `hours`.
fn decode_hour(
    start: Hour,
    key: &[u8],
    value: RawBsonRef<'_>,
    hours: &Range<Hour>,
    metrics: &mut MetricNames,
) -> Result<Option<HourStats>, DecodeError> {
    let hour = hour_at(start, key)?;
    if !hours.contains(&hour) {
        return Ok(None);
    }
    let entry = entry_of(value)?;
    match decode(entry, hour, metrics) {
        Err(_) if is_left_out(entry) => Ok(None),
        Ok(decoded) if decoded.stats.is_empty() && is_emptied(entry) => Ok(None),
        decoded => decoded.map(Some),
    }
}

fn is_left_out(entry: &RawDocument) -> bool {
    entry.get_bool(LEFT_OUT).unwrap_or(false)
}

/// Whether a deletion has removed all readings of an hour.
fn is_emptied(entry: &RawDocument) -> bool {
    entry.get_document("stats").is_ok_and(RawDocument::is_empty)
}

/// The hour that a key of `hours` stands for, such as `14`. `start` is the first hour of the day.
fn hour_at(start: Hour, key: &[u8]) -> Result<Hour, DecodeError> {
    let of_day = match key {
        [tens @ b'0'..=b'2', ones @ b'0'..=b'9'] => i32::from(tens - b'0') * 10 + i32::from(ones - b'0'),
        _ => 24,
    };
    if of_day >= 24 {
        return Err(DecodeError("a day has an hour with an unknown key".into()));
    }
    Ok(Hour(start.0.saturating_add(of_day)))
}

fn entry_of(value: RawBsonRef<'_>) -> Result<&RawDocument, DecodeError> {
    value.as_document().ok_or_else(|| DecodeError("an hour is not a document".into()))
}

fn decode(entry: &RawDocument, hour: Hour, metrics: &mut MetricNames) -> Result<HourStats, DecodeError> {
    if let Some((last_ts_ms, stats)) = usual_entry(entry) {
        return Ok(HourStats { hour, last_ts_ms, stats: decode_stats(stats, metrics)? });
    }
    let (mut last_ts_ms, mut stats) = (None, None);
    for element in elements(entry) {
        match element? {
            (b"lastTs", RawBsonRef::DateTime(ts)) => last_ts_ms = Some(ts.timestamp_millis()),
            (b"stats", RawBsonRef::Document(of)) => stats = Some(decode_stats(of, metrics)?),
            _ => {}
        }
    }
    match (last_ts_ms, stats) {
        (Some(last_ts_ms), Some(stats)) => Ok(HourStats { hour, last_ts_ms, stats }),
        _ => Err(DecodeError("an hour of a day is not complete".into())),
    }
}

/// The last instant and the stats of an hour in the order in which [`encode_hour`] writes them; `None` if it
/// has another shape.
fn usual_entry(entry: &RawDocument) -> Option<(i64, &RawDocument)> {
    let mut fields = UsualElements::of(entry);
    fields.next(b"\x12rev\0")?;
    fields.next(b"\x09firstTs\0")?;
    let last_ts_ms = i64::from_le_bytes(fields.next(b"\x09lastTs\0")?);
    fields.skip(b"\x03stats\0")?;
    Some((last_ts_ms, RawDocument::from_bytes(fields.rest()).ok()?))
}

/// The rollups of a document, those of emptied hours included.
pub(super) fn rollups_of(document: &RawDocument) -> Result<Vec<HourRollup>, DecodeError> {
    expect_version(document, SCHEMA_VERSION)?;
    let device: Arc<str> = document.get_str("deviceId")?.into();
    let start = Hour::of(document.get_datetime("day")?.timestamp_millis());
    let mut names = MetricNames::new(&SeriesFilter::ALL);
    let (mut packed, read) = packed_day(document, start, &mut names, StatsNeeds::All);
    read?;
    let mut rollups = Vec::new();
    for element in document.get_document("hours")? {
        let (key, value) = element?;
        let (key, entry) = (key.as_str().as_bytes(), entry_of(value)?);
        if supersedes(start, key, value, &mut packed)? && !is_left_out(entry) {
            let (hour, rev) = (hour_at(start, key)?, integer(entry, "rev")?);
            let first_ts_ms = entry.get_datetime("firstTs")?.timestamp_millis();
            let stats = decode(entry, hour, &mut names)?;
            let device = Arc::clone(&device);
            rollups.push(HourRollup { device, rev, first_ts_ms, stats, may_lack_deleted: false });
        }
    }
    rollups.extend(packed.into_iter().flatten().map(|PackedHour { rev, first_ts_ms, stats }| HourRollup {
        device: Arc::clone(&device),
        rev,
        first_ts_ms,
        stats,
        may_lack_deleted: false,
    }));
    Ok(rollups)
}

/// The first and the last instant of the rollups of a document, in Unix milliseconds; `None` if no hour of
/// the document has a rollup.
pub(super) fn span_of(document: &RawDocument) -> Result<Option<(i64, i64)>, DecodeError> {
    let mut rollups = rollups_of(document)?;
    rollups.retain(|rollup| !rollup.is_empty());
    rollups.sort_unstable_by_key(|rollup| rollup.stats.hour);
    Ok(rollups.first().zip(rollups.last()).map(|(first, last)| (first.first_ts_ms, last.stats.last_ts_ms)))
}

/// Adds to `revs` the `rev` of each hour that has one in a document of this day.
pub(super) fn add_revs(document: &RawDocument, day: i32, revs: &mut BTreeMap<Hour, i64>) {
    let mut no_metrics = MetricNames::new(&SeriesFilter::ALL);
    let packed = columns::decode(document, start_of(day), &mut no_metrics, StatsNeeds::Numbers);
    let packed = packed.unwrap_or([const { None }; 24]);
    revs.extend(packed.into_iter().flatten().map(|hour| (hour.stats.hour, hour.rev)));
    let Ok(hours) = document.get_document("hours") else { return };
    for (key, value) in hours.into_iter().flatten() {
        let rev = value.as_document().and_then(|hour| integer(hour, "rev").ok());
        if let (Ok(hour), Some(rev)) = (hour_at(start_of(day), key.as_str().as_bytes()), rev) {
            revs.entry(hour).and_modify(|known| *known = rev.max(*known)).or_insert(rev);
        }
    }
}
