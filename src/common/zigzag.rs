//! Zigzag encoding: maps numbers near 0 of either sign to small unsigned numbers.

/// The place of a number in the order 0, -1, 1, -2, 2: `zigzag(-2)` is 3.
#[inline]
#[must_use]
pub const fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63).cast_unsigned()
}

/// The inverse of [`zigzag`].
#[inline]
#[must_use]
pub const fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_alternate_in_sign_and_come_back() {
        assert_eq!([0, -1, 1, -2, i64::MAX, i64::MIN].map(zigzag), [0, 1, 2, 3, u64::MAX - 1, u64::MAX]);
        assert!((-1_000..1_000).chain([i64::MAX, i64::MIN]).all(|number| unzigzag(zigzag(number)) == number));
    }
}
