//! Pending, and how far the pipeline is: the state behind its lock (`locked`).

use tokio::time::Instant;

use super::metadata::WaitingMetadata;
use crate::common::once_per_change::OncePerChange;
use crate::log::Position;
use crate::pending::{NextDeletion, Pending};

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
    /// The readings inserted so far, including those that the log had when it was opened.
    pub(super) inserted_readings: u64,
    /// Since when the feeder has waited for room in pending.
    pub(super) stalled_since: Option<Instant>,
    /// Whether pending is full, for the log lines. This ends only when half of the memory is free. Otherwise
    /// a store that is just fast enough would cause two lines per write.
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
