//! Queries: what is stored and what is pending, as one.
//!
//! A query first waits until everything acked before it is in pending (read your writes), takes a snapshot of
//! what is pending, and only then asks the store. What is stored in between is then in both, never in
//! neither; and since both are merged by identity, being in both does no harm.
//!
//! Stored stats need no readings: where the pending readings of an hour all lie behind the last stored one,
//! they are simply added. That holds for rollups that are kept beside the readings too: a reading stays
//! pending until its hour's rollup speaks of it. Only where pending readings may repeat or precede stored
//! ones are the stored readings fetched and merged.
//!
//! Whoever asks has a [`DeviceScope`](crate::access::DeviceScope): ids come in and go out as they look from
//! there, a device that is out of reach is refused or left out, and what is asked of pending and of the store
//! are the ids under which devices are kept. No question goes around that.
//!
//! While the store is away, a query answers with what is pending, and says that this is not all; when nothing
//! is pending that it asks for, it fails. It does not wait for a store that is known to be away.
//!
//! A query has one deadline. It asks the store and pending for no more than an answer may hold, and never
//! once for each hour. Snapshots of pending and the merging of readings run on blocking threads, because they
//! may take milliseconds.
//!
//! Knows no HTTP; the merging is pure.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::access::DeviceScopeError;
use crate::flush::Pipeline;
use crate::model::{Contents, Hour};
use crate::store::{Cause, Store, StoreError};

#[cfg(any(test, feature = "bench"))]
#[doc(hidden)]
pub mod bench;
mod devices;
mod latest;
mod readings;
mod rollups;

pub use devices::DevicesRequest;
pub use latest::Latest;
pub use readings::{Page, ReadingAt, ReadingsRequest};
pub use rollups::{Rollups, RollupsRequest, Series, Step};

/// How much one query may ask for.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The longest range, in hours.
    pub max_hours: u32,
    /// The most points (steps times metrics) in one answer.
    pub max_points: usize,
    /// How long a query waits until what was just acked can be seen.
    pub catch_up: Duration,
    /// How long a query may take.
    pub timeout: Duration,
}

/// A query was not answered.
#[derive(Debug, Clone, thiserror::Error)]
pub enum QueryError {
    /// The range is longer than [`Limits::max_hours`].
    #[error("a query spans at most {max} hours, this one spans {asked}")]
    RangeTooLong {
        /// The limit.
        max: u32,
        /// The hours that the range touches.
        asked: u64,
    },
    /// The rollups of one device, or combined ones, have more points than [`Limits::max_points`].
    #[error(
        "there are {found} points or more, and an answer has at most {max} (query.max_points); ask for a shorter range, \
         fewer metrics, or a longer step"
    )]
    TooManyPoints {
        /// The limit.
        max: usize,
        /// How many there are: those of one device, or of the devices combined so far.
        found: usize,
    },
    /// The device is out of reach of who asks.
    #[error(transparent)]
    OutOfReach(#[from] DeviceScopeError),
    /// Too many devices would have to be looked through for those that are in reach.
    #[error("among {0} devices there are too few that this token is for; ask with a longer prefix")]
    TooManyDevices(usize),
    /// The store did not answer.
    #[error("the store does not answer: {0}")]
    Store(StoreError),
    /// The store has been away for some time, and is not asked until it answers again.
    #[error("the store does not answer: it has been away for {seconds} s: {why}")]
    StoreAway {
        /// For how long.
        seconds: u64,
        /// What it said last.
        why: String,
    },
    /// It took longer than [`Limits::timeout`].
    #[error("the query took longer than {0:?}")]
    Timeout(Duration),
}

impl From<StoreError> for QueryError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// An answer, and for how many seconds the log reader has been standing still if something acked is not in
/// it.
#[derive(Debug, Clone)]
pub struct Answer<T> {
    /// What was asked for.
    pub body: T,
    /// `Some`: readings acked within this time may be missing, because pending is full.
    pub lagging: Option<Duration>,
    /// What is stored is missing, because the store does not answer: this is what is pending.
    pub partial: bool,
}

/// Answers queries.
#[derive(Clone)]
pub struct Queries {
    store: Arc<dyn Store>,
    pipeline: Arc<Pipeline>,
    limits: Limits,
}

impl Queries {
    /// Answers from `store` and what `pipeline` has not brought there yet.
    pub fn new(store: Arc<dyn Store>, pipeline: Arc<Pipeline>, limits: Limits) -> Self {
        Self { store, pipeline, limits }
    }

    /// When a query that begins now must be done.
    fn deadline(&self) -> Instant {
        Instant::now() + self.limits.timeout
    }

    /// Asks the store, unless it is known to be away. At the deadline the question is dropped, which ends the
    /// work behind it.
    async fn ask<T>(
        &self,
        deadline: Instant,
        question: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, QueryError> {
        if let Some((since, why)) = self.pipeline.store_away() {
            return Err(QueryError::StoreAway { seconds: since.as_secs(), why });
        }
        match tokio::time::timeout_at(deadline, question).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(QueryError::Timeout(self.limits.timeout)),
        }
    }

    async fn catch_up(&self) -> Option<Duration> {
        self.pipeline.catch_up(self.limits.catch_up).await
    }

    /// Returns the pending readings of each device in a range, by hour, ascending.
    async fn pending(
        &self,
        devices: &[Arc<str>],
        hours: Range<Hour>,
    ) -> Result<Vec<Vec<(Hour, Contents)>>, QueryError> {
        let (pipeline, devices) = (Arc::clone(&self.pipeline), devices.to_vec());
        let contents_of = move |device: &Arc<str>| {
            let snapshot = pipeline.pending_hours(device, hours.clone());
            snapshot.iter().map(|hour| (hour.hour, hour.contents())).collect()
        };
        blocking(move || devices.iter().map(contents_of).collect()).await
    }

    /// The hours that a range of instants touches.
    fn hours(&self, from_ms: i64, to_ms: i64) -> Result<Range<Hour>, QueryError> {
        let hours = Hour::of(from_ms)..Hour::at_or_after(to_ms);
        let asked = i64::from(hours.end.0) - i64::from(hours.start.0);
        if asked > i64::from(self.limits.max_hours) {
            return Err(QueryError::RangeTooLong { max: self.limits.max_hours, asked: asked.unsigned_abs() });
        }
        Ok(hours)
    }
}

/// Runs work that may take milliseconds on a thread of its own, so that no other task waits for it. A panic
/// in it goes on in the caller.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, QueryError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(StoreError::new(Cause::Stopping, "the service is stopping").into()),
        },
    }
}
