//! RFC 3339 timestamps, as the text formats write them, and the forms of ISO 8601 that devices send in their
//! place.

use crate::common::clock;

/// The largest time up to which a float holds every millisecond: 2^53.
pub(super) const LAST_EXACT_MS: f64 = 9_007_199_254_740_992.0;

/// How far a time in milliseconds may be from a whole number that it stands for.
///
/// Binary fractions of seconds are not exact. All other times are cut off toward the past.
const TOLERANCE_MS: f64 = 0.000_5;

/// The whole milliseconds that a computed time in milliseconds stands for.
///
/// It is no number, or infinite, if `ms` is.
pub(crate) fn whole_ms(ms: f64) -> f64 {
    let (nearest, tolerance) = (ms.round(), TOLERANCE_MS.max(ms.abs() * f64::EPSILON));
    if (ms - nearest).abs() <= tolerance { nearest } else { ms.floor() }
}

/// Why a text is not a timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TimestampError {
    /// The text does not have the form of RFC 3339.
    #[error("a timestamp looks like 2026-04-20T14:00:10Z or 2026-04-20T16:00:10.250+02:00")]
    Form,
    /// The text has no offset, so it is not an instant.
    #[error("a timestamp ends with its offset from UTC: Z, or hours and minutes like +02:00")]
    NoOffset,
    /// A part of the date, the time or the offset is out of range.
    #[error("the {0} of this timestamp does not exist")]
    Range(&'static str),
    /// Second 60 is not at the end of a UTC day.
    #[error("second 60 exists only as the last second of a UTC day")]
    LeapSecond,
}

/// Parses an RFC 3339 timestamp into Unix milliseconds.
///
/// Years range from 0000 to 9999, offsets from -23:59 to +23:59. Fractions are truncated to the millisecond.
/// As the RFC allows, `T` and `Z` may be lowercase and a space may replace `T`. As ISO 8601 allows, a comma
/// may begin the fraction, and an offset may be `+0200` (the `%z` of `strftime`) or `+02`. A leap second
/// (23:59:60 UTC) is the second after it, because Unix time has no leap seconds.
///
/// # Errors
/// When `text` is not a timestamp.
pub fn parse_rfc3339(text: &str) -> Result<i64, TimestampError> {
    let (head, tail) = text.as_bytes().split_first_chunk::<19>().ok_or(TimestampError::Form)?;
    let &[y1, y2, y3, y4, b'-', mo1, mo2, b'-', d1, d2, b'T' | b't' | b' ', h1, h2, b':', mi1, mi2, b':', s1, s2] =
        head
    else {
        return Err(TimestampError::Form);
    };
    let days = days_since_1970(digits([y1, y2, y3, y4])?, digits([mo1, mo2])?, digits([d1, d2])?)?;
    let hour = at_most(23, digits([h1, h2])?, "hour")?;
    let minute = at_most(59, digits([mi1, mi2])?, "minute")?;
    let second = at_most(60, digits([s1, s2])?, "second")?;
    let (millis, tail) = fraction_ms(tail)?;
    let seconds = days * 86_400 + hour * 3_600 + minute * 60 + second - offset_s(tail)?;
    if second == 60 && seconds.rem_euclid(86_400) != 0 {
        return Err(TimestampError::LeapSecond);
    }
    Ok(seconds * 1_000 + millis)
}

fn digits<const N: usize>(ascii: [u8; N]) -> Result<i64, TimestampError> {
    ascii.iter().try_fold(0, |number, byte| match byte {
        b'0'..=b'9' => Ok(number * 10 + i64::from(byte - b'0')),
        _ => Err(TimestampError::Form),
    })
}

const fn at_most(max: i64, number: i64, what: &'static str) -> Result<i64, TimestampError> {
    if number <= max { Ok(number) } else { Err(TimestampError::Range(what)) }
}

/// The number of days from 1970-01-01 to a date, which must exist.
fn days_since_1970(year: i64, month: i64, day: i64) -> Result<i64, TimestampError> {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let month_length = match month {
        4 | 6 | 9 | 11 => 30,
        2 => 28 + i64::from(is_leap),
        1..=12 => 31,
        _ => return Err(TimestampError::Range("month")),
    };
    if day == 0 || day > month_length {
        return Err(TimestampError::Range("day"));
    }
    Ok(clock::days_since_1970(year as i32, month as i32, day as i32).into())
}

/// Removes the fraction of a second from the start, if there is one.
fn fraction_ms(tail: &[u8]) -> Result<(i64, &[u8]), TimestampError> {
    let [b'.' | b',', fraction @ ..] = tail else { return Ok((0, tail)) };
    let length = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if length == 0 {
        return Err(TimestampError::Form);
    }
    let (fraction, tail) = fraction.split_at(length);
    let digit = |place: usize| i64::from(fraction.get(place).map_or(0, |byte| byte - b'0'));
    Ok((digit(0) * 100 + digit(1) * 10 + digit(2), tail))
}

fn offset_s(tail: &[u8]) -> Result<i64, TimestampError> {
    let (sign, h1, h2, m1, m2) = match *tail {
        [b'Z' | b'z'] => return Ok(0),
        [b'+', h1, h2, b':', m1, m2] | [b'+', h1, h2, m1, m2] => (1, h1, h2, m1, m2),
        [b'-', h1, h2, b':', m1, m2] | [b'-', h1, h2, m1, m2] => (-1, h1, h2, m1, m2),
        [b'+', h1, h2] => (1, h1, h2, b'0', b'0'),
        [b'-', h1, h2] => (-1, h1, h2, b'0', b'0'),
        [] => return Err(TimestampError::NoOffset),
        _ => return Err(TimestampError::Form),
    };
    let hours = at_most(23, digits([h1, h2])?, "offset")?;
    let minutes = at_most(59, digits([m1, m2])?, "offset")?;
    Ok(sign * (hours * 3_600 + minutes * 60))
}

#[cfg(test)]
mod tests {
    use jiff::civil;
    use proptest::prelude::*;

    use super::*;

    fn jiff_ms(text: &str) -> i64 {
        text.parse::<jiff::Timestamp>().unwrap().as_millisecond()
    }

    #[test]
    fn the_forms_that_rfc_3339_allows_are_read() {
        for text in [
            "1970-01-01T00:00:00Z",
            "2026-04-20T14:00:10Z",
            "2026-04-20T14:00:10.5Z",
            "2026-04-20T14:00:10.123Z",
            "2026-04-20T14:00:10.123+05:45",
            "2026-04-20T14:00:10-00:00",
            "2024-02-29T23:59:59-11:30",
            "2000-02-29T00:00:00Z",
            "0000-02-29T00:00:00Z",
            "1969-12-31T23:59:59.250Z",
        ] {
            assert_eq!(parse_rfc3339(text), Ok(jiff_ms(text)), "{text}");
        }
        let noon = jiff_ms("2026-04-20T12:00:00Z");
        for text in ["2026-04-20t12:00:00z", "2026-04-20 12:00:00Z", "2026-04-20T14:00:00+02:00"] {
            assert_eq!(parse_rfc3339(text), Ok(noon), "{text}");
        }
    }

    #[test]
    fn the_forms_of_iso_8601_that_devices_send_are_read() {
        let noon = jiff_ms("2026-04-20T12:00:00.250Z");
        for text in [
            "2026-04-20T12:00:00,250Z",
            "2026-04-20T12:00:00,2509+00:00",
            "2026-04-20T12:00:00.25+0000",
            "2026-04-20T12:00:00.25-0000",
            "2026-04-20T14:00:00,25+0200",
            "2026-04-20T08:30:00,25-0330",
            "2026-04-20T12:00:00.25+00",
            "2026-04-20T14:00:00.25+02",
            "2026-04-20 07:00:00,25-05",
        ] {
            assert_eq!(parse_rfc3339(text), Ok(noon), "{text}");
        }
    }

    #[test]
    fn fractions_of_a_millisecond_are_truncated() {
        assert_eq!(parse_rfc3339("1970-01-01T00:00:01.9999999999999Z"), Ok(1_999));
        assert_eq!(parse_rfc3339("1969-12-31T23:59:59.9999Z"), Ok(-1));
    }

    #[test]
    fn a_leap_second_is_the_second_after_it() {
        let after = jiff_ms("2017-01-01T00:00:00Z");
        assert_eq!(parse_rfc3339("2016-12-31T23:59:60Z"), Ok(after));
        assert_eq!(parse_rfc3339("2017-01-01T00:59:60.250+01:00"), Ok(after + 250));
        assert_eq!(parse_rfc3339("2016-12-31T12:00:60Z"), Err(TimestampError::LeapSecond));
        assert_eq!(parse_rfc3339("2016-12-31T23:59:61Z"), Err(TimestampError::Range("second")));
    }

    #[test]
    fn a_text_that_is_not_a_timestamp_has_its_reason() {
        for text in [
            "",
            "now",
            "2026-04-20",
            "20260420T140010Z",
            "-001-04-20T14:00:10Z",
            "+2026-04-20T14:00:10Z",
            "12026-04-20T14:00:10Z",
            "2026-04-20T14:00:10.Z",
            "2026-04-20T14:00:10,Z",
            "2026-04-20T14:00:10.5,5Z",
            "2026-04-20T14:00:10+2",
            "2026-04-20T14:00:10+020",
            "2026-04-20T14:00:10+02000",
            "2026-04-20T14:00:10+02:",
            "2026-04-20T14:00:10+02:0",
            "2026-04-20T14:00:10+0a00",
            "2026-04-20T14:00:10Z ",
            " 2026-04-20T14:00:10Z",
            "2026-04-20T14:00:10ZZ",
            "2026-04-20T14:00Z",
            "2026-04-20_14:00:10Z",
            "2026-04-2\u{661}T14:00:10Z",
        ] {
            assert_eq!(parse_rfc3339(text), Err(TimestampError::Form), "{text}");
        }
        assert_eq!(parse_rfc3339("2026-04-20T14:00:10"), Err(TimestampError::NoOffset));
        assert_eq!(parse_rfc3339("2026-04-20T14:00:10.25"), Err(TimestampError::NoOffset));
        for (text, what) in [
            ("2026-00-20T14:00:10Z", "month"),
            ("2026-13-20T14:00:10Z", "month"),
            ("2026-04-00T14:00:10Z", "day"),
            ("2026-04-31T14:00:10Z", "day"),
            ("2026-02-29T14:00:10Z", "day"),
            ("1900-02-29T14:00:10Z", "day"),
            ("2026-04-20T24:00:00Z", "hour"),
            ("2026-04-20T14:60:00Z", "minute"),
            ("2026-04-20T14:00:00+24:00", "offset"),
            ("2026-04-20T14:00:00-01:60", "offset"),
            ("2026-04-20T14:00:00+2400", "offset"),
            ("2026-04-20T14:00:00-24", "offset"),
        ] {
            assert_eq!(parse_rfc3339(text), Err(TimestampError::Range(what)), "{text}");
        }
    }

    #[test]
    fn each_day_of_the_years_0000_to_9999_is_as_many_days_after_1970_as_the_calendar_says() {
        let mut date = civil::date(0, 1, 1);
        let mut days = -719_528; // 0000-01-01
        loop {
            let (year, month, day) = (i64::from(date.year()), i64::from(date.month()), i64::from(date.day()));
            assert_eq!(days_since_1970(year, month, day), Ok(days), "{date}");
            let Ok(tomorrow) = date.tomorrow() else { break };
            date = tomorrow;
            days += 1;
        }
        assert_eq!(date, civil::date(9999, 12, 31));
    }

    proptest! {
        #[test]
        fn a_date_exists_here_when_it_exists_in_the_calendar(year in 0i16..=9999, month in 0i8..=13, day in 0i8..=32) {
            let text = format!("{year:04}-{month:02}-{day:02}T00:00:00Z");
            prop_assert_eq!(parse_rfc3339(&text).is_ok(), civil::Date::new(year, month, day).is_ok());
        }

        #[test]
        fn any_instant_in_any_offset_reads_as_the_calendar_says(
            (year, month, day) in (0i16..=9999, 1i8..=12, 1i8..=28),
            (hour, minute, second) in (0i8..=23, 0i8..=59, 0i8..=59),
            fraction in prop::option::of("[0-9]{1,12}"),
            offset_min in -1439i64..=1439,
            (comma, colon) in (any::<bool>(), any::<bool>()),
        ) {
            let millis: i64 = fraction.as_ref().map_or(0, |digits| format!("{digits:0<3}")[..3].parse().unwrap());
            let (sign, offset) = (if offset_min < 0 { '-' } else { '+' }, offset_min.abs());
            let text = format!(
                "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{}{sign}{:02}{}{:02}",
                fraction.map_or(String::new(), |digits| format!("{}{digits}", if comma { ',' } else { '.' })),
                offset / 60, if colon { ":" } else { "" }, offset % 60,
            );
            let local = civil::date(year, month, day).at(hour, minute, second, 0);
            let epoch = civil::date(1970, 1, 1).at(0, 0, 0, 0);
            let expected = (local.duration_since(epoch).as_secs() - offset_min * 60) * 1_000 + millis;
            prop_assert_eq!(parse_rfc3339(&text), Ok(expected), "{}", text);
        }

        #[test]
        fn no_text_panics(text in ".*", near in "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9:]{8}[.0-9Zz+:é-]{0,12}") {
            let _ = (parse_rfc3339(&text), parse_rfc3339(&near));
        }
    }
}
