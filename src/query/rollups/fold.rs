//! Folds the stats of hours, or of parts of hours, into the points of the steps.

use super::grid::{Grid, Walk};
use super::increase::{growth_from, growth_of};
use super::merge::MetricsOfHour;
use super::parts::Part;
use super::{Point, Rollups, Series};
use crate::model::{Metric, MetricTable, Stats, ValueAt};

/// The most metrics of a device for which memory for all steps is reserved.
const METRICS_OF_ALL_STEPS: usize = 8;

/// The rollups of a device while they are folded, in the order of time.
pub(in crate::query) struct Folding<'g> {
    walk: Walk<'g>,
    /// The number of steps.
    steps: usize,
    open: OpenRollups,
}

impl<'g> Folding<'g> {
    pub(in crate::query) fn new(grid: &'g Grid) -> Self {
        Self { walk: Walk::new(grid), steps: grid.starts().len(), open: OpenRollups::default() }
    }

    /// Adds the stats of hours, which are ascending and follow those before.
    pub(in crate::query) fn add_hours(&mut self, hours: Vec<MetricsOfHour>) {
        self.open.most = self.steps.min(hours.len());
        for (hour, stats) in hours {
            let Some(start_ms) = self.walk.start_of(hour.start_ms()) else { continue };
            for (metric, stats) in stats {
                let points = &mut self.open.series_of(metric).points;
                match points.last_mut() {
                    Some(point) if point.start_ms == start_ms => point.stats.append(&stats),
                    _ => points.push(Point { start_ms, stats, increase: 0.0, is_filled: false }),
                }
            }
        }
    }

    /// Adds parts, which are ascending by time and follow those before.
    ///
    /// If increases are counted, the parts before the first step tell the last value before the step, from
    /// which its increase counts.
    pub(super) fn add_parts(&mut self, parts: Vec<Part>, counts_increase: bool) {
        self.open.most = self.steps.min(parts.len());
        for Part { ts_ms, stats, growth } in parts {
            let start_ms = self.walk.start_of(ts_ms);
            for (nth, (metric, stats)) in stats.into_iter().enumerate() {
                let growth =
                    counts_increase.then(|| growth.get(nth).copied().or_else(|| growth_of(&stats)).unwrap_or(0.0));
                self.open.series_of(metric).add(start_ms, stats, growth);
            }
        }
    }

    /// Returns the number of points so far.
    pub(super) fn points(&self) -> usize {
        self.open.series.iter().map(|(_, series)| series.points.len()).sum()
    }

    pub(in crate::query) fn finish(self) -> Rollups {
        let with_points = self.open.series.into_iter().filter(|(_, series)| !series.points.is_empty());
        with_points.map(|(metric, series)| (metric, series.points)).collect()
    }
}

/// The series of a device while they are folded.
#[derive(Default)]
struct OpenRollups {
    places: MetricTable,
    series: Vec<(Metric, OpenSeries)>,
    /// The most points that are expected of a new series.
    most: usize,
}

impl OpenRollups {
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
