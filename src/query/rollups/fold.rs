//! Folds the stats of hours, or of parts of hours, into the points of the steps.

use super::grid::{Grid, Walk};
use super::increase::{growth_from, growth_of};
use super::merge::MetricsOfHour;
use super::parts::Part;
use super::{Point, Rollups, Series};
use crate::model::{Metric, MetricTable, Stats, ValueAt};

/// The most metrics of a device for which memory for all steps is reserved.
const METRICS_OF_ALL_STEPS: usize = 8;

/// Folds the stats of hours, which are ascending, into points.
pub(in crate::query) fn fold_hours(hours: Vec<MetricsOfHour>, grid: &Grid) -> Rollups {
    let mut open = OpenRollups::new(grid, hours.len());
    let mut walk = Walk::new(grid);
    for (hour, stats) in hours {
        let Some(start_ms) = walk.start_of(hour.start_ms()) else { continue };
        for (metric, stats) in stats {
            let points = &mut open.series_of(metric).points;
            match points.last_mut() {
                Some(point) if point.start_ms == start_ms => point.stats.append(&stats),
                _ => points.push(Point { start_ms, stats, increase: 0.0, is_filled: false }),
            }
        }
    }
    open.finish()
}

/// Folds parts, which are ascending by time, into points.
///
/// If increases are counted, the parts before the first step tell the last value before the step, from which
/// its increase counts.
pub(super) fn fold_parts(parts: Vec<Part>, grid: &Grid, counts_increase: bool) -> Rollups {
    let mut open = OpenRollups::new(grid, parts.len());
    let mut walk = Walk::new(grid);
    for Part { ts_ms, stats, growth } in parts {
        let start_ms = walk.start_of(ts_ms);
        for (nth, (metric, stats)) in stats.into_iter().enumerate() {
            let growth = counts_increase.then(|| growth.get(nth).copied().or_else(|| growth_of(&stats)).unwrap_or(0.0));
            open.series_of(metric).add(start_ms, stats, growth);
        }
    }
    open.finish()
}

/// The series of a device while they are folded.
struct OpenRollups {
    places: MetricTable,
    series: Vec<(Metric, OpenSeries)>,
    /// The most points that a series can have.
    most: usize,
}

impl OpenRollups {
    fn new(grid: &Grid, parts: usize) -> Self {
        Self { places: MetricTable::default(), series: Vec::new(), most: grid.starts().len().min(parts) }
    }

    #[inline]
    fn series_of(&mut self, metric: Metric) -> &mut OpenSeries {
        let place = self.places.place_of(&metric) as usize;
        if place == self.series.len() {
            // As a rule, a device has the same metrics in each hour, and few of them.
            let most = if place < METRICS_OF_ALL_STEPS { self.most } else { 0 };
            self.series.push((metric, OpenSeries { points: Series::with_capacity(most), last: None }));
        }
        &mut self.series[place].1
    }

    fn finish(self) -> Rollups {
        let with_points = self.series.into_iter().filter(|(_, series)| !series.points.is_empty());
        with_points.map(|(metric, series)| (metric, series.points)).collect()
    }
}

struct OpenSeries {
    points: Series,
    /// The last value so far.
    last: Option<ValueAt>,
}

impl OpenSeries {
    /// Adds stats to the step that begins at `start_ms`. `None`: they are outside of the steps, and only
    /// their last value is noted. `growth` is the growth within the stats, if increases are counted.
    fn add(&mut self, start_ms: Option<i64>, stats: Stats, growth: Option<f64>) {
        let before = self.last.replace(stats.last);
        let Some(start_ms) = start_ms else { return };
        match self.points.last_mut() {
            Some(point) if point.start_ms == start_ms => {
                point.increase += growth.map_or(0.0, |growth| growth + growth_from(before, i64::MIN, &stats));
                point.stats.append(&stats);
            }
            _ => {
                let increase = growth.map_or(0.0, |growth| growth + growth_from(before, start_ms, &stats));
                self.points.push(Point { start_ms, stats, increase, is_filled: false });
            }
        }
    }
}
