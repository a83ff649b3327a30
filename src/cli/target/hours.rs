//! Compares the readings and the stats of the store with expected ones, by device and hour.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tidegauge::model::{Contents, Hour, Metric, SeriesFilter, Stats};
use tidegauge::store::{HourStats, StatsNeeds, Store};

use super::{Target, patiently};

/// The most reads of the stats of an hour until they cover its readings.
///
/// Meanwhile the service may be rolling up the hour.
const ATTEMPTS: u32 = 10;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(500);

/// The stats of each series.
pub(in super::super) type OfSeries = HashMap<Metric, Stats>;

/// The stats of each series by hour.
pub(in super::super) type Folded = BTreeMap<Hour, OfSeries>;

/// The outcome of a comparison of an hour.
#[derive(Debug)]
pub(in super::super) struct HourCheck {
    /// Expected values that the store lacks.
    pub(in super::super) missing: u64,
    /// Expected values that the store has with another value.
    pub(in super::super) differing: u64,
    /// Whether the stats cover the readings.
    ///
    /// If values are missing, this is true without a check.
    pub(in super::super) has_stats: bool,
}

impl Target {
    /// Compares the expected readings of an hour one by one with the stored readings.
    ///
    /// Also compares the stats of the hour with its readings. The store may have more readings.
    pub(in super::super) async fn check_hour(
        &self,
        device: &Arc<str>,
        hour: Hour,
        expected: &Contents,
    ) -> anyhow::Result<HourCheck> {
        let stored = contents_of(&*self.store, device, hour).await?;
        let stored = stored.values_for(expected.metrics());
        let missing = expected.samples().iter().filter(|sample| stored.of(sample).is_none()).count() as u64;
        let differing = expected.samples().iter().filter(|sample| !stored.has(sample)).count() as u64 - missing;
        let old: OfSeries = expected.stats(hour).into_iter().collect();
        let mut check = HourCheck { missing, differing, has_stats: missing > 0 };
        for attempt in 0..ATTEMPTS {
            if check.has_stats {
                break;
            }
            if attempt > 0 {
                tokio::time::sleep(BETWEEN_ATTEMPTS).await;
            }
            let stats = stats_of(&*self.store, std::slice::from_ref(device), hour..Hour(hour.0 + 1)).await?;
            let new = stats.into_iter().next().and_then(|mut of_device| of_device.remove(&hour)).unwrap_or_default();
            check.has_stats = covers(&new, &old, differing > 0);
        }
        Ok(check)
    }
}

/// Whether the `new` stats of an hour cover the `old` stats of each series.
///
/// They do if they count more values, or as many values with the same minimum, maximum and sum. If values
/// have changed (`is_changed`), only the numbers of values are compared.
fn covers(new: &OfSeries, old: &OfSeries, is_changed: bool) -> bool {
    old.iter().all(|(metric, old)| {
        new.get(metric)
            .is_some_and(|new| new.count > old.count || (new.count == old.count && (is_changed || is_same(old, new))))
    })
}

/// The readings of an hour.
pub(in super::super) async fn contents_of(store: &dyn Store, device: &str, hour: Hour) -> anyhow::Result<Contents> {
    let mut found = patiently(async || store.contents(device, hour..Hour(hour.0 + 1)).await).await?;
    Ok(found.pop().map(|(_, contents)| contents).unwrap_or_default())
}

/// The stats of hours, for each device.
pub(in super::super) async fn stats_of(
    store: &dyn Store,
    devices: &[Arc<str>],
    hours: Range<Hour>,
) -> anyhow::Result<Vec<Folded>> {
    let all = &SeriesFilter::ALL;
    let found = patiently(async || store.hour_stats(devices, hours.clone(), all, StatsNeeds::Numbers).await).await?;
    let of_device =
        |hours: Vec<HourStats>| hours.into_iter().map(|of| (of.hour, of.stats.into_iter().collect())).collect();
    Ok(found.into_iter().map(of_device).collect())
}

/// Whether the stats of all series are the same.
pub(in super::super) fn agrees(old: &OfSeries, new: &OfSeries) -> bool {
    old.len() == new.len() && old.iter().all(|(metric, old)| new.get(metric).is_some_and(|new| is_same(old, new)))
}

/// Whether two stats are of the same values.
///
/// Their sums may differ by rounding, if the values were added in another order.
fn is_same(old: &Stats, new: &Stats) -> bool {
    let largest = old.min.abs().max(old.max.abs());
    let rounded = (old.count as f64).powi(2) * largest * f64::EPSILON;
    let is_same_sum = old.sum.total_cmp(&new.sum).is_eq() || (old.sum - new.sum).abs() <= rounded;
    (old.count, old.min, old.max) == (new.count, new.min, new.max) && is_same_sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_of_other_values_do_not_agree() {
        let of = |values: &[f64]| {
            let mut stats = Stats::of(0, values[0]);
            values[1..].iter().for_each(|value| stats.merge(&Stats::of(1, *value)));
            stats
        };
        assert!(is_same(&of(&[0.1, 0.2, 0.3]), &of(&[0.3, 0.1, 0.2])), "in another order");
        assert!(is_same(&of(&[f64::MAX, f64::MAX]), &of(&[f64::MAX, f64::MAX])));
        for other in [&[0.1, 0.2][..], &[0.1, 0.2, 0.3, 0.3], &[0.1, 0.25, 0.3], &[0.1, 0.2, 0.4], &[0.05, 0.2, 0.3]] {
            assert!(!is_same(&of(&[0.1, 0.2, 0.3]), &of(other)), "{other:?}");
        }
    }
}
