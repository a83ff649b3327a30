//! Group commit: one thread writes all queued batches, syncs them once, and wakes the requests.

use std::sync::Arc;
use std::time::Instant;

use super::Sync;
use super::appender::{Appender, WriteFailure};
use super::fullness::{self, FullnessChange};
use super::handle::{AppendError, Entry, Instruments, Phase, Shared};
use super::record;

/// The most bytes in one group commit. Further batches wait for the next one.
const GROUP_BYTES: u64 = 8 << 20;

/// The writer thread.
#[derive(Debug)]
pub(super) struct Committer {
    shared: Arc<Shared>,
    appender: Appender,
    sync: Sync,
    synced_at: Instant,
    instruments: Instruments,
}

impl Committer {
    pub(super) fn new(shared: Arc<Shared>, appender: Appender, sync: Sync, instruments: Instruments) -> Self {
        Self { shared, appender, sync, synced_at: Instant::now(), instruments }
    }

    /// Runs until the log is closed and all queued batches are written.
    pub(super) fn run(mut self) {
        while let Some(group) = self.next_group() {
            self.commit(group);
        }
        self.shared.lock().phase = Phase::Closed;
        self.shared.progress.notify_all();
    }

    /// Waits for work. `None` when the log is closed and the queue is empty; an empty group when a sync or
    /// the end of the segment is due.
    pub(super) fn next_group(&self) -> Option<Vec<Entry>> {
        let mut state = self.shared.lock();
        while state.queue.is_empty() {
            if state.must_roll {
                return Some(Vec::new());
            }
            if state.phase != Phase::Open {
                return if self.appender.is_synced() || state.poisoned.is_some() { None } else { Some(Vec::new()) };
            }
            state.writer_waits = true;
            state = match self.sync {
                Sync::Every(interval) if !self.appender.is_synced() => {
                    let timeout = interval.saturating_sub(self.synced_at.elapsed());
                    let wait = self.shared.work.wait_timeout(state, timeout);
                    let (mut state, waited) = wait.unwrap_or_else(std::sync::PoisonError::into_inner);
                    if waited.timed_out() {
                        state.writer_waits = false;
                        return Some(Vec::new());
                    }
                    state
                }
                _ => self.shared.work.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner),
            };
            state.writer_waits = false;
        }
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            bytes += record::encoded_bytes(entry.batch.payload()) as u64;
            bytes <= GROUP_BYTES
        };
        let count = state.queue.iter().take_while(fits).count().max(1);
        Some(state.queue.drain(..count).collect())
    }

    /// Writes a group, syncs it if a sync is due, and resolves its [`Ack`](super::Ack)s.
    pub(super) fn commit(&mut self, group: Vec<Entry>) {
        let result = self.write(&group);
        self.publish(group, result);
    }

    fn write(&mut self, group: &[Entry]) -> Result<(), WriteFailure> {
        let must_roll = {
            let mut state = self.shared.lock();
            if let Some(why) = &state.poisoned {
                return Err(WriteFailure::Poisoned(why.clone()));
            }
            std::mem::take(&mut state.must_roll)
        };
        if must_roll {
            self.appender.end_segment()?;
        }
        if !group.is_empty() {
            self.take_space(group)?;
            self.appender.write(group.iter().map(|entry| &entry.batch))?;
            self.instruments.group_records.record(group.len() as f64);
        }
        let due = match self.sync {
            Sync::Always => true,
            Sync::Every(interval) => group.is_empty() || self.synced_at.elapsed() >= interval,
        };
        if due && !self.appender.is_synced() {
            let seconds = self.appender.sync()?;
            self.synced_at = Instant::now();
            self.instruments.sync_seconds.record(seconds);
        }
        Ok(())
    }

    /// Takes space for a group, and fails if the group would touch the reserve.
    fn take_space(&self, group: &[Entry]) -> Result<(), WriteFailure> {
        let bytes = bytes_of(group);
        if self.shared.lock().reserve.needs_update(bytes) {
            let space = self.appender.space();
            let change = self.shared.lock().reserve.update(space, Instant::now());
            fullness::log_change(change);
        }
        let taken = self.shared.lock().reserve.take(bytes);
        taken.map_err(|change| {
            fullness::log_change(change);
            WriteFailure::ReserveTouched
        })
    }

    fn publish(&self, group: Vec<Entry>, result: Result<(), WriteFailure>) {
        let failed = |why| Some((why, self.appender.space().free));
        let (refusal, failed) = match result {
            Ok(()) => (None, None),
            Err(WriteFailure::ReserveTouched) => (Some(AppendError::DiskFull), None),
            Err(WriteFailure::DiskFull(why)) => (Some(AppendError::DiskFull), failed(FullnessChange::DiskFull(why))),
            Err(WriteFailure::OutOfFiles(why)) => {
                (Some(AppendError::OutOfFiles), failed(FullnessChange::OutOfFiles(why)))
            }
            Err(WriteFailure::Poisoned(why)) => (Some(AppendError::Poisoned(why)), None),
        };
        let change = {
            let mut state = self.shared.lock();
            state.queued_bytes -= bytes_of(&group);
            if let Some(AppendError::Poisoned(why)) = &refusal {
                state.poisoned = Some(why.clone());
            } else {
                // Even if the group was refused: the writer may have started a segment before.
                state.readable = self.appender.end();
                state.durable = self.appender.durable();
                if state.bases.last() != Some(&self.appender.base()) {
                    state.bases.push(self.appender.base());
                }
            }
            if refusal.is_none() {
                state.appended_readings += group.iter().map(|entry| u64::from(entry.batch.readings())).sum::<u64>();
            }
            failed.and_then(|(why, free)| state.reserve.failed(why, free, Instant::now()))
        };
        fullness::log_change(change);
        self.shared.progress.notify_all();
        let outcome = refusal.map_or(Ok(()), Err);
        for entry in group {
            let _ = entry.ack.send(outcome.clone()); // the request may be gone; the append stays
        }
    }
}

/// The number of bytes in the records of a group.
fn bytes_of(group: &[Entry]) -> u64 {
    group.iter().map(|entry| record::encoded_bytes(entry.batch.payload()) as u64).sum()
}
