//! Rollups: stats over steps of time.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use self::combined::Combined;
use self::merge::{merge, repeated};
use self::step::step;
use super::{Answer, Queries, QueryError, joined};
use crate::access::DeviceScope;
use crate::model::{Contents, Hour, MS_PER_HOUR, Metric, SeriesFilter, Stats};
use crate::store::{StatsNeeds, Store, StoreError};

mod columns;
mod combined;
pub(super) mod merge;
pub(super) mod step;

pub use columns::{Column, Columns};
pub use step::Step;

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
    /// The columns.
    pub columns: Columns,
}

/// The rollups of one metric: the start of each step, in Unix milliseconds, and its stats.
///
/// Ascending. Steps without readings are absent.
pub type Series = Vec<(i64, Stats)>;

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
                needs: request.columns.needs(),
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
    needs: StatsNeeds,
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
        let Self { queries, deadline, devices, first, hours, series, step: step_of, needs } = self;
        let pending = queries.pending(&devices, hours.clone()).await?;
        let is_pending = pending.iter().any(|hours| !hours.is_empty());
        let stored = queries.store.hour_stats(&devices, hours, &series, needs);
        let (stored, failed) = match queries.ask(deadline, stored).await {
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

/// Fetches the stored readings of these hours. An hour whose readings have expired is empty.
async fn fetch(store: &dyn Store, device: &str, hours: &[Hour]) -> Result<BTreeMap<Hour, Contents>, StoreError> {
    let mut fetched: BTreeMap<Hour, Contents> = hours.iter().map(|hour| (*hour, Contents::default())).collect();
    for run in hours.chunk_by(|a, b| a.0 + 1 == b.0).flat_map(|run| run.chunks(HOURS_PER_FETCH)) {
        let range = Range { start: run[0], end: Hour(run[run.len() - 1].0 + 1) };
        fetched.extend(store.contents(device, range).await?);
    }
    Ok(fetched)
}
