//! Pending, and how far the pipeline is: the state behind its lock (`locked`).

use tokio::time::Instant;

use crate::common::once_per_change::OncePerChange;
use crate::log::Position;
use crate::pending::Pending;

/// The state behind the lock.
pub(super) struct State {
    pub(super) pending: Pending,
    /// The position up to which the log is inserted into pending.
    pub(super) inserted: Position,
    /// The readings inserted so far, those included that the log had when it was opened.
    pub(super) inserted_readings: u64,
    /// Since when the feeder has waited for room in pending.
    pub(super) stalled_since: Option<Instant>,
    /// Whether pending is full, for the log. It ends when half of the memory is free, or a store that is just
    /// fast enough would cause two lines per write.
    pub(super) full: OncePerChange,
    /// The scheduler sleeps until there is something pending.
    pub(super) scheduler_is_idle: bool,
    /// Take all buckets, due or not.
    pub(super) draining: bool,
    /// While draining, the number of buckets that the store did not accept.
    pub(super) given_up: usize,
    /// While draining, the number of writes in a row that the store did not accept.
    pub(super) failed_in_a_row: usize,
    /// Insert no more records.
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
            given_up: 0,
            failed_in_a_row: 0,
            stopped: false,
        }
    }

    /// Returns whether the feeder has to wake the scheduler, after it has inserted readings.
    pub(super) fn wakes_scheduler(&mut self) -> bool {
        let is_idle = std::mem::take(&mut self.scheduler_is_idle);
        is_idle || self.draining || self.pending.is_urgent()
    }

    /// Returns whether draining has ended: all readings of the log up to `readable` are stored or given up,
    /// or the store accepts no writes.
    pub(super) fn is_finished(&self, readable: Position, max_in_flight: usize) -> bool {
        let is_inserted = self.inserted >= readable || (self.given_up > 0 && self.pending.is_full());
        let is_empty = self.pending.buckets() == self.given_up && self.pending.deletions() == 0;
        (is_inserted && is_empty) || self.failed_in_a_row >= max_in_flight
    }
}
