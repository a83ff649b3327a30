//! The rollups of several devices, folded into one.

use std::collections::BTreeMap;

use super::{Point, Rollups};
use crate::model::{Metric, Stats};

/// The combined rollups of several devices.
#[derive(Default)]
pub(super) struct Combined {
    series: BTreeMap<Metric, BTreeMap<i64, (Stats, f64)>>,
}

impl Combined {
    /// Adds the rollups of a device, and returns the number of new points.
    pub(super) fn add(&mut self, of_device: Rollups) -> usize {
        let mut points = 0;
        for (metric, series) in of_device {
            let steps = self.series.entry(metric).or_default();
            let before = steps.len();
            for Point { start_ms, stats, increase, .. } in series {
                let known = steps.entry(start_ms).and_modify(|(known, increases)| {
                    known.merge(&stats);
                    *increases += increase;
                });
                known.or_insert((stats, increase));
            }
            points += steps.len() - before;
        }
        points
    }

    pub(super) fn finish(self) -> Rollups {
        let point = |(start_ms, (stats, increase))| Point { start_ms, stats, increase, is_filled: false };
        self.series.into_iter().map(|(metric, steps)| (metric, steps.into_iter().map(point).collect())).collect()
    }
}
