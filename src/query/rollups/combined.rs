//! The fold of the rollups of several devices.

use std::collections::BTreeMap;

use super::Rollups;
use crate::model::{Metric, Stats};

/// The combined rollups of several devices.
#[derive(Default)]
pub(super) struct Combined {
    series: BTreeMap<Metric, BTreeMap<i64, Stats>>,
    pub(super) points: usize,
}

impl Combined {
    pub(super) fn add(&mut self, of_device: Rollups) {
        for (metric, series) in of_device {
            let steps = self.series.entry(metric).or_default();
            let before = steps.len();
            for (start_ms, stats) in series {
                steps.entry(start_ms).and_modify(|known| known.merge(&stats)).or_insert(stats);
            }
            self.points += steps.len() - before;
        }
    }

    pub(super) fn finish(self) -> Rollups {
        self.series.into_iter().map(|(metric, steps)| (metric, steps.into_iter().collect())).collect()
    }
}
