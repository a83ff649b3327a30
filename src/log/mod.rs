//! The write-ahead log: what is in it is accepted, what is accepted is in it.
//!
//! Requests append whole batches; one writer thread takes what is queued, writes it once, syncs once, and
//! only then wakes the requests (group commit). The flush side reads the log in order and cuts it behind what
//! is stored. The log is also the queue: however far the stores fall behind, memory stays bounded, because
//! what waits, waits here.
//!
//! # On disk
//! A directory of segments, and beside it the [`checkpoint`]. A **position** counts bytes from the beginning
//! of the log's life; a segment is named by the position of its first byte (twenty digits, `.log`), so a byte
//! at position `p` stands at offset `p - base` of its segment, and the segments join without gaps. The
//! grammar of a segment is on `segment::Header`, that of a record on `record::Header`, that of a record's
//! payload on [`batch::Batch`].
//!
//! # Promises
//! - An [`Ack`] resolves to `Ok` only when the record is written and synced (with [`Sync::Always`]).
//! - A record is there whole or not at all; records come back in the order of their acks.
//! - After a failed sync the log is poisoned: nothing is acked any more, and the process is expected to end.
//!   What the kernel does with dirty pages after a failed sync is not knowable, so it is not retried.
//! - The log leaves a part of its disk free (see [`MinFree`]). When it cannot, or when the process has no
//!   file descriptors left, it refuses appends, and takes them again by itself.
//! - A torn tail, which nobody was promised, is cut off at opening. Damage to what was promised is never
//!   skipped: the log refuses to open and names the file and the place (see [`recovery`]).
//!
//! The log changes files only through [`crate::disk`]; the tests put a disk behind it that tears, forgets and
//! fails.
//!
//! The log knows nothing of readings beyond the payload's grammar: no store, no HTTP, no clock.

use std::path::PathBuf;
use std::time::Duration;

pub mod batch;
pub mod batch_view;
#[doc(hidden)]
pub mod bench;
pub mod checkpoint;
mod committer;
mod fullness;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod handle;
pub mod quarantine;
mod reader;
mod record;
pub mod recovery;
mod reserve;
mod segment;
mod writer;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod tests;

pub use batch::{Batch, BatchBuilder, MAX_PAYLOAD_BYTES, PushError};
pub use batch_view::BatchView;
pub use handle::{Ack, AppendError, Instruments, Log, Usage};
pub use reader::{Reader, Record};
pub use recovery::Recovery;
pub use reserve::MinFree;

/// A place in the log: bytes since the beginning of its life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

impl Position {
    /// Records and segments begin at multiples of this many bytes.
    const ALIGNMENT: u64 = 8;

    /// No log lives to see more bytes than this.
    const MAX: u64 = 1 << 62;

    /// Whether a record or a segment may begin here.
    const fn is_possible(self) -> bool {
        self.0 <= Self::MAX && self.0.is_multiple_of(Self::ALIGNMENT)
    }
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// When an append is acked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// After `fdatasync`: an acked record survives the loss of power.
    Always,
    /// After `write`; `fdatasync` follows within this time. An acked record survives the death of the
    /// process, not the loss of power.
    Every(Duration),
}

/// What a log needs to know.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory of the segments. Made when it is not there.
    pub dir: PathBuf,
    /// When an append is acked.
    pub sync: Sync,
    /// A segment that has reached so many bytes is followed by a new one.
    pub segment_bytes: u64,
    /// The most bytes that the log takes on disk, and the most it queues in memory on the way there.
    pub max_bytes: u64,
    /// How much of its disk the log leaves free.
    pub min_free: MinFree,
}

/// The log could not be opened, read or cut.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The operating system refused something.
    #[error("{action} {path}: {error}")]
    Io {
        /// What was being done, such as `open`.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// Something that was promised is damaged.
    #[error("the log is damaged: {path}, byte {offset}: {detail}")]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// Where in the file the damage begins.
        offset: u64,
        /// What is wrong there.
        detail: String,
    },
    /// The checkpoint is damaged.
    #[error("{path} is damaged: {detail}")]
    BadCheckpoint {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: &'static str,
    },
    /// A newer version wrote this file.
    #[error("{path} has format version {found}, this program reads version {known}")]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The version that this program knows.
        known: u32,
    },
}

impl LogError {
    /// Whether the process had no file descriptors left, which may pass.
    pub(crate) fn is_out_of_files(&self) -> bool {
        matches!(self, Self::Io { error, .. } if crate::disk::is_out_of_files(error))
    }

    fn io(action: &'static str, path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io { action, path, error }
    }
}
