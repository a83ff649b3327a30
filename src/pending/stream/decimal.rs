//! Numbers as decimals: an integer divided by a power of ten.

/// Powers of ten, which are exact.
const POWERS: [f64; 10] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];

/// The most decimals: the highest exponent in [`POWERS`].
pub(super) const DECIMALS_MAX: u8 = POWERS.len() as u8 - 1;

/// The sum of [`ROUNDER`] and a number below this has no bits for a fraction.
const INTEGER_MAX: f64 = (1_u64 << 51) as f64;

/// Adding and subtracting this rounds a number below [`INTEGER_MAX`] to an integer.
const ROUNDER: f64 = 3.0 * INTEGER_MAX;

/// Returns the integer of a value with this number of decimals.
///
/// `None` unless [`value_of`] gives exactly this value back, bit by bit.
#[inline]
pub(super) fn integer_of(value: f64, decimals: u8) -> Option<i64> {
    let power = POWERS[usize::from(decimals)];
    let scaled = value * power;
    let rounded = scaled + ROUNDER - ROUNDER;
    let is_exact = scaled.abs() < INTEGER_MAX && (rounded / power).to_bits() == value.to_bits();
    is_exact.then_some(rounded as i64)
}

/// Returns the value of an integer with this number of decimals.
#[inline]
pub(super) fn value_of(integer: i64, decimals: u8) -> f64 {
    integer as f64 / POWERS[usize::from(decimals)]
}

/// Returns the least number of decimals with which a value has an integer, and the integer.
pub(super) fn fewest(value: f64) -> Option<(u8, i64)> {
    (0..=DECIMALS_MAX).find_map(|decimals| Some((decimals, integer_of(value, decimals)?)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn decimals_are_found_and_other_numbers_are_not() {
        assert_eq!(fewest(21.3), Some((1, 213)));
        assert_eq!(fewest(-40.25), Some((2, -4_025)));
        assert_eq!(fewest(0.0), Some((0, 0)));
        assert_eq!(fewest(52.520_008), Some((6, 52_520_008)));
        assert_eq!(fewest(2_251_799_813_685_247.0), Some((0, (1 << 51) - 1)));
        for other in [-0.0, 1.0 / 3.0, f64::MIN_POSITIVE, f64::MAX, f64::INFINITY, f64::NAN, INTEGER_MAX, 0.1 + 0.2] {
            assert_eq!(fewest(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn a_decimal_comes_back_bit_by_bit(integer in -(1_i64 << 50)..1 << 50, decimals in 0..=DECIMALS_MAX) {
            let value = value_of(integer, decimals);
            if let Some((decimals, integer)) = fewest(value) {
                prop_assert_eq!(value_of(integer, decimals).to_bits(), value.to_bits());
            }
        }

        #[test]
        fn any_number_comes_back_or_is_none(bits in any::<u64>(), decimals in 0..=DECIMALS_MAX) {
            let value = f64::from_bits(bits);
            if let Some(integer) = integer_of(value, decimals) {
                prop_assert_eq!(value_of(integer, decimals).to_bits(), bits);
            }
        }
    }
}
