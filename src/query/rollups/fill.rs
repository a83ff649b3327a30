//! Points for steps without readings.

use strum::{EnumString, VariantNames};

use super::{Point, Rollups, Series};
use crate::model::{Stats, ValueAt};

/// The point of a step without readings, in a series that has other points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Fill {
    /// No point.
    #[default]
    None,
    /// A point without values.
    Null,
    /// A point with the values of the point before, except those that add up: its count, sum and increase are
    /// 0.
    Previous,
}

impl Fill {
    /// Returns the number of points of some rollups once they are filled.
    pub(super) fn points_of(self, rollups: &Rollups, steps: usize) -> usize {
        match self {
            Self::None => rollups.values().map(Vec::len).sum(),
            Self::Null | Self::Previous => rollups.len().saturating_mul(steps),
        }
    }

    /// Adds the points of steps without readings. `starts` has the start of each step.
    pub(super) fn apply(self, series: &mut Series, starts: &[i64]) {
        if self == Self::None {
            return;
        }
        let mut known = std::mem::take(series).into_iter().peekable();
        let mut before = NO_VALUES;
        series.reserve_exact(starts.len());
        series.extend(starts.iter().map(|&start_ms| {
            let Some(point) = known.next_if(|point| point.start_ms == start_ms) else {
                return Point { start_ms, is_filled: true, ..before };
            };
            if self == Self::Previous {
                before = Point { increase: 0.0, ..point };
            }
            point
        }));
    }
}

/// A point without values.
const NO_VALUES: Point = Point {
    start_ms: 0,
    stats: Stats {
        count: 0,
        min: f64::NAN,
        max: f64::NAN,
        sum: f64::NAN,
        first: ValueAt::unknown(0),
        last: ValueAt::unknown(0),
    },
    increase: f64::NAN,
    is_filled: true,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_of_a_series_has_a_point() {
        let point = |start_ms| Point { start_ms, stats: Stats::of(start_ms, 7.0), increase: 1.0, is_filled: false };
        let sparse: Rollups = [("a".into(), vec![point(20), point(40)])].into_iter().collect();
        let starts = [10, 20, 30, 40, 50];
        let filled = |fill: Fill| {
            let mut rollups = sparse.clone();
            for series in rollups.values_mut() {
                fill.apply(series, &starts);
            }
            assert_eq!(fill.points_of(&sparse, 5), rollups["a"].len());
            rollups["a"].iter().map(|point| (point.start_ms, point.count(), point.stats.avg())).collect::<Vec<_>>()
        };
        assert_eq!(filled(Fill::None), [(20, 1, 7.0), (40, 1, 7.0)]);
        let null = filled(Fill::Null);
        assert_eq!(null.iter().map(|(start_ms, ..)| *start_ms).collect::<Vec<_>>(), starts);
        assert!([0, 2, 4].iter().all(|at| null[*at].1 == 0 && null[*at].2.is_nan()), "{null:?}");
        let previous = filled(Fill::Previous);
        assert_eq!(previous[1..], [(20, 1, 7.0), (30, 0, 7.0), (40, 1, 7.0), (50, 0, 7.0)]);
        assert!(previous[0].2.is_nan(), "nothing is before it");
    }

    #[test]
    fn counts_sums_and_increases_add_up_over_filled_steps() {
        let point = |start_ms| Point { start_ms, stats: Stats::of(start_ms, 7.0), increase: 1.0, is_filled: false };
        let mut series = vec![point(20), point(40)];
        Fill::Previous.apply(&mut series, &[10, 20, 30, 40, 50]);
        let added = |point: &Point| (point.count(), point.sum(), point.increase);
        let found: Vec<_> = series[1..].iter().map(added).collect();
        assert_eq!(found, [(1, 7.0, 1.0), (0, 0.0, 0.0), (1, 7.0, 1.0), (0, 0.0, 0.0)]);
        assert!(series[0].sum().is_nan() && series[0].increase.is_nan(), "nothing is before it");
    }
}
