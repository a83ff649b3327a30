//! Numbers and times as text.

use std::fmt;
use std::io::Write;

use jiff::tz::TimeZone;

use super::super::zone;

/// Writes formatted text.
pub(super) fn write_text(text: fmt::Arguments<'_>, out: &mut Vec<u8>) {
    let written = out.write_fmt(text);
    debug_assert!(written.is_ok(), "a vector takes all bytes");
}

/// Writes a number with the fewest digits that identify it.
///
/// Very small and very large numbers have an exponent, as in Go's `encoding/json`.
pub(super) fn write_float(value: f64, out: &mut Vec<u8>) {
    let size = value.abs();
    if size == 0.0 || (1e-6..1e21).contains(&size) {
        return write_text(format_args!("{value}"), out);
    }
    let text = format!("{value:e}");
    match text.split_once('e') {
        Some((digits, exponent)) if !exponent.starts_with('-') => {
            write_text(format_args!("{digits}e+{exponent}"), out);
        }
        _ => out.extend_from_slice(text.as_bytes()),
    }
}

/// Writes an instant as RFC 3339, such as `2026-03-28T01:02:03.5Z`.
///
/// The second has only as many decimals as the instant needs.
pub(super) fn write_time(ns: i64, in_zone: Option<&TimeZone>, out: &mut Vec<u8>) {
    let timestamp = zone::timestamp(ns);
    let offset = in_zone.map(|zone| zone.to_offset(timestamp)).filter(|offset| offset.seconds() != 0);
    match offset {
        None => write_text(format_args!("{timestamp}"), out),
        Some(offset) => write_text(format_args!("{}", timestamp.display_with_offset(offset)), out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_have_the_shortest_digits() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (12.5, "12.5"),
            (3.0, "3"),
            (1e21, "1e+21"),
            (1.5e300, "1.5e+300"),
            (1e20, "100000000000000000000"),
            (1e-7, "1e-7"),
            (0.000_001, "0.000001"),
            (12.360_743_134_087_231, "12.360743134087231"),
        ] {
            let mut out = Vec::new();
            write_float(value, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
    }

    #[test]
    fn times_have_the_offset_of_their_zone() {
        let vienna = zone::find("Europe/Vienna").unwrap();
        for (ns, zone, text) in [
            (1_774_656_000_000_000_000, None, "2026-03-28T00:00:00Z"),
            (1_774_656_000_500_000_000, None, "2026-03-28T00:00:00.5Z"),
            (1_774_656_000_000_000_000, Some(&vienna), "2026-03-28T01:00:00+01:00"),
        ] {
            let mut out = Vec::new();
            write_time(ns, zone, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
    }
}
