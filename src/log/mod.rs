//! The write-ahead log. It has all accepted readings, deletions and changes of metadata by operators, in the
//! order of their acceptance, and nothing else.
//!
//! Requests append whole batches. One writer thread writes all queued batches at once, syncs once, and only
//! then wakes the requests (group commit). With `log.group_window` it first waits a moment for more batches,
//! unless many are queued. The flush side reads the log in order and cuts it behind stored readings. A second
//! reader, the [`follower`], may hold back the cuts. The log is also the queue: memory stays bounded however
//! far the store falls behind, because readings wait in the log.
//!
//! # On disk
//! The log is a folder. It has the segments, the file `checkpoint` ([`checkpoint`]), and the file `follower`
//! with the position of the follower. A **position** counts bytes from the beginning of the log's first
//! segment. The name of a segment is the position of its first byte (twenty digits, `.log`), so the byte at
//! position `p` has offset `p - base` in its segment, and the segments join without gaps. The newest file may
//! be longer than its records. The log may reuse the file of a removed segment for a later one (`spares.rs`).
//! The grammar of a segment is on `segment::Header`, the grammar of a record on `record::Header`, and the
//! grammar of its payload on [`batch::Batch`].
//!
//! # Promises
//! - An [`Ack`] resolves to `Ok` only when the record is written and synced (with [`Sync::Always`]).
//! - The log has a whole record or none of it. Readers get records in the order of their acks.
//! - After a failed sync the log is poisoned: it acknowledges nothing more, and the process must end. The log
//!   does not retry a sync, because the kernel may have dropped the dirty pages.
//! - The log leaves a part of its disk free (see [`MinFree`]). When it cannot, or when the process has no
//!   file descriptors left, it refuses appends, and later accepts them again by itself.
//! - Opening cuts off a torn tail, which was never acknowledged. It never skips damage to acknowledged
//!   records: the log refuses to open and names the file and the offset (see [`recovery`]).
//!
//! The log changes files only through [`crate::disk`]. The tests use a disk that tears writes, forgets
//! unsynced ones, and fails.
//!
//! The log knows the grammar of payloads, but no store, no HTTP and no wall clock.

use std::path::PathBuf;
use std::time::Duration;

pub mod backup;
pub mod batch;
#[cfg(any(test, feature = "bench"))]
#[doc(hidden)]
pub mod bench;
pub mod checkpoint;
mod committer;
mod deletion_record;
pub mod follower;
mod fullness;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod handle;
mod metadata_record;
pub mod quarantine;
mod reader;
mod record;
pub mod recovery;
mod remaining;
mod reserve;
mod segment;
mod slots;
mod spares;
mod state;
mod window;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod tests;

pub use batch::{Batch, BatchBuilder, BatchView, MAX_PAYLOAD_BYTES, PushError};
pub use deletion_record::{BegunDeletion, DeletionRecord};
pub use follower::{Followed, add_follower};
pub use handle::{Ack, AppendError, Instruments, Log, Usage};
pub use metadata_record::MetadataRecord;
pub use reader::{Lag, Reader, Record};
pub use record::Kind;
pub use recovery::{RecoveredDeletion, Recovery};
pub use remaining::{Remaining, leave_out};
pub use reserve::MinFree;

/// A position in the log: bytes since the beginning of its first segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

impl Position {
    /// Records and segments begin at multiples of this many bytes.
    const ALIGNMENT: u64 = 8;

    /// The highest possible position: 2^62 bytes, which no log reaches.
    ///
    /// The sum of such a position and a length up to 2^62 does not overflow.
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

/// When an append is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// After `fdatasync`: an acknowledged record survives a power cut.
    Always,
    /// After `write`; `fdatasync` follows within this time.
    ///
    /// An acknowledged record survives the end of the process, but not a power cut. A deletion or a change of
    /// metadata is synced before it is acknowledged, with all records before it.
    Every(Duration),
}

/// The options of a log.
#[derive(Debug, Clone)]
pub struct Options {
    /// The folder of the segments. The log creates it if it is missing.
    pub dir: PathBuf,
    /// When an append is acknowledged.
    pub sync: Sync,
    /// How long a record waits for more records to be synced with it.
    ///
    /// The wait ends early when 32 records or 64 KiB are queued.
    pub group_window: Duration,
    /// The size in bytes at which a segment ends and the next one starts.
    pub segment_bytes: u64,
    /// The most bytes of the log, on disk and in the queue.
    pub max_bytes: u64,
    /// The space that the log leaves free on its disk.
    pub min_free: MinFree,
}

#[cfg(test)]
impl Options {
    /// The options of a large log that syncs each append and leaves nothing free, for tests.
    pub(crate) fn of_test(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            sync: Sync::Always,
            group_window: Duration::ZERO,
            segment_bytes: 1 << 20,
            max_bytes: 1 << 30,
            min_free: MinFree::Bytes(0),
        }
    }
}

/// The log could not be opened, read or cut.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A call to the operating system failed.
    #[error("{action} {path}: {error}")]
    Io {
        /// The call, such as `open`.
        action: &'static str,
        /// The file or folder of the call.
        path: PathBuf,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// Acknowledged records are damaged.
    #[error("the log is damaged: {path}, byte {offset}: {detail}")]
    Damaged {
        /// The file of the segment.
        path: PathBuf,
        /// The offset in the file at which the damage begins.
        offset: u64,
        /// The kind of damage, for people.
        detail: String,
    },
    /// The folder has no log, but the caller knows that it had one.
    #[error("the log is missing: {0} has no checkpoint and no segment")]
    Missing(PathBuf),
    /// The checkpoint, or the position of the follower, is damaged.
    #[error("{path} is damaged: {detail}")]
    BadCheckpoint {
        /// The damaged file.
        path: PathBuf,
        /// The kind of damage, for people.
        detail: &'static str,
    },
    /// A newer version wrote this file.
    #[error("{path} has format version {found}, this program reads version {known}")]
    Version {
        /// The file that this program cannot read.
        path: PathBuf,
        /// The version of the file.
        found: u32,
        /// The newest version that this program reads.
        known: u32,
    },
}

impl LogError {
    /// Whether the process had no file descriptors left, which may be temporary.
    pub(crate) fn is_out_of_files(&self) -> bool {
        matches!(self, Self::Io { error, .. } if crate::disk::is_out_of_files(error))
    }

    fn io(action: &'static str, path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io { action, path, error }
    }
}
