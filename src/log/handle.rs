//! The handle to an open log: opens it, queues appends, tells how full it is, cuts.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use metrics::Histogram;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::batch::{Batch, MAX_PAYLOAD_BYTES};
use super::checkpoint::{Checkpoint, SavedCheckpoint};
use super::committer::{Appender, Committer};
use super::follower::{self, SavedFollower};
use super::fullness::{self, Fullness};
use super::reader::Readers;
use super::record::{self, Kind};
use super::recovery::{self, Recovery};
use super::reserve::Reserve;
use super::segment;
use super::spares::Spares;
use super::state::{Entry, Phase, Shared, State, Writer};
use super::{LogError, Options, Position};
use crate::disk::{Folder, OsFolder, Space};

/// An append failed.
///
/// The log does not have the batch; after [`AppendError::Poisoned`] it may have it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The log has reached `log.max_bytes`.
    #[error("the log is full: it has reached log.max_bytes ({0} bytes)")]
    Full(u64),
    /// The disk has too little free space. Clients read this, so it names no path.
    #[error("the disk of the log is full (log.min_free_bytes): readings are refused until there is space again")]
    DiskFull,
    /// The process has no file descriptors left.
    #[error("the server has too many open files: readings are refused until it can open a file again")]
    OutOfFiles,
    /// A write or a sync failed, or the log was removed. The log accepts no more appends.
    #[error("the log has failed: {0}")]
    Poisoned(String),
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
}

/// The acknowledgement of a queued append, which [`Self::durable`] waits for.
#[derive(Debug)]
pub struct Ack(oneshot::Receiver<Result<(), AppendError>>);

impl Ack {
    /// Waits for the group commit that writes the batch.
    ///
    /// Must not be called again after it has returned. Dropping this future does not cancel the append.
    ///
    /// # Errors
    /// When the append failed.
    pub async fn durable(&mut self) -> Result<(), AppendError> {
        (&mut self.0).await.unwrap_or(Err(AppendError::Closed))
    }

    /// Waits for the group commit on a thread that belongs to no runtime.
    ///
    /// # Errors
    /// When the append failed.
    pub fn wait(self) -> Result<(), AppendError> {
        self.0.blocking_recv().unwrap_or(Err(AppendError::Closed))
    }
}

/// The metrics that the log records.
#[derive(Debug, Clone)]
pub struct Instruments {
    /// Seconds per sync.
    pub sync_seconds: Histogram,
    /// Records per group commit.
    pub group_records: Histogram,
}

impl Default for Instruments {
    fn default() -> Self {
        Self { sync_seconds: Histogram::noop(), group_records: Histogram::noop() }
    }
}

/// An open log. Dropping this handle closes the log, which first writes the queued batches.
#[derive(Debug)]
pub struct Log {
    pub(super) shared: Arc<Shared>,
    pub(super) options: Options,
    pub(super) folder: Arc<dyn Folder>,
    /// The start and the durable end of the log, as the checkpoint file has them.
    saved: Arc<SavedCheckpoint>,
    pub(super) follower: Mutex<SavedFollower>,
    /// Locked during a cut, so that cuts do not run at the same time.
    cutting: Mutex<()>,
    pub(super) spares: Arc<Spares>,
    writer: Option<JoinHandle<()>>,
    /// The thread that makes spares.
    maker: Option<JoinHandle<()>>,
}

/// How full the log is, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The bytes of the records on disk and in the queue.
    pub bytes: u64,
    /// The end of the readable records.
    pub readable: Position,
    /// Readings acknowledged since the log was opened.
    pub appended_readings: u64,
    /// The most bytes that the log can use now: `log.max_bytes`, or less if its disk has less space.
    pub limit_bytes: u64,
    /// The flush must store the readings before this position now.
    ///
    /// Then the log can be cut, and has enough free space again. While enough of the log is free, this
    /// position is at or before the start of the log.
    pub short_before: Position,
    /// The end of the oldest segment that the follower needs.
    ///
    /// If the store needs nothing before this position, only the follower can make the log shorter. Without a
    /// follower, and if it needs the newest segment only, this is the highest position.
    pub held_to: Position,
    /// Appends are refused because the log has reached its limit.
    pub is_full: bool,
    /// The log has been full, and less than a tenth of it is free. So it may soon be full again.
    pub was_full: bool,
    /// Appends are refused because the disk has too little free space, or no file can be opened.
    pub is_disk_full: bool,
}

impl Log {
    /// Opens the log in `options.dir`, creates the folder if it is missing, and repairs a torn tail.
    ///
    /// # Errors
    /// When the folder cannot be used, or the log is damaged.
    pub fn open(options: Options, instruments: Instruments) -> Result<(Self, Recovery), LogError> {
        let folder = Arc::new(OsFolder::new(&options.dir));
        let (mut log, committer, recovery) = Self::assemble(folder, options, instruments)?;
        let writer = std::thread::Builder::new()
            .name("log-writer".to_owned())
            .spawn(move || committer.run())
            .map_err(LogError::io("start the writer of", &log.options.dir))?;
        log.writer = Some(writer);
        let spares = Arc::clone(&log.spares);
        let maker = std::thread::Builder::new().name("log-spares".to_owned()).spawn(move || spares.run());
        log.maker = maker.map(Some).map_err(LogError::io("start a thread of", &log.options.dir))?;
        Ok((log, recovery))
    }

    /// Opens the log in `folder` without starting threads.
    ///
    /// Queued batches are written when the caller runs the [`Committer`].
    pub(super) fn assemble(
        folder: Arc<dyn Folder>,
        options: Options,
        instruments: Instruments,
    ) -> Result<(Self, Committer, Recovery), LogError> {
        let (recovery, saved) = recovery::recover(&*folder)?;
        let follower = follower::resume(&*folder, &recovery)?;
        let saved = Arc::new(saved);
        let Options { segment_bytes, max_bytes, .. } = options;
        let spares = Arc::new(Spares::new(Arc::clone(&folder), segment_bytes, max_bytes));
        let appender =
            Appender::resume(Arc::clone(&folder), Arc::clone(&saved), Arc::clone(&spares), segment_bytes, &recovery)?;
        let state = State {
            queue: VecDeque::new(),
            queued_bytes: 0,
            writer: Writer::Works,
            readers: Readers::default(),
            bases: recovery.bases.clone(),
            newest: Arc::clone(&appender.file),
            held: follower.as_ref().map(|(followed, _)| followed.position),
            readable: recovery.end,
            durable: recovery.end,
            appended_readings: 0,
            poisoned: None,
            fullness: Fullness::default(),
            reserve: Reserve::new(options.min_free),
            room: 0,
            must_roll: false,
            phase: Phase::Open,
        };
        let (state, work, progress, failed) =
            (Mutex::new(state), Condvar::new(), Condvar::new(), CancellationToken::new());
        let shared = Arc::new(Shared { state, work, progress, failed });
        let committer = Committer::new(Arc::clone(&shared), appender, &options, instruments);
        let (follower, cutting) = (Mutex::new(follower), Mutex::default());
        let (writer, maker) = (None, None);
        Ok((Self { shared, options, folder, saved, follower, cutting, spares, writer, maker }, committer, recovery))
    }

    /// Queues a batch.
    ///
    /// The writer writes it, whether or not the caller awaits the [`Ack`].
    ///
    /// A full log still takes deletions: their records are small, and few of them wait for the store.
    ///
    /// If a batch would not fit beside the newest segment alone, its refusal ends this segment, so that a cut
    /// can make space for the batch.
    ///
    /// # Errors
    /// When the log is full, poisoned or closed.
    pub fn append(&self, batch: Batch) -> Result<Ack, AppendError> {
        let bytes = record::encoded_bytes(batch.payload()) as u64;
        let needs_space = batch.kind() != Kind::Deletion;
        let mut state = self.shared.lock();
        if let Some(why) = &state.poisoned {
            return Err(AppendError::Poisoned(why.clone()));
        }
        if state.phase != Phase::Open {
            return Err(AppendError::Closed);
        }
        if needs_space && state.reserve.is_low() {
            return Err(AppendError::DiskFull);
        }
        let max_bytes = self.options.max_bytes;
        if needs_space && state.used_bytes() + bytes > max_bytes {
            let change = state.fullness.refused(max_bytes);
            let ends_segment = state.newest_exceeds(max_bytes.saturating_sub(bytes));
            state.must_roll |= ends_segment;
            drop(state);
            if ends_segment {
                self.shared.work.notify_one();
            }
            fullness::log_change(change);
            return Err(AppendError::Full(max_bytes));
        }
        let (ack, acked) = oneshot::channel();
        state.queue.push_back(Entry { batch, ack, queued_at: Instant::now() });
        state.queued_bytes += bytes;
        let wakes_writer = match state.writer {
            Writer::Works => false,
            Writer::WaitsForRecord => true,
            Writer::Gathers => state.is_group_large(),
        };
        if wakes_writer {
            state.writer = Writer::Works; // one wake-up is enough
        }
        drop(state); // or the writer would wake up only to wait for the lock
        if wakes_writer {
            self.shared.work.notify_one();
        }
        Ok(Ack(acked))
    }

    /// The most bytes in the payload of one batch.
    ///
    /// An empty log has space for such a batch.
    pub fn max_payload_bytes(&self) -> usize {
        let around = segment::Header::BYTES + record::Header::BYTES + record::ALIGNMENT;
        let max_bytes = usize::try_from(self.options.max_bytes).unwrap_or(usize::MAX);
        max_bytes.saturating_sub(around).min(MAX_PAYLOAD_BYTES)
    }

    /// How full the log is.
    pub fn usage(&self) -> Usage {
        let kept_bytes = self.spares.bytes();
        let state = self.shared.lock();
        let bytes = state.used_bytes();
        // Spares and room count as free, because the log gives them back before it refuses an append.
        let kept_bytes = kept_bytes.saturating_add(state.room);
        let limit_bytes = state.reserve.limit(bytes).saturating_add(kept_bytes).min(self.options.max_bytes);
        // The log is short when less than a quarter is free, apart from one segment: a cut removes whole
        // segments only, so it leaves up to a segment more than is needed.
        let enough_bytes = limit_bytes.saturating_sub(self.options.segment_bytes) / 4 * 3;
        let held_to = state.held.and_then(|held| {
            let next = state.bases.partition_point(|&base| base <= held);
            state.bases.get(next).copied()
        });
        Usage {
            bytes,
            limit_bytes,
            short_before: Position(state.readable.0.saturating_sub(enough_bytes)),
            readable: state.readable,
            held_to: held_to.unwrap_or(Position(u64::MAX)),
            appended_readings: state.appended_readings,
            is_full: state.fullness.is_refusing(bytes, self.options.max_bytes),
            was_full: state.fullness.was_full(bytes, self.options.max_bytes),
            is_disk_full: state.reserve.is_refusing(),
        }
    }

    /// The error that poisoned the log, if a write or a sync has failed or the log was removed.
    pub fn poisoned(&self) -> Option<String> {
        self.shared.lock().poisoned.clone()
    }

    /// Waits until the log is poisoned, and returns the error.
    pub async fn failed(&self) -> String {
        self.shared.failed.cancelled().await;
        self.poisoned().unwrap_or_default()
    }

    /// Cuts the log before `position`.
    ///
    /// It saves `position` as the start of the log, together with the log's durable end. Then it removes each
    /// segment that ends at or before the start and that the follower has passed, or makes it a spare. The
    /// start never moves back, and never beyond the synced records. If neither the start nor the durable end
    /// has moved, it writes nothing.
    ///
    /// # Errors
    /// When a file cannot be written or removed. Cutting again later is safe.
    pub fn cut(&self, position: Position) -> Result<(), LogError> {
        let _turn = self.cutting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let durable = self.shared.lock().durable;
        let start = self.saved.advance(Checkpoint { position: position.min(durable), durable })?.position;
        let stale = {
            let state = self.shared.lock();
            let needed = follower::needed_from(start, state.held);
            let keep_from = state.bases.partition_point(|&base| base <= needed).saturating_sub(1);
            state.bases[..=keep_from].to_vec()
        };
        for (&base, &next) in stale.iter().zip(&stale[1..]) {
            let path = self.folder.path_of(&segment::name(base));
            if !self.spares.recycle(base, next.0 - base.0).map_err(LogError::io("rename", &path))? {
                self.folder.remove(&segment::name(base)).map_err(LogError::io("remove", &path))?;
            }
            self.shared.lock().bases.retain(|&kept| kept != base);
        }
        let change = {
            let mut state = self.shared.lock();
            let used_bytes = state.used_bytes();
            state.fullness.cut(used_bytes, self.options.max_bytes)
        };
        fullness::log_change(change);
        Ok(())
    }

    /// Whether the file of the newest segment was removed, as with its folder. Its records are lost then.
    pub fn is_removed(&self) -> bool {
        // A cut removes segments too, as soon as they are not the newest.
        let _turn = self.cutting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let newest = Arc::clone(&self.shared.lock().newest);
        newest.is_removed()
    }

    /// Checks the free space on the disk, and refuses or accepts appends accordingly.
    ///
    /// If the newest segment was removed, this poisons the log: its records would be lost.
    ///
    /// Callers call this about once a second. When the free space above the reserve is less than a segment,
    /// this removes the spares and cuts off the room of the newest segment. While the disk refuses appends,
    /// or if the newest segment has more than half of the log, this ends the segment, so that all of the log
    /// can be cut: senders may wait while the log is full, and so would not end the segment. It also reserves
    /// a file descriptor for the next segment.
    pub fn check_disk(&self) {
        if self.is_removed() {
            let mut state = self.shared.lock();
            let newest = state.bases.last().copied().unwrap_or_default();
            state.poisoned.get_or_insert_with(|| segment::removed(&*self.folder, newest));
            drop(state);
            self.shared.failed.cancel();
            return;
        }
        self.folder.reserve_descriptor();
        let Ok(mut space) = self.folder.space() else { return };
        let is_near = |space: Space| self.shared.lock().reserve.left_of(space) < self.options.segment_bytes;
        if is_near(space) && self.spares.give_back() {
            let Ok(more) = self.folder.space() else { return };
            space = more;
        }
        let is_near = is_near(space);
        let (change, must_roll, used_bytes, free_bytes) = {
            let mut state = self.shared.lock();
            let change = state.reserve.update(space, Instant::now());
            let most_bytes = if state.reserve.is_refusing() { 0 } else { self.options.max_bytes / 2 };
            if state.newest_exceeds(most_bytes) || is_near && state.room > 0 {
                state.must_roll = true;
            }
            (change, state.must_roll, state.used_bytes(), state.reserve.left())
        };
        self.spares.fit(used_bytes, free_bytes);
        self.spares.remove_surplus();
        if must_roll {
            self.shared.work.notify_one();
        }
        fullness::log_change(change);
    }

    /// Waits until a closed log has written or refused all queued batches.
    pub fn wait_closed(&self) {
        let mut state = self.shared.lock();
        while self.writer.is_some() && state.phase != Phase::Closed {
            state = self.shared.progress.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// Closes the log for appends.
    ///
    /// The writer still writes the queued batches, then wakes all readers.
    pub fn close(&self) {
        let mut state = self.shared.lock();
        state.phase = state.phase.max(Phase::Closing);
        drop(state);
        self.shared.work.notify_one();
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.close();
        self.spares.close();
        for thread in [self.writer.take(), self.maker.take()].into_iter().flatten() {
            let _ = thread.join();
        }
        self.spares.remove_surplus();
    }
}
