//! The fold of parts into the points of steps.

use super::grid::{Grid, Walk};
use super::increase::{growth_from, growth_of};
use super::parts::Part;
use super::{Point, Rollups, Series};
use crate::model::{Metric, MetricTable, Stats, ValueAt};

/// The metrics of a device for which memory is reserved as if each step had them.
const METRICS_OF_ALL_STEPS: usize = 8;

/// Folds parts, which are ascending, into points. Parts before the first step count as values before it.
/// `most_parts` is an upper bound of their number.
pub(in crate::query) fn fold(
    parts: impl Iterator<Item = Part>,
    most_parts: usize,
    grid: &Grid,
    counts_increase: bool,
) -> Rollups {
    let mut walk = Walk::new(grid);
    let mut places = MetricTable::default();
    let mut rollups: Vec<(Metric, OpenSeries)> = Vec::new();
    let steps = grid.starts().len().min(most_parts);
    for Part { ts_ms, stats, growth } in parts {
        let start_ms = walk.start_of(ts_ms);
        for (nth, (metric, stats)) in stats.into_iter().enumerate() {
            let place = places.place_of(&metric) as usize;
            if place == rollups.len() {
                // As a rule, a device has the same metrics in each hour, and few of them.
                let steps = if rollups.len() < METRICS_OF_ALL_STEPS { steps } else { 0 };
                rollups.push((metric, OpenSeries { points: Series::with_capacity(steps), last: None }));
            }
            let series = &mut rollups[place].1;
            let growth = counts_increase.then(|| growth.get(nth).copied().or_else(|| growth_of(&stats)).unwrap_or(0.0));
            series.add(start_ms, stats, growth);
        }
    }
    let with_points = rollups.into_iter().filter(|(_, series)| !series.points.is_empty());
    with_points.map(|(metric, series)| (metric, series.points)).collect()
}

struct OpenSeries {
    points: Series,
    /// The last value so far, if increases count.
    last: Option<ValueAt>,
}

impl OpenSeries {
    /// Adds stats to the step that begins at `start_ms`. `growth` is that within the stats, if increases
    /// count.
    fn add(&mut self, start_ms: Option<i64>, stats: Stats, growth: Option<f64>) {
        let before = if growth.is_some() { std::mem::replace(&mut self.last, stats.last) } else { None };
        let Some(start_ms) = start_ms else { return };
        match self.points.last_mut() {
            Some(point) if point.start_ms == start_ms => {
                if let Some(growth) = growth {
                    point.increase += growth + growth_from(before, i64::MIN, &stats);
                }
                point.stats.append(&stats);
            }
            _ => {
                let increase = growth.map_or(0.0, |growth| growth + growth_from(before, start_ms, &stats));
                self.points.push(Point { start_ms, stats, increase, is_filled: false });
            }
        }
    }
}
