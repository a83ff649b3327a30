//! Queries: stored and pending readings, merged.
//!
//! A query first waits until the readings that were acknowledged before it are in pending (read your writes).
//! It takes a snapshot of pending, and only then queries the store. A reading that is stored in between is in
//! both, never in neither, and the merge by identity keeps it once.
//!
//! Stats of an hour are merged without its stored readings if possible. If all pending readings of the hour
//! are later than the last stored one, their stats are added to the stored stats. The stored stats may be a
//! rollup, because a reading stays pending until the rollup of its hour includes it. If pending readings may
//! repeat or precede stored ones, the query fetches the stored readings and merges both.
//!
//! Each query has a [`DeviceScope`](crate::access::DeviceScope). Requests and answers have client IDs;
//! pending and the store have stored IDs. A query for a device outside of the scope fails. A list leaves such
//! devices out.
//!
//! While the store is away, a query answers with the pending readings and marks the answer as partial. If no
//! reading that it asks for is pending, it fails. It does not wait for a store that is known to be away. A
//! list of devices is also marked as partial while the device index lacks devices ([`Missing`]).
//!
//! A query has one deadline. It requests no more from the store and from pending than an answer may hold, and
//! never sends one request for each hour. Snapshots of pending and merges run on blocking threads, because
//! they may take milliseconds. One query at a time has the readings of large pending hours in memory. Rollups
//! of many devices are read and converted in groups of devices, a few groups at the same time. So they use
//! several processors, and no task runs for long.
//!
//! This room knows no HTTP. The merges are pure functions.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinError;
use tokio::time::Instant;

use crate::access::DeviceScopeError;
use crate::flush::Pipeline;
use crate::model::{Contents, Hour};
use crate::pending::PendingHour;
use crate::store::device_index::REBUILD;
use crate::store::{Cause, Store, StoreError};

#[cfg(any(test, feature = "bench"))]
#[doc(hidden)]
pub mod bench;
mod count;
mod devices;
mod export;
mod groups;
mod latest;
mod latest_list;
mod metadata;
mod readings;
mod rollups;
mod silence;
#[cfg(test)]
pub(crate) mod tests;

pub use devices::{Device, DeviceSelection, DevicesRequest, Listed, MAX_METRICS};
pub use export::{Export, ExportRequest, ExportedDevices};
pub use groups::{DeviceGroup, DeviceGroups, MetadataValues};
pub use latest::Latest;
pub use metadata::TwoAuthors;
pub use readings::{Page, ReadingAt, ReadingSlices, ReadingsRequest, Slice, SliceHour};
pub use rollups::{
    Column, Columns, Compared, Earlier, EarlierError, Fill, HoursRequest, LocalInstant, LocalTime, OffsetError, Point,
    Rollups, RollupsRequest, STATS_AT_ONCE, Series, Step, StepError, Zone, is_local_time,
};

/// The name of the device index in messages.
const DEVICE_INDEX: &str = "the device index of the store";

/// The most devices that a query looks up in pending in one hold of the lock.
const DEVICES_PER_LOOK: usize = 16;

/// The most slices that all queries together read ahead at one time.
///
/// With MongoDB, each takes a connection, and may hold a whole reply of it: 16 MiB. Other reads, and the
/// writes, need connections too. SQLite has four connections for reads; others wait their turn behind these
/// short ones.
const READS_AHEAD: usize = 8;

/// Pending hours with more values, repetitions included, are large: some megabytes of readings, up to some
/// hundred.
const LARGE_HOUR: usize = 1 << 18;

/// The values of this many large hours, in smaller hours, are as large if their readings are kept together.
const HOURS_KEPT: usize = 8;

/// The converted pending hours of each device, and the turn of the query, if hours are large.
type OfPending<T> = (Vec<T>, Option<OwnedSemaphorePermit>);

/// The limits of one query.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The longest range, in hours.
    pub max_hours: u32,
    /// The most points (steps times metrics) in one answer.
    pub max_points: usize,
    /// The most values that a query for rollups may read from readings.
    pub max_values_read: u64,
    /// How long a query waits at most until the acknowledged readings are in pending.
    pub catch_up: Duration,
    /// How long a query may take.
    pub timeout: Duration,
    /// How long the store keeps rollups. It keeps readings no longer than that. `None`: forever.
    pub kept: Option<Duration>,
}

impl Limits {
    /// Returns the first hour of which the store may still have data at `now_ms`.
    fn kept_from(&self, now_ms: i64, store: &dyn Store) -> Hour {
        let Some(kept) = self.kept else { return Hour(i32::MIN) };
        let kept_ms = i64::try_from(kept.saturating_add(store.expiry_delay()).as_millis()).unwrap_or(i64::MAX);
        Hour::of(now_ms.saturating_sub(kept_ms))
    }

    /// Fails if a range of instants touches more than [`Self::max_hours`] hours.
    pub(crate) fn check_range(&self, from_ms: i64, to_ms: i64) -> Result<(), QueryError> {
        self.check_ranges(from_ms, to_ms, 1)
    }

    /// Fails if `ranges` ranges of this length together touch too many hours.
    fn check_ranges(&self, from_ms: i64, to_ms: i64, ranges: u32) -> Result<(), QueryError> {
        let asked = (i64::from(Hour::at_or_after(to_ms).0) - i64::from(Hour::of(from_ms).0)) * i64::from(ranges);
        if asked > i64::from(self.max_hours) {
            let (max, asked) = (self.max_hours, asked.unsigned_abs());
            return Err(QueryError::RangeTooLong { max, asked, is_compared: ranges > 1 });
        }
        Ok(())
    }
}

/// Why a query was not answered.
#[derive(Debug, Clone, thiserror::Error)]
pub enum QueryError {
    /// The range is longer than [`Limits::max_hours`].
    #[error(
        "the range{} {asked} hours, more than {max} (query.max_hours); ask for a shorter range",
        if *is_compared { " and the one to compare with have" } else { " has" }
    )]
    RangeTooLong {
        /// The most hours.
        max: u32,
        /// The hours of the range, or of both ranges.
        asked: u64,
        /// Whether there are two ranges, because the request compares.
        is_compared: bool,
    },
    /// The rollups of a device, or all combined ones, have too many points.
    #[error(
        "the answer has {found} points or more, and at most {max} are allowed (query.max_points); ask for a shorter \
         range, fewer metrics, or a longer step{fits}"
    )]
    TooManyPoints {
        /// The most points of an answer.
        max: usize,
        /// The points of one device, or of the devices combined so far.
        found: usize,
        /// `, such as 1h`: a step that would fit. Empty if no step would.
        fits: String,
    },
    /// The range has more steps than an answer may have points.
    #[error(
        "the range has {found} steps of {step}, and an answer has at most {max} points (query.max_points); ask for \
         {hours} hours at most, or for a longer step"
    )]
    TooManySteps {
        /// The most steps.
        max: usize,
        /// The number of steps of the range, or a few more.
        found: usize,
        /// The step as text, such as `1m`.
        step: String,
        /// The longest range with this step, in hours.
        hours: u64,
    },
    /// The rollups need more values of readings than [`Limits::max_values_read`].
    #[error(
        "the answer would be made of {found} values of readings, more than {max} (query.max_values_read); ask for \
         about {hours} hours at once, fewer metrics, or steps that begin at full hours in UTC, without increase"
    )]
    TooManyValues {
        /// The most values.
        max: u64,
        /// The values that the devices need, up to and including the one that is too much.
        found: u64,
        /// The length of a range that would fit, in hours.
        hours: u64,
    },
    /// The rollups need readings that have expired.
    #[error("{}", expired(hour, after, *increases))]
    ReadingsExpired {
        /// The start of the last hour whose readings are missing, in RFC 3339.
        hour: String,
        /// The end of this hour, in RFC 3339.
        after: String,
        /// Whether an increase needs these readings. Otherwise a step begins or ends inside of the hour.
        increases: bool,
    },
    /// The device is outside of the device scope.
    #[error(transparent)]
    OutOfReach(#[from] DeviceScopeError),
    /// The list would have to skip too many devices outside of the device scope.
    #[error(
        "looked at {0} devices and found none that this token may read; ask with a longer `prefix=`, or let the \
         patterns of the token begin with fixed characters"
    )]
    TooManyDevices(usize),
    /// The store did not answer.
    #[error("the store does not answer: {0}")]
    Store(StoreError),
    /// The store has been away for some time. Queries fail at once until it answers again.
    #[error("the store does not answer: it has been away for {seconds} s: {why}")]
    StoreAway {
        /// How long it has been away, in seconds.
        seconds: u64,
        /// Its last error.
        why: String,
    },
    /// Acknowledged readings are not in pending yet, and the answer has no place to say so.
    #[error(
        "acknowledged readings wait for room in pending (pending.max_bytes), or the log is still being read; try again \
         later"
    )]
    Lagging,
    /// The device index lacks devices, and the answer has no place to say so.
    #[error("{} lacks devices or series, and this answer has no place to say so; first run: {REBUILD}", DEVICE_INDEX)]
    DeviceIndexIncomplete,
    /// Not all series of the device fit into the columns of a file.
    #[error(
        "the device has more than {max} series, too many for columns; select some with `metric` (if that is refused \
         too: whole series such as cpu{{core=0}}), or ask /v1/readings?device= for one row per value"
    )]
    TooManyColumns {
        /// The most series.
        max: usize,
    },
    /// The query took longer than [`Limits::timeout`].
    #[error("the query took longer than {0:?} (query.timeout); ask for less")]
    Timeout(Duration),
}

fn expired(hour: &str, after: &str, increases: bool) -> String {
    let why = if increases { "increase needs all readings" } else { "a step begins or ends inside of it" };
    let instead = if increases { "other functions" } else { "steps that begin at full hours in UTC" };
    format!(
        "the readings of the hour from {hour} have expired (retention.readings) or cannot be read, and {why}; ask for \
         {instead}, or for a range whose steps begin after {after}"
    )
}

impl QueryError {
    /// Returns the error of a query that must be complete, but lacks `missing`.
    #[must_use]
    pub fn incomplete(missing: Missing) -> Self {
        match missing {
            Missing::Devices => Self::DeviceIndexIncomplete,
            Missing::Stored => Self::Store(StoreError::new(Cause::Network, "only pending readings are known")),
        }
    }

    /// Returns the error of a change that has to know the state before it.
    ///
    /// If the store does not answer in time, the change cannot ask for less, as a query can.
    #[must_use]
    pub fn of_change(self) -> Self {
        match self {
            Self::Timeout(limit) => StoreError::new(Cause::Timeout, format!("no answer within {limit:?}")).into(),
            other => other,
        }
    }

    /// Whether the error is about one device, so that a page can end before it.
    ///
    /// The device has too many points, needs too many values, or needs readings that have expired.
    const fn is_limit(&self) -> bool {
        matches!(self, Self::TooManyPoints { .. } | Self::TooManyValues { .. } | Self::ReadingsExpired { .. })
    }
}

impl From<StoreError> for QueryError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// An answer, and what may be missing in it.
#[derive(Debug, Clone)]
pub struct Answer<T> {
    /// The answer itself.
    pub body: T,
    /// `Some`: pending is full, and readings that were acknowledged within this time may be missing.
    pub lagging: Option<Duration>,
    /// The part that is missing for another reason. `None`: no other part is missing.
    pub partial: Option<Missing>,
}

/// The part that a partial answer lacks. It is `Stored` if both are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    /// Devices, or series and metadata of devices, that the device index lacks.
    Devices,
    /// Stored readings, because the store does not answer.
    Stored,
}

impl Missing {
    /// The reason, and what to do.
    #[must_use]
    pub fn reason(self) -> String {
        match self {
            Self::Devices => format!("{DEVICE_INDEX} lacks devices or series; run: {REBUILD}"),
            Self::Stored => "the store does not answer".to_owned(),
        }
    }
}

impl<T> Answer<T> {
    /// Converts the answer itself.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Answer<U> {
        let Self { body, lagging, partial } = self;
        Answer { body: convert(body), lagging, partial }
    }

    /// Returns the answer itself.
    ///
    /// # Errors
    /// If something may be missing in it.
    pub fn complete(self) -> Result<T, QueryError> {
        match (self.partial, self.lagging) {
            (Some(missing), _) => Err(QueryError::incomplete(missing)),
            (None, Some(_)) => Err(QueryError::Lagging),
            (None, None) => Ok(self.body),
        }
    }
}

/// Answers queries.
#[derive(Clone)]
pub struct Queries {
    store: Arc<dyn Store>,
    pipeline: Arc<Pipeline>,
    limits: Limits,
    /// The deadline of each query. `None`: the time of a query begins with it.
    deadline: Option<Instant>,
    /// The turn of the query that has the readings of large pending hours in memory.
    large_hours: Arc<Semaphore>,
    /// The turns of the slices that are read ahead.
    reads_ahead: Arc<Semaphore>,
    /// [`LARGE_HOUR`], or less in tests.
    large_hour: usize,
}

impl Queries {
    /// Answers from `store` and the pending readings of `pipeline`.
    pub fn new(store: Arc<dyn Store>, pipeline: Arc<Pipeline>, limits: Limits) -> Self {
        let [large_hours, reads_ahead] = [1, READS_AHEAD].map(|turns| Arc::new(Semaphore::new(turns)));
        Self { store, pipeline, limits, deadline: None, large_hours, reads_ahead, large_hour: LARGE_HOUR }
    }

    /// Returns the limits.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns queries for one request. Together they may take as long as one, from now on.
    #[must_use]
    pub(crate) fn with_one_deadline(&self) -> Self {
        Self { deadline: Some(self.deadline()), ..self.clone() }
    }

    /// Returns the deadline of a query that begins now.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline.unwrap_or_else(|| Instant::now() + self.limits.timeout)
    }

    /// Waits for the store's answer. Fails as soon as the store does not answer pings.
    ///
    /// Drops `request` at the deadline, which ends its work.
    async fn ask<T>(
        &self,
        deadline: Instant,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, QueryError> {
        tokio::select! {
            biased;
            (since, why) = self.pipeline.store_silent() => {
                Err(QueryError::StoreAway { seconds: since.as_secs(), why })
            }
            answer = tokio::time::timeout_at(deadline, request) => match answer {
                Ok(answer) => Ok(answer?),
                Err(_) => Err(QueryError::Timeout(self.limits.timeout)),
            },
        }
    }

    /// Waits until the acknowledged readings are in pending. `Some(2s)`: the wait ended early, and readings
    /// that were acknowledged within the last two seconds may be missing.
    pub async fn catch_up(&self) -> Option<Duration> {
        self.pipeline.catch_up(self.limits.catch_up).await
    }

    /// Returns the pending readings of each device in a range, by hour, ascending.
    async fn pending(
        &self,
        deadline: Instant,
        devices: &[Arc<str>],
        hours: Range<Hour>,
    ) -> Result<OfPending<Vec<(Hour, Contents)>>, QueryError> {
        let is_soon_known = devices.len() <= DEVICES_PER_LOOK;
        if is_soon_known && self.pipeline.try_is_pending(devices, &hours) == Some(false) {
            return Ok((vec![Vec::new(); devices.len()], None)); // saves a switch of threads
        }
        let contents = |hour: &PendingHour| (hour.hour, hour.contents());
        let contents_of = move |hours: &[PendingHour]| hours.iter().map(contents).collect::<Vec<_>>();
        self.of_pending(deadline, devices.to_vec(), hours, true, contents_of).await
    }

    /// Converts the pending hours of each device in a range, ascending, on a blocking thread.
    ///
    /// If an hour is large, its device waits for the turn, which ends when the caller drops it. If `convert`
    /// keeps the readings, all hours together may have the values of [`HOURS_KEPT`] large ones. Devices
    /// beyond wait too.
    ///
    /// # Errors
    /// If the turn does not come before the deadline.
    async fn of_pending<T: Send + 'static>(
        &self,
        deadline: Instant,
        devices: Vec<Arc<str>>,
        hours: Range<Hour>,
        keeps_readings: bool,
        convert: impl Fn(&[PendingHour]) -> T + Send + 'static,
    ) -> Result<OfPending<T>, QueryError> {
        let (pipeline, large_hour) = (Arc::clone(&self.pipeline), self.large_hour);
        let (found, convert) = blocking(move || {
            let mut kept = 0;
            let unless_large = |device: &Arc<str>| {
                let found = pipeline.pending_hours(device, hours.clone());
                let with_these = kept + found.iter().map(PendingHour::values).sum::<usize>();
                let is_much = keeps_readings && with_these > HOURS_KEPT * large_hour;
                if is_much || found.iter().any(|hour| hour.values() > large_hour) {
                    return Err(found);
                }
                kept = with_these;
                Ok(convert(&found))
            };
            (devices.iter().map(unless_large).collect::<Vec<_>>(), convert)
        })
        .await?;
        if found.iter().all(Result::is_ok) {
            return Ok((found.into_iter().flatten().collect(), None));
        }
        let turn = tokio::time::timeout_at(deadline, Arc::clone(&self.large_hours).acquire_owned()).await;
        let turn = turn.map_err(|_| QueryError::Timeout(self.limits.timeout))?.ok(); // it is never closed
        blocking(move || {
            let all = found.into_iter().map(|of_device| of_device.unwrap_or_else(|hours| convert(&hours)));
            (all.collect::<Vec<T>>(), turn)
        })
        .await
    }
}

/// Runs work that may take milliseconds on a blocking thread. The caller panics if the work panics.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, QueryError> {
    joined(tokio::task::spawn_blocking(work)).await
}

/// Waits for the result of a task. The caller panics if the task panics.
async fn joined<T>(task: impl Future<Output = Result<T, JoinError>>) -> Result<T, QueryError> {
    let stopping = || StoreError::new(Cause::Stopping, "the service is stopping").into();
    crate::common::joined::joined(task).await.ok_or_else(stopping)
}
