//! Parses the time cells of CSV files. Pure.
//!
//! There are three forms of an instant: RFC 3339 with an offset, a civil date and time in a given zone, and
//! Unix time, whose magnitude tells its unit. A date without a time of day is rejected: as midnight, it would
//! give all readings of a day the same identity.

use jiff::civil::DateTime;
use jiff::fmt::temporal::Pieces;
use jiff::tz::TimeZone;

const NS_PER_MS: i128 = 1_000_000;
const NS_PER_S: i128 = 1_000_000_000;

/// Why a cell is not an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum TimeError {
    /// None of the forms of an instant.
    #[error("not a time: expected RFC 3339, YYYY-MM-DD HH:MM[:SS[.fff]] or Unix time")]
    Unknown,
    /// A date alone.
    #[error("a date without a time of day")]
    NoTimeOfDay,
    /// Outside the range of years.
    #[error("a time out of range")]
    OutOfRange,
}

/// Parses an instant to Unix milliseconds, rounded towards the past.
///
/// A civil time is in `zone`. If clocks were set back, a repeated time means the first of the two instants;
/// if they were set forward, a time in the gap is read as if they had not been set yet.
pub(super) fn parse(text: &str, zone: &TimeZone) -> Result<i64, TimeError> {
    let ns = match unix_ns(text) {
        Some(ns) => ns?,
        None => calendar_ns(text, zone)?,
    };
    i64::try_from(ns.div_euclid(NS_PER_MS)).map_err(|_| TimeError::OutOfRange)
}

/// Unix time in nanoseconds; `None` if the text is not a number.
fn unix_ns(text: &str) -> Option<Result<i128, TimeError>> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    let Ok(whole) = whole.parse::<u64>() else {
        return Some(Err(TimeError::OutOfRange));
    };
    let unit_ns = unit_ns_of(whole);
    let fraction = &fraction[..fraction.len().min(9)]; // finer than a nanosecond
    let numerator: i128 = fraction.parse().unwrap_or(0); // empty: no fraction
    let fraction_ns = numerator * unit_ns / 10_i128.pow(fraction.len() as u32);
    Some(Ok(sign * (i128::from(whole) * unit_ns + fraction_ns)))
}

/// The unit of a Unix time in nanoseconds. The bounds are those of the `auto` precision of InfluxDB 3.
const fn unit_ns_of(magnitude: u64) -> i128 {
    match magnitude {
        0..5_000_000_000 => NS_PER_S,
        5_000_000_000..5_000_000_000_000 => NS_PER_MS,
        5_000_000_000_000..5_000_000_000_000_000 => 1_000,
        _ => 1,
    }
}

/// The instant of a date and time, in nanoseconds since 1970.
fn calendar_ns(text: &str, zone: &TimeZone) -> Result<i128, TimeError> {
    let pieces = Pieces::parse(text).map_err(|_| TimeError::Unknown)?;
    if pieces.time_zone_annotation().is_some() {
        return Err(TimeError::Unknown); // `...[Europe/Vienna]` would contradict the zone of the caller
    }
    let time = pieces.time().ok_or(TimeError::NoTimeOfDay)?;
    let civil = DateTime::from_parts(pieces.date(), time);
    let instant = match pieces.to_numeric_offset() {
        Some(offset) => offset.to_timestamp(civil),
        None => zone.to_timestamp(civil),
    };
    Ok(instant.map_err(|_| TimeError::OutOfRange)?.as_nanosecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utc(text: &str) -> Result<i64, TimeError> {
        parse(text, &TimeZone::UTC)
    }

    /// The rules of New York, spelt out, so that the test needs no zone files.
    fn new_york(text: &str) -> Result<i64, TimeError> {
        parse(text, &TimeZone::posix("EST5EDT,M3.2.0,M11.1.0").unwrap())
    }

    #[test]
    fn an_offset_in_the_text_is_obeyed_whatever_the_zone() {
        assert_eq!(utc("2026-04-20T14:00:10Z"), Ok(1_776_693_610_000));
        assert_eq!(new_york("2026-04-20T14:00:10Z"), Ok(1_776_693_610_000));
        assert_eq!(new_york("2026-04-20t16:00:10.1239+02:00"), Ok(1_776_693_610_123));
        assert_eq!(utc("2026-04-20 14:00:10+00:00"), Ok(1_776_693_610_000));
    }

    #[test]
    fn a_civil_time_is_in_the_zone_of_the_caller() {
        assert_eq!(utc("2026-04-20 14:00"), Ok(1_776_693_600_000));
        assert_eq!(utc("2026-04-20T14:00:10"), Ok(1_776_693_610_000));
        assert_eq!(utc("2026-04-20 14:00:10.5"), Ok(1_776_693_610_500));
        assert_eq!(new_york("2026-04-20 10:00:10"), Ok(1_776_693_610_000));
    }

    #[test]
    fn in_an_overlap_the_first_instant_counts_and_a_gap_is_read_with_the_offset_before_it() {
        assert_eq!(new_york("2026-11-01 01:30"), utc("2026-11-01T01:30-04:00"));
        assert_eq!(new_york("2026-03-08 02:30"), utc("2026-03-08T02:30-05:00"));
    }

    #[test]
    fn the_magnitude_of_a_unix_time_tells_its_unit() {
        for same in ["1776693610", "1776693610000", "1776693610000000", "1776693610000000000"] {
            assert_eq!(utc(same), Ok(1_776_693_610_000), "{same}");
        }
        assert_eq!(utc("1776693610.25"), Ok(1_776_693_610_250));
        assert_eq!(utc("1776693610.1234567890123"), Ok(1_776_693_610_123));
        assert_eq!(utc("1776693610123.9"), Ok(1_776_693_610_123));
        assert_eq!(utc("4999999999"), Ok(4_999_999_999_000));
        assert_eq!(utc("5000000000"), Ok(5_000_000_000));
        assert_eq!(utc("-1.5"), Ok(-1_500));
        assert_eq!(utc("-0.0001"), Ok(-1), "towards the past");
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "-", ".", "now", "14:00:10", "1.77e9", "20/04/2026 14:00", "2026-02-30 10:00", "1.2.3"] {
            assert_eq!(utc(text), Err(TimeError::Unknown), "{text}");
        }
        assert_eq!(utc("2026-04-20 14:00[America/New_York]"), Err(TimeError::Unknown));
        assert_eq!(utc("2026-04-20"), Err(TimeError::NoTimeOfDay));
        assert_eq!(utc("99999999999999999999999"), Err(TimeError::OutOfRange));
    }
}
