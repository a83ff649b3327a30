//! Random values that depend only on a seed and a number, so that each can be computed by itself.

/// The generator `SplitMix64`: mixes a seed and a number.
pub(super) fn mix(seed: u64, number: i64) -> u64 {
    let mut mixed = seed.wrapping_add((number as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A value from 0 to 1, exclusive.
pub(super) fn uniform(seed: u64, number: i64) -> f64 {
    (mix(seed, number) >> 11) as f64 / (1_u64 << 53) as f64
}

/// A value from -1 to 1, exclusive.
pub(super) fn noise(seed: u64, number: i64) -> f64 {
    uniform(seed, number) * 2.0 - 1.0
}

/// Value noise: a continuous curve from -1 to 1 that turns about once a period.
pub(super) fn curve(seed: u64, ts_ms: i64, period_ms: i64) -> f64 {
    let knot = ts_ms.div_euclid(period_ms);
    let part = ts_ms.rem_euclid(period_ms) as f64 / period_ms as f64;
    let eased = part * part * (3.0 - 2.0 * part);
    noise(seed, knot) * (1.0 - eased) + noise(seed, knot + 1) * eased
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_depend_on_the_seed_and_the_number_alone() {
        assert_eq!(mix(1, 2), mix(1, 2));
        assert_ne!(mix(1, 2), mix(2, 2));
        assert_ne!(mix(1, 2), mix(1, 3));
    }

    #[test]
    fn values_fill_their_range_evenly() {
        let mut tenths = [0; 10];
        for number in -5_000..5_000 {
            tenths[(uniform(7, number) * 10.0) as usize] += 1;
        }
        assert!(tenths.iter().all(|count| (850..1_150).contains(count)), "{tenths:?}");
    }

    #[test]
    fn a_curve_has_no_jumps_and_meets_its_knots() {
        for ts_ms in -30_000..30_000 {
            assert!((curve(3, ts_ms, 10_000) - curve(3, ts_ms + 1, 10_000)).abs() < 0.001, "{ts_ms}");
        }
        for knot in -3..3 {
            assert!((curve(3, knot * 10_000, 10_000) - noise(3, knot)).abs() < 1e-12);
        }
    }
}
