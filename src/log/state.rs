//! The state of an open log that the handle, the writer thread and readers share.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::Position;
use super::batch::Batch;
use super::fullness::Fullness;
use super::handle::AppendError;
use super::reader::Readers;
use super::reserve::Reserve;
use super::segment;
use crate::disk::OpenFile;

/// A group with this many records, or with [`LARGE_GROUP_BYTES`], does not wait for `log.group_window`.
///
/// A load that queues so many has many records per sync even without the wait.
pub(super) const LARGE_GROUP_RECORDS: usize = 32;
const LARGE_GROUP_BYTES: u64 = 64 << 10;

/// The state that the handle and the writer thread share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// Wakes the writer when it has work.
    ///
    /// The work is a queued batch, a segment that has to end, or a log that closes.
    pub(super) work: Condvar,
    /// Wakes readers when enough is readable, or the log closes.
    pub(super) progress: Condvar,
    /// Cancelled when the log is poisoned.
    pub(super) failed: CancellationToken,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) queue: VecDeque<Entry>,
    pub(super) queued_bytes: u64,
    pub(super) writer: Writer,
    pub(super) readers: Readers,
    /// The positions of the segments on disk, ascending. The last one is being written.
    pub(super) bases: Vec<Position>,
    /// The file of the last of them.
    pub(super) newest: Arc<dyn OpenFile>,
    /// The follower needs the records from here on. `None`: there is no follower.
    pub(super) held: Option<Position>,
    /// The end of the readable records, which are the acknowledged ones.
    pub(super) readable: Position,
    /// The end of the synced records.
    pub(super) durable: Position,
    /// The number of readings acknowledged since the log was opened.
    pub(super) appended_readings: u64,
    pub(super) poisoned: Option<String>,
    pub(super) fullness: Fullness,
    pub(super) reserve: Reserve,
    /// The bytes that the newest file has behind its records (`spares.rs`).
    pub(super) room: u64,
    /// The writer has to end the segment as soon as it can.
    pub(super) must_roll: bool,
    pub(super) phase: Phase,
}

/// Whether the log accepts appends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Open,
    /// The log accepts no more appends, and writes the queued ones.
    Closing,
    /// The queued appends are written or refused.
    Closed,
}

/// The state of the writer thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writer {
    Works,
    /// It has nothing to write. The next record wakes it.
    WaitsForRecord,
    /// It waits for more records of a group.
    ///
    /// The record that makes the group large wakes it.
    Gathers,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) batch: Batch,
    pub(super) ack: oneshot::Sender<Result<(), AppendError>>,
    pub(super) queued_at: Instant,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl State {
    /// The bytes on disk and in the queue.
    pub(super) fn used_bytes(&self) -> u64 {
        let oldest = self.bases.first().map_or(self.readable, |&base| base);
        self.readable.0 - oldest.0 + self.queued_bytes
    }

    /// Whether the newest segment has records, and takes more than `bytes`.
    pub(super) fn newest_exceeds(&self, bytes: u64) -> bool {
        let newest = self.bases.last().copied().unwrap_or_default();
        self.readable.0.saturating_sub(newest.0) > bytes.max(segment::Header::BYTES as u64)
    }

    /// Whether the queued records are worth a write and a sync of their own.
    pub(super) fn is_group_large(&self) -> bool {
        self.queue.len() >= LARGE_GROUP_RECORDS || self.queued_bytes >= LARGE_GROUP_BYTES
    }
}
