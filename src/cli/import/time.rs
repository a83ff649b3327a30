//! Parses the time cells of CSV files. Pure.
//!
//! An instant is RFC 3339 with an offset, a civil date and time in a given zone, or Unix time, whose
//! magnitude tells its unit. `--time-format` names another form.
//!
//! Three kinds of cells are rejected. A date without a time of day, read as midnight, would give all readings
//! of a day the same identity. An ambiguous date, such as 01/02/2026, may have the day or the month first. A
//! number may be a date rather than Unix time: 20261124103000, or the serial number of a spreadsheet.

use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::{Date, DateTime, Time};
use jiff::fmt::strtime;
use jiff::fmt::temporal::Pieces;
use jiff::tz::{AmbiguousOffset, TimeZone};

const NS_PER_MS: i128 = 1_000_000;
const NS_PER_S: i128 = 1_000_000_000;
/// The name of any other zone in messages.
const UNNAMED_ZONE: &str = "the zone of --tz";

/// Why a cell is not an instant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum TimeError {
    /// None of the forms of an instant.
    #[error(
        "not a time: expected RFC 3339, YYYY-MM-DD HH:MM[:SS[.fff]], DD.MM.YYYY HH:MM or Unix time; --time-format \
         names another form"
    )]
    Unknown,
    /// A date alone.
    #[error("a date without a time of day; if that is in another column, name both: --time-column DATE,TIME")]
    NoTimeOfDay,
    /// A time of day alone.
    #[error("a time of day without a date; if that is in another column, name both: --time-column DATE,TIME")]
    NoDate,
    /// A date whose first two numbers may be swapped.
    #[error("{0}")]
    DayOrMonth(String),
    /// A number that is rather a date than Unix time.
    #[error("{0}")]
    Number(&'static str),
    /// Not in the form of `--time-format`.
    #[error("not a time of the form {0}: {1}")]
    NotOfFormat(String, String),
    /// A local time of an unknown zone.
    #[error("a time without an offset: name its zone, such as --tz Europe/Berlin or --tz UTC")]
    NoZone,
    /// A local time that does not exist: clocks were set forward over it.
    #[error("this time does not exist in {0}, where clocks are set forward over it: is the zone right?")]
    Skipped(String),
    /// Outside the range of years.
    #[error("a time out of range")]
    OutOfRange,
}

/// An instant in Unix milliseconds, rounded towards the past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    At(i64),
    /// A civil time that means two instants.
    Twice(Twice),
}

/// The two instants of a civil time, because clocks were set back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Twice {
    pub(super) civil: DateTime,
    pub(super) first_ms: i64,
    pub(super) second_ms: i64,
}

/// How the times of a file are parsed.
#[derive(Debug, Clone)]
pub(super) struct Times {
    /// The zone of civil times without one of their own; `None`: they are rejected.
    pub(super) zone: Option<TimeZone>,
    /// The form of the times; `None`: one of the usual forms.
    pub(super) format: Option<TimeFormat>,
}

/// A form of `strftime`.
#[derive(Debug, Clone)]
pub(super) struct TimeFormat(String);

impl FromStr for TimeFormat {
    type Err = String;

    fn from_str(format: &str) -> Result<Self, String> {
        let format = Self(format.to_owned());
        let one_pm = Date::constant(2026, 10, 25).at(13, 0, 0, 0);
        let at = one_pm.to_zoned(TimeZone::UTC).map_err(|error| error.to_string())?;
        let text = strtime::format(&format.0, &at).map_err(|error| error.to_string())?;
        let found = Times { zone: Some(TimeZone::UTC), format: Some(format.clone()) }.parse(&text);
        if found == Ok(When::At(at.timestamp().as_millisecond())) {
            return Ok(format);
        }
        Err(format!("it does not tell date and hour: 13:00 on 2026-10-25 is {text:?} in it"))
    }
}

impl Times {
    /// Parses times of the usual forms.
    #[cfg(test)]
    pub(super) const fn usual(zone: TimeZone) -> Self {
        Self { zone: Some(zone), format: None }
    }

    /// Whether no civil time exists twice, because the zone has one fixed offset.
    pub(super) fn is_fixed(&self) -> bool {
        !self.names_zones() && self.zone.as_ref().is_none_or(|zone| zone.to_fixed_offset().is_ok())
    }

    /// The name of the zone, for messages.
    pub(super) fn zone_name(&self) -> &str {
        if self.names_zones() { "its zone" } else { self.zone.as_ref().map_or(UNNAMED_ZONE, name_of) }
    }

    /// Whether each time may name its zone: `%Q`, `%:Q`.
    fn names_zones(&self) -> bool {
        self.format.as_ref().is_some_and(|format| format.0.contains('Q'))
    }

    /// Parses an instant.
    pub(super) fn parse(&self, text: &str) -> Result<When, TimeError> {
        if let Some(format) = &self.format {
            return self.of_format(&format.0, text);
        }
        if let Some(ns) = unix_ns(text) {
            return match no_unix_time(text) {
                Some(why) => Err(why),
                None => floor_ms(ns?).map(When::At),
            };
        }
        let (civil, offset) = match Pieces::parse(text) {
            // `...[Europe/Vienna]` would contradict the zone of the caller
            Ok(pieces) if pieces.time_zone_annotation().is_some() => return Err(TimeError::Unknown),
            Ok(pieces) => {
                let time = pieces.time().ok_or(TimeError::NoTimeOfDay)?;
                (DateTime::from_parts(pieces.date(), time), pieces.to_numeric_offset())
            }
            Err(_) => (usual(text)?, None),
        };
        match offset {
            Some(offset) => offset.to_timestamp(civil).map_err(|_| TimeError::OutOfRange).and_then(at),
            None => of_civil(civil, self.zone.as_ref()),
        }
    }

    fn of_format(&self, format: &str, text: &str) -> Result<When, TimeError> {
        let wrong = |error: jiff::Error| TimeError::NotOfFormat(format.to_owned(), error.to_string());
        let found = strtime::parse(format, text).map_err(wrong)?;
        if found.timestamp().is_some() || found.offset().is_some() {
            return found.to_timestamp().map_err(wrong).and_then(at);
        }
        if found.hour().is_none() {
            return Err(TimeError::NoTimeOfDay);
        }
        let own = found.iana_time_zone().map(TimeZone::get).transpose().map_err(wrong)?;
        of_civil(found.to_datetime().map_err(wrong)?, own.as_ref().or(self.zone.as_ref()))
    }
}

/// The instant of a civil time in a zone.
fn of_civil(civil: DateTime, zone: Option<&TimeZone>) -> Result<When, TimeError> {
    let zone = zone.ok_or(TimeError::NoZone)?;
    let found = zone.to_ambiguous_timestamp(civil);
    match found.offset() {
        AmbiguousOffset::Unambiguous { .. } => found.compatible().map_err(|_| TimeError::OutOfRange).and_then(at),
        AmbiguousOffset::Gap { .. } => Err(TimeError::Skipped(name_of(zone).to_owned())),
        AmbiguousOffset::Fold { .. } => {
            let both = found.earlier().and_then(|first| Ok((first, found.later()?)));
            let (first, second) = both.map_err(|_| TimeError::OutOfRange)?;
            let (first_ms, second_ms) = (floor_ms(first.as_nanosecond())?, floor_ms(second.as_nanosecond())?);
            Ok(When::Twice(Twice { civil, first_ms, second_ms }))
        }
    }
}

fn name_of(zone: &TimeZone) -> &str {
    zone.iana_name().unwrap_or(UNNAMED_ZONE)
}

fn at(instant: Timestamp) -> Result<When, TimeError> {
    floor_ms(instant.as_nanosecond()).map(When::At)
}

fn floor_ms(ns: i128) -> Result<i64, TimeError> {
    i64::try_from(ns.div_euclid(NS_PER_MS)).map_err(|_| TimeError::OutOfRange)
}

/// Parses a date of three numbers and a time.
///
/// Examples are `25.10.2026 02:30:15` and `2026/10/25 2:30`.
fn usual(text: &str) -> Result<DateTime, TimeError> {
    let (date, time) = match text.split_once([' ', 'T', 't']) {
        Some((date, time)) => (date.trim_end_matches(','), time.trim_ascii_start()),
        None => (text, ""),
    };
    if time.is_empty() && time_of_day(date).is_some() {
        return Err(TimeError::NoDate);
    }
    let mark = date.find(['.', '/', '-']).and_then(|at| date[at..].chars().next()).ok_or(TimeError::Unknown)?;
    let parts: Vec<&str> = date.splitn(4, mark).collect();
    let is_number = |part: &&str| (1..=4).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
    let &[one, two, three] = &parts[..] else { return Err(TimeError::Unknown) };
    if !parts.iter().all(is_number) {
        return Err(TimeError::Unknown);
    }
    let dated =
        |year: &str, month: &str, day: &str| Date::new(year.parse().ok()?, month.parse().ok()?, day.parse().ok()?).ok();
    let date = match (one.len(), three.len(), mark) {
        (4, 1..=2, _) => dated(one, two, three).ok_or(TimeError::Unknown)?,
        (1..=2, 4, '.') => dated(three, two, one).ok_or(TimeError::Unknown)?,
        (1..=2, 4, _) => return Err(day_or_month(dated(three, two, one), dated(three, one, two), mark, time)),
        _ => return Err(TimeError::Unknown),
    };
    if time.is_empty() {
        return Err(TimeError::NoTimeOfDay);
    }
    Ok(date.to_datetime(time_of_day(time).ok_or(TimeError::Unknown)?))
}

/// The time of day `H:MM[:SS[.fff]]`.
fn time_of_day(text: &str) -> Option<Time> {
    let usual = |byte: u8| byte.is_ascii_digit() || matches!(byte, b':' | b'.' | b',');
    let hour = text.find(':').filter(|_| text.bytes().all(usual))?;
    format!("{}{text}", if hour == 1 { "0" } else { "" }).parse().ok()
}

/// The error of a date such as 01/02/2026.
///
/// It names the `--time-format` for each order of day and month that makes a date.
fn day_or_month(day_first: Option<Date>, month_first: Option<Date>, mark: char, time: &str) -> TimeError {
    let half = if time.ends_with(['M', 'm']) { " %p" } else { "" };
    let hour = if half.is_empty() { "%H" } else { "%I" };
    let rest = match (time.matches(':').count(), time.contains('.')) {
        (0 | 1, _) => "",
        (_, true) => ":%S%.f",
        (_, false) => ":%S",
    };
    let format = |first, second| format!("--time-format '%{first}{mark}%{second}{mark}%Y {hour}:%M{rest}{half}'");
    let (day, month) = (format('d', 'm'), format('m', 'd'));
    let text = match (day_first, month_first) {
        (Some(one), Some(other)) if one != other => {
            let shown = |date: Date| strtime::format("%-d %B %Y", date).unwrap_or_default();
            format!("{} or {}: add {day} or {month}", shown(one), shown(other))
        }
        (Some(_), Some(_)) => format!("the day or the month may be first: add {day} or {month}"),
        (Some(_), None) => format!("the day is first: add {day}"),
        (None, Some(_)) => format!("the month is first: add {month}"),
        (None, None) => return TimeError::Unknown,
    };
    TimeError::DayOrMonth(text)
}

/// The error of a number that is a date rather than Unix time, such as 20261124.
///
/// Read as Unix time, each such number would be an instant of the last century.
fn no_unix_time(text: &str) -> Option<TimeError> {
    let (whole, _) = text.split_once('.').unwrap_or((text, ""));
    let is_date = whole.get(..8).is_some_and(|day| {
        let number = |at: std::ops::Range<usize>| day.get(at)?.parse::<i16>().ok();
        let parts = (number(0..4), number(4..6), number(6..8));
        let (Some(year), Some(month), Some(day)) = parts else { return false };
        (1970..2100).contains(&year) && Date::new(year, month as i8, day as i8).is_ok()
    });
    match whole.len() {
        5 if (20_000..80_000).contains(&whole.parse().unwrap_or(0)) => Some(TimeError::Number(
            "the number of a day, as spreadsheets count them, or Unix time of 1970: export the column as a date",
        )),
        8 if is_date => Some(TimeError::NoTimeOfDay),
        12 if is_date => Some(TimeError::Number("a date without separators: --time-format '%Y%m%d%H%M' reads it")),
        14 if is_date => Some(TimeError::Number("a date without separators: --time-format '%Y%m%d%H%M%S' reads it")),
        _ => None,
    }
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
    let fraction = &fraction[..fraction.len().min(9)]; // further digits are below a nanosecond
    let numerator: i128 = fraction.parse().unwrap_or(0); // empty: no fraction
    let fraction_ns = numerator * unit_ns / 10_i128.pow(fraction.len() as u32);
    Some(Ok(sign * (i128::from(whole) * unit_ns + fraction_ns)))
}

/// The unit of a Unix time, as nanoseconds.
///
/// The bounds are those of the precision `auto` of InfluxDB 3.
const fn unit_ns_of(magnitude: u64) -> i128 {
    match magnitude {
        0..5_000_000_000 => NS_PER_S,
        5_000_000_000..5_000_000_000_000 => NS_PER_MS,
        5_000_000_000_000..5_000_000_000_000_000 => 1_000,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utc(text: &str) -> Result<i64, TimeError> {
        in_zone(text, TimeZone::UTC)
    }

    /// The first instant.
    fn in_zone(text: &str, zone: TimeZone) -> Result<i64, TimeError> {
        Times::usual(zone).parse(text).map(|when| match when {
            When::At(ms) => ms,
            When::Twice(twice) => twice.first_ms,
        })
    }

    /// The rules of New York, spelt out, so that the test needs no zone files.
    fn new_york(text: &str) -> Result<i64, TimeError> {
        in_zone(text, TimeZone::posix("EST5EDT,M3.2.0,M11.1.0").unwrap())
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
    fn a_time_may_exist_twice_or_not_at_all() {
        let times = Times::usual(TimeZone::get("Australia/Lord_Howe").unwrap());
        let found = times.parse("2026-04-05 01:45").unwrap();
        let [first_ms, second_ms] = ["2026-04-05T01:45+11:00", "2026-04-05T01:45+10:30"].map(|text| utc(text).unwrap());
        let civil = Date::constant(2026, 4, 5).at(1, 45, 0, 0);
        assert_eq!(found, When::Twice(Twice { civil, first_ms, second_ms }));
        let skipped = times.parse("2026-10-04 02:15").unwrap_err();
        assert!(skipped.to_string().starts_with("this time does not exist in Australia/Lord_Howe"), "{skipped}");
        assert!(matches!(new_york("2026-03-08 02:30"), Err(TimeError::Skipped(_))));
        assert!(new_york("2026-03-08 03:00").is_ok());
    }

    #[test]
    fn the_usual_forms_are_recognized() {
        let expected = utc("2026-10-25T02:30:15.25Z");
        for text in
            ["25.10.2026 02:30:15.25", "25.10.2026, 2:30:15,25", "2026/10/25 02:30:15.25", "2026.10.25T2:30:15.25"]
        {
            assert_eq!(utc(text), expected, "{text}");
        }
        assert_eq!(utc("5.1.2026 2:30"), utc("2026-01-05T02:30Z"));
        assert_eq!(utc("2026-1-5 2:30"), utc("2026-01-05T02:30Z"));
    }

    #[test]
    fn a_date_with_two_readings_is_refused_with_both_and_the_option() {
        for (text, said) in [
            (
                "01/02/2026 10:00",
                "1 February 2026 or 2 January 2026: add --time-format '%d/%m/%Y %H:%M' or --time-format \
                 '%m/%d/%Y %H:%M'",
            ),
            ("25-10-2026 02:30:15", "the day is first: add --time-format '%d-%m-%Y %H:%M:%S'"),
            ("10/25/2026 2:30:15.5 PM", "the month is first: add --time-format '%m/%d/%Y %I:%M:%S%.f %p'"),
            (
                "3/3/2026 2:30",
                "the day or the month may be first: add --time-format '%d/%m/%Y %H:%M' or --time-format \
                 '%m/%d/%Y %H:%M'",
            ),
        ] {
            assert_eq!(utc(text), Err(TimeError::DayOrMonth(said.to_owned())), "{text}");
        }
    }

    #[test]
    fn a_format_is_obeyed() {
        let with = |format: &str, text: &str| {
            Times { zone: TimeZone::get("Europe/Berlin").ok(), format: Some(format.parse().unwrap()) }.parse(text)
        };
        let expected = utc("2026-10-24T12:30:15.25Z").map(When::At);
        assert_eq!(with("%d.%m.%Y %H:%M:%S%.f", "24.10.2026 14:30:15.25"), expected);
        assert_eq!(with("%m/%d/%Y %I:%M:%S%.f %p", "10/24/2026 2:30:15.25 PM"), expected);
        assert_eq!(with("%Y%m%dT%H%M%S%.f%z", "20261024T133015.25+0100"), expected);
        assert_eq!(with("%d.%m.%y %H", "24.10.26 14"), utc("2026-10-24T12:00Z").map(When::At));
        assert_eq!(with("%s", "1776693610"), Ok(When::At(1_776_693_610_000)));
        let wrong = with("%d.%m.%Y %H:%M", "2026-10-24 14:30").unwrap_err().to_string();
        assert!(wrong.starts_with("not a time of the form %d.%m.%Y %H:%M: "), "{wrong}");
        for format in ["%d.%m.%Y", "%H:%M", "%d.%m. %H:%M", "%d.%m.%Y %I:%M", "%Q %1", "soon", ""] {
            assert!(format.parse::<TimeFormat>().is_err(), "{format}");
        }
    }

    #[test]
    fn a_format_may_name_the_zone_of_each_time() {
        for zone in [None, TimeZone::get("Europe/Berlin").ok()] {
            let times = Times { zone, format: Some("%Y-%m-%d %H:%M %Q".parse().unwrap()) };
            assert!(!times.is_fixed(), "a time may exist twice in a zone of its own");
            let expected = utc("2026-04-20T14:00Z").map(When::At);
            for text in ["2026-04-20 10:00 America/New_York", "2026-04-20 14:00 UTC", "2026-04-20 16:00 +0200"] {
                assert_eq!(times.parse(text), expected, "{text}");
            }
            assert!(matches!(times.parse("2026-11-01 01:30 America/New_York"), Ok(When::Twice(_))));
            let skipped = TimeError::Skipped("America/New_York".to_owned());
            assert_eq!(times.parse("2026-03-08 02:30 America/New_York"), Err(skipped));
            assert!(matches!(times.parse("2026-04-20 10:00 Mars/Base"), Err(TimeError::NotOfFormat(..))));
        }
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
    fn a_number_that_is_rather_a_date_is_refused() {
        assert_eq!(utc("20261124"), Err(TimeError::NoTimeOfDay));
        for (text, said) in
            [("46352.4375", "spreadsheets"), ("202611241030", "'%Y%m%d%H%M'"), ("20261101100000", "'%Y%m%d%H%M%S'")]
        {
            let why = utc(text).unwrap_err().to_string();
            assert!(why.contains(said), "{text}: {why}");
        }
        for format in ["%Y%m%d%H%M", "%Y%m%d%H%M%S"] {
            format.parse::<TimeFormat>().expect(format);
        }
        for (seconds, ms) in [("19999", 19_999_000), ("20261324", 20_261_324_000), ("99999999999999", 99_999_999_999)] {
            assert_eq!(utc(seconds), Ok(ms), "{seconds}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "-",
            ".",
            "now",
            "1.77e9",
            "31/31/2026 14:00",
            "2026-02-30 10:00",
            "1.2.3",
            "1.2.3.4",
            "25.10.26 10:00",
            "25.10.2026 10",
            "25.10.2026 10:00+02:00",
            "25.10.2026 10:00 PM",
            "25.10.2026 24:10",
            "2.30.2026 10:00",
            "5.257.2026 10:00",
            "1/257/2026 10:00",
            "2026-257-5 10:00",
        ] {
            assert_eq!(utc(text), Err(TimeError::Unknown), "{text}");
        }
        assert_eq!(utc("2026-04-20 14:00[America/New_York]"), Err(TimeError::Unknown));
        for text in ["2026-04-20", "20.04.2026", "20.04.2026 "] {
            assert_eq!(utc(text), Err(TimeError::NoTimeOfDay), "{text}");
        }
        for text in ["14:00:10", "4:00"] {
            assert_eq!(utc(text), Err(TimeError::NoDate), "{text}");
        }
        assert_eq!(utc("99999999999999999999999"), Err(TimeError::OutOfRange));
    }
}
