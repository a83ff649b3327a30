//! The fields of a line and their values.

use std::{
    borrow::Cow,
    collections::HashMap,
    num::{IntErrorKind, ParseIntError},
};

use super::{
    lines::closing_quote,
    scan::{KEY, Scanner, rejection_at},
};
use crate::wire::{
    Code, Limits, Rejection,
    problem::{Parsed, quoted, repeated},
};

/// The fields of a line.
#[derive(Debug, Default)]
pub(super) struct Fields<'b> {
    /// The fields with a number, each key once.
    pub(super) numbers: Vec<Field<'b>>,
    /// The fields with a string.
    pub(super) strings: Vec<StringField<'b>>,
    /// The rejections of the fields with another value.
    pub(super) rejections: Vec<Rejection>,
}

/// A field with a number.
#[derive(Debug)]
pub(super) struct Field<'b> {
    pub(super) key: Cow<'b, str>,
    pub(super) value: f64,
}

/// A field with a string.
#[derive(Debug)]
pub(super) struct StringField<'b> {
    pub(super) key: Cow<'b, str>,
    /// The string as the line has it, without its quotes.
    pub(super) text: &'b str,
    /// The position of its opening quote.
    pub(super) offset: usize,
    /// Whether the string is metadata of the device.
    pub(super) is_metadata: bool,
}

impl<'b> Fields<'b> {
    /// Reads the fields: at least one, with any value.
    ///
    /// Duplicate keys count towards the limit.
    pub(super) fn read(&mut self, scanner: &mut Scanner<'b>, limits: &Limits) -> Parsed<()> {
        self.numbers.clear();
        self.strings.clear();
        self.rejections.clear();
        if scanner.byte().is_none() {
            return Err(scanner.rejection(Code::MissingValues, "the line ends without a field"));
        }
        let mut count = 0;
        loop {
            count += 1;
            self.read_field(scanner, count <= limits.max_metrics)?;
            if !scanner.take_if(b',') {
                break;
            }
        }
        limits.check_metrics(count)?;
        if repeated(self.numbers.iter().map(|field| &*field.key)).is_some() {
            keep_last(&mut self.numbers);
        }
        Ok(())
    }

    #[inline]
    fn read_field(&mut self, scanner: &mut Scanner<'b>, is_kept: bool) -> Parsed<()> {
        let key = scanner.name(KEY)?;
        if key.is_empty() {
            return Err(scanner.rejection(Code::InvalidLine, "expected the key of a field"));
        }
        if !scanner.take_if(b'=') {
            let what = format!("expected '=' after the field {}", quoted(&key));
            return Err(scanner.rejection(Code::InvalidLine, &what));
        }
        if scanner.byte() == Some(b'"') {
            return self.read_string(scanner, key, is_kept);
        }
        let start = scanner.offset();
        match number(scanner.value()) {
            Ok(value) if is_kept => self.numbers.push(Field { key, value }),
            Err(what) if is_kept => self.reject(&key, start, what),
            _ => {}
        }
        Ok(())
    }

    #[cold]
    fn reject(&mut self, key: &str, offset: usize, what: &str) {
        let what = format_args!("the value of field {} {what}", quoted(key));
        self.rejections.push(rejection_at(offset, Code::InvalidValue, what));
    }

    #[cold]
    fn read_string(&mut self, scanner: &mut Scanner<'b>, key: Cow<'b, str>, is_kept: bool) -> Parsed<()> {
        let offset = scanner.offset();
        let text = read_string(scanner, &key)?;
        if is_kept {
            self.strings.push(StringField { key, text, offset, is_metadata: false });
        }
        Ok(())
    }
}

/// Reads a string, without its quotes and with its escapes.
fn read_string<'b>(scanner: &mut Scanner<'b>, key: &str) -> Parsed<&'b str> {
    let Some(end) = closing_quote(scanner.rest().as_bytes(), 0) else {
        let what = format!("the string of field {} is not closed, it begins", quoted(key));
        return Err(scanner.rejection(Code::InvalidLine, &what));
    };
    let text = &scanner.take(end + 1)[1..end];
    match scanner.byte() {
        None | Some(b',' | b' ') => Ok(text),
        Some(_) => Err(scanner.rejection(Code::InvalidLine, "expected a comma or a space after a string")),
    }
}

/// A string without its escapes: a backslash before a quote or a backslash.
pub(super) fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        let escaped = if char == '\\' { chars.next_if(|next| matches!(next, '"' | '\\')) } else { None };
        plain.push(escaped.unwrap_or(char));
    }
    Cow::Owned(plain)
}

/// Parses a number or a boolean, or returns the problem.
fn number(text: &str) -> Result<f64, &'static str> {
    const NEITHER: &str = "is neither a number nor a boolean";
    let digits = text.strip_prefix('-').unwrap_or(text);
    // Rust also parses "inf", "nan" and "+1", which this first byte excludes.
    if !digits.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        return boolean(text).ok_or(if text.is_empty() { "is missing" } else { NEITHER });
    }
    let reject = |error: &ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "is an integer of more than 64 bits",
        _ => NEITHER,
    };
    match text.as_bytes().last() {
        Some(b'i') => text[..text.len() - 1].parse().map(|integer: i64| integer as f64).map_err(|error| reject(&error)),
        Some(b'u') => text[..text.len() - 1].parse().map(|integer: u64| integer as f64).map_err(|error| reject(&error)),
        _ => short_decimal(digits)
            .map(|number| if digits.len() < text.len() { -number } else { number })
            .or_else(|| text.parse().ok())
            .ok_or(NEITHER),
    }
}

/// Parses the usual numbers: at most 15 digits and points, no exponent.
///
/// Such a number is the quotient of two integers that floats hold exactly, so one division rounds it
/// correctly.
fn short_decimal(text: &str) -> Option<f64> {
    const LONGEST: usize = 15;
    const POWERS_OF_10: [f64; LONGEST] =
        [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14];
    if text.len() > LONGEST {
        return None;
    }
    let mut digits = 0u64;
    let mut point = None;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'0'..=b'9' => digits = digits * 10 + u64::from(byte - b'0'),
            b'.' if point.is_none() && text.len() > 1 => point = Some(at),
            _ => return None,
        }
    }
    let decimals = point.map_or(0, |at| text.len() - 1 - at);
    Some(digits as f64 / POWERS_OF_10[decimals])
}

fn boolean(text: &str) -> Option<f64> {
    match text {
        "t" | "T" | "true" | "True" | "TRUE" => Some(1.0),
        "f" | "F" | "false" | "False" | "FALSE" => Some(0.0),
        _ => None,
    }
}

/// Keeps one field of each key, at its first place and with its last value.
#[cold]
fn keep_last(fields: &mut Vec<Field<'_>>) {
    let mut places = HashMap::with_capacity(fields.len());
    let mut kept: Vec<Field<'_>> = Vec::with_capacity(fields.len());
    for field in fields.drain(..) {
        let place = *places.entry(field.key.clone()).or_insert(kept.len());
        match kept.get_mut(place) {
            Some(earlier) => earlier.value = field.value,
            None => kept.push(field),
        }
    }
    *fields = kept;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_and_booleans_have_the_forms_of_influxdb() {
        for (text, value) in [
            ("22.4", 22.4),
            ("-0.5e+3", -500.0),
            ("1E3", 1_000.0),
            ("1.", 1.0),
            (".5", 0.5),
            ("-.5", -0.5),
            ("007", 7.0),
            ("1e999", f64::INFINITY),
            ("40i", 40.0),
            ("-9223372036854775808i", -9_223_372_036_854_775_808.0),
            ("18446744073709551615u", 18_446_744_073_709_551_615.0),
            ("t", 1.0),
            ("T", 1.0),
            ("true", 1.0),
            ("True", 1.0),
            ("TRUE", 1.0),
            ("f", 0.0),
            ("F", 0.0),
            ("false", 0.0),
            ("False", 0.0),
            ("FALSE", 0.0),
        ] {
            assert_eq!(number(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn other_values_are_rejected() {
        for text in [
            "abc", "NaN", "nan", "-nan", "inf", "-inf", "Infinity", "+1", "+1i", "-", "-i", "i", "u", ".", ".i",
            "1.5i", "1e3i", "1ii", "1iu", "-1u", "-+1", "--1", "1.1.1", "1e", "e1", "0x10", "1_000", "1\t", "tRUE",
            "tr", "1f", "t1", "-t", "null", "1\"", "é",
        ] {
            assert_eq!(number(text), Err("is neither a number nor a boolean"), "{text}");
        }
        assert_eq!(number(""), Err("is missing"));
        for text in ["9223372036854775808i", "-9223372036854775809i", "18446744073709551616u"] {
            assert_eq!(number(text), Err("is an integer of more than 64 bits"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn floats_are_read_as_rust_reads_them(text in "-?[0-9]{0,10}[.]?[0-9]{0,10}(e[+-]?[0-9]{1,3})?", number: f64) {
            if text.contains(|char: char| char.is_ascii_digit()) && !text.trim_start_matches('-').starts_with('e') {
                prop_assert_eq!(number_bits(&text), text.parse().ok().map(f64::to_bits), "{}", text);
            }
            if number.is_finite() {
                prop_assert_eq!(number_bits(&format!("{number:?}")), Some(number.to_bits()));
            }
        }
    }

    fn number_bits(text: &str) -> Option<u64> {
        number(text).ok().map(f64::to_bits)
    }
}
