//! Numbers and other values as JSON.
//!
//! A number is the shortest decimal that is the same 64-bit float.

use serde::Serialize;

/// The place of the decimal point in the longest text, `-999999999999.999`.
const POINT: usize = 13;

/// The length of the longest text, with its three decimals.
const LONGEST: usize = POINT + 4;

/// Appends a number as serde writes it, but usual values of sensors faster.
///
/// It writes a number itself if a decimal with at most three places and 15 digits, such as 21.375, is exactly
/// this number. No shorter text is the same number, because two different decimals of at most 15 digits are
/// never the same double. So serde would write the same text.
pub(in crate::http) fn write_number(text: &mut Vec<u8>, number: f64) {
    let magnitude = number.abs();
    let thousandths = (magnitude * 1e3 + 0.5) as u64;
    if thousandths >= 1_000_000_000_000_000 || (thousandths as f64 / 1e3).to_bits() != magnitude.to_bits() {
        return write_json(text, &number);
    }
    let mut form = [0; 2 * LONGEST];
    form[..LONGEST].copy_from_slice(b"-000000000000.000");
    let mut rest = thousandths;
    for digit in form[POINT + 1..LONGEST].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let mut start = POINT;
    loop {
        start -= 1;
        form[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number.is_sign_negative() {
        start -= 1;
        form[start] = b'-';
    }
    let decimals = thousandths % 1_000;
    let unused = usize::from(decimals.is_multiple_of(10)) + usize::from(decimals.is_multiple_of(100));
    // Copying a fixed number of bytes is faster than copying only the needed ones.
    let end = text.len() + LONGEST - unused - start;
    text.extend_from_slice(&form[start..start + LONGEST]);
    text.truncate(end);
}

/// Appends a value as JSON.
pub(in crate::http) fn write_json<T: Serialize + ?Sized>(text: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(text, value).expect("a Vec takes every write");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_written_as_serde_does(
            digits in any::<i64>(),
            shift in 0..64,
            decimals in 0..6,
            bits in any::<u64>(),
        ) {
            let decimal = (digits >> shift) as f64 / 10_f64.powi(decimals);
            let beside = f64::from_bits(decimal.to_bits() ^ 1);
            for number in [decimal, -decimal, beside, f64::from_bits(bits), f64::from_bits(bits % (1 << 60))] {
                let mut json = Vec::new();
                write_number(&mut json, number);
                prop_assert_eq!(String::from_utf8(json).unwrap(), serde_json::to_string(&number).unwrap());
            }
        }
    }

    #[test]
    fn numbers_at_the_ends_are_written_as_serde_does() {
        for number in [0.0, -0.0, 0.001, 0.0005, 1e12, 999_999_999_999.999, 1e15, f64::MAX, f64::MIN_POSITIVE, f64::NAN]
        {
            let mut json = Vec::new();
            write_number(&mut json, number);
            assert_eq!(String::from_utf8(json).unwrap(), serde_json::to_string(&number).unwrap());
        }
    }
}
