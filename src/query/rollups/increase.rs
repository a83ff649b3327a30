//! The increase of counters.
//!
//! A counter grows from each value to the next one of its series. A value that is lower than the one before
//! says that the counter began again at zero, and is itself the growth since then. The increase of a step is
//! the growth up to each of its values: from the last value before the step, if that is at most
//! [`LOOK_BACK_MS`] older than the start of the step, and from its first value otherwise. So the increases of
//! steps add up to that of a longer step, whatever the range. But if the counter is silent for longer, only a
//! step with values on both sides of the gap counts the growth between them.
//!
//! The growth of an hour follows from its stats only if they cannot hide a restart; see [`growth_of`]. For
//! other hours, the readings are read.

use crate::model::{MS_PER_HOUR, Stats, ValueAt};

/// How old a value before a step may be so that the increase counts from it: seven days.
pub(super) const LOOK_BACK_MS: i64 = 7 * 24 * MS_PER_HOUR;

/// The growth of a counter from one value to the next.
pub(super) const fn grown(before: f64, value: f64) -> f64 {
    if value >= before { value - before } else { value.max(0.0) }
}

/// Returns the growth of a counter from the first to the last of some values. `None`: it does not follow from
/// their stats.
///
/// It follows if there are one or two values, or if all are equal. Three values ascend if the first is the
/// smallest and the last the largest. Four such values may hide a restart: the third may be lower than the
/// second.
pub(super) fn growth_of(stats: &Stats) -> Option<f64> {
    let (first, last) = (stats.first.value, stats.last.value);
    let is_constant = stats.min >= stats.max;
    let ascends = first <= stats.min && last >= stats.max;
    let is_certain = is_constant || stats.count <= 2 || (stats.count == 3 && ascends);
    is_certain.then(|| if is_constant { 0.0 } else { grown(first, last) })
}

/// Returns the growth from `before` to the first value in `stats`. `before` is the last value before `stats`.
/// The growth is 0 without it, or if it is too old for a step that begins at `start_ms`.
pub(super) fn growth_from(before: Option<ValueAt>, start_ms: i64, stats: &Stats) -> f64 {
    let is_near = |before: &ValueAt| before.ts_ms >= start_ms.saturating_sub(LOOK_BACK_MS);
    before.filter(is_near).map_or(0.0, |before| grown(before.value, stats.first.value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stats_of(values: &[f64]) -> Stats {
        let mut stats = Stats::of(0, values[0]);
        for (&value, ts_ms) in values[1..].iter().zip(1..) {
            stats.append(&Stats::of(ts_ms, value));
        }
        stats
    }

    #[test]
    fn a_lower_value_is_the_growth_since_a_restart() {
        let pairs = [(3.0, 5.0), (5.0, 5.0), (5.0, 2.0), (5.0, -2.0)];
        let growth: Vec<f64> = pairs.into_iter().map(|(before, value)| grown(before, value)).collect();
        assert_eq!(growth, [2.0, 0.0, 2.0, 0.0]);
    }

    #[test]
    fn stats_that_may_hide_a_restart_tell_nothing() {
        assert_eq!(
            growth_of(&stats_of(&[1.0, 5.0, 2.0, 6.0])),
            None,
            "the first is the smallest, the last the largest"
        );
        assert_eq!(growth_of(&stats_of(&[2.0, 1.0, 3.0])), None);
        assert_eq!(growth_of(&stats_of(&[7.0; 9])), Some(0.0));
    }

    proptest! {
        #[test]
        fn what_stats_tell_is_the_growth(values in prop::collection::vec(-3..4_i32, 1..6)) {
            let values: Vec<f64> = values.into_iter().map(f64::from).collect();
            let growth: f64 = values.windows(2).map(|pair| grown(pair[0], pair[1])).sum();
            let told = growth_of(&stats_of(&values));
            prop_assert!(told.is_none() || told == Some(growth), "{:?} and {}", told, growth);
        }
    }
}
