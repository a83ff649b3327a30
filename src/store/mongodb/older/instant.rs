//! Reads instants, hours and numbers as guides to the bucket pattern write them.
//!
//! Programs that follow the guides write them in the same forms.

use std::borrow::Cow;
use std::ops::Range;

use bson::RawBsonRef;

use crate::common::clock::rfc3339;
use crate::model::Hour;
use crate::wire::timestamp::{parse_rfc3339, whole_ms};

/// The years 0 to 9999, in Unix milliseconds.
const INSTANTS_MS: Range<i64> = -62_167_219_200_000..253_402_300_800_000;

/// Numbers from this one on are Unix seconds: this one is in March 1973.
///
/// Smaller numbers are something else, such as hours.
const FIRST_SECOND: f64 = 1e8;

/// Numbers from this one on are Unix milliseconds: this one is in March 1973.
///
/// As a number of seconds, it would be in the year 5138.
const FIRST_MILLISECOND: f64 = 1e11;

/// The most characters of a text of a document in a message.
const SHOWN_CHARS: usize = 40;

/// The instant that a value stands for, in Unix milliseconds.
///
/// It may be a date, RFC 3339 text with an offset, or Unix seconds or milliseconds as any type of number.
pub(super) fn instant_of(value: RawBsonRef<'_>) -> Result<i64, String> {
    let ts_ms = match value {
        RawBsonRef::DateTime(instant) => instant.timestamp_millis(),
        RawBsonRef::String(text) => parse_rfc3339(text).map_err(|error| format!("is {}: {error}", quoted(text)))?,
        RawBsonRef::Int32(_) | RawBsonRef::Int64(_) | RawBsonRef::Double(_) | RawBsonRef::Decimal128(_) => {
            let number = number_of(value)?.unwrap_or_default();
            if number.abs() < FIRST_SECOND {
                return Err(format!("is {number}, which is no Unix time"));
            }
            let ts_ms = if number.abs() < FIRST_MILLISECOND { number * 1_000.0 } else { number };
            whole_ms(ts_ms) as i64 // saturates
        }
        other => return Err(format!("is {}, and no instant", kind_of(other))),
    };
    if INSTANTS_MS.contains(&ts_ms) { Ok(ts_ms) } else { Err("is outside of the years 0 to 9999".to_owned()) }
}

/// The hour that a value stands for: that of an instant, or a label in UTC such as `2026-04-20-14`.
pub(super) fn hour_of(value: RawBsonRef<'_>) -> Result<Hour, String> {
    if let RawBsonRef::String(text) = value
        && let Some(start) = start_of_label(text)
    {
        return parse_rfc3339(&start).map(Hour::of).map_err(|error| format!("is {}: {error}", quoted(text)));
    }
    instant_of(value).map(Hour::of)
}

/// The start of the hour of a label, as RFC 3339; `None` if the text is no label.
fn start_of_label(text: &str) -> Option<String> {
    let (date, rest) = text.split_at_checked(10)?;
    let (hour, rest) = rest.strip_prefix(['-', 'T', 't', ' ', '_', '/'])?.split_at_checked(2)?;
    matches!(rest, "" | ":00" | ":00:00").then(|| format!("{date}T{hour}:00:00Z"))
}

/// The number that a value stands for. Booleans are 1 and 0; `None` is null, which is no value.
///
/// An integer that a float does not hold exactly is refused.
pub(super) fn number_of(value: RawBsonRef<'_>) -> Result<Option<f64>, String> {
    let whole = match value {
        RawBsonRef::Int64(value) => Some(i128::from(value)),
        RawBsonRef::Decimal128(value) => value.to_string().parse().ok(), // at most 34 digits
        _ => None,
    };
    match whole {
        Some(whole) if whole as f64 as i128 != whole => Err(format!("is {whole}, which a 64-bit float does not hold")),
        _ => nearest_number_of(value),
    }
}

/// The number as for [`number_of`], where an integer may be rounded.
pub(super) fn nearest_number_of(value: RawBsonRef<'_>) -> Result<Option<f64>, String> {
    let number = match value {
        RawBsonRef::Null => return Ok(None),
        RawBsonRef::Boolean(value) => f64::from(u8::from(value)),
        RawBsonRef::Int32(value) => value.into(),
        RawBsonRef::Int64(value) => value as f64,
        RawBsonRef::Double(value) => value,
        RawBsonRef::Decimal128(value) => {
            value.to_string().parse().map_err(|_| format!("is {value}, and no decimal number"))?
        }
        other => return Err(format!("is {}, and no number", kind_of(other))),
    };
    if number.is_finite() { Ok(Some(number)) } else { Err(format!("is {number}, which is not finite")) }
}

/// The whole number in `range` that a value stands for.
pub(super) fn whole_of(value: RawBsonRef<'_>, range: Range<i64>) -> Result<i64, String> {
    let number = number_of(value)?.filter(|_| !matches!(value, RawBsonRef::Boolean(_)));
    let whole = number.filter(|number| number.fract() == 0.0).map(|number| number as i64); // saturates
    whole.filter(|whole| range.contains(whole)).ok_or_else(|| {
        let shown = number.map_or_else(|| kind_of(value).to_owned(), |number| number.to_string());
        format!("is {shown}, and no whole number from {} to {}", range.start, range.end - 1)
    })
}

/// The type of a value, for people.
pub(super) fn kind_of(value: RawBsonRef<'_>) -> &'static str {
    match value {
        RawBsonRef::Double(_) | RawBsonRef::Int32(_) | RawBsonRef::Int64(_) | RawBsonRef::Decimal128(_) => "number",
        RawBsonRef::String(_) => "string",
        RawBsonRef::Array(_) => "array",
        RawBsonRef::Document(_) => "document",
        RawBsonRef::Boolean(_) => "boolean",
        RawBsonRef::Null => "null",
        RawBsonRef::DateTime(_) => "date",
        RawBsonRef::ObjectId(_) => "ObjectId",
        RawBsonRef::Binary(_) => "binary",
        RawBsonRef::Timestamp(_) => "timestamp",
        _ => "of another type",
    }
}

/// A text of the document in quotes, cut off if it is long.
pub(super) fn quoted(text: &str) -> String {
    format!("{:?}", shown(text))
}

/// A name or a text of the document, cut off if it is long.
pub(super) fn shown(text: &str) -> Cow<'_, str> {
    cut_off(text, SHOWN_CHARS)
}

/// A text of at most `max` characters, and dots if it is longer.
pub(super) fn cut_off(text: &str, max: usize) -> Cow<'_, str> {
    match text.char_indices().nth(max) {
        Some((end, _)) => Cow::Owned(format!("{}...", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

/// An hour as text, such as `2026-04-20T14:00`.
pub(super) fn text_of(hour: Hour) -> String {
    rfc3339(hour.start_ms()).chars().take("2026-04-20T14:00".len()).collect()
}
