//! The time of a reading: `ts`, or its age.

use std::ops::Range;

use super::{
    SyntaxError,
    lexer::{Kind, Lexer},
    problem::{Parsed, invalid_time},
};
use crate::wire::{
    Rejection,
    timestamp::{LAST_EXACT_MS, parse_rfc3339},
};

/// The longest text that may be a number, in bytes.
const MAX_NUMBER_BYTES: usize = 32;

/// The numbers that are probably times of this century in seconds.
const SECONDS: Range<f64> = 9e8..5e9;

/// Reads a time, and returns it in Unix milliseconds. Null is no time.
///
/// The time is RFC 3339, or Unix milliseconds, perhaps in quotation marks.
pub(super) fn read_ts(key: &str, lexer: &mut Lexer<'_>) -> Result<Parsed<Option<i64>>, SyntaxError> {
    Ok(match lexer.kind()? {
        Kind::String => {
            let text = lexer.string()?;
            parse_rfc3339(&text).or_else(|error| unix_ms_of_text(&text).ok_or(error)).map(Some).map_err(|error| {
                let hint = seconds_hint(&text);
                invalid_time(format!("{error}{hint}"))
            })
        }
        Kind::Number => {
            let number = lexer.number()?;
            unix_ms(number).map(Some).ok_or_else(|| no_ms(key, number))
        }
        Kind::Null => {
            lexer.skip()?;
            Ok(None)
        }
        kind => {
            lexer.skip()?;
            Err(invalid_time(format!("\"{key}\" must be an RFC 3339 string or Unix milliseconds, found {kind}")))
        }
    })
}

/// Reads an age in milliseconds. Null is no age.
pub(super) fn read_age(lexer: &mut Lexer<'_>) -> Result<Parsed<Option<i64>>, SyntaxError> {
    const EXPECTED: &str = "\"ageMs\" must be a whole number of milliseconds from 0";
    let kind = lexer.kind()?;
    if kind == Kind::Number {
        let age = whole_ms(lexer.number()?).filter(|age| *age >= 0);
        return Ok(age.map(Some).ok_or_else(|| invalid_time(EXPECTED)));
    }
    lexer.skip()?;
    Ok(if kind == Kind::Null { Ok(None) } else { Err(invalid_time(format!("{EXPECTED}, found {kind}"))) })
}

/// Parses Unix milliseconds: `1776693610000`, `1776693610000.25` or `1.77669361e12`.
///
/// A fraction is cut off toward the past, unless the number looks like seconds.
fn unix_ms(number: &str) -> Option<i64> {
    number.parse().ok().or_else(|| cut_off(number))
}

#[cold]
fn cut_off(number: &str) -> Option<i64> {
    let (ms, is_cut) = match number.split_once('.') {
        // The digits are exact. A float would round some fractions up.
        Some((whole, fraction)) if fraction.bytes().all(|byte| byte.is_ascii_digit()) => {
            let (ms, is_cut) = (whole.parse::<i64>().ok()?, fraction.bytes().any(|digit| digit != b'0'));
            (ms.checked_sub(i64::from(is_cut && whole.starts_with('-')))?, is_cut)
        }
        _ => {
            let float = number.parse::<f64>().ok().filter(|float| float.abs() <= LAST_EXACT_MS)?;
            (float.floor() as i64, float.fract() != 0.0)
        }
    };
    let looks_like_seconds = is_cut && SECONDS.contains(&(ms as f64));
    (!looks_like_seconds).then_some(ms)
}

/// Parses whole milliseconds.
fn whole_ms(number: &str) -> Option<i64> {
    number.parse().ok().or_else(|| {
        let float: f64 = number.parse().ok()?;
        (float.fract() == 0.0 && float.abs() <= LAST_EXACT_MS).then_some(float as i64)
    })
}

/// Parses a number in quotation marks.
///
/// Programs quote a time if their own numbers have too few bits for milliseconds.
#[cold]
fn unix_ms_of_text(text: &str) -> Option<i64> {
    let is_number =
        text.len() <= MAX_NUMBER_BYTES && text.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    if is_number { unix_ms(text) } else { None }
}

#[cold]
fn no_ms(key: &str, number: &str) -> Rejection {
    let hint = seconds_hint(number);
    invalid_time(format!("a \"{key}\" that is a number must be Unix milliseconds{hint}"))
}

/// A hint for a number with a fraction that is probably a time in seconds.
fn seconds_hint(number: &str) -> String {
    let short = Some(number).filter(|number| number.len() <= MAX_NUMBER_BYTES);
    match short.and_then(|number| number.parse::<f64>().ok()) {
        Some(seconds) if SECONDS.contains(&seconds) => {
            format!("; {seconds} looks like seconds, so multiply it by 1000 and round it")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_milliseconds_are_cut_off_toward_the_past_in_every_notation() {
        for (number, ms) in [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("-1", Some(-1)),
            ("1776693610000", Some(1_776_693_610_000)),
            ("1776693610000.0", Some(1_776_693_610_000)),
            ("1.77669361e12", Some(1_776_693_610_000)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("1776693610000.5", Some(1_776_693_610_000)),
            ("1776693610000.99999", Some(1_776_693_610_000)),
            ("-0.5", Some(-1)),
            ("-1.0", Some(-1)),
            ("-1.5", Some(-2)),
            ("-1.5e0", Some(-2)),
            ("1e-3", Some(0)),
            ("1e300", None),
            ("1e999", None),
            ("899999999.5", Some(899_999_999)),
            ("1776693610.0", Some(1_776_693_610)),
            ("1776693610.25", None),
            ("1.77669361025e9", None),
        ] {
            assert_eq!((unix_ms(number), unix_ms_of_text(number)), (ms, ms), "{number}");
        }
        for text in ["", "inf", "-inf", "nan", "-", "+1", " 1", "1 ", "0x1", &"0".repeat(33)] {
            assert_eq!(unix_ms_of_text(text), None, "{text}");
        }
    }
}
