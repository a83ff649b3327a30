//! The merge of stored and pending hours.

use std::collections::BTreeMap;
use std::iter;

use crate::model::{Contents, Hour, Metric, SeriesFilter, Stats, join_stats};
use crate::store::HourStats;

/// The stats of each metric in an hour.
pub(in crate::query) type MetricsOfHour = (Hour, Vec<(Metric, Stats)>);

/// Returns the hours in which pending readings may repeat or precede stored ones.
pub(in crate::query) fn repeated(stored: &[HourStats], pending: &[(Hour, Contents)]) -> Vec<Hour> {
    let is_repeated = |stored: &&HourStats| {
        let Ok(at) = pending.binary_search_by_key(&stored.hour, |(hour, _)| *hour) else { return false };
        let first = pending[at].1.span().map(|(first, _)| stored.hour.instant_ms(first));
        first.is_some_and(|first_ms| first_ms <= stored.last_ts_ms)
    };
    stored.iter().filter(is_repeated).map(|stored| stored.hour).collect()
}

/// Merges stored and pending hours to the stats of each hour. `repeated` has the stored readings of the hours
/// in which pending readings may repeat or precede them.
///
/// The readings of a repeated hour may have expired while its stats are kept. A merge of the readings then
/// has fewer values than the stored stats. In this case the stored stats stay, because they may include the
/// pending readings.
pub(in crate::query) fn merge(
    stored: Vec<HourStats>,
    mut repeated: BTreeMap<Hour, Contents>,
    pending: Vec<(Hour, Contents)>,
    series: &SeriesFilter,
) -> Vec<MetricsOfHour> {
    if pending.is_empty() {
        return stored.into_iter().map(|hour| (hour.hour, hour.stats)).collect();
    }
    let mut merged = Vec::with_capacity(stored.len() + pending.len());
    let mut stored = stored.into_iter().map(|hour| (hour.hour, hour.stats)).peekable();
    for (hour, contents) in pending {
        merged.extend(iter::from_fn(|| stored.next_if(|(before, _)| *before < hour)));
        let same = stored.next_if(|(stored, _)| *stored == hour);
        let mut of_hour = same.map_or_else(Vec::new, |(_, stats)| stats);
        let (stats, is_whole) = match repeated.remove(&hour) {
            Some(stored) => (stored.merge(&contents).stats(hour), true),
            None => (contents.stats(hour), false),
        };
        let stats = stats.into_iter().filter(|(metric, _)| series.matches(metric));
        join_stats(&mut of_hour, stats, |known, stats| {
            if !is_whole {
                known.append(&stats);
            } else if stats.count >= known.count {
                *known = stats;
            }
        });
        merged.push((hour, of_hour));
    }
    merged.extend(stored);
    merged
}

#[cfg(test)]
mod tests {
    use super::super::tests::{by_hour, stored_stats};
    use super::*;

    #[test]
    fn stats_of_readings_that_expired_are_not_replaced_by_fewer() {
        let all = by_hour(&[(1, 0, 1), (2, 0, 2), (3, 0, 3)]);
        let pending = by_hour(&[(2, 0, 9), (1, 1, 5)]);
        for left in [vec![], vec![(3, 0, 3)]] {
            let stats = stored_stats(&all, &SeriesFilter::ALL);
            assert_eq!(repeated(&stats, &pending), [Hour(0)]);
            let mut left: BTreeMap<Hour, Contents> = by_hour(&left).into_iter().collect();
            left.entry(Hour(0)).or_default();
            let merged = merge(stats.clone(), left, pending.clone(), &SeriesFilter::ALL);
            let expected = [stats[0].stats[0].clone(), ("y".into(), Stats::of(1, 5.0))];
            assert_eq!(merged, [(Hour(0), expected.to_vec())]);
        }
    }
}
