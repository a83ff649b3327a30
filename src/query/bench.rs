//! A benchmark of the merge of stored and pending hours, without a store.
//!
//! `benches` runs it.

use std::collections::BTreeMap;
use std::ops::Range;

use super::rollups::fold::Folding;
use super::rollups::merge::{merge, repeated};
use super::rollups::{Grid, Rollups, Step, Zone};
use crate::model::{Contents, Hour, Metric, Sample, SeriesFilter, Stats, ValueAt};
use crate::store::HourStats;

/// The stored and the pending readings of one device.
#[derive(Debug)]
pub struct Merge {
    stored: Vec<HourStats>,
    pending: Vec<(Hour, Contents)>,
    grid: Grid,
}

impl Merge {
    /// Makes readings of two metrics in each of `hours`. The second half of the last hour is pending.
    #[must_use]
    pub fn new(hours: Range<Hour>) -> Self {
        let metrics: Vec<Metric> = vec!["hum".into(), "temp".into()];
        let stats = |hour: i32| {
            let [first, last] = [0, 1_790_000].map(|offset| Hour(hour).instant_ms(offset));
            let [first, last] = [first, last].map(|ts_ms| ValueAt { ts_ms, value: 20.0 });
            Stats { count: 360, min: f64::from(hour % 20), max: 40.0, sum: 7_200.0, first, last }
        };
        let stored = (hours.start.0..hours.end.0).map(|hour| HourStats {
            hour: Hour(hour),
            last_ts_ms: Hour(hour).instant_ms(1_790_000),
            stats: metrics.iter().map(|metric| (metric.clone(), stats(hour))).collect(),
        });
        let sample = |at: u32| Sample { value: 21.5, offset: 1_800_000 + at / 2 * 10_000, metric: at % 2 };
        let last = Contents::new(metrics.clone(), (0..360).map(sample).collect());
        let pending = vec![(Hour(hours.end.0 - 1), last)];
        let grid = Grid::new(Step::HOUR, &Zone::UTC, &(hours.start.start_ms()..hours.end.start_ms()));
        Self { stored: stored.collect(), pending, grid }
    }

    /// Merges the stored and the pending readings into hourly rollups.
    #[must_use]
    pub fn run(self) -> Rollups {
        assert!(repeated(&self.stored, &self.pending).is_empty(), "pending readings are later");
        let hours = merge(self.stored, BTreeMap::new(), self.pending, &SeriesFilter::ALL);
        let mut folding = Folding::new(&self.grid);
        folding.add_hours(hours);
        let rollups = folding.finish();
        assert!(rollups.values().all(|series| series.len() == self.grid.starts().len()));
        rollups
    }
}
