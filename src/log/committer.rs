//! Group commit: one thread writes all queued batches, syncs them once, and wakes the requests.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::appender::{Appender, WriteFailure};
use super::fullness::{self, FullnessChange};
use super::handle::{AppendError, Instruments};
use super::record;
use super::spares::Spares;
use super::state::{Entry, Phase, Shared, State, Writer};
use super::{Options, Sync};

/// The most bytes in one group commit. Further batches wait for the next one.
const GROUP_BYTES: u64 = 8 << 20;

/// The work of the writer thread.
#[derive(Debug)]
pub(super) struct Committer {
    shared: Arc<Shared>,
    pub(super) appender: Appender,
    spares: Arc<Spares>,
    sync: Sync,
    group_window: Duration,
    synced_at: Instant,
    instruments: Instruments,
}

impl Committer {
    pub(super) fn new(
        shared: Arc<Shared>,
        appender: Appender,
        spares: Arc<Spares>,
        options: &Options,
        instruments: Instruments,
    ) -> Self {
        let Options { sync, group_window, .. } = *options;
        Self { shared, appender, spares, sync, group_window, synced_at: Instant::now(), instruments }
    }

    /// Runs until the log is closed and all queued batches are written.
    pub(super) fn run(mut self) {
        while let Some(group) = self.next_group() {
            self.commit(group);
        }
        if self.shared.lock().poisoned.is_none() {
            let _ = self.appender.finish(); // all records are synced; the next opening cuts off the room too
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
            let sync_in = match self.sync {
                Sync::Every(interval) if !self.appender.is_synced() => {
                    Some(interval.saturating_sub(self.synced_at.elapsed()))
                }
                _ => None,
            };
            if sync_in.is_some_and(|wait| wait.is_zero()) {
                return Some(Vec::new());
            }
            state = self.wait(state, Writer::WaitsForRecord, sync_in);
        }
        state = self.gather(state);
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            bytes += record::encoded_bytes(entry.batch.payload()) as u64;
            bytes <= GROUP_BYTES
        };
        let count = state.queue.iter().take_while(fits).count().max(1);
        Some(state.queue.drain(..count).collect())
    }

    /// Waits for more records, until the first one has waited for `log.group_window` or the group is large.
    fn gather<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while state.phase == Phase::Open && !state.is_group_large() {
            let waited = state.queue.front().map_or(Duration::ZERO, |first| first.queued_at.elapsed());
            let wait = self.group_window.saturating_sub(waited);
            if wait.is_zero() {
                break;
            }
            state = self.wait(state, Writer::Gathers, Some(wait));
        }
        state
    }

    /// Waits until the writer is notified, for at most `limit`.
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        writer: Writer,
        limit: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        state.writer = writer;
        let work = &self.shared.work;
        let mut state = match limit {
            Some(limit) => work.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0,
            None => work.wait(state).unwrap_or_else(PoisonError::into_inner),
        };
        state.writer = Writer::Works;
        state
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
        if must_roll || self.appender.is_spare_due() {
            self.appender.end_segment()?;
        }
        if !group.is_empty() {
            self.take_space(group)?;
            let batches = || group.iter().map(|entry| &entry.batch);
            match self.appender.write(batches()) {
                Err(WriteFailure::DiskFull(_)) if self.spares.give_back() => self.appender.write(batches())?,
                written => written?,
            }
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

    /// Takes space for a group. If the group would touch the reserve, this removes the spares, and fails if
    /// that is not enough.
    fn take_space(&self, group: &[Entry]) -> Result<(), WriteFailure> {
        let bytes = self.appender.growth(bytes_of(group));
        if self.shared.lock().reserve.needs_update(bytes) {
            let mut space = self.appender.space();
            if self.shared.lock().reserve.left_of(space) < bytes && self.spares.give_back() {
                space = self.appender.space();
            }
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
        let (change, wakes_readers, used_bytes, free_bytes) = {
            let mut state = self.shared.lock();
            state.queued_bytes -= bytes_of(&group);
            if let Some(AppendError::Poisoned(why)) = &refusal {
                state.poisoned = Some(why.clone());
            } else {
                // Even if the group was refused: the writer may have started a segment before.
                state.readable = self.appender.end;
                state.durable = self.appender.durable;
                state.room = self.appender.room();
                if state.bases.last() != Some(&self.appender.base) {
                    state.bases.push(self.appender.base);
                }
            }
            if refusal.is_none() {
                state.appended_readings += group.iter().map(|entry| u64::from(entry.batch.readings())).sum::<u64>();
            }
            let change = failed.and_then(|(why, free)| state.reserve.failed(why, free, Instant::now()));
            (change, state.take_waiting_readers(false), state.used_bytes(), state.reserve.left())
        };
        self.spares.fit(used_bytes, free_bytes);
        fullness::log_change(change);
        if wakes_readers {
            self.shared.progress.notify_all();
        }
        if let Some(AppendError::Poisoned(_)) = &refusal {
            self.shared.failed.cancel();
        }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::crash_tests::{batch, open_log};
    use super::super::state::LARGE_GROUP_RECORDS;
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn a_group_waits_for_its_window_and_takes_what_arrives_meanwhile() {
        let window = Duration::from_millis(5);
        let (log, committer, _) = open_log(Sync::Always, window);
        let (start, _first) = (Instant::now(), log.append(batch(1, 1)).unwrap());
        std::thread::scope(|scope| {
            let group = scope.spawn(|| committer.next_group().expect("open").len());
            while log.shared.lock().writer != Writer::Gathers && !group.is_finished() {
                std::thread::yield_now();
            }
            let _second = log.append(batch(2, 1)).unwrap();
            assert!((1..=2).contains(&group.join().unwrap()));
        });
        assert!(start.elapsed() >= window, "it did not wait");
    }

    #[test]
    fn a_large_group_does_not_wait_for_its_window() {
        let (log, committer, _) = open_log(Sync::Always, HOUR);
        std::thread::scope(|scope| {
            let group = scope.spawn(|| committer.next_group().expect("open").len());
            let acks: Vec<_> = (0..).map(|id| log.append(batch(id, 1)).unwrap()).take(LARGE_GROUP_RECORDS).collect();
            assert_eq!(group.join().unwrap(), acks.len());
            // Many bytes are a large group too. It is already queued when the writer looks.
            let acks: Vec<_> = (0..16).map(|id| log.append(batch(id, 255)).unwrap()).collect();
            assert_eq!(committer.next_group().expect("open").len(), acks.len());
        });
    }

    #[test]
    fn a_closing_log_does_not_wait_for_the_window() {
        let (log, committer, recovery) = open_log(Sync::Always, HOUR);
        std::thread::scope(|scope| {
            let (ack, running) = (log.append(batch(1, 1)).unwrap(), scope.spawn(|| committer.run()));
            while log.shared.lock().writer != Writer::Gathers {
                assert!(!running.is_finished(), "it did not wait for more records");
                std::thread::yield_now();
            }
            log.close();
            assert_eq!(ack.wait(), Ok(()));
        });
        assert!(log.usage().readable > recovery.end);
    }
}
