//! Rollups: stats over steps of time.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::{Answer, Queries, QueryError};
use crate::access::Reach;
use crate::model::{Contents, Hour, Metric, Stats};
use crate::store::{HourStats, Store, StoreError};

/// How many hours of readings are fetched at once where they have to be merged.
const HOURS_PER_FETCH: usize = 48;

/// A step of a rollup: a number of hours that divides a day, so that steps begin at UTC midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step(i32);

impl Step {
    /// One hour.
    pub const HOUR: Self = Self(1);

    /// A step of so many hours: 1, 2, 3, 4, 6, 8, 12 or 24.
    pub const fn hours(hours: u32) -> Option<Self> {
        if matches!(hours, 1 | 2 | 3 | 4 | 6 | 8 | 12 | 24) { Some(Self(hours as i32)) } else { None }
    }

    /// When the step that holds `hour` begins, in Unix milliseconds.
    const fn start_ms(self, hour: Hour) -> i64 {
        Hour(hour.0.div_euclid(self.0) * self.0).start_ms()
    }
}

/// A question for rollups.
#[derive(Debug, Clone)]
pub struct RollupsRequest {
    /// The device ids, none of them twice.
    pub devices: Vec<Arc<str>>,
    /// The first instant, in Unix milliseconds.
    pub from_ms: i64,
    /// The instant behind the last, in Unix milliseconds.
    pub to_ms: i64,
    /// The metrics; empty: all.
    pub metrics: Vec<Metric>,
    /// The step.
    pub step: Step,
}

/// The rollups of one metric: when a step begins, in Unix milliseconds, and its stats. Ascending; steps without
/// readings are absent.
pub type Series = Vec<(i64, Stats)>;

/// The rollups of a device by metric.
pub type Rollups = BTreeMap<Metric, Series>;

impl Queries {
    /// The rollups of each device, in the order of the request. Hours that the range touches count whole.
    ///
    /// # Errors
    /// When a device is out of reach, the range is too long, there is too much to answer, or the store does not answer.
    pub async fn rollups(&self, reach: &Reach, request: &RollupsRequest) -> Result<Answer<Vec<Rollups>>, QueryError> {
        let deadline = self.deadline();
        let devices = kept(reach, &request.devices)?;
        let hours = self.hours(request.from_ms, request.to_ms)?;
        let lagging = self.catch_up().await;
        let mut pending = Vec::with_capacity(devices.len());
        for device in &*devices {
            pending.push(self.pending(device, hours.clone()).await?);
        }
        let (stored, partial) = match self.ask(deadline, self.store.hour_stats(&devices, hours, &request.metrics)).await
        {
            Ok(stored) => (stored, false),
            Err(_) if pending.iter().any(|hours| !hours.is_empty()) => (vec![Vec::new(); pending.len()], true),
            Err(error) => return Err(error),
        };
        let (mut rollups, mut points) = (Vec::with_capacity(devices.len()), 0);
        for ((device, stored), pending) in devices.iter().zip(stored).zip(pending) {
            let repeated = match &repeated(&stored, &pending)[..] {
                [] => BTreeMap::new(),
                hours => self.ask(deadline, fetch(&*self.store, device, hours)).await?,
            };
            let of_device = step(merge(stored, repeated, pending, &request.metrics), request.step);
            points += of_device.values().map(Vec::len).sum::<usize>();
            if points > self.limits.max_points {
                return Err(QueryError::TooManyPoints(self.limits.max_points));
            }
            rollups.push(of_device);
        }
        Ok(Answer { body: rollups, lagging, partial })
    }
}

/// The ids under which devices are kept.
fn kept<'d>(reach: &Reach, devices: &'d [Arc<str>]) -> Result<Cow<'d, [Arc<str>]>, QueryError> {
    if reach.is_all() {
        return Ok(Cow::Borrowed(devices));
    }
    let kept: Result<Vec<Arc<str>>, _> = devices.iter().map(|device| Ok(reach.kept(device)?.into())).collect();
    kept.map(Cow::Owned)
}

/// Folds the rollups of several devices into one.
pub fn combine(devices: Vec<Rollups>) -> Rollups {
    let mut combined: BTreeMap<Metric, BTreeMap<i64, Stats>> = BTreeMap::new();
    for (metric, series) in devices.into_iter().flatten() {
        let steps = combined.entry(metric).or_default();
        for (start_ms, stats) in series {
            steps.entry(start_ms).and_modify(|known| known.merge(&stats)).or_insert(stats);
        }
    }
    combined.into_iter().map(|(metric, steps)| (metric, steps.into_iter().collect())).collect()
}

/// The hours whose stored stats do not just add up with what is pending.
pub(super) fn repeated(stored: &[HourStats], pending: &[(Hour, Contents)]) -> Vec<Hour> {
    let is_repeated = |stored: &&HourStats| {
        let Ok(at) = pending.binary_search_by_key(&stored.hour, |(hour, _)| *hour) else { return false };
        let first = pending[at].1.span().map(|(first, _)| stored.hour.instant_ms(first));
        first.is_some_and(|first_ms| first_ms <= stored.last_ts_ms)
    };
    stored.iter().filter(is_repeated).map(|stored| stored.hour).collect()
}

/// The stored contents of each of these hours, empty where the readings have expired.
async fn fetch(store: &dyn Store, device: &str, hours: &[Hour]) -> Result<BTreeMap<Hour, Contents>, StoreError> {
    let mut fetched: BTreeMap<Hour, Contents> = hours.iter().map(|hour| (*hour, Contents::default())).collect();
    for run in hours.chunk_by(|a, b| a.0 + 1 == b.0).flat_map(|run| run.chunks(HOURS_PER_FETCH)) {
        let range = Range { start: run[0], end: Hour(run[run.len() - 1].0 + 1) };
        fetched.extend(store.contents(device, range).await?);
    }
    Ok(fetched)
}

/// Stats by hour of all there is: `stored` stats, the stored contents of `repeated` hours, and what is pending.
///
/// The readings of a repeated hour may have expired while its stats are kept. Then pending cannot be told from what they
/// speak of, and they stay as they are: no merge of readings that are all there has fewer values than are stored.
pub(super) fn merge(
    stored: Vec<HourStats>,
    mut repeated: BTreeMap<Hour, Contents>,
    pending: Vec<(Hour, Contents)>,
    metrics: &[Metric],
) -> BTreeMap<Hour, Vec<(Metric, Stats)>> {
    let wanted = |metric: &Metric| metrics.is_empty() || metrics.contains(metric);
    let mut merged: BTreeMap<Hour, Vec<(Metric, Stats)>> =
        stored.into_iter().map(|hour| (hour.hour, hour.stats)).collect();
    for (hour, contents) in pending {
        let (stats, is_whole) = match repeated.remove(&hour) {
            Some(stored) => (stored.merge(&contents).stats(), true),
            None => (contents.stats(), false),
        };
        let known = merged.entry(hour).or_default();
        for (metric, stats) in stats.into_iter().filter(|(metric, _)| wanted(metric)) {
            match known.iter_mut().find(|(name, _)| *name == metric) {
                Some((_, known)) if !is_whole => known.merge(&stats),
                Some((_, known)) if stats.count >= known.count => *known = stats,
                Some(_) => {}
                None => known.push((metric, stats)),
            }
        }
    }
    merged
}

pub(super) fn step(hours: BTreeMap<Hour, Vec<(Metric, Stats)>>, step: Step) -> Rollups {
    let mut rollups = Rollups::new();
    for (hour, stats) in hours {
        let start_ms = step.start_ms(hour);
        for (metric, stats) in stats {
            let series = rollups.entry(metric).or_default();
            match series.last_mut() {
                Some((last_ms, last)) if *last_ms == start_ms => last.merge(&stats),
                _ => series.push((start_ms, stats)),
            }
        }
    }
    rollups
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::Sample;

    type Values = Vec<(i32, u32, u32, i32)>; // hour, offset, metric, value

    fn by_hour(values: &Values) -> Vec<(Hour, Contents)> {
        let mut hours: BTreeMap<Hour, Vec<Sample>> = BTreeMap::new();
        for &(hour, offset, metric, value) in values {
            hours.entry(Hour(hour)).or_default().push(Sample { value: f64::from(value), offset, metric });
        }
        let metrics: Vec<Metric> = vec!["x".into(), "y".into(), "z".into()];
        hours.into_iter().map(|(hour, samples)| (hour, Contents::new(metrics.clone(), samples))).collect()
    }

    fn stored_stats(hours: &[(Hour, Contents)], metrics: &[Metric]) -> Vec<HourStats> {
        let of = |(hour, contents): &(Hour, Contents)| HourStats {
            hour: *hour,
            last_ts_ms: hour.instant_ms(contents.span().expect("not empty").1),
            stats: contents
                .stats()
                .into_iter()
                .filter(|(name, _)| metrics.is_empty() || metrics.contains(name))
                .collect(),
        };
        hours.iter().map(of).collect()
    }

    fn any_values() -> impl Strategy<Value = Values> {
        prop::collection::vec((-2..3i32, 0..20u32, 0..3u32, -50..50i32), 0..60)
    }

    proptest! {
        #[test]
        fn stored_and_pending_merge_to_the_fold_of_all_identities(
            stored in any_values(), pending in any_values(), only_x in any::<bool>(), hours in prop::sample::select(vec![1, 2, 24])
        ) {
            let metrics: Vec<Metric> = if only_x { vec!["x".into()] } else { Vec::new() };
            let mut model: BTreeMap<(i32, u32, u32), i32> = BTreeMap::new();
            for &(hour, offset, metric, value) in stored.iter().chain(&pending) {
                model.insert((hour, offset, metric), value);
            }
            let step_of = Step::hours(hours).unwrap();
            let mut expected: BTreeMap<Metric, BTreeMap<i64, Stats>> = BTreeMap::new();
            for (&(hour, _, metric), &value) in model.iter().filter(|((.., metric), _)| !only_x || *metric == 0) {
                let series = expected.entry(["x", "y", "z"][metric as usize].into()).or_default();
                series.entry(step_of.start_ms(Hour(hour))).and_modify(|stats| stats.add(value.into())).or_insert_with(|| Stats::of(value.into()));
            }

            let (stored, pending) = (by_hour(&stored), by_hour(&pending));
            let stats = stored_stats(&stored, &metrics);
            let repeated = repeated(&stats, &pending);
            let repeated = stored.into_iter().filter(|(hour, _)| repeated.contains(hour)).collect();
            let rollups = step(merge(stats, repeated, pending, &metrics), step_of);

            let expected: Rollups = expected.into_iter().map(|(metric, series)| (metric, series.into_iter().collect())).collect();
            prop_assert_eq!(rollups, expected);
        }
    }

    #[test]
    fn stats_of_readings_that_expired_are_not_replaced_by_fewer() {
        let all = by_hour(&vec![(0, 1, 0, 1), (0, 2, 0, 2), (0, 3, 0, 3)]);
        let pending = by_hour(&vec![(0, 2, 0, 9), (0, 1, 1, 5)]);
        for left in [Vec::new(), vec![(0, 3, 0, 3)]] {
            let stats = stored_stats(&all, &[]);
            assert_eq!(repeated(&stats, &pending), [Hour(0)]);
            let mut left: BTreeMap<Hour, Contents> = by_hour(&left).into_iter().collect();
            left.entry(Hour(0)).or_default();
            let merged = merge(stats.clone(), left, pending.clone(), &[]);
            let expected = [stats[0].stats[0].clone(), ("y".into(), Stats::of(5.0))];
            assert_eq!(merged[&Hour(0)], expected);
        }
    }

    #[test]
    fn steps_begin_at_utc_midnight_before_and_after_1970() {
        let day = Step::hours(24).unwrap();
        assert_eq!(day.start_ms(Hour(23)), 0);
        assert_eq!(day.start_ms(Hour(-1)), -24 * 3_600_000);
        assert_eq!(Step::hours(5), None);
        assert_eq!(Step::hours(0), None);
    }
}
