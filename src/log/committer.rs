//! Group commit: the thread that takes what is queued, writes it at once, syncs it at once, and wakes whoever
//! waits.

use std::sync::Arc;
use std::time::Instant;

use super::Sync;
use super::fullness::{self, FullnessChange};
use super::handle::{AppendError, Entry, Instruments, Life, Shared};
use super::record;
use super::writer::{Appender, WriteFailure};

/// The most bytes that one group commit writes. More than that waits for the next.
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

    /// Runs until the log is closed and what was queued is written.
    pub(super) fn run(mut self) {
        while let Some(group) = self.next_group() {
            self.commit(group);
        }
        self.shared.lock().life = Life::Closed;
        self.shared.news.notify_all();
    }

    /// Waits for work. `None` when the log is closed and nothing is queued; an empty group when it is time to
    /// sync, or to end the segment.
    pub(super) fn next_group(&self) -> Option<Vec<Entry>> {
        let mut state = self.shared.lock();
        while state.queue.is_empty() {
            if state.must_roll {
                return Some(Vec::new());
            }
            if state.life != Life::Open {
                return if self.appender.is_synced() || state.poisoned.is_some() { None } else { Some(Vec::new()) };
            }
            state.writer_waits = true;
            state = match self.sync {
                Sync::Every(interval) if !self.appender.is_synced() => {
                    let patience = interval.saturating_sub(self.synced_at.elapsed());
                    let wait = self.shared.work.wait_timeout(state, patience);
                    let (mut state, timeout) = wait.unwrap_or_else(std::sync::PoisonError::into_inner);
                    if timeout.timed_out() {
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

    /// Writes a group, syncs what is due, and tells those who wait.
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

    /// Sees to it that the group leaves the reserve free.
    fn take_space(&self, group: &[Entry]) -> Result<(), WriteFailure> {
        let bytes = bytes_of(group);
        if self.shared.lock().reserve.must_look(bytes) {
            let space = self.appender.space();
            let change = self.shared.lock().reserve.looked(space, Instant::now());
            fullness::log_change(change);
        }
        let taken = self.shared.lock().reserve.take(bytes);
        taken.map_err(|change| {
            fullness::log_change(change);
            WriteFailure::Reserved
        })
    }

    fn publish(&self, group: Vec<Entry>, result: Result<(), WriteFailure>) {
        let failed = |why| Some((why, self.appender.space().free));
        let (refusal, failed) = match result {
            Ok(()) => (None, None),
            Err(WriteFailure::Reserved) => (Some(AppendError::DiskFull), None),
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
                // Also after a refusal: a segment may have been started before it.
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
        self.shared.news.notify_all();
        let outcome = refusal.map_or(Ok(()), Err);
        for entry in group {
            let _ = entry.ack.send(outcome.clone()); // whoever waited may have gone away; the append stands
        }
    }
}

/// How many bytes the records of a group take.
fn bytes_of(group: &[Entry]) -> u64 {
    group.iter().map(|entry| record::encoded_bytes(entry.batch.payload()) as u64).sum()
}
