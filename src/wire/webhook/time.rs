//! Times as platforms write them: RFC 3339, or a number in the unit of the hook.

use super::super::problem::{Parsed, invalid_time, quoted};
use super::super::timestamp::{LAST_EXACT_MS, parse_rfc3339, whole_ms};
use crate::config::TimeUnit;

/// The longest number that is read, in bytes.
///
/// Times since 1970 have at most 19 digits.
const MAX_DIGITS: usize = 40;

/// The time in Unix milliseconds of a text: RFC 3339, or a number.
pub(super) fn of_text(text: &str, unit: TimeUnit) -> Parsed<i64> {
    if let Some(ms) = unix_ms(text, unit) {
        return Ok(ms);
    }
    parse_rfc3339(text).map_err(|error| invalid_time(format!("{error}; found {}", quoted(text))))
}

/// The time in Unix milliseconds of a JSON number.
pub(super) fn of_number(number: &str, unit: TimeUnit) -> Parsed<i64> {
    unix_ms(number, unit).ok_or_else(|| invalid_time(format!("no Unix time is {}", quoted(number))))
}

/// The whole milliseconds of a decimal number of units, cut off toward the past.
///
/// It reads digits and not a float, which would be off by a millisecond for some fractions. `None`: the text
/// is not a decimal number, or the time is out of range.
fn unix_ms(text: &str, unit: TimeUnit) -> Option<i64> {
    if text.len() > MAX_DIGITS {
        return None;
    }
    let (is_negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    if whole.is_empty() || fraction.is_empty() {
        return None;
    }
    if !(whole.bytes().chain(fraction.bytes())).all(|byte| byte.is_ascii_digit()) {
        return exponential_ms(text, unit);
    }
    // How many places the decimal point moves to the right.
    let shift: i32 = match unit {
        TimeUnit::S => 3,
        TimeUnit::Ms => 0,
        TimeUnit::Us => -3,
        TimeUnit::Ns => -6,
    };
    let point = whole.len() as i32 + shift;
    let all = whole.bytes().chain(fraction.bytes()).chain(std::iter::repeat(b'0'));
    let ms = all
        .take(usize::try_from(point).unwrap_or_default())
        .try_fold(0_i64, |ms, digit| ms.checked_mul(10)?.checked_add(i64::from(digit - b'0')))?;
    let rest = whole.bytes().chain(fraction.bytes()).skip(usize::try_from(point).unwrap_or_default());
    let is_cut = rest.into_iter().any(|digit| digit != b'0');
    if is_negative { Some(-ms - i64::from(is_cut)) } else { Some(ms) }
}

/// Does the same as [`unix_ms`] for a number with an exponent, which is rare.
fn exponential_ms(text: &str, unit: TimeUnit) -> Option<i64> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    let number: f64 = text.parse().ok().filter(|_| is_number)?;
    let per_ms = match unit {
        TimeUnit::S => 1e-3,
        TimeUnit::Ms => 1.0,
        TimeUnit::Us => 1e3,
        TimeUnit::Ns => 1e6,
    };
    let ms = whole_ms(number / per_ms);
    (ms.abs() <= LAST_EXACT_MS).then_some(ms as i64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_number_is_a_time_in_its_unit_cut_off_toward_the_past() {
        for (text, unit, ms) in [
            ("1631186545.04", TimeUnit::S, Some(1_631_186_545_040)),
            ("1631186545", TimeUnit::S, Some(1_631_186_545_000)),
            ("1631186545.0409999", TimeUnit::S, Some(1_631_186_545_040)),
            ("-0.0005", TimeUnit::S, Some(-1)),
            ("-1.5", TimeUnit::Ms, Some(-2)),
            ("-1.0", TimeUnit::Ms, Some(-1)),
            ("0", TimeUnit::Ns, Some(0)),
            ("999999", TimeUnit::Ns, Some(0)),
            ("-1", TimeUnit::Ns, Some(-1)),
            ("1776693610000999999", TimeUnit::Ns, Some(1_776_693_610_000)),
            ("1776693610000999", TimeUnit::Us, Some(1_776_693_610_000)),
            ("1776693610000.9", TimeUnit::Ms, Some(1_776_693_610_000)),
            ("1.77669361e9", TimeUnit::S, Some(1_776_693_610_000)),
            ("1.776693610008e9", TimeUnit::S, Some(1_776_693_610_008)),
            ("1.7766936100089e9", TimeUnit::S, Some(1_776_693_610_008)),
            ("1.776693610002e18", TimeUnit::Ns, Some(1_776_693_610_002)),
            ("9223372036854775807", TimeUnit::Ms, Some(i64::MAX)),
            ("9223372036854775808", TimeUnit::Ms, None),
            ("9223372036854775807", TimeUnit::S, None),
            ("1e300", TimeUnit::S, None),
            ("", TimeUnit::S, None),
            ("-", TimeUnit::S, None),
            ("1.", TimeUnit::S, None),
            (".1", TimeUnit::S, None),
            ("inf", TimeUnit::S, None),
            ("nan", TimeUnit::S, None),
            ("e", TimeUnit::S, None),
            ("0x10", TimeUnit::S, None),
        ] {
            assert_eq!(unix_ms(text, unit), ms, "{text} {unit:?}");
        }
        assert_eq!(unix_ms(&"9".repeat(1_000_000), TimeUnit::Ms), None);
    }

    #[test]
    fn a_text_is_rfc_3339_or_a_number() {
        assert_eq!(of_text("2020-02-12T15:15:46.014773143Z", TimeUnit::Ms), Ok(1_581_520_546_014));
        assert_eq!(of_text("2022-07-18T09:34:15.775023242+00:00", TimeUnit::S), Ok(1_658_136_855_775));
        assert_eq!(of_text("1581520546", TimeUnit::S), Ok(1_581_520_546_000));
        let detail = of_text("2018-06-09T16:29:19", TimeUnit::Ms).unwrap_err().detail;
        assert!(detail.contains("offset") && detail.contains("\"2018-06-09T16:29:19\""), "{detail}");
    }

    proptest! {
        #[test]
        fn each_unit_reads_what_it_wrote(ns in any::<i64>()) {
            let ms = ns.div_euclid(1_000_000);
            prop_assert_eq!(unix_ms(&ns.to_string(), TimeUnit::Ns), Some(ms));
            let sign = if ns < 0 { "-" } else { "" };
            let ns = ns.unsigned_abs();
            let units =
                [(TimeUnit::S, 1_000_000_000, 9), (TimeUnit::Ms, 1_000_000, 6), (TimeUnit::Us, 1_000, 3)];
            for (unit, divisor, digits) in units {
                let text = format!("{sign}{}.{:0digits$}", ns / divisor, ns % divisor);
                prop_assert_eq!(unix_ms(&text, unit), Some(ms), "{}", text);
            }
        }
    }
}
