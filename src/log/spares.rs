//! Spares: files of the full size of a segment, for the segments to come.
//!
//! The sync of a file that has grown also commits the file's new size and blocks. A sync of bytes inside the
//! old size writes only these bytes. So a log that syncs often writes into files that have their full size
//! and were written before: a hole, or an extent that was only reserved, would cost the same as growth.
//!
//! - **A cut segment** of full size becomes a spare as it is, with its old records. Each record proves its
//!   position with its checksum, and positions only grow, so an old record is never taken for one of the new
//!   segment. A file that a reader holds, of this process or of a backup, is removed instead.
//! - **A new spare** is a file of zeros. The log makes one only when the segment has grown in so many syncs
//!   that they have cost more than the zeros will ([`syncs_worth_a_spare`]). The writer then rolls to it
//!   early. A thread writes the zeros, in steps that it syncs, and rests between them. The writer never waits
//!   for a spare: without one, its segment grows.
//! - **The space**: the log keeps at most [`MAX_SPARES`], as long as they fit into `log.max_bytes` beside the
//!   records and the newest segment at its full size. It makes a new spare only while two more fit on the
//!   disk above `log.min_free_bytes`. When not even one more fits, it removes all spares and cuts off the
//!   room of the newest segment, before it refuses an append.
//!
//! A segment gets its full size with its name: the header is written and synced under the name of the spare,
//! and the file is renamed. The bytes behind the records are **room**. When the next segment begins, and at
//! an orderly stop, the log cuts off the room that is left, and syncs the cut. So only the newest segment has
//! room. Room may hold old records, but never unacknowledged records of this segment: after a failed write,
//! and after a crash ([`super::recovery`]), the log cuts the file at the end of its records. This file then
//! grows, until the next segment.
//!
//! Opening a log removes all spares, because they may be of another log that began at the same positions. On
//! a file system that writes elsewhere (copy on write), room saves nothing and does no harm.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Result};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Position, segment};
use crate::disk::{Folder, OpenFile, OpenMode};

/// The most spares that the log keeps.
///
/// A cut may free many segments at once; the log removes the others.
const MAX_SPARES: u64 = 2;

/// The bytes that are zeroed and synced in one step: few, so that a sync of the log does not wait long.
const STEP_BYTES: usize = 256 << 10;

/// The longest rest between two steps. A rest is as long as its step.
const MAX_REST: Duration = Duration::from_millis(50);

/// The time after a failure in which no new spare is tried.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The number of syncs of a growing segment that cost as much as a spare.
///
/// Each such sync writes the size and the blocks of the file to the journal of the file system.
pub(super) const fn syncs_worth_a_spare(segment_bytes: u64) -> u64 {
    const JOURNALED_BYTES: u64 = 64 << 10;
    const MIN: u64 = 64;
    let syncs = segment_bytes / JOURNALED_BYTES;
    if syncs > MIN { syncs } else { MIN }
}

/// Whether a file of this name is a spare.
pub(super) fn is_spare(name: &str) -> bool {
    name.strip_prefix("spare-").and_then(|rest| rest.strip_suffix(".new")).is_some()
}

/// The spares of an open log.
#[derive(Debug)]
pub(super) struct Spares {
    folder: Arc<dyn Folder>,
    segment_bytes: u64,
    max_bytes: u64,
    state: Mutex<State>,
    /// Wakes the thread that makes and removes spares.
    work: Condvar,
}

#[derive(Debug, Default)]
struct State {
    ready: Vec<Spare>,
    /// Files that are not ready yet.
    jobs: VecDeque<Job>,
    /// The thread is making a file ready, which it has taken from `jobs`.
    is_preparing: bool,
    /// The number of spares that there is space for.
    limit: usize,
    /// The number in the name of the next spare.
    next: u64,
    /// No new spare is tried before this time.
    retry_at: Option<Instant>,
    is_closed: bool,
}

/// A file that becomes a spare.
#[derive(Debug)]
struct Job {
    name: String,
    /// The file is that of a cut segment. Otherwise it does not exist yet.
    was_segment: bool,
}

/// A file of full size, which can become a segment.
#[derive(Debug)]
pub(super) struct Spare {
    name: String,
    file: Box<dyn OpenFile>,
    bytes: u64,
    was_segment: bool,
}

impl Spare {
    /// Makes this the segment that begins at `base`, and returns the file and its length. After an error, no
    /// file has the name of the segment. The name survives a crash only after the caller has synced the
    /// folder.
    pub(super) fn into_segment(self, folder: &dyn Folder, base: Position) -> Result<(Box<dyn OpenFile>, u64)> {
        let old_until = if self.was_segment { self.bytes } else { 0 };
        let written = self.file.write_all_at(&segment::Header::encode(base, old_until), 0);
        let named =
            written.and_then(|()| self.file.sync()).and_then(|()| folder.rename(&self.name, &segment::name(base)));
        match named {
            Ok(()) => Ok((self.file, self.bytes)),
            Err(error) => {
                let _ = folder.remove(&self.name); // if this fails, the next opening removes it
                Err(error)
            }
        }
    }
}

impl State {
    fn count(&self) -> usize {
        self.ready.len() + self.jobs.len() + usize::from(self.is_preparing)
    }

    /// Whether there are more spares than there is space for.
    fn has_surplus(&self) -> bool {
        self.count() > self.limit
    }

    fn name(&mut self) -> String {
        self.next += 1;
        format!("spare-{}.new", self.next)
    }
}

impl Spares {
    /// Spares of `segment_bytes` in the folder of a log of at most `max_bytes`: none, until [`Self::fit`] has
    /// found space for them.
    pub(super) fn new(folder: Arc<dyn Folder>, segment_bytes: u64, max_bytes: u64) -> Self {
        let (state, work) = (Mutex::default(), Condvar::new());
        Self { folder, segment_bytes: segment_bytes.max(1), max_bytes, state, work }
    }

    /// The bytes of all spares. A spare that is not ready yet counts with its full size.
    pub(super) fn bytes(&self) -> u64 {
        self.lock().count() as u64 * self.segment_bytes
    }

    pub(super) fn is_ready(&self) -> bool {
        !self.lock().ready.is_empty()
    }

    /// Takes a spare, if one is ready.
    pub(super) fn take(&self) -> Option<Spare> {
        self.lock().ready.pop()
    }

    /// Begins to make a new spare, unless there is one or there is no space.
    pub(super) fn request(&self) {
        let mut state = self.lock();
        let may_try = state.retry_at.is_none_or(|at| Instant::now() >= at);
        if state.count() == 0 && state.limit > 0 && may_try {
            let name = state.name();
            state.jobs.push_back(Job { name, was_segment: false });
            self.work.notify_one();
        }
    }

    /// Makes a cut segment of `bytes` a spare.
    ///
    /// Returns false if the segment is too short, or if there are enough spares.
    pub(super) fn recycle(&self, base: Position, bytes: u64) -> Result<bool> {
        let name = {
            let mut state = self.lock();
            if bytes < self.segment_bytes || state.count() >= state.limit {
                return Ok(false);
            }
            state.name()
        };
        self.folder.rename(&segment::name(base), &name)?;
        self.lock().jobs.push_back(Job { name, was_segment: true });
        self.work.notify_one();
        Ok(true)
    }

    /// Adapts the number of spares to a log of `used_bytes` on a disk with `free_bytes` above the reserve.
    /// [`Self::work`] removes the surplus.
    pub(super) fn fit(&self, used_bytes: u64, free_bytes: u64) {
        let mut state = self.lock();
        if state.is_closed {
            return;
        }
        let in_log = (self.max_bytes.saturating_sub(used_bytes) / self.segment_bytes).saturating_sub(1);
        let on_disk = match free_bytes / self.segment_bytes {
            0 => 0,
            more => state.count() as u64 + more - 1,
        };
        state.limit = in_log.min(on_disk).min(MAX_SPARES) as usize;
        if state.has_surplus() {
            self.work.notify_one();
        }
    }

    /// Removes all spares, and returns whether there were any.
    ///
    /// The next [`Self::fit`] may allow some again.
    pub(super) fn give_back(&self) -> bool {
        let had_any = {
            let mut state = self.lock();
            state.limit = 0;
            state.count() > 0
        };
        self.remove_surplus();
        had_any
    }

    /// Makes and removes spares until the log is closed.
    pub(super) fn run(&self) {
        loop {
            self.work();
            let mut state = self.lock();
            while !state.is_closed && state.jobs.is_empty() && !state.has_surplus() {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.is_closed {
                return;
            }
        }
    }

    /// Removes the surplus of spares, and makes the others ready.
    pub(super) fn work(&self) {
        self.remove_surplus();
        loop {
            let mut state = self.lock();
            let Some(job) = state.jobs.pop_front() else { return };
            state.is_preparing = true;
            drop(state);
            let prepared = self.prepare(&job);
            if prepared.is_err() {
                let _ = self.folder.remove(&job.name); // if this fails, the next opening removes it
            }
            let mut state = self.lock();
            state.is_preparing = false;
            match prepared {
                Ok(spare) => state.ready.push(spare),
                Err(_) => state.retry_at = Some(Instant::now() + RETRY_AFTER),
            }
        }
    }

    /// Removes spares until there are no more than there is space for.
    pub(super) fn remove_surplus(&self) {
        loop {
            let mut state = self.lock();
            if !state.has_surplus() {
                return;
            }
            let unready = state.jobs.pop_back().map(|job| job.name);
            let Some(name) = unready.or_else(|| state.ready.pop().map(|spare| spare.name)) else {
                return; // the one that is being made ready stops by itself
            };
            drop(state);
            let _ = self.folder.remove(&name); // it may not exist yet; else the next opening removes it
        }
    }

    /// Ends [`Self::run`], and makes all spares surplus.
    ///
    /// [`Self::remove_surplus`] then removes them.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        (state.is_closed, state.limit) = (true, 0);
        drop(state);
        self.work.notify_one();
    }

    fn prepare(&self, job: &Job) -> Result<Spare> {
        let file = if job.was_segment {
            // The old name must not come back after a crash, because the bytes of the file will change.
            self.folder.sync()?;
            let file = self.folder.open(&job.name, OpenMode::Write)?;
            if file.is_held() {
                return Err(Error::new(ErrorKind::ResourceBusy, "a reader has it open"));
            }
            file
        } else {
            self.folder.open(&job.name, OpenMode::Truncate)?
        };
        self.fill_with_zeros(&*file)?;
        file.sync()?;
        Ok(Spare { name: job.name.clone(), file, bytes: self.segment_bytes, was_segment: job.was_segment })
    }

    /// Gives a file its full size.
    fn fill_with_zeros(&self, file: &dyn OpenFile) -> Result<()> {
        let mut at = file.len()?;
        if at > self.segment_bytes {
            return file.set_len(self.segment_bytes);
        }
        let zeros = vec![0; STEP_BYTES];
        while at < self.segment_bytes {
            if self.lock().has_surplus() {
                return Err(Error::new(ErrorKind::StorageFull, "no space for spares"));
            }
            let start = Instant::now();
            let bytes = (self.segment_bytes - at).min(STEP_BYTES as u64);
            file.write_all_at(&zeros[..bytes as usize], at)?;
            file.sync()?;
            at += bytes;
            std::thread::sleep(start.elapsed().min(MAX_REST));
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn limit(&self) -> usize {
        self.lock().limit
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
