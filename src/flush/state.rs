//! The state of the pipeline behind its lock: pending, and how far the pipeline is. Queries look at pending
//! here.

use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use metrics::Histogram;

use super::Pipeline;
use super::metadata::WaitingMetadata;
use crate::common::once_per_change::OncePerChange;
use crate::log::Position;
use crate::model::Hour;
use crate::pending::{NextDeletion, Pending, PendingDevice, PendingHour};

/// The state of the deleter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeleterState {
    /// The deleter waits for a deletion that can be executed.
    Idle,
    /// The deleter executes a deletion.
    Busy,
    /// The service stops, and the store has not executed a deletion.
    GaveUp,
}

/// The state behind the lock.
pub(super) struct State {
    pub(super) pending: Pending,
    /// The position up to which the log is inserted into pending.
    pub(super) inserted: Position,
    /// The number of readings that the feeder has taken from the log since the start.
    ///
    /// It includes those that were behind the checkpoint when the log was opened, and those that the replay
    /// of a deletion leaves out.
    pub(super) inserted_readings: u64,
    /// Since when the feeder has waited for room in pending.
    pub(super) stalled_since: Option<tokio::time::Instant>,
    /// Whether pending is full, for the log lines.
    ///
    /// This ends only when half of the memory is free. Otherwise a store that is just fast enough would cause
    /// two lines per write.
    pub(super) full: OncePerChange,
    /// Whether the scheduler sleeps until readings are pending.
    pub(super) scheduler_is_idle: bool,
    /// Whether the scheduler takes all buckets, due or not.
    pub(super) draining: bool,
    /// The number of tasks that write buckets.
    pub(super) writes: usize,
    /// The number of tasks in a row that were given up because all of their attempts had failed.
    pub(super) given_up_in_a_row: usize,
    /// The number of tasks that the store has done.
    pub(super) done: u64,
    pub(super) deleter: DeleterState,
    /// The metadata that operators have set and the store has not taken.
    pub(super) metadata: WaitingMetadata,
    /// Whether the feeder inserts no more records.
    pub(super) stopped: bool,
}

impl State {
    /// Begins to insert the log at `start`.
    pub(super) fn new(pending: Pending, start: Position) -> Self {
        Self {
            pending,
            inserted: start,
            inserted_readings: 0,
            stalled_since: None,
            full: OncePerChange::default(),
            scheduler_is_idle: false,
            draining: false,
            writes: 0,
            given_up_in_a_row: 0,
            done: 0,
            deleter: DeleterState::Idle,
            metadata: WaitingMetadata::default(),
            stopped: false,
        }
    }

    /// Returns whether the feeder has to wake the scheduler, after it has inserted readings.
    pub(super) fn wakes_scheduler(&mut self) -> bool {
        let is_idle = std::mem::take(&mut self.scheduler_is_idle);
        is_idle || self.draining || self.pending.is_urgent()
    }

    /// Notes that the store has done a task.
    pub(super) fn note_done(&mut self) {
        self.done += 1;
        self.given_up_in_a_row = 0;
    }

    /// Returns whether no more buckets can become due and no metadata waits for the store: the feeder has
    /// read the log up to `readable`, or cannot go on, and the deleter has nothing to do.
    pub(super) fn is_at_rest(&mut self, readable: Position) -> bool {
        let is_deleting = match self.deleter {
            DeleterState::Idle => !matches!(self.pending.next_deletion(), NextDeletion::None),
            DeleterState::Busy => true,
            DeleterState::GaveUp => false,
        };
        let is_fed = self.inserted >= readable || self.pending.is_full() || self.metadata.is_full();
        !is_deleting && self.metadata.is_done() && is_fed
    }
}

/// A held lock. It records how long it was held.
pub(super) struct Locked<'a> {
    /// `None` once the lock is released.
    state: Option<MutexGuard<'a, State>>,
    since: Instant,
    held: &'a Histogram,
    #[cfg(feature = "bench")]
    cpu: super::bench::CpuClock,
}

impl Pipeline {
    #[cfg_attr(feature = "bench", track_caller)]
    pub(super) fn lock(&self) -> Locked<'_> {
        self.locked(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn locked<'a>(&'a self, state: MutexGuard<'a, State>) -> Locked<'a> {
        Locked {
            state: Some(state),
            since: Instant::now(),
            held: &self.metrics.pending_lock_seconds,
            #[cfg(feature = "bench")]
            cpu: super::bench::CpuClock::start(),
        }
    }

    /// Calls `look` with the lock held.
    ///
    /// `look` must take a bounded time, however many readings are pending.
    #[cfg_attr(feature = "bench", track_caller)]
    pub(super) fn with_pending<T>(&self, look: impl FnOnce(&Pending) -> T) -> T {
        look(&self.lock().pending)
    }

    /// Inserts the readings of a record into pending, in place of the feeder.
    #[cfg(test)]
    pub(crate) fn insert(&self, payload: &[u8]) {
        self.lock().pending.insert(payload, Position(0), self.now_ms()).expect("a valid record");
    }

    /// Returns whether one of a few devices has pending readings in a range; `None` if the lock is in use.
    #[cfg_attr(feature = "bench", track_caller)]
    pub fn try_is_pending(&self, devices: &[Arc<str>], hours: &Range<Hour>) -> Option<bool> {
        let state = self.locked(self.state.try_lock().ok()?);
        Some(devices.iter().any(|device| state.pending.has_hours(device, hours)))
    }

    /// Returns the pending hours of a device in a range, ascending.
    pub fn pending_hours(&self, device: &str, hours: Range<Hour>) -> Vec<PendingHour> {
        let mut found = Vec::new();
        self.each_pending_hour(device, hours, |hour| found.push(hour));
        found
    }

    /// Calls `visit`, without the lock, with the pending hours of a device in a range, ascending.
    ///
    /// Locks once per turn. So the readings of an hour are of one moment, but two hours may be of two
    /// moments.
    pub fn each_pending_hour(&self, device: &str, hours: Range<Hour>, mut visit: impl FnMut(PendingHour)) {
        let mut rest = Some(hours.start);
        while let Some(next) = rest {
            let found;
            (found, rest) = self.with_pending(|pending| pending.hours(device, next..hours.end));
            found.into_iter().for_each(&mut visit);
        }
    }

    /// Returns up to `limit` pending devices whose ID starts with `prefix` and follows `after`, ascending.
    ///
    /// Locks once per turn, like [`Self::pending_hours`], and calls `convert` without the lock.
    pub fn pending_devices<T>(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        convert: impl Fn(PendingDevice) -> T,
    ) -> Vec<T> {
        let (mut found, mut after) = (Vec::new(), after.map(Arc::<str>::from));
        loop {
            let room = limit - found.len();
            let (turn, is_cut) = self.with_pending(|pending| pending.devices(prefix, after.as_deref(), room));
            if let Some(last) = turn.last() {
                after = Some(Arc::clone(&last.device));
            }
            found.extend(turn.into_iter().map(&convert));
            if !is_cut {
                return found;
            }
        }
    }

    /// Returns the first instant of the readings that are accepted and not stored yet, in Unix milliseconds:
    /// `i64::MAX` if there are none, `None` if some of them stay in the log for longer than a minute.
    pub async fn first_unstored_ms(self: &Arc<Self>) -> Option<i64> {
        if self.catch_up(Duration::from_secs(60)).await.is_some() {
            return None;
        }
        let pipeline = Arc::clone(self);
        let first_ms = move || pipeline.pending_devices("", None, usize::MAX, |device| device.first_ts_ms);
        let pending = tokio::task::spawn_blocking(first_ms).await.ok()?;
        Some(pending.into_iter().min().unwrap_or(i64::MAX))
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_ref().expect("held until it is dropped")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("held until it is dropped")
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let held = self.since.elapsed();
        #[cfg(feature = "bench")]
        let hold = self.cpu.stop(held);
        self.state = None;
        #[cfg(feature = "bench")]
        super::bench::record(hold);
        self.held.record(held.as_secs_f64());
    }
}
