//! The writer of the log: group commit, and the only code that appends to segments.
//!
//! One thread runs the [`Committer`]. It takes all queued batches as a group, writes the group with one call,
//! syncs once, and only then wakes the requests. Its [`Appender`] has the file of the newest segment, and
//! starts the next one.
//!
//! Promises:
//! - A refused group leaves nothing in the log: the appender removes the bytes of a failed write, and syncs
//!   the removal.
//! - A lack of space or of file descriptors refuses only the group. After any other failure it is unknown
//!   which bytes are on the disk, so the log is poisoned: it writes nothing more.

use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::batch::Batch;
use super::checkpoint::{Checkpoint, SavedCheckpoint};
use super::fullness::{self, FullnessChange};
use super::handle::{AppendError, Instruments};
use super::record::{self, Kind};
use super::recovery::Recovery;
use super::segment;
use super::spares::{Spares, syncs_worth_a_spare};
use super::state::{Entry, Phase, Shared, State, Writer};
use super::{LogError, Options, Position, Sync};
use crate::disk::{Folder, OpenFile, OpenMode, Space, is_disk_full};

/// The most bytes in one group commit. Further batches wait for the next one.
const GROUP_BYTES: u64 = 8 << 20;

/// The work of the writer thread.
#[derive(Debug)]
pub(super) struct Committer {
    shared: Arc<Shared>,
    pub(super) appender: Appender,
    sync: Sync,
    group_window: Duration,
    synced_at: Instant,
    instruments: Instruments,
}

impl Committer {
    pub(super) fn new(shared: Arc<Shared>, appender: Appender, options: &Options, instruments: Instruments) -> Self {
        let Options { sync, group_window, .. } = *options;
        Self { shared, appender, sync, group_window, synced_at: Instant::now(), instruments }
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

    /// Waits for work, and returns the batches of the next group.
    ///
    /// `None` when the log is closed and the queue is empty; an empty group when a sync or the end of the
    /// segment is due.
    pub(super) fn next_group(&self) -> Option<Vec<Entry>> {
        let mut state = self.shared.lock();
        while state.queue.is_empty() {
            let is_poisoned = state.poisoned.is_some(); // then nothing is due
            if state.must_roll && !is_poisoned {
                return Some(Vec::new());
            }
            if state.phase != Phase::Open {
                return if self.appender.is_synced() || is_poisoned { None } else { Some(Vec::new()) };
            }
            let sync_in = match self.sync {
                Sync::Every(interval) if !self.appender.is_synced() && !is_poisoned => {
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
                Err(WriteFailure::DiskFull(_)) if self.appender.spares.give_back() => self.appender.write(batches())?,
                written => written?,
            }
            self.instruments.group_records.record(group.len() as f64);
        }
        let due = match self.sync {
            Sync::Always => true,
            Sync::Every(interval) => {
                let has_change = group.iter().any(|entry| entry.batch.kind() != Kind::Readings);
                group.is_empty() || has_change || self.synced_at.elapsed() >= interval
            }
        };
        if due && !self.appender.is_synced() {
            let seconds = self.appender.sync()?;
            self.synced_at = Instant::now();
            self.instruments.sync_seconds.record(seconds);
        }
        Ok(())
    }

    /// Takes space for a group.
    ///
    /// If the group would touch the reserve, this removes the spares, and fails if that is not enough.
    /// Deletions alone may touch the reserve.
    fn take_space(&self, group: &[Entry]) -> Result<(), WriteFailure> {
        if group.iter().all(|entry| entry.batch.kind() == Kind::Deletion) {
            return Ok(());
        }
        let bytes = self.appender.growth(bytes_of(group));
        if self.shared.lock().reserve.needs_update(bytes) {
            let mut space = self.appender.space();
            if self.shared.lock().reserve.left_of(space) < bytes && self.appender.spares.give_back() {
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
                // Also for a refused group, because the writer may have started a segment before it failed.
                state.readable = self.appender.end;
                state.durable = self.appender.durable;
                state.room = self.appender.room();
                if state.bases.last() != Some(&self.appender.base) {
                    state.bases.push(self.appender.base);
                    state.newest = Arc::clone(&self.appender.file);
                }
            }
            if refusal.is_none() {
                state.appended_readings += group.iter().map(|entry| u64::from(entry.batch.readings())).sum::<u64>();
            }
            let change = failed.and_then(|(why, free)| state.reserve.failed(why, free, Instant::now()));
            (change, state.take_waiting_readers(false), state.used_bytes(), state.reserve.left())
        };
        self.appender.spares.fit(used_bytes, free_bytes);
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

/// A group of batches was not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteFailure {
    /// The disk is full. The log has nothing of the group, and the next group may fit.
    #[error("{0}")]
    DiskFull(String),
    /// The group would have touched the reserve. The log has nothing of it.
    #[error("the disk has too little free space")]
    ReserveTouched,
    /// The next segment could not be opened. The log has nothing of the group.
    #[error("{0}")]
    OutOfFiles(String),
    /// It is unknown which bytes are on the disk, or the segment was removed.
    #[error("{0}")]
    Poisoned(String),
}

/// Writes groups of batches to the newest segment.
#[derive(Debug)]
pub(super) struct Appender {
    folder: Arc<dyn Folder>,
    saved: Arc<SavedCheckpoint>,
    segment_bytes: u64,
    spares: Arc<Spares>,
    /// The file of the newest segment.
    pub(super) file: Arc<dyn OpenFile>,
    /// The length of the file. Its bytes behind the last record are room (`spares.rs`).
    len: u64,
    /// The file has grown since the last sync.
    has_grown: bool,
    /// The number of syncs of a file that had grown, since a segment last began in a spare.
    growing_syncs: u64,
    /// A spare is due when `growing_syncs` has reached this number.
    patience: u64,
    /// The position of the newest segment.
    pub(super) base: Position,
    /// The position of the next record.
    end: Position,
    /// The end of the synced records.
    pub(super) durable: Position,
    buffer: Vec<u8>,
}

impl Appender {
    /// Continues in the newest segment of a recovered log, which recovery has synced and left without room.
    pub(super) fn resume(
        folder: Arc<dyn Folder>,
        saved: Arc<SavedCheckpoint>,
        spares: Arc<Spares>,
        segment_bytes: u64,
        recovery: &Recovery,
    ) -> Result<Self, LogError> {
        let base = *recovery.bases.last().expect("recovery leaves a segment to write to");
        let end = recovery.end;
        let name = segment::name(base);
        let file = folder.open(&name, OpenMode::Write).map_err(LogError::io("open", &folder.path_of(&name)))?;
        Ok(Self {
            folder,
            saved,
            segment_bytes,
            spares,
            file: file.into(),
            len: end.0 - base.0,
            has_grown: false,
            growing_syncs: 0,
            patience: syncs_worth_a_spare(segment_bytes),
            base,
            end,
            durable: end,
            buffer: Vec::new(),
        })
    }

    /// Writes the batches, one record each, with one call. Does not sync them.
    pub(super) fn write<'a>(&mut self, batches: impl Iterator<Item = &'a Batch>) -> Result<(), WriteFailure> {
        if self.used() >= self.segment_bytes {
            self.roll()?;
        }
        self.buffer.clear();
        for batch in batches {
            let position = Position(self.end.0 + self.buffer.len() as u64);
            record::encode(&mut self.buffer, position, self.durable, batch.kind(), batch.readings(), batch.payload());
        }
        if let Err(error) = self.file.write_all_at(&self.buffer, self.used()) {
            return Err(self.undo_write(&error));
        }
        self.end = Position(self.end.0 + self.buffer.len() as u64);
        if self.used() > self.len {
            (self.len, self.has_grown) = (self.used(), true);
        }
        self.buffer.shrink_to(1 << 20);
        Ok(())
    }

    /// Syncs all written records, and returns the duration in seconds.
    pub(super) fn sync(&mut self) -> Result<f64, WriteFailure> {
        let start = Instant::now();
        self.file.sync().map_err(|error| WriteFailure::Poisoned(format!("sync {}: {error}", self.path().display())))?;
        self.durable = self.end;
        self.growing_syncs += u64::from(std::mem::take(&mut self.has_grown));
        Ok(start.elapsed().as_secs_f64())
    }

    /// Removes the bytes that a failed write left behind the last record.
    ///
    /// Removes the room too, and syncs the removal. The requests get an error, so their readings must not
    /// reappear after a restart or a crash.
    fn undo_write(&mut self, error: &std::io::Error) -> WriteFailure {
        let failed = format!("write {}: {error}", self.path().display());
        let undone = self.file.set_len(self.used()).and_then(|()| self.file.sync());
        self.len = self.used();
        if is_disk_full(error) && undone.is_ok() {
            WriteFailure::DiskFull(failed)
        } else {
            WriteFailure::Poisoned(failed)
        }
    }

    /// Starts the next segment if the newest one has records; else cuts off the room.
    ///
    /// A cut never removes the newest segment. Once the next one has begun, a cut can remove the segment that
    /// was the newest, as soon as its readings are stored.
    fn end_segment(&mut self) -> Result<(), WriteFailure> {
        if self.used() > segment::Header::BYTES as u64 { self.roll() } else { self.finish() }
    }

    /// Syncs all written records, and cuts off the room behind them.
    fn finish(&mut self) -> Result<(), WriteFailure> {
        if self.room() > 0 {
            self.file.set_len(self.used()).map_err(|error| {
                let failed = format!("truncate {}: {error}", self.path().display());
                if is_disk_full(&error) { WriteFailure::DiskFull(failed) } else { WriteFailure::Poisoned(failed) }
            })?;
            self.len = self.used();
        } else if self.is_synced() {
            return Ok(());
        }
        self.sync().map(drop)
    }

    /// Starts the next segment, in a spare if one is ready.
    ///
    /// It first syncs the previous segment and cuts off its room, so that only the newest segment can have a
    /// torn tail or room.
    ///
    /// If the segment cannot be created, no file has its name, and the log goes on in the previous segment.
    /// If the folder cannot be synced, it is unknown whether the name survives a crash, so the log is
    /// poisoned. It is poisoned too if the previous segment was removed: no later check would find that.
    fn roll(&mut self) -> Result<(), WriteFailure> {
        self.finish()?;
        if self.file.is_removed() {
            return Err(WriteFailure::Poisoned(segment::removed(&*self.folder, self.base)));
        }
        let spare = self.spares.take();
        let in_spare = spare.and_then(|spare| spare.into_segment(&*self.folder, self.end).ok());
        let (file, len) = match in_spare {
            Some(segment) => {
                self.growing_syncs = 0;
                segment
            }
            None => (self.create_segment()?, segment::Header::BYTES as u64),
        };
        self.file = file.into();
        self.len = len;
        let unsynced = |error| WriteFailure::Poisoned(format!("sync {}: {error}", self.folder.path().display()));
        self.folder.sync().map_err(unsynced)?;
        self.base = self.end;
        self.end = Position(self.base.0 + segment::Header::BYTES as u64);
        self.durable = self.end;
        // If this fails, the next cut saves the durable end or reports the error.
        let _ = self.saved.advance(Checkpoint { position: Position::default(), durable: self.durable });
        Ok(())
    }

    fn create_segment(&self) -> Result<Box<dyn OpenFile>, WriteFailure> {
        segment::create(&*self.folder, self.end).map_err(|error| match error {
            LogError::Io { error, .. } if is_disk_full(&error) => WriteFailure::DiskFull(error.to_string()),
            other if other.is_out_of_files() => WriteFailure::OutOfFiles(other.to_string()),
            other => WriteFailure::Poisoned(other.to_string()),
        })
    }

    /// Whether the log should go on in a spare: the segment has grown for long, and a spare is ready. If a
    /// spare is due and none is ready, this requests one.
    fn is_spare_due(&self) -> bool {
        if self.growing_syncs < self.patience || self.room() > 0 {
            return false;
        }
        let is_ready = self.spares.is_ready();
        if !is_ready {
            self.spares.request();
        }
        is_ready
    }

    fn is_synced(&self) -> bool {
        self.durable == self.end
    }

    /// The most bytes by which files grow when `bytes` are written.
    fn growth(&self, bytes: u64) -> u64 {
        if self.used() >= self.segment_bytes { bytes } else { bytes.saturating_sub(self.room()) }
    }

    /// The number of bytes that the file has behind the end of its records.
    pub(super) fn room(&self) -> u64 {
        self.len - self.used()
    }

    /// The number of bytes of the newest segment up to the end of its records.
    const fn used(&self) -> u64 {
        self.end.0 - self.base.0
    }

    /// The space on the disk of the log; unlimited if the system does not report it.
    fn space(&self) -> Space {
        self.folder.space().unwrap_or(Space { free: u64::MAX, total: u64::MAX })
    }

    fn path(&self) -> PathBuf {
        self.folder.path_of(&segment::name(self.base))
    }

    /// Makes a spare due as soon as a segment has grown.
    #[cfg(test)]
    pub(super) const fn lose_patience(&mut self) {
        self.patience = 1;
    }
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
