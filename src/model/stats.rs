//! Count, minimum, maximum and sum of one metric.

use super::{Metric, MetricTable};

/// The stats of one metric over some readings. Never empty: an absent metric has no `Stats`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stats {
    /// The number of values, at least 1.
    pub count: u64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// The sum of the values; infinite if it is beyond a double.
    pub sum: f64,
}

/// Folds values into [`Stats`], with a sum as accurate as one in twice the precision.
///
/// It adds the rounding errors of all additions in the end: compensated summation after Kahan and Babuška, in
/// the variant of Neumaier (ZAMM 54, 1974; "Sum2" in Ogita, Rump and Oishi, SIAM J. Sci. Comput. 26, 2005).
/// If the sum leaves the range of a double on its way, the fold continues with a scaled sum, so that the
/// result can be finite.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fold {
    stats: Stats,
    /// The sum of the rounding errors.
    lost: f64,
    /// The factor of `stats.sum`, `lost` and each value: 1, or [`DOWN`].
    scale: f64,
}

/// 2^-64: no sum of fewer than 2^64 scaled values leaves the range of a double. Scaling is exact except for
/// values that are far too small to matter in such sums.
const DOWN: f64 = 1.0 / (1_u128 << 64) as f64;

impl Fold {
    pub(super) const fn of(value: f64) -> Self {
        Self { stats: Stats::of(value), lost: 0.0, scale: 1.0 }
    }

    pub(super) fn add(&mut self, value: f64) {
        let Stats { count, min, max, sum } = &mut self.stats;
        *count += 1;
        *min = min.min(value);
        *max = max.max(value);
        if !(*sum + value * self.scale).is_finite() {
            *sum *= DOWN;
            self.lost *= DOWN;
            self.scale = DOWN;
        }
        let value = value * self.scale;
        let next = *sum + value;
        let taken = next - *sum;
        self.lost += (*sum - (next - taken)) + (value - taken); // the rounding error, exactly (Knuth's TwoSum)
        *sum = next;
    }

    pub(super) fn finish(self) -> Stats {
        Stats { sum: (self.stats.sum + self.lost) / self.scale, ..self.stats }
    }
}

impl Stats {
    /// The stats of a single value.
    #[must_use]
    pub const fn of(value: f64) -> Self {
        Self { count: 1, min: value, max: value, sum: value }
    }

    /// Adds one value.
    pub const fn add(&mut self, value: f64) {
        self.merge(&Self::of(value));
    }

    /// Adds the stats of other readings.
    pub const fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum += other.sum;
    }

    /// The arithmetic mean.
    #[must_use]
    pub const fn avg(&self) -> f64 {
        self.sum / self.count as f64
    }
}

/// Adds stats to known stats, by metric, in linear time. It calls `join` for a metric that both have.
pub fn join_stats(
    known: &mut Vec<(Metric, Stats)>,
    more: impl IntoIterator<Item = (Metric, Stats)>,
    mut join: impl FnMut(&mut Stats, Stats),
) {
    let mut table = MetricTable::new(known.iter().map(|(metric, _)| metric.clone()).collect());
    for (metric, stats) in more {
        let place = table.place_of(&metric) as usize;
        if let Some((_, known)) = known.get_mut(place) {
            join(known, stats);
        } else {
            known.push((metric, stats));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum_of(values: &[f64]) -> Option<f64> {
        let (first, others) = values.split_first()?;
        let mut fold = Fold::of(*first);
        for &value in others {
            fold.add(value);
        }
        Some(fold.finish().sum)
    }

    #[test]
    fn a_sum_includes_the_rounding_errors() {
        assert_eq!(sum_of(&[1e16, 1.0, -1e16, 1.0, 1e16, 1.0, -1e16]), Some(3.0));
        assert_eq!(sum_of(&[1.0, 1e100, 1.0, -1e100]), Some(2.0));
        assert_eq!(sum_of(&[0.1; 10]), Some(1.0));
    }

    #[test]
    fn a_sum_may_leave_the_range_of_a_double_and_come_back() {
        assert_eq!(sum_of(&[1e308, 1e308, -1e308]), Some(1e308));
        assert_eq!(sum_of(&[f64::MAX, f64::MAX, f64::MIN, f64::MIN, 1.5]), Some(1.5));
        assert_eq!(sum_of(&[f64::MIN, f64::MIN, f64::MIN, f64::MAX, f64::MAX]), Some(f64::MIN));
        assert_eq!(sum_of(&[f64::MAX, f64::MAX]), Some(f64::INFINITY), "beyond a double");
        assert_eq!(sum_of(&[f64::MIN, f64::MIN]), Some(f64::NEG_INFINITY));
    }

    proptest! {
        #[test]
        fn a_sum_does_not_depend_on_the_order(mut values in prop::collection::vec(-1e15..1e15f64, 1..200)) {
            let sum = sum_of(&values).unwrap();
            values.reverse();
            let close = 2.0 * f64::EPSILON * sum.abs() + 1e-15; // an ulp, or what is below all of the values
            prop_assert!((sum_of(&values).unwrap() - sum).abs() <= close);
            values.sort_by(f64::total_cmp);
            prop_assert!((sum_of(&values).unwrap() - sum).abs() <= close);
        }
    }
}
