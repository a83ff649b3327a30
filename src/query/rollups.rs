//! Rollups: stats over steps of time.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::iter;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Answer, Queries, QueryError, joined};
use crate::access::DeviceScope;
use crate::model::{Contents, Hour, MS_PER_HOUR, Metric, MetricTable, SeriesFilter, Stats, join_stats};
use crate::store::{HourStats, Store, StoreError};

/// The most hours of stats that a query holds at once, over all devices that it reads.
const HOURS_AT_ONCE: usize = 100_000;

/// The hours of stats in one request to the store, over all its devices, unless one device has more: some
/// milliseconds of work.
const HOURS_PER_REQUEST: usize = 6_000;

/// The most requests to the store that a query has in flight. While the store answers one, the answer to
/// another is decoded and converted.
const REQUESTS_AT_ONCE: usize = 3;

/// The most hours of readings in one request to the store, if they have to be merged.
const HOURS_PER_FETCH: usize = 48;

/// The metrics of a device for which memory is reserved as if each hour had them.
const METRICS_OF_ALL_HOURS: usize = 8;

/// A step of a rollup: a number of hours that divides a day, so that steps begin at UTC midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step(i32);

impl Step {
    /// One hour.
    pub const HOUR: Self = Self(1);

    /// Returns a step of 1, 2, 3, 4, 6, 8, 12 or 24 hours.
    pub const fn hours(hours: u32) -> Option<Self> {
        if matches!(hours, 1 | 2 | 3 | 4 | 6 | 8 | 12 | 24) { Some(Self(hours as i32)) } else { None }
    }

    /// Returns the default range: 24 steps, or 30 days if the step is a day.
    pub const fn default_hours(self) -> u32 {
        if self.0 == 24 { 30 * 24 } else { 24 * self.0.unsigned_abs() }
    }

    /// Returns the hours of all steps that these hours touch.
    const fn whole(self, hours: &Range<Hour>) -> Range<Hour> {
        let Self(hours_of_step) = self;
        let start = hours.start.0.div_euclid(hours_of_step) * hours_of_step;
        let end = (hours.end.0 + hours_of_step - 1).div_euclid(hours_of_step) * hours_of_step;
        Hour(start)..Hour(end)
    }

    /// Returns the start of the step that includes `hour`, in Unix milliseconds.
    const fn start_ms(self, hour: Hour) -> i64 {
        Hour(hour.0.div_euclid(self.0) * self.0).start_ms()
    }
}

/// A request for rollups.
#[derive(Debug, Clone)]
pub struct RollupsRequest {
    /// The client IDs of the devices, each once.
    pub devices: Vec<Arc<str>>,
    /// The first instant, in Unix milliseconds. `None`: [`Step::default_hours`] before `to_ms`.
    pub from_ms: Option<i64>,
    /// The end of the range, exclusive, in Unix milliseconds. The answer has all steps that it touches.
    pub to_ms: i64,
    /// The series.
    pub series: SeriesFilter,
    /// The step.
    pub step: Step,
}

/// The rollups of one metric: the start of each step, in Unix milliseconds, and its stats.
///
/// Ascending. Steps without readings are absent.
pub type Series = Vec<(i64, Stats)>;

/// The stats of each metric in an hour.
type MetricsOfHour = (Hour, Vec<(Metric, Stats)>);

/// The rollups of a device by metric.
pub type Rollups = BTreeMap<Metric, Series>;

impl Queries {
    /// Returns the rollups of as many devices as fit into an answer, in the order of the request, each
    /// converted by `convert`, which also gets the index of the device.
    ///
    /// # Errors
    /// If a device is outside of the scope, the range is too long, the first device has more points than an
    /// answer may have, or the store does not answer.
    pub async fn rollups<T: Send + 'static>(
        &self,
        scope: &DeviceScope,
        request: &RollupsRequest,
        convert: impl Fn(usize, &Rollups) -> T + Send + Sync + 'static,
    ) -> Result<Answer<Vec<T>>, QueryError> {
        let max = self.limits.max_points;
        let convert = move |at: usize, of_device: Rollups| {
            let points = points_of(&of_device);
            (points, (points <= max).then(|| convert(at, &of_device)))
        };
        let (mut page, mut points) = (Vec::new(), 0);
        let take = |(more, converted): (usize, Option<T>)| {
            let Some(converted) = converted.filter(|_| points + more <= max) else {
                let is_first = page.is_empty();
                let too_many = QueryError::TooManyPoints { max, found: more };
                return if is_first { Err(too_many) } else { Ok(ControlFlow::Break(())) };
            };
            points += more;
            page.push(converted);
            Ok(ControlFlow::Continue(()))
        };
        Ok(self.each_device(scope, request, convert, take).await?.map(|()| page))
    }

    /// Returns the rollups of all devices, combined.
    ///
    /// # Errors
    /// Those of [`Self::rollups`], and if the result has more points than an answer may have.
    pub async fn combined_rollups(
        &self,
        scope: &DeviceScope,
        request: &RollupsRequest,
    ) -> Result<Answer<Rollups>, QueryError> {
        let max = self.limits.max_points;
        let mut combined = Combined::default();
        let take = |of_device: Rollups| {
            combined.add(of_device);
            if combined.points > max {
                return Err(QueryError::TooManyPoints { max, found: combined.points });
            }
            Ok(ControlFlow::Continue(()))
        };
        let answer = self.each_device(scope, request, |_, of_device| of_device, take).await?;
        Ok(answer.map(|()| combined.finish()))
    }

    /// Converts the rollups of each device, and calls `take` with the results in the order of the devices,
    /// until it breaks.
    ///
    /// The devices are read and converted in groups, a few groups at the same time, each in its own task.
    /// Memory is bounded by these groups.
    async fn each_device<T: Send + 'static>(
        &self,
        scope: &DeviceScope,
        request: &RollupsRequest,
        convert: impl Fn(usize, Rollups) -> T + Send + Sync + 'static,
        mut take: impl FnMut(T) -> Result<ControlFlow<()>, QueryError> + Send,
    ) -> Result<Answer<()>, QueryError> {
        let deadline = self.deadline();
        let devices = stored_ids(scope, &request.devices)?;
        let from_ms = request.from_ms.unwrap_or_else(|| {
            let hours = request.step.default_hours().min(self.limits.max_hours.saturating_sub(1)).max(1);
            request.to_ms - i64::from(hours) * MS_PER_HOUR
        });
        let hours = request.step.whole(&self.hours(from_ms, request.to_ms)?);
        let hours_per_device = (hours.end.0.abs_diff(hours.start.0) as usize).max(1);
        let per_group = (HOURS_PER_REQUEST / hours_per_device).max(1);
        let at_once = (HOURS_AT_ONCE / (per_group * hours_per_device)).clamp(1, REQUESTS_AT_ONCE);
        let lagging = self.catch_up().await;

        let convert = Arc::new(convert);
        let has_one_group = devices.len() <= per_group;
        let groups = devices.chunks(per_group).enumerate().map(|(nth, devices)| {
            let group = Group {
                queries: self.clone(),
                deadline,
                devices: devices.to_vec(),
                first: nth * per_group,
                hours: hours.clone(),
                series: request.series.clone(),
                step: request.step,
            };
            let converted = group.converted(Arc::clone(&convert));
            async move {
                if has_one_group {
                    return converted.await; // the way to a task of its own would take longer
                }
                joined(AbortOnDropHandle::new(tokio::spawn(converted))).await?
            }
        });
        let mut groups = stream::iter(groups.collect::<Vec<_>>()).buffered(at_once);
        let (mut is_pending, mut failed) = (false, None);
        while let Some(group) = groups.next().await {
            let group = group?;
            is_pending |= group.is_pending;
            failed = failed.or(group.failed);
            for of_device in group.devices {
                if take(of_device)?.is_break() {
                    return Ok(Answer { body: (), lagging, partial: failed.is_some() });
                }
            }
        }
        match failed {
            Some(error) if !is_pending => Err(error),
            failed => Ok(Answer { body: (), lagging, partial: failed.is_some() }),
        }
    }

    /// Returns whether a device has readings. Queries the store, so call it only for empty answers.
    ///
    /// # Errors
    /// If the device is outside of the scope, or the store does not answer.
    pub async fn is_known(&self, scope: &DeviceScope, device: &str) -> Result<bool, QueryError> {
        let device = &*scope.to_stored_id(device)?;
        let page = self.page(self.deadline(), device, None, 1).await?;
        Ok(page.devices.first().is_some_and(|first| *first.device == *device))
    }
}

/// Some devices of a query: those of one request to the store.
struct Group {
    queries: Queries,
    deadline: Instant,
    devices: Vec<Arc<str>>,
    /// The index of the first device among all of the query.
    first: usize,
    hours: Range<Hour>,
    series: SeriesFilter,
    step: Step,
}

/// The converted rollups of a group.
struct Converted<T> {
    devices: Vec<T>,
    /// Whether some of the readings are pending.
    is_pending: bool,
    /// Why the stored readings are missing.
    failed: Option<QueryError>,
}

impl Group {
    async fn converted<T>(self, convert: Arc<impl Fn(usize, Rollups) -> T>) -> Result<Converted<T>, QueryError> {
        let Self { queries, deadline, devices, first, hours, series, step: step_of } = self;
        let pending = queries.pending(&devices, hours.clone()).await?;
        let is_pending = pending.iter().any(|hours| !hours.is_empty());
        let (stored, failed) = match queries.ask(deadline, queries.store.hour_stats(&devices, hours, &series)).await {
            Ok(stored) => (stored, None),
            Err(error) => (vec![Vec::new(); devices.len()], Some(error)),
        };
        let mut converted = Vec::with_capacity(devices.len());
        for (at, ((device, stored), pending)) in devices.iter().zip(stored).zip(pending).enumerate() {
            let repeated = match &repeated(&stored, &pending)[..] {
                [] => BTreeMap::new(),
                hours => queries.ask(deadline, fetch(&*queries.store, device, hours)).await?,
            };
            let of_device = step(merge(stored, repeated, pending, &series), step_of);
            converted.push(convert(first + at, of_device));
            tokio::task::yield_now().await;
        }
        Ok(Converted { devices: converted, is_pending, failed })
    }
}

fn points_of(rollups: &Rollups) -> usize {
    rollups.values().map(Vec::len).sum()
}

/// Returns the stored IDs of devices.
fn stored_ids<'d>(scope: &DeviceScope, devices: &'d [Arc<str>]) -> Result<Cow<'d, [Arc<str>]>, QueryError> {
    if scope.is_all() {
        return Ok(Cow::Borrowed(devices));
    }
    let stored: Result<Vec<Arc<str>>, _> =
        devices.iter().map(|device| Ok(scope.to_stored_id(device)?.into())).collect();
    stored.map(Cow::Owned)
}

/// The combined rollups of several devices.
#[derive(Default)]
struct Combined {
    series: BTreeMap<Metric, BTreeMap<i64, Stats>>,
    points: usize,
}

impl Combined {
    fn add(&mut self, of_device: Rollups) {
        for (metric, series) in of_device {
            let steps = self.series.entry(metric).or_default();
            let before = steps.len();
            for (start_ms, stats) in series {
                steps.entry(start_ms).and_modify(|known| known.merge(&stats)).or_insert(stats);
            }
            self.points += steps.len() - before;
        }
    }

    fn finish(self) -> Rollups {
        self.series.into_iter().map(|(metric, steps)| (metric, steps.into_iter().collect())).collect()
    }
}

/// Returns the hours in which pending readings may repeat or precede stored ones.
pub(super) fn repeated(stored: &[HourStats], pending: &[(Hour, Contents)]) -> Vec<Hour> {
    let is_repeated = |stored: &&HourStats| {
        let Ok(at) = pending.binary_search_by_key(&stored.hour, |(hour, _)| *hour) else { return false };
        let first = pending[at].1.span().map(|(first, _)| stored.hour.instant_ms(first));
        first.is_some_and(|first_ms| first_ms <= stored.last_ts_ms)
    };
    stored.iter().filter(is_repeated).map(|stored| stored.hour).collect()
}

/// Fetches the stored readings of these hours. An hour whose readings have expired is empty.
async fn fetch(store: &dyn Store, device: &str, hours: &[Hour]) -> Result<BTreeMap<Hour, Contents>, StoreError> {
    let mut fetched: BTreeMap<Hour, Contents> = hours.iter().map(|hour| (*hour, Contents::default())).collect();
    for run in hours.chunk_by(|a, b| a.0 + 1 == b.0).flat_map(|run| run.chunks(HOURS_PER_FETCH)) {
        let range = Range { start: run[0], end: Hour(run[run.len() - 1].0 + 1) };
        fetched.extend(store.contents(device, range).await?);
    }
    Ok(fetched)
}

/// Merges `stored` stats, the stored readings of `repeated` hours and the pending readings to stats by hour.
///
/// The readings of a repeated hour may have expired while its stats are kept. The stats then stay as they
/// are, because they may include the pending readings. This case shows in the count: a merge of all readings
/// has at least as many values as the stored stats.
pub(super) fn merge(
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

/// The hours' stats, which are ascending, by steps.
pub(super) fn step(hours: Vec<MetricsOfHour>, step: Step) -> Rollups {
    let mut places = MetricTable::default();
    let mut rollups: Vec<(Metric, Series)> = Vec::new();
    let steps = hours.len().div_ceil(step.0.unsigned_abs() as usize);
    for (hour, stats) in hours {
        let start_ms = step.start_ms(hour);
        for (metric, stats) in stats {
            let place = places.place_of(&metric) as usize;
            if place == rollups.len() {
                // As a rule, a device has the same metrics in each hour, and few of them.
                let steps = if rollups.len() < METRICS_OF_ALL_HOURS { steps } else { 0 };
                rollups.push((metric, Series::with_capacity(steps)));
            }
            let series = &mut rollups[place].1;
            match series.last_mut() {
                Some((last_ms, last)) if *last_ms == start_ms => last.append(&stats),
                _ => series.push((start_ms, stats)),
            }
        }
    }
    rollups.into_iter().collect()
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

    fn stored_stats(hours: &[(Hour, Contents)], series: &SeriesFilter) -> Vec<HourStats> {
        let of = |(hour, contents): &(Hour, Contents)| HourStats {
            hour: *hour,
            last_ts_ms: hour.instant_ms(contents.span().expect("not empty").1),
            stats: contents.stats(*hour).into_iter().filter(|(name, _)| series.matches(name)).collect(),
        };
        hours.iter().map(of).collect()
    }

    fn any_values() -> impl Strategy<Value = Values> {
        prop::collection::vec((-2..3i32, 0..20u32, 0..3u32, -50..50i32), 0..60)
    }

    proptest! {
        #[test]
        fn stored_and_pending_merge_to_the_fold_of_all_identities(
            stored in any_values(),
            pending in any_values(),
            only_x in any::<bool>(),
            hours in prop::sample::select(vec![1, 2, 24])
        ) {
            let series = if only_x { SeriesFilter::new(["x"], []).unwrap() } else { SeriesFilter::ALL };
            let mut model: BTreeMap<(i32, u32, u32), i32> = BTreeMap::new();
            for &(hour, offset, metric, value) in stored.iter().chain(&pending) {
                model.insert((hour, offset, metric), value);
            }
            let step_of = Step::hours(hours).unwrap();
            let mut expected: BTreeMap<Metric, BTreeMap<i64, Stats>> = BTreeMap::new();
            for (&(hour, offset, metric), &value) in model.iter().filter(|((.., metric), _)| !only_x || *metric == 0) {
                let of_metric = expected.entry(["x", "y", "z"][metric as usize].into()).or_default();
                let stats = of_metric.entry(step_of.start_ms(Hour(hour)));
                let only = Stats::of(Hour(hour).instant_ms(offset), value.into());
                stats.and_modify(|stats| stats.merge(&only)).or_insert(only);
            }

            let (stored, pending) = (by_hour(&stored), by_hour(&pending));
            let stats = stored_stats(&stored, &series);
            let repeated = repeated(&stats, &pending);
            let repeated = stored.into_iter().filter(|(hour, _)| repeated.contains(hour)).collect();
            let rollups = step(merge(stats, repeated, pending, &series), step_of);

            let expected = expected.into_iter().map(|(metric, series)| (metric, series.into_iter().collect()));
            let expected: Rollups = expected.collect();
            prop_assert_eq!(rollups, expected);
        }
    }

    #[test]
    fn stats_of_readings_that_expired_are_not_replaced_by_fewer() {
        let all = by_hour(&vec![(0, 1, 0, 1), (0, 2, 0, 2), (0, 3, 0, 3)]);
        let pending = by_hour(&vec![(0, 2, 0, 9), (0, 1, 1, 5)]);
        for left in [Vec::new(), vec![(0, 3, 0, 3)]] {
            let stats = stored_stats(&all, &SeriesFilter::ALL);
            assert_eq!(repeated(&stats, &pending), [Hour(0)]);
            let mut left: BTreeMap<Hour, Contents> = by_hour(&left).into_iter().collect();
            left.entry(Hour(0)).or_default();
            let merged = merge(stats.clone(), left, pending.clone(), &SeriesFilter::ALL);
            let expected = [stats[0].stats[0].clone(), ("y".into(), Stats::of(1, 5.0))];
            assert_eq!(merged, [(Hour(0), expected.to_vec())]);
        }
    }

    #[test]
    fn steps_begin_at_utc_midnight_before_and_after_1970() {
        let day = Step::hours(24).unwrap();
        assert_eq!(day.start_ms(Hour(23)), 0);
        assert_eq!(day.start_ms(Hour(-1)), -24 * 3_600_000);
        assert_eq!(Step::hours(5), None);
        for (hours, whole) in [(0..24, 0..24), (1..2, 0..24), (-1..1, -24..24), (23..25, 0..48), (-24..0, -24..0)] {
            assert_eq!(day.whole(&(Hour(hours.start)..Hour(hours.end))), Hour(whole.start)..Hour(whole.end));
        }
        assert_eq!(Step::hours(0), None);
    }
}
