//! The rollup document: its fields, written and read.

use std::ops::Range;

use bson::{RawBsonRef, RawDocument};

use super::super::decode::{Unreadable, expect_version, integer};
use super::super::encode::Encoder;
use super::super::names;
use super::super::stats::{decode_stats, encode_stats};
use super::HourRollup;
use crate::model::Hour;
use crate::store::HourStats;
use crate::store::metric_names::MetricNames;

/// The shape of the documents that this version writes.
const SCHEMA_VERSION: i32 = 1;

/// The key of each hour of a day: all of one width, so that they stand in order when people sort them.
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

/// The key of an hour among those of its day.
pub(super) const fn key_of(hour: Hour) -> &'static str {
    KEYS[hour.0.rem_euclid(24) as usize]
}

/// Writes the statement that puts an hour into its day's document, unless what is there is as new.
pub(super) fn put(statement: &mut Encoder, rollup: &HourRollup) {
    let HourRollup { device, rev, stats } = rollup;
    let (day, key) = (day_of(stats.hour), key_of(stats.hour));
    statement.document("q", |filter| {
        filter.string("_id", &names::day_id(device, day));
        filter.string("deviceId", device);
        // `$lt` would not match an hour that is not there yet.
        filter.document(["hours.", key, ".rev"], |is| is.document("$not", |is| is.int64("$gte", *rev)));
    });
    statement.document("u", |update| {
        update.document("$set", |set| {
            set.document(["hours.", key], |hour| {
                hour.int64("rev", *rev);
                hour.datetime("lastTs", stats.last_ts_ms);
                encode_stats(hour, "stats", &stats.stats);
            });
        });
        update.document("$setOnInsert", |birth| {
            birth.datetime("day", start_of(day).start_ms());
            birth.int32("schemaVersion", SCHEMA_VERSION);
            birth.datetime("createdAt", names::day_created_at_ms(device, day));
        });
    });
    statement.boolean("upsert", true);
}

/// Adds the hours of a document that lie in `hours`: also where one of them is not readable, all the others.
pub(super) fn take_hours(
    document: &RawDocument,
    hours: &Range<Hour>,
    metrics: &mut MetricNames,
    found: &mut Vec<HourStats>,
) -> Result<(), Unreadable> {
    expect_version(document, SCHEMA_VERSION)?;
    let start = Hour::of(document.get_datetime("day")?.timestamp_millis());
    let mut outcome = Ok(());
    for element in document.get_document("hours")? {
        let (key, value) = element?;
        match take_hour(start, key.as_str(), value, hours, metrics) {
            Ok(stats) => found.extend(stats),
            Err(error) => outcome = Err(error),
        }
    }
    outcome
}

/// The hour of an entry of a day, if it lies in `hours`.
fn take_hour(
    start: Hour,
    key: &str,
    value: RawBsonRef<'_>,
    hours: &Range<Hour>,
    metrics: &mut MetricNames,
) -> Result<Option<HourStats>, Unreadable> {
    let of_day = KEYS.iter().position(|known| *known == key);
    let of_day = of_day.ok_or_else(|| Unreadable("a day has an hour that is none".into()))?;
    let hour = Hour(start.0.saturating_add(of_day as i32));
    if !hours.contains(&hour) {
        return Ok(None);
    }
    let entry = value.as_document().ok_or_else(|| Unreadable("an hour is not a document".into()))?;
    decode(entry, hour, metrics).map(Some)
}

fn decode(entry: &RawDocument, hour: Hour, metrics: &mut MetricNames) -> Result<HourStats, Unreadable> {
    let (mut last_ts_ms, mut stats) = (None, None);
    for element in entry {
        match element? {
            (key, RawBsonRef::DateTime(ts)) if key == "lastTs" => last_ts_ms = Some(ts.timestamp_millis()),
            (key, RawBsonRef::Document(of)) if key == "stats" => stats = Some(decode_stats(of, metrics)?),
            _ => {}
        }
    }
    match (last_ts_ms, stats) {
        (Some(last_ts_ms), Some(stats)) => Ok(HourStats { hour, last_ts_ms, stats }),
        _ => Err(Unreadable("an hour of a day is not complete".into())),
    }
}

/// The `rev` of an hour of a document, if it is there and is one.
pub(super) fn rev_of(document: &RawDocument, hour: Hour) -> Option<i64> {
    let hours = document.get_document("hours").ok()?;
    integer(hours.get_document(key_of(hour)).ok()?, "rev").ok()
}

#[cfg(test)]
mod tests {
    use bson::{RawDocumentBuf, doc};

    use super::*;
    use crate::model::Stats;

    #[test]
    fn every_hour_has_its_key_before_and_after_1970() {
        assert_eq!((key_of(Hour(0)), key_of(Hour(-1)), key_of(Hour(47))), ("00", "23", "23"));
        assert_eq!((day_of(Hour(23)), day_of(Hour(24)), day_of(Hour(-1))), (0, 1, -1));
    }

    #[test]
    fn hours_of_a_document_are_read_within_the_range() {
        let entry = |ms| {
            doc! { "rev": 3_i64, "lastTs": bson::DateTime::from_millis(ms), "stats": {
            "lux": { "count": 1_i64, "min": 2.0, "max": 2.0, "sum": 2.0 } } }
        };
        let day = bson::DateTime::from_millis(Hour(24).start_ms());
        let document =
            doc! { "day": day, "schemaVersion": 1, "hours": { "13": entry(13), "02": entry(2), "23": entry(23) } };
        let document = RawDocumentBuf::try_from(&document).unwrap();
        let mut found = Vec::new();
        take_hours(&document, &(Hour(0)..Hour(47)), &mut MetricNames::new(&[]), &mut found).unwrap();
        let at = |hour, last_ts_ms| HourStats { hour, last_ts_ms, stats: vec![("lux".into(), Stats::of(2.0))] };
        assert_eq!(found, [at(Hour(37), 13), at(Hour(26), 2)]);
        assert_eq!((rev_of(&document, Hour(26)), rev_of(&document, Hour(27))), (Some(3), None));
    }

    #[test]
    fn what_is_no_rollup_is_said_to_be_unreadable() {
        let day = bson::DateTime::from_millis(0);
        for bad in
            [doc! {}, doc! { "day": day, "hours": { "24": {} } }, doc! { "day": day, "hours": { "03": { "rev": 1 } } }]
        {
            let mut bad = bad;
            bad.insert("schemaVersion", 1);
            let bad = RawDocumentBuf::try_from(&bad).unwrap();
            assert!(take_hours(&bad, &(Hour(0)..Hour(99)), &mut MetricNames::new(&[]), &mut Vec::new()).is_err());
        }
    }
}
