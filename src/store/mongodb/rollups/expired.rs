//! Rollups of hours whose readings have expired, and that get readings again.
//!
//! The rollup is all that is left of the expired readings. A reading that is stored later may be one of them,
//! so it cannot be added. For each series, the rollup changes in two cases only:
//!
//! - The later readings may include the expired ones ([`Stats::may_include`]), as after an import of the
//!   whole hour: their fold takes the place of the stats.
//! - The rollup does not have the series: their fold is added.
//!
//! The `rev` of a bucket begins anew with the first document that is inserted after the expiry. So the upper
//! bits of the `rev` of a rollup count how often the readings of its hour have expired, here or in a store
//! from which its stats were moved.
//!
//! A higher `rev` alone does not show that nothing has expired: more readings may have been stored after the
//! expiry than before it. A bucket that has only grown includes all that it had, so there the stats decide
//! too. For a bucket that may have lost readings to a deletion, only the `rev` counts.

use std::collections::HashMap;

use super::HourRollup;
use crate::model::{Deletion, Metric, Stats, join_stats};
use crate::store::HourStats;

/// The unit of the upper bits of a `rev`: more than the `rev` of any bucket.
const GENERATION: i64 = 1 << 40;

impl HourRollup {
    /// Adds the stats of readings of the hour that have expired.
    ///
    /// `stored` is the rollup that was stored before this one was derived. `deletion` has just removed the
    /// values that it selects from the readings, so the stats that it selects are left out.
    pub(in super::super) fn with_expired(self, mut stored: Self, deletion: Option<&Deletion>) -> Self {
        let before = stored.rev.rem_euclid(GENERATION);
        let (generation, is_newer) = (stored.rev - before, self.rev > before);
        let is_known = self.rev == before && have_same_numbers(&self.stats.stats, &stored.stats.stats);
        let has_grown = is_newer && (self.may_lack_deleted || may_include(&self.stats.stats, &stored.stats.stats));
        if generation == 0 && (has_grown || is_known) {
            return self; // nothing has expired since
        }
        let hour = stored.stats.hour;
        let is_deleted =
            |metric: &Metric| deletion.is_some_and(|deletion| deletion.covers(hour) && deletion.series.matches(metric));
        let known = stored.stats.stats.clone();
        stored.stats.stats.retain(|(metric, _)| !is_deleted(metric));
        join_stats(&mut stored.stats.stats, self.stats.stats, |known, later| {
            if later.may_include(known) {
                *known = later;
            }
        });
        if generation > 0 && self.rev == before && stored.stats.stats == known {
            return stored;
        }
        let generation = if is_newer && generation > 0 { generation } else { generation + GENERATION };
        stored.rev = generation + self.rev;
        stored.first_ts_ms = stored.first_ts_ms.min(self.first_ts_ms);
        stored.stats.last_ts_ms = stored.stats.last_ts_ms.max(self.stats.last_ts_ms);
        stored
    }

    /// Adds the stats of readings of the hour that have expired in another store. Of each series, the stats
    /// of more values stay.
    pub(in super::super) fn with_moved(mut self, moved: &HourStats) -> Self {
        let stats = &mut self.stats.stats;
        let (series, mut is_changed) = (stats.len(), false);
        join_stats(stats, moved.stats.iter().cloned(), |known, moved| {
            if moved.count > known.count {
                *known = moved;
                is_changed = true;
            }
        });
        if is_changed || stats.len() > series {
            self.rev = self.rev.max(GENERATION) + 1;
            self.first_ts_ms = self.first_ts_ms.min(moved.first_ts_ms());
            self.stats.last_ts_ms = self.stats.last_ts_ms.max(moved.last_ts_ms);
        }
        self
    }
}

/// Whether later readings may include all readings of the stats `known`.
fn may_include(later: &[(Metric, Stats)], known: &[(Metric, Stats)]) -> bool {
    let later: HashMap<&Metric, &Stats> = later.iter().map(|of| (&of.0, &of.1)).collect();
    known.iter().all(|(metric, known)| later.get(metric).is_some_and(|later| later.may_include(known)))
}

/// Whether these are the same stats, in any order, apart from first and last values.
fn have_same_numbers(one: &[(Metric, Stats)], other: &[(Metric, Stats)]) -> bool {
    let numbers = |stats: &Stats| (stats.count, [stats.min, stats.max, stats.sum].map(f64::to_bits));
    let by_metric: HashMap<&Metric, _> = one.iter().map(|(metric, stats)| (metric, numbers(stats))).collect();
    let is_same = |(metric, stats): &(Metric, Stats)| by_metric.get(metric) == Some(&numbers(stats));
    one.len() == other.len() && other.iter().all(is_same)
}
