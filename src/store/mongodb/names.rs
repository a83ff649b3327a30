//! Names in the database: `_id`s, field names, and the instant `createdAt`.
//!
//! The `_id`s of a device are in the order of time, because a year has four digits: admission takes the years
//! 0 to 9999 only. So a range of `_id`s holds a device's documents of a range of time. It may hold documents
//! of other devices as well: `a/2026-04-20T05` is a device ID too. A query must therefore name its device
//! besides.
//!
//! A field name of MongoDB should contain no `.` and not begin with `$`, because these are the syntax of
//! paths and operators. In the names of metrics and in the keys of metadata, `.` is stored as U+FF0E and `$`
//! as U+FF04, the same characters in full width, and mapped back when read. Metric names cannot contain these
//! two characters.

use std::borrow::Cow;
use std::ops::Range;

use bson::{Document, doc};

use crate::common::clock::{civil_date, rfc3339};
use crate::model::{Hour, MS_PER_HOUR, SeriesFilter, Wanted};

const SECONDS_PER_DAY: u32 = 86_400;

/// The days of the years 0 to 9999, counted from 1970-01-01. Their `_id`s are in the order of time.
const DAYS: Range<i32> = -719_528..2_932_897;

/// Sorts after the `_id` of each document of a device: a day has no hour 24.
const END_OF_TIME: &str = "9999-12-31T24";

/// The `_id` of a part of a bucket: `<deviceId>/<YYYY-MM-DDTHH>` for part 0.
///
/// Further parts have `/1`, `/2` and so on at the end.
///
/// The hour has a fixed width, and the number of a part contains no dash. So no two buckets share an `_id`,
/// though a device ID may contain slashes.
pub(super) fn document_id(device: &str, hour: Hour, part: i32) -> String {
    let hour = text_of(hour);
    if part == 0 { [device, "/", &*hour].concat() } else { format!("{device}/{hour}/{part}") }
}

/// The device of the `_id` of a bucket.
pub(super) fn device_of(id: &str) -> Option<&str> {
    let (before, last) = id.rsplit_once('/')?;
    let device = if looks_like(last, "0000-00-00T00") {
        before
    } else {
        let is_part = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
        let (device, hour) = before.rsplit_once('/').filter(|_| is_part)?;
        looks_like(hour, "0000-00-00T00").then_some(device)?
    };
    Some(device).filter(|device| !device.is_empty())
}

/// Whether a text has digits where `form` has zeros, and else the same characters.
fn looks_like(text: &str, form: &str) -> bool {
    let same = |(byte, of_form): (u8, u8)| if of_form == b'0' { byte.is_ascii_digit() } else { byte == of_form };
    text.len() == form.len() && text.bytes().zip(form.bytes()).all(same)
}

/// Matches the `_id`s of all parts of a device's buckets in these hours, and perhaps those of other devices.
pub(super) fn ids_of_hours(device: &str, hours: &Range<Hour>) -> Document {
    let bound = |hour: Hour| match hour.0.div_euclid(24) {
        day if day < DAYS.start => document_id(device, Hour(DAYS.start * 24), 0),
        day if day >= DAYS.end => format!("{device}/{END_OF_TIME}"),
        _ => document_id(device, hour, 0),
    };
    doc! { "$gte": bound(hours.start), "$lt": bound(hours.end) }
}

/// Matches the `_id`s of the rollups of a device on the days that have one of these hours, and perhaps those
/// of other devices.
pub(super) fn ids_of_days(device: &str, hours: &Range<Hour>) -> Document {
    let bound = |day: i32| if day < DAYS.end { day_id(device, day) } else { format!("{device}/{END_OF_TIME}") };
    let days = days_of(hours);
    doc! { "$gte": bound(days.start), "$lt": bound(days.end) }
}

/// The days that have one of these hours, without the days outside of [`DAYS`].
pub(super) fn days_of(hours: &Range<Hour>) -> Range<i32> {
    let first = hours.start.0.div_euclid(24);
    let end = if hours.is_empty() { first } else { (hours.end.0 - 1).div_euclid(24) + 1 };
    first.clamp(DAYS.start, DAYS.end)..end.clamp(DAYS.start, DAYS.end)
}

fn text_of(hour: Hour) -> String {
    let mut text = rfc3339(hour.start_ms());
    if text.as_bytes().get("YYYY-MM-DDTHH".len()) == Some(&b':') {
        text.truncate("YYYY-MM-DDTHH".len()); // as a rule; formatting takes several times as long
        return text;
    }
    let (year, month, day) = civil_date(hour.0.div_euclid(24));
    let of_day = hour.0.rem_euclid(24);
    format!("{year:04}-{month:02}-{day:02}T{of_day:02}")
}

/// Whether an `_id` is that of a part of a bucket of this hour, whatever the device.
pub(super) fn is_id_of_hour(id: &str, hour: Hour) -> bool {
    let before_part = match id.rsplit_once('/') {
        Some((before, part)) if part.bytes().all(|byte| byte.is_ascii_digit()) => before,
        _ => id,
    };
    DAYS.contains(&hour.0.div_euclid(24))
        && before_part.strip_suffix(&*text_of(hour)).is_some_and(|device| device.ends_with('/'))
}

/// The `createdAt` of a bucket's documents, in Unix milliseconds.
///
/// It is an instant in the hour, whole seconds after its start, fixed for each device by the CRC-32 (IEEE) of
/// its ID. Retention counts from here. Since every device has a second of its own, the buckets of one hour do
/// not all expire in the same minute.
pub(super) fn created_at_ms(device: &str, hour: Hour) -> i64 {
    let second = crc32fast::hash(device.as_bytes()) % (MS_PER_HOUR as u32 / 1000);
    hour.instant_ms(second * 1000)
}

/// The `_id` of the rollups of a device and a day: `<deviceId>/<YYYY-MM-DD>`.
///
/// `day` is the number of days since 1970-01-01.
pub(super) fn day_id(device: &str, day: i32) -> String {
    let (year, month, of_month) = civil_date(day);
    format!("{device}/{year:04}-{month:02}-{of_month:02}")
}

/// The `createdAt` of a day's rollups, in Unix milliseconds: an instant in the day, fixed for each device.
pub(super) fn day_created_at_ms(device: &str, day: i32) -> i64 {
    let second = crc32fast::hash(device.as_bytes()) % SECONDS_PER_DAY;
    Hour(day * 24).start_ms() + i64::from(second) * 1000
}

/// The field name for a metric name or metadata key.
///
/// A NUL, which no BSON key may contain, becomes U+2400 and is not mapped back. Names and keys that were
/// checked have no NUL.
pub(super) fn stored(name: &str) -> Cow<'_, str> {
    if !name.contains(['.', '$', '\0']) {
        return Cow::Borrowed(name);
    }
    let stored = name.chars().map(|character| match character {
        '.' => '\u{FF0E}',
        '$' => '\u{FF04}',
        '\0' => '\u{2400}',
        other => other,
    });
    Cow::Owned(stored.collect())
}

/// The name from which [`stored`] has made this field name.
pub(super) fn original(stored: &str) -> Cow<'_, str> {
    if stored.is_ascii() {
        return Cow::Borrowed(stored);
    }
    Cow::Owned(stored.replace('\u{FF0E}', ".").replace('\u{FF04}', "$"))
}

/// Clauses for `$or`: a document with a field of a wanted series matches one of them. `None` if all series
/// are wanted. `fields` is the expression of the document with the fields, and `has` matches documents that
/// have a field.
///
/// A name stands for any labels. Its clause looks at the names of all fields of a document, once, however
/// many names are wanted.
pub(super) fn has_one_of(series: &SeriesFilter, fields: &str, has: impl Fn(&str) -> Document) -> Option<Vec<Document>> {
    let (mut clauses, mut names) = (Vec::new(), Vec::new());
    for wanted in series.metrics()? {
        match wanted {
            Wanted::Name(name) => {
                clauses.push(has(name));
                names.push(stored(name).into_owned());
            }
            Wanted::Text(text) => clauses.push(has(text)),
        }
    }
    if !names.is_empty() {
        let name = doc! { "$arrayElemAt": [{ "$split": ["$$field.k", "{"] }, 0] };
        let found = doc! { "$map": { "input": { "$objectToArray": fields }, "as": "field", "in": name } };
        let wanted = doc! { "$setIntersection": [found, { "$literal": names }] };
        clauses.push(doc! { "$expr": { "$ne": [wanted, []] } });
    }
    Some(clauses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_device_hour_and_part() {
        let hour = Hour::of(1_776_693_610_000);
        assert_eq!(document_id("LIGHT-FL02-ZONE4", hour, 0), "LIGHT-FL02-ZONE4/2026-04-20T14");
        assert_eq!(document_id("a/b", hour, 12), "a/b/2026-04-20T14/12");
        assert_eq!(document_id("d", Hour(-1), 0), "d/1969-12-31T23");
        assert_eq!(document_id("d", Hour::of(951_782_400_000), 0), "d/2000-02-29T00");
    }

    /// Whether a range of `_id`s has this one.
    fn has(range: &Document, id: &str) -> bool {
        range.get_str("$gte").unwrap() <= id && id < range.get_str("$lt").unwrap()
    }

    #[test]
    fn a_range_has_the_buckets_of_its_hours() {
        let first = Hour(DAYS.start * 24);
        let last = Hour(DAYS.end * 24 - 1);
        assert_eq!(document_id("a", first, 0), "a/0000-01-01T00");
        assert_eq!(document_id("a", last, 0), "a/9999-12-31T23");
        let near = |hour: Hour| (hour.0 - 25..=hour.0 + 25).map(Hour);
        let stored: Vec<Hour> = [first, Hour(0), Hour(493_526), last].into_iter().flat_map(near).collect();
        let stored: Vec<Hour> = stored.into_iter().filter(|hour| (first..=last).contains(hour)).collect();
        let bounds: Vec<Hour> = stored.iter().copied().step_by(3).chain([Hour(i32::MIN), Hour(i32::MAX)]).collect();
        for (&start, &end) in bounds.iter().flat_map(|start| bounds.iter().map(move |end| (start, end))) {
            let (hours, days) = (ids_of_hours("a", &(start..end)), ids_of_days("a", &(start..end)));
            for &hour in &stored {
                for part in [0, 1, 2, 10, i32::MAX] {
                    let expected = (start..end).contains(&hour);
                    assert_eq!(has(&hours, &document_id("a", hour, part)), expected, "{hour:?} in {start:?}..{end:?}");
                }
                let day = hour.0.div_euclid(24);
                let expected = start < end && day * 24 < end.0 && (i64::from(day) + 1) * 24 > start.0.into();
                assert_eq!(has(&days, &day_id("a", day)), expected, "day {day} in {start:?}..{end:?}");
            }
        }
    }

    #[test]
    fn a_bucket_is_created_in_its_hour_at_the_devices_own_second() {
        let hour = Hour::of(1_776_693_610_000);
        for device in ["a", "b", "LIGHT-FL02-ZONE4"] {
            let ms = created_at_ms(device, hour);
            assert_eq!((Hour::of(ms), ms % 1000), (hour, 0));
            assert_eq!(created_at_ms(device, Hour(0)), ms - hour.start_ms());
        }
        assert_ne!(created_at_ms("a", hour), created_at_ms("b", hour));
    }

    #[test]
    fn a_day_has_an_id_and_an_age_of_its_own() {
        assert_eq!(day_id("a/b", 20_563), "a/b/2026-04-20");
        assert_eq!(day_id("d", -1), "d/1969-12-31");
        for device in ["a", "b", "LIGHT-FL02-ZONE4"] {
            assert_eq!(Hour::of(day_created_at_ms(device, -1)).0.div_euclid(24), -1);
        }
        assert_ne!(day_created_at_ms("a", 0), day_created_at_ms("b", 0));
    }

    #[test]
    fn dots_and_dollars_are_stored_in_full_width_and_read_back() {
        for name in ["temp", "Temp °C", "a.b.c", "$load", "0", "价格"] {
            assert_eq!(original(&stored(name)), name);
            assert!(!stored(name).contains(['.', '$']), "{name}");
        }
        assert_eq!(stored("a\0"), "a\u{2400}");
    }
}
