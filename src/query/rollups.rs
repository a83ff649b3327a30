//! Rollups: stats over steps of time.
//!
//! A [`Grid`] has the steps of a range. Steps are folded from the stats of hours, stored and pending ones
//! merged. If a step begins inside of an hour, the readings of this hour are read. With steps of minutes,
//! this is every hour; with local days in `Asia/Kathmandu` (UTC+5:45), it is one hour of each day. Increases
//! of counters also need the readings of hours that may hide a restart.
//!
//! Stats tell how many readings are needed before the first of them is read: for all hours of a device, or
//! for one window of hours after the other if the device has very many series. Readings are read a page at a
//! time.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::iter;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use self::combined::Combined;
use self::compare::Alignment;
use self::fold::Folding;
use self::merge::{MetricsOfHour, merge, repeated};
use self::parts::Part;
use self::plan::Plan;
use self::read::{Hours, ReadBudget};
use super::devices::{most_series, wanted_series};
use super::{Answer, Missing, Queries, QueryError, joined};
use crate::access::DeviceScope;
use crate::model::{Contents, Day, Hour, Metric, SeriesFilter, Stats};
use crate::store::{DeviceSummary, HourStats, Store, StoreError};

mod columns;
mod combined;
mod compare;
mod fill;
pub(super) mod fold;
mod grid;
mod increase;
pub(super) mod merge;
mod parts;
mod plan;
mod read;
mod step;
#[cfg(test)]
mod tests;
mod zone;

pub use columns::{Column, Columns};
pub use compare::{Compared, Earlier, EarlierError};
pub use fill::Fill;
pub(super) use grid::Grid;
pub use step::{OffsetError, Step, StepError};
pub use zone::{LocalInstant, LocalTime, Zone, is_local_time};

/// The most hours of stats in memory for one query, over all its devices.
const HOURS_AT_ONCE: usize = 100_000;

/// The most hours of stats in one request to the store, over all its devices. They are some milliseconds of
/// work. A device with more has a request of its own.
const HOURS_PER_REQUEST: usize = 6_000;

/// The most stats in memory for one query, over all its devices.
///
/// A device has stats of each of its series in each hour.
pub const STATS_AT_ONCE: usize = 200_000;

/// The most stats in one request to the store, as far as the device index knows the series.
const STATS_PER_REQUEST: usize = STATS_AT_ONCE / REQUESTS_AT_ONCE;

/// The most devices whose series are looked up in the device index at once.
const DEVICES_PER_LOOKUP: usize = 100;

/// The most requests to the store that a query has in flight. While the store answers one, the answer to
/// another is decoded and converted.
const REQUESTS_AT_ONCE: usize = 3;

/// The most hours in one request to the store for readings that are merged.
const HOURS_PER_FETCH: usize = 48;

/// A request for rollups.
#[derive(Debug, Clone)]
pub struct RollupsRequest {
    /// The client IDs of the devices, each once.
    pub devices: Vec<Arc<str>>,
    /// How many wanted series each of the devices may have. `None`: the device index tells it.
    pub known_series: Option<Vec<usize>>,
    /// The first instant, in Unix milliseconds. `None`: the range ends at `to_ms` and has the default length
    /// of the step.
    pub from_ms: Option<i64>,
    /// The end of the range, exclusive, in Unix milliseconds. The answer has all steps that it touches.
    pub to_ms: i64,
    /// Selects the series.
    pub series: SeriesFilter,
    /// The step.
    pub step: Step,
    /// The zone of the local clock that the steps follow.
    pub zone: Zone,
    /// The columns.
    pub columns: Columns,
    /// How series are filled in steps without readings.
    pub fill: Fill,
    /// How far before a step its counterpart is, if the request compares. [`Earlier::check`] must accept it
    /// for the step.
    pub compare: Option<Earlier>,
}

/// The deadline, the budget and the numbers of series that all reads of one query share.
struct Work {
    deadline: Instant,
    budget: Arc<ReadBudget>,
    /// How many wanted series each device of the request may have.
    series: Vec<usize>,
}

/// The devices of a query that one request to the store reads.
struct Group {
    queries: Queries,
    deadline: Instant,
    devices: Vec<Arc<str>>,
    /// The index of the first of these devices among all devices of the query.
    first: usize,
    /// The hours of each request, ascending. A group of several devices has one request.
    windows: Vec<Range<Hour>>,
    plan: Arc<Plan>,
    budget: Arc<ReadBudget>,
}

/// The converted rollups of a group.
struct Converted<T> {
    /// The results of the devices, up to and including the first error.
    devices: Vec<Result<T, QueryError>>,
    /// Whether some of the readings are pending.
    is_pending: bool,
    /// The error of the store. `Some`: the stored readings are missing.
    failed: Option<QueryError>,
}

/// A request for the stats of hours.
#[derive(Debug, Clone)]
pub struct HoursRequest {
    /// The instants, in Unix milliseconds. The answer has all hours that they touch.
    pub range_ms: Range<i64>,
    /// Selects the series.
    pub series: SeriesFilter,
    /// The columns that are needed.
    pub columns: Columns,
}

/// A point: the stats of a series in a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// The start of the step, in Unix milliseconds.
    pub start_ms: i64,
    /// The stats. In a filled point with values, those of the point before.
    pub stats: Stats,
    /// The increase of a counter. 0 if the request does not ask for it.
    pub increase: f64,
    /// Whether the step has no readings, so that [`Fill`] has made the point.
    pub is_filled: bool,
}

impl Point {
    /// The number of values; 0 for a filled point.
    #[must_use]
    pub const fn count(&self) -> u64 {
        if self.is_filled { 0 } else { self.stats.count }
    }

    /// The sum of the values; 0 for a filled point, and NaN if it has no values.
    #[must_use]
    pub const fn sum(&self) -> f64 {
        let has_values = self.stats.count > 0;
        if self.is_filled && has_values { 0.0 } else { self.stats.sum }
    }
}

/// The points of a series, ascending. Steps without readings are absent, unless they are filled.
pub type Series = Vec<Point>;

/// The rollups of a device by metric.
pub type Rollups = BTreeMap<Metric, Series>;

impl Queries {
    /// Returns converted rollups of the first devices: as many as fit into an answer.
    ///
    /// `convert` gets the index of a device in the request, its rollups, and the local time of the steps.
    ///
    /// # Errors
    /// If a device is outside of the scope, the range is too long, or the store does not answer. Also if the
    /// first device has more points than an answer may have, or needs readings that have expired or are too
    /// many.
    pub async fn rollups<T: Send + 'static>(
        &self,
        scope: &DeviceScope,
        request: &RollupsRequest,
        convert: impl Fn(usize, &Compared, &LocalTime) -> T + Send + Sync + 'static,
    ) -> Result<Answer<Vec<T>>, QueryError> {
        let max = self.limits.max_points;
        let plan = Arc::new(Plan::new(request, &self.limits)?);
        let mut work = self.work(scope, request, &plan).await?;
        let Some(earlier) = request.compare else {
            let convert = {
                let plan = Arc::clone(&plan);
                move |at: usize, mut of_device: Rollups| {
                    plan.fill(&mut of_device);
                    convert(at, &of_device.into(), plan.grid.local_time())
                }
            };
            return self.fitting(&work, scope, &request.devices, plan, convert).await;
        };
        let alignment = Alignment::new(&plan.grid, &request.zone, earlier);
        let earlier = Plan::earlier(request, &alignment).map(Arc::new);
        let mut devices = &request.devices[..];
        let (now, before) = loop {
            let asked = devices.len();
            let now = self.fitting(&work, scope, devices, Arc::clone(&plan), |_, rollups| rollups).await?;
            devices = &devices[..now.body.len()];
            let before = if let Some(plan) = &earlier {
                self.fitting(&work, scope, devices, Arc::clone(plan), |_, rollups| rollups).await
            } else {
                let body = devices.iter().map(|_| Rollups::new()).collect();
                Ok(Answer { body, lagging: None, partial: None })
            };
            match before {
                // All devices together, also one that did not fit, have left too few values for the earlier
                // steps of the first one.
                Err(QueryError::TooManyValues { .. }) if asked > 1 => {
                    devices = &devices[..devices.len().div_ceil(2).min(asked - 1)];
                    work.budget = Arc::new(ReadBudget::new(self.limits.max_values_read));
                }
                before => break (now, before?),
            }
        };
        let (lagging, partial) = (now.lagging.max(before.lagging), now.partial.max(before.partial));
        let (mut page, mut points) = (Vec::new(), 0);
        for (at, (now, before)) in now.body.into_iter().zip(before.body).enumerate() {
            points += plan.points_beside(&now, &before);
            if points > max {
                if page.is_empty() {
                    return Err(plan.too_many_points(max, points));
                }
                break;
            }
            let compared = Compared::new(now, before, &alignment, &plan);
            page.push(convert(at, &compared, plan.grid.local_time()));
            tokio::task::yield_now().await;
        }
        Ok(Answer { body: page, lagging, partial })
    }

    /// Returns converted rollups of the first devices: as many as fit into an answer.
    async fn fitting<T: Send + 'static>(
        &self,
        work: &Work,
        scope: &DeviceScope,
        devices: &[Arc<str>],
        plan: Arc<Plan>,
        convert: impl Fn(usize, Rollups) -> T + Send + Sync + 'static,
    ) -> Result<Answer<Vec<T>>, QueryError> {
        let max = self.limits.max_points;
        let convert = {
            let plan = Arc::clone(&plan);
            move |at: usize, of_device: Rollups| {
                let points = plan.points_of([&of_device], max)?;
                Ok((points, convert(at, of_device)))
            }
        };
        let (mut page, mut points) = (Vec::new(), 0);
        let take = |converted: Result<(usize, T), QueryError>| match converted {
            Ok((more, converted)) if points + more <= max => {
                points += more;
                page.push(converted);
                Ok(ControlFlow::Continue(()))
            }
            Err(error) if page.is_empty() => Err(error),
            Ok(_) | Err(_) => Ok(ControlFlow::Break(())),
        };
        Ok(self.each_device(work, scope, devices, plan, convert, take).await?.map(|()| page))
    }

    /// Returns the combined rollups of each group, and the local time of the steps.
    ///
    /// `group_of` has the index of the group of each device, from 0 on.
    ///
    /// # Errors
    /// Those of [`Self::rollups`], for all devices, and if the result has more points than an answer may
    /// have.
    pub async fn combined_rollups(
        &self,
        scope: &DeviceScope,
        request: &RollupsRequest,
        group_of: &[usize],
    ) -> Result<Answer<(Vec<Compared>, LocalTime)>, QueryError> {
        let max = self.limits.max_points;
        let plan = Arc::new(Plan::new(request, &self.limits)?);
        let (work, devices) = (self.work(scope, request, &plan).await?, &request.devices);
        let now = self.folded(&work, scope, devices, Arc::clone(&plan), group_of).await?;
        let Answer { body: mut groups, mut lagging, mut partial } = now;
        let local = plan.grid.local_time().clone();
        let Some(earlier) = request.compare else {
            plan.points_of(&groups, max)?;
            for rollups in &mut groups {
                plan.fill(rollups);
            }
            return Ok(Answer { body: (groups.into_iter().map(Into::into).collect(), local), lagging, partial });
        };
        let alignment = Alignment::new(&plan.grid, &request.zone, earlier);
        let mut before = vec![Rollups::new(); groups.len()];
        if let Some(plan) = Plan::earlier(request, &alignment) {
            let found = self.folded(&work, scope, devices, Arc::new(plan), group_of).await?;
            (lagging, partial) = (lagging.max(found.lagging), partial.max(found.partial));
            before = found.body;
        }
        let points = groups.iter().zip(&before).map(|(now, before)| plan.points_beside(now, before)).sum();
        if points > max {
            return Err(plan.too_many_points(max, points));
        }
        let groups = groups.into_iter().zip(before).map(|(now, before)| Compared::new(now, before, &alignment, &plan));
        Ok(Answer { body: (groups.collect(), local), lagging, partial })
    }

    /// Returns the rollups of each group: those of its devices folded into one.
    async fn folded(
        &self,
        work: &Work,
        scope: &DeviceScope,
        devices: &[Arc<str>],
        plan: Arc<Plan>,
        group_of: &[usize],
    ) -> Result<Answer<Vec<Rollups>>, QueryError> {
        let max = self.limits.max_points;
        let groups = group_of.iter().max().map_or(1, |last| last + 1);
        let mut combined: Vec<Combined> = iter::repeat_with(Combined::default).take(groups).collect();
        let mut points = 0;
        let of_points = Arc::clone(&plan);
        let take = |of_device: Result<(usize, Rollups), QueryError>| {
            let (at, rollups) = of_device?;
            points += combined[group_of[at]].add(rollups);
            if points > max { Err(of_points.too_many_points(max, points)) } else { Ok(ControlFlow::Continue(())) }
        };
        let convert = |at: usize, of_device: Rollups| Ok((at, of_device));
        let answer = self.each_device(work, scope, devices, plan, convert, take).await?;
        Ok(answer.map(|()| combined.into_iter().map(Combined::finish).collect()))
    }

    /// Passes the stats of the hours of each device to `take`.
    ///
    /// It ends when `take` breaks. `take` also gets the index of the device, and gets the devices in the
    /// order of the request. The number of stats and points has no limit.
    ///
    /// # Errors
    /// If a device is outside of the scope, the range is too long, or the store does not answer.
    pub async fn each_hour(
        &self,
        scope: &DeviceScope,
        devices: &[Arc<str>],
        hours: HoursRequest,
        mut take: impl FnMut(usize, Rollups) -> ControlFlow<()>,
    ) -> Result<Answer<()>, QueryError> {
        let HoursRequest { range_ms, series, columns } = hours;
        let request = RollupsRequest {
            devices: Vec::new(),
            known_series: Some(vec![0; devices.len()]), // no limit
            from_ms: Some(range_ms.start),
            to_ms: range_ms.end,
            series,
            step: Step::HOUR,
            zone: Zone::UTC,
            columns,
            fill: Fill::None,
            compare: None,
        };
        let plan = Arc::new(Plan::new(&request, &self.limits)?);
        let convert = |at: usize, of_device: Rollups| Ok((at, of_device));
        let take = |of_device: Result<(usize, Rollups), QueryError>| {
            let (at, rollups) = of_device?;
            Ok(take(at, rollups))
        };
        let work = self.work(scope, &request, &plan).await?;
        self.each_device(&work, scope, devices, plan, convert, take).await
    }

    /// Passes the converted rollups of each device to `take`, in the order of devices.
    ///
    /// It ends when `take` breaks or fails. `take` also gets the error of a device, and then has to break or
    /// fail.
    ///
    /// The devices are read and converted in groups, a few groups at the same time, each in its own task.
    /// Memory is bounded by these groups, and a device with very many stats is read a window of hours at a
    /// time. If readings are needed, the groups follow each other, so that the budget of readings is spent in
    /// the order of the devices.
    async fn each_device<T: Send + 'static>(
        &self,
        work: &Work,
        scope: &DeviceScope,
        devices: &[Arc<str>],
        plan: Arc<Plan>,
        convert: impl Fn(usize, Rollups) -> Result<T, QueryError> + Send + Sync + 'static,
        mut take: impl FnMut(Result<T, QueryError>) -> Result<ControlFlow<()>, QueryError>,
    ) -> Result<Answer<()>, QueryError> {
        let Work { deadline, budget, series } = work;
        let devices = stored_ids(scope, devices)?;
        let at_once = (HOURS_AT_ONCE / plan.size_of_device().max(HOURS_PER_REQUEST)).clamp(1, REQUESTS_AT_ONCE);
        let at_once = if plan.reads { 1 } else { at_once };
        let lagging = self.catch_up().await;

        let groups = plan.groups(&series[..devices.len()]);
        let has_one_group = groups.len() == 1;
        let convert = Arc::new(convert);
        let groups = groups.into_iter().map(|group| {
            let group = Group {
                queries: self.clone(),
                deadline: *deadline,
                windows: plan.windows(series[group.start]),
                first: group.start,
                devices: devices[group].to_vec(),
                plan: Arc::clone(&plan),
                budget: Arc::clone(budget),
            };
            let converted = group.converted(Arc::clone(&convert));
            async move {
                if has_one_group {
                    return converted.await; // a task of its own would take longer
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
                    return Ok(Answer { body: (), lagging, partial: failed.map(|_| Missing::Stored) });
                }
            }
        }
        match failed {
            Some(error) if !is_pending => Err(error),
            failed => Ok(Answer { body: (), lagging, partial: failed.map(|_| Missing::Stored) }),
        }
    }

    /// Returns the first day that a request reads, as [`Plan::first_day`].
    ///
    /// # Errors
    /// If the range is too long.
    pub(super) fn first_day(&self, request: &RollupsRequest) -> Result<Day, QueryError> {
        Ok(Plan::new(request, &self.limits)?.first_day(request.compare))
    }

    /// Begins the work on a request. Looks up the numbers of series, unless the request has them.
    async fn work(&self, scope: &DeviceScope, request: &RollupsRequest, plan: &Plan) -> Result<Work, QueryError> {
        let deadline = self.deadline();
        let series = if let Some(known) = &request.known_series {
            known.clone()
        } else {
            let first = plan.first_day(request.compare);
            self.look_up_series(deadline, &stored_ids(scope, &request.devices)?, plan, first).await
        };
        Ok(Work { deadline, budget: Arc::new(ReadBudget::new(self.limits.max_values_read)), series })
    }

    /// Returns how many wanted series each device may have on the day `first` or later, as far as the device
    /// index knows.
    ///
    /// The result is 0 for all if they have few stats in any case.
    async fn look_up_series(&self, deadline: Instant, devices: &[Arc<str>], plan: &Plan, first: Day) -> Vec<usize> {
        if plan.has_few_stats(devices.len()) {
            return vec![0; devices.len()];
        }
        let (mut known, mut of_others): (HashMap<Arc<str>, usize>, _) = (HashMap::new(), 0);
        for some in devices.chunks(DEVICES_PER_LOOKUP) {
            let Ok(found) = self.ask(deadline, self.store.entries_of(some)).await else {
                return vec![most_series(&plan.series); devices.len()];
            };
            if found.is_incomplete {
                of_others = most_series(&plan.series); // the index may lack their entries
            }
            let wanted = |entry: &DeviceSummary| wanted_series(entry, &plan.series, first);
            known.extend(found.devices.iter().map(|entry| (Arc::clone(&entry.device), wanted(entry))));
        }
        devices.iter().map(|device| known.get(device).copied().unwrap_or(of_others)).collect()
    }

    /// Returns whether a device has an entry: then it has or had readings.
    ///
    /// The result is also true if the device index may lack the entry. The call queries the store, so it is
    /// only for empty answers.
    ///
    /// # Errors
    /// If the device is outside of the scope, or the store does not answer.
    pub async fn is_known(&self, scope: &DeviceScope, device: &str) -> Result<bool, QueryError> {
        let device = &*scope.to_stored_id(device)?;
        let page = self.page(self.deadline(), device, None, 1).await?;
        let is_listed = page.devices.first().is_some_and(|first| *first.device == *device);
        Ok(is_listed || page.partial == Some(Missing::Devices))
    }
}

impl Group {
    /// Reads and converts the devices, up to and including the first bad one.
    ///
    /// A device is bad if [`QueryError::is_limit`] holds for its error. Any other error of its readings fails
    /// the whole group.
    async fn converted<T>(
        self,
        convert: Arc<impl Fn(usize, Rollups) -> Result<T, QueryError>>,
    ) -> Result<Converted<T>, QueryError> {
        let Self { queries, deadline, devices, first, plan, windows, .. } = &self;
        let (pending, _turn) = queries.pending(*deadline, devices, plan.hours.clone()).await?;
        let is_pending = pending.iter().any(|hours| !hours.is_empty());
        let (stored, failed) = match self.stored(&windows[0]).await {
            Ok(stored) => (stored, None),
            Err(error) => (vec![Vec::new(); devices.len()], Some(error)),
        };
        let mut converted = Vec::with_capacity(devices.len());
        for (at, ((device, stored), pending)) in devices.iter().zip(stored).zip(pending).enumerate() {
            let of_device = match self.rollups_of(device, stored, pending, failed.is_some()).await {
                Err(error) if !error.is_limit() => return Err(error),
                of_device => of_device.and_then(|rollups| convert(first + at, rollups)),
            };
            let is_last = of_device.is_err();
            converted.push(of_device);
            if is_last {
                break;
            }
            tokio::task::yield_now().await;
        }
        Ok(Converted { devices: converted, is_pending, failed })
    }

    /// Returns the stored stats of some hours of the devices.
    async fn stored(&self, hours: &Range<Hour>) -> Result<Vec<Vec<HourStats>>, QueryError> {
        let Self { queries, deadline, devices, plan, .. } = self;
        let stored = queries.store.hour_stats(devices, hours.clone(), &plan.series, plan.columns.needs());
        queries.ask(*deadline, stored).await
    }

    /// Returns the rollups of one device. `stored` has the stats of the first window. If the store has
    /// failed, there are no stored stats.
    async fn rollups_of(
        &self,
        device: &Arc<str>,
        stored: Vec<HourStats>,
        pending: Vec<(Hour, Contents)>,
        has_failed: bool,
    ) -> Result<Rollups, QueryError> {
        let (mut folding, mut expired) = (Folding::new(&self.plan.grid), None);
        let folded = self.fold_windows(&mut folding, &mut expired, device, (stored, pending), has_failed).await;
        // A later error does not hide that readings have expired: no smaller range would help against that.
        if let Some(error) = expired { Err(error) } else { folded.map(|()| folding.finish()) }
    }

    /// Folds all hours of a device, a window at a time. `expired` gets the last error of expired readings.
    async fn fold_windows(
        &self,
        folding: &mut Folding<'_>,
        expired: &mut Option<QueryError>,
        device: &Arc<str>,
        (stored, mut pending): (Vec<HourStats>, Vec<(Hour, Contents)>),
        has_failed: bool,
    ) -> Result<(), QueryError> {
        let Self { queries, plan, windows, .. } = self;
        let mut first = Some(stored);
        for window in windows {
            let stored = match first.take() {
                Some(stored) => stored,
                None if has_failed => Vec::new(),
                None => self.stored(window).await?.pop().unwrap_or_default(),
            };
            let later = pending.split_off(pending.partition_point(|(hour, _)| *hour < window.end));
            let pending = std::mem::replace(&mut pending, later);
            match self.fold(folding, device, stored, pending, window.end).await {
                // A later window may lack readings too, and the error names the last hour of all.
                Err(error @ QueryError::ReadingsExpired { .. }) => *expired = Some(error),
                folded => folded?,
            }
            if windows.len() > 1 {
                plan.check_points(queries.limits.max_points, folding.points(), window.end)?;
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Folds the next hours of a device, up to the hour `until`.
    async fn fold(
        &self,
        folding: &mut Folding<'_>,
        device: &Arc<str>,
        stored: Vec<HourStats>,
        pending: Vec<(Hour, Contents)>,
        until: Hour,
    ) -> Result<(), QueryError> {
        let Self { queries, deadline, plan, budget, .. } = self;
        if !plan.reads {
            folding.add_hours(self.merged(device, stored, pending).await?);
            return Ok(());
        }
        let hours = Hours::of(plan, stored, pending);
        let mut parts = read::read(queries, *deadline, plan, budget, device, &hours, until).await?;
        parts.extend(self.merged(device, hours.stored, hours.pending).await?.into_iter().map(part_of));
        parts.sort_by_key(|part| part.ts_ms);
        folding.add_parts(parts, plan.counts_increase());
        Ok(())
    }

    /// Returns the stats of the hours of a device, stored and pending ones merged.
    async fn merged(
        &self,
        device: &str,
        stored: Vec<HourStats>,
        pending: Vec<(Hour, Contents)>,
    ) -> Result<Vec<MetricsOfHour>, QueryError> {
        let Self { queries, deadline, plan, .. } = self;
        let repeated = match &repeated(&stored, &pending)[..] {
            [] => BTreeMap::new(),
            hours => queries.ask(*deadline, fetch(&*queries.store, device, hours)).await?,
        };
        Ok(merge(stored, repeated, pending, &plan.series))
    }
}

/// Converts an hour to a part. Its growth follows from its stats.
fn part_of((hour, stats): MetricsOfHour) -> Part {
    Part { ts_ms: hour.start_ms(), stats, growth: Vec::new() }
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

/// Returns the stored IDs of devices.
fn stored_ids<'d>(scope: &DeviceScope, devices: &'d [Arc<str>]) -> Result<Cow<'d, [Arc<str>]>, QueryError> {
    if scope.is_all() {
        return Ok(Cow::Borrowed(devices));
    }
    let stored: Result<Vec<Arc<str>>, _> =
        devices.iter().map(|device| Ok(scope.to_stored_id(device)?.into())).collect();
    stored.map(Cow::Owned)
}
