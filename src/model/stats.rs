//! Count, minimum, maximum, sum, first and last value of one metric.

use super::{Hour, HourOffset, Metric, MetricTable};

/// The stats of one metric over some readings. Never empty: an absent metric has no `Stats`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stats {
    /// The number of values, at least 1.
    pub count: u64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// The sum of the values, never NaN.
    ///
    /// It is infinite if it is beyond the range of a double. An infinite sum stays infinite when stats are
    /// merged, even if the sum of all values is in the range again.
    pub sum: f64,
    /// The value of the first instant.
    pub first: ValueAt,
    /// The value of the last instant.
    pub last: ValueAt,
}

/// A value with the instant of its reading.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValueAt {
    /// The instant, in Unix milliseconds.
    pub ts_ms: i64,
    /// The value of the metric at the instant.
    pub value: f64,
}

/// A sum as accurate as in twice the precision.
///
/// The rounding errors of all additions are added at the end: compensated summation after Kahan and Babuška,
/// in the variant of Neumaier (ZAMM 54, 1974; "Sum2" in Ogita, Rump and Oishi, SIAM J. Sci. Comput. 26,
/// 2005). If the sum leaves the range of a double on its way, it continues scaled, so that the result can be
/// finite.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sum {
    /// The sum without the rounding errors.
    plain: f64,
    /// The sum of the rounding errors.
    lost: f64,
    /// The factor of `plain`, `lost` and each value: 1, or [`DOWN`].
    scale: f64,
}

/// Computes [`Stats`] of values in the order of time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fold {
    count: u64,
    min: f64,
    max: f64,
    sum: Sum,
    first: (HourOffset, f64),
    last: (HourOffset, f64),
}

/// 2^-64: no sum of fewer than 2^64 scaled values leaves the range of a double. Scaling is exact except for
/// values that are far too small to matter in such sums.
const DOWN: f64 = 1.0 / (1_u128 << 64) as f64;

impl Sum {
    pub(crate) const fn of(value: f64) -> Self {
        Self { plain: value, lost: 0.0, scale: 1.0 }
    }

    pub(crate) fn add(&mut self, value: f64) {
        if !(self.plain + value * self.scale).is_finite() {
            self.scale_down();
        }
        self.add_scaled(value * self.scale);
    }

    /// Adds the values of another sum.
    pub(crate) fn merge(&mut self, mut other: Self) {
        if self.scale.min(other.scale) < 1.0 || !(self.plain + other.plain).is_finite() {
            self.scale_down();
            other.scale_down();
        }
        self.add_scaled(other.plain);
        self.lost += other.lost;
    }

    /// The sum. If a value is infinite or NaN, it is what plain additions give.
    pub(crate) fn finish(self) -> f64 {
        let sum = if self.plain.is_finite() { self.plain + self.lost } else { self.plain };
        sum / self.scale
    }

    fn scale_down(&mut self) {
        let factor = DOWN / self.scale; // 1 if the sum is scaled already
        self.plain *= factor;
        self.lost *= factor;
        self.scale = DOWN;
    }

    fn add_scaled(&mut self, value: f64) {
        let next = self.plain + value;
        let taken = next - self.plain;
        self.lost += (self.plain - (next - taken)) + (value - taken); // the rounding error, exactly (Knuth's TwoSum)
        self.plain = next;
    }
}

impl Fold {
    pub(crate) const fn of(offset: HourOffset, value: f64) -> Self {
        let only = (offset, value);
        Self { count: 1, min: value, max: value, sum: Sum::of(value), first: only, last: only }
    }

    pub(crate) fn add(&mut self, offset: HourOffset, value: f64) {
        self.last = (offset, value);
        self.count += 1;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.sum.add(value);
    }

    /// The stats of the values. `hour` is their hour.
    pub(crate) fn finish(self, hour: Hour) -> Stats {
        let Self { count, min, max, sum, first, last } = self;
        let at = |(offset, value)| ValueAt { ts_ms: hour.instant_ms(offset), value };
        Stats { count, min, max, sum: sum.finish(), first: at(first), last: at(last) }
    }
}

impl Stats {
    /// The stats of a single value.
    #[must_use]
    pub const fn of(ts_ms: i64, value: f64) -> Self {
        let only = ValueAt { ts_ms, value };
        Self { count: 1, min: value, max: value, sum: value, first: only, last: only }
    }

    /// Whether these stats may cover all values of `other`: they have no smaller count, and their first and
    /// last instants enclose those of `other`.
    #[must_use]
    pub fn may_include(&self, other: &Self) -> bool {
        let (begins, ends) = (self.first.ts_ms <= other.first.ts_ms, self.last.ts_ms >= other.last.ts_ms);
        self.count >= other.count && begins && ends
    }

    /// Adds the stats of other readings, which may be earlier or later.
    pub fn merge(&mut self, other: &Self) {
        if other.first.is_before(&self.first) {
            self.first = other.first;
        }
        if self.last.is_before(&other.last) {
            self.last = other.last;
        }
        self.add_numbers(other);
    }

    /// Adds the stats of readings that are later than all of these.
    pub const fn append(&mut self, later: &Self) {
        self.last = later.last;
        self.add_numbers(later);
    }

    const fn add_numbers(&mut self, other: &Self) {
        self.count += other.count;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        let sum = self.sum + other.sum;
        self.sum = if sum.is_nan() { f64::INFINITY } else { sum }; // the sum of both infinities is unknown
    }

    /// The arithmetic mean.
    #[must_use]
    pub const fn avg(&self) -> f64 {
        self.sum / self.count as f64
    }
}

impl ValueAt {
    /// A value that was not read: NaN, which no reading has.
    #[must_use]
    pub const fn unknown(ts_ms: i64) -> Self {
        Self { ts_ms, value: f64::NAN }
    }

    /// Whether this value is before `other` in time. Values of different devices may share an instant: then
    /// the lower value is first.
    fn is_before(&self, other: &Self) -> bool {
        (self.ts_ms, self.value) < (other.ts_ms, other.value)
    }
}

/// Adds `more` stats to `known` stats, by metric, in linear time. If both have a metric, this calls `join`
/// with its known stats and the other stats.
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
        let mut fold = Fold::of(0, *first);
        for (&value, offset) in others.iter().zip(1..) {
            fold.add(offset, value);
        }
        Some(fold.finish(Hour(0)).sum)
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

    #[test]
    fn a_merged_sum_is_that_of_all_values() {
        let of = |values: &[f64]| {
            let mut sum = Sum::of(0.0);
            for value in values {
                sum.add(*value);
            }
            sum
        };
        for values in [
            &[1e16, 1.0, 1.0, 1.0, -1e16][..],
            &[0.1; 10],
            &[1.0, 1e308, 1e308, 1e308, -1e308, -1e308],
            &[f64::MAX, f64::MIN, f64::MIN, f64::MAX, 1.5],
            &[1e308, 1e308],
            &[1.0, f64::INFINITY, 1.0],
        ] {
            for at in 0..=values.len() {
                let (one, other) = values.split_at(at);
                let mut merged = of(one);
                merged.merge(of(other));
                assert_eq!(Some(merged.finish()), Some(of(values).finish()), "{values:?} at {at}");
            }
        }
        assert_eq!(Some(of(&[1.0, f64::NEG_INFINITY, f64::MIN]).finish()), Some(f64::NEG_INFINITY));
        assert!(of(&[f64::INFINITY, f64::NEG_INFINITY]).finish().is_nan());
    }

    #[test]
    fn a_sum_of_both_infinities_is_infinite() {
        let of = |sum| Stats { sum, ..Stats::of(1, 1.0) };
        for (one, other) in [(f64::INFINITY, f64::NEG_INFINITY), (f64::NEG_INFINITY, f64::INFINITY)] {
            let (mut merged, mut appended) = (of(one), of(one));
            merged.merge(&of(other));
            appended.append(&of(other));
            assert_eq!((merged.sum, appended.sum), (f64::INFINITY, f64::INFINITY));
        }
    }

    #[test]
    fn the_first_and_the_last_value_are_those_of_the_ends_of_time() {
        let (early, late) = (Stats::of(1, 5.0), Stats::of(9, -5.0));
        for (mut one, other) in [(early, late), (late, early)] {
            one.merge(&other);
            assert_eq!((one.first, one.last), (early.first, late.last));
        }
        let mut appended = early;
        appended.append(&late);
        assert_eq!((appended.first, appended.last), (early.first, late.last));
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
