//! What can go wrong in this room, and whether trying again may help.

use std::path::PathBuf;

use rusqlite::ErrorCode;

use super::chunk::ChunkError;
use crate::store::{Reasons, StoreError, WriteError};

/// All that [`SqliteError::sorted`] may say.
pub(super) const REASONS: Reasons = Reasons {
    transient: &[
        "busy",
        "io",
        "disk_full",
        "memory",
        "interrupted",
        "read_only",
        "corrupt",
        "schema",
        "file_gone",
        "stopping",
        "sqlite",
    ],
    permanent: &["constraint", "too_big", "mismatch", "unreadable_row", "unreadable_chunk"],
};

/// Everything that can go wrong in this room.
#[derive(Debug, thiserror::Error)]
pub(super) enum SqliteError {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error("a stored chunk cannot be read: {0}")]
    Chunk(ChunkError),
    #[error("no memory for the compressor: {0}")]
    Compressor(std::io::Error),
    #[error("the file has tables of version {found}, and this program knows version {known}")]
    UnknownVersion { found: i32, known: i32 },
    #[error("the file belongs to another program")]
    Foreign,
    #[error("no write-ahead file is possible there, only journal mode {mode}")]
    NoWal { mode: String },
    #[error(
        "{} was removed while it is in use: put it back, or start tidegauge again to begin with an empty database; \
         readings wait in the log", .0.display()
    )]
    FileGone(PathBuf),
    #[error(
        "another file is in the place of {}: put the first one back, or start tidegauge again to use this one; \
         readings wait in the log", .0.display()
    )]
    FileReplaced(PathBuf),
    #[error("cannot tell whether {} is still there: {}", .0.display(), .1)]
    FileUnknown(PathBuf, std::io::Error),
    #[error("the program is stopping")]
    Stopping,
}

impl SqliteError {
    /// Whether the same write will never succeed, however often it is sent.
    pub(super) fn is_permanent(&self) -> bool {
        self.sorted().1
    }

    /// Whether the disk is full.
    pub(super) fn is_disk_full(&self) -> bool {
        self.sorted().0 == "disk_full"
    }

    /// A short stable word, and whether the error is permanent. What is not known to be permanent is
    /// transient: a reading that is tried too often costs little, one that is given up too early is lost to
    /// the database.
    fn sorted(&self) -> (&'static str, bool) {
        match self {
            Self::Sqlite(error) => match error.sqlite_error_code() {
                Some(code) => sorted_code(code),
                None => ("unreadable_row", true), // a row that holds what this program never wrote
            },
            Self::Chunk(_) => ("unreadable_chunk", true),
            Self::Compressor(_) => ("memory", false),
            Self::UnknownVersion { .. } | Self::Foreign | Self::NoWal { .. } => ("schema", false),
            Self::FileGone(_) | Self::FileReplaced(_) => ("file_gone", false),
            Self::FileUnknown(..) => ("io", false),
            Self::Stopping => ("stopping", false),
        }
    }
}

fn sorted_code(code: ErrorCode) -> (&'static str, bool) {
    match code {
        ErrorCode::ConstraintViolation => ("constraint", true),
        ErrorCode::TooBig => ("too_big", true),
        ErrorCode::TypeMismatch => ("mismatch", true),
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => ("busy", false),
        ErrorCode::SystemIoFailure | ErrorCode::CannotOpen => ("io", false),
        ErrorCode::DiskFull => ("disk_full", false),
        ErrorCode::OutOfMemory => ("memory", false),
        ErrorCode::OperationInterrupted => ("interrupted", false),
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied => ("read_only", false),
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => ("corrupt", false),
        _ => ("sqlite", false),
    }
}

impl From<&SqliteError> for WriteError {
    fn from(error: &SqliteError) -> Self {
        let detail = error.to_string();
        match error.sorted() {
            (reason, true) => Self::Permanent { reason, detail },
            (reason, false) => Self::Transient { reason, detail },
        }
    }
}

impl From<SqliteError> for StoreError {
    fn from(error: SqliteError) -> Self {
        Self(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    #[test]
    fn only_what_no_retry_can_help_is_permanent() {
        let sorted = |code| {
            let error = SqliteError::from(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
            let (reason, is_permanent) = error.sorted();
            let known = if is_permanent { REASONS.permanent } else { REASONS.transient };
            assert!(known.contains(&reason), "{reason}");
            (reason, is_permanent)
        };
        assert_eq!(sorted(ffi::SQLITE_BUSY), ("busy", false));
        assert_eq!(sorted(ffi::SQLITE_BUSY_SNAPSHOT), ("busy", false));
        assert_eq!(sorted(ffi::SQLITE_IOERR_FSYNC), ("io", false));
        assert_eq!(sorted(ffi::SQLITE_FULL), ("disk_full", false));
        assert_eq!(sorted(ffi::SQLITE_NOMEM), ("memory", false));
        assert_eq!(sorted(ffi::SQLITE_INTERRUPT), ("interrupted", false));
        assert_eq!(sorted(ffi::SQLITE_CORRUPT), ("corrupt", false));
        assert_eq!(sorted(ffi::SQLITE_ERROR), ("sqlite", false));
        assert_eq!(sorted(ffi::SQLITE_CONSTRAINT_CHECK), ("constraint", true));
        assert_eq!(sorted(ffi::SQLITE_TOOBIG), ("too_big", true));
        assert_eq!(sorted(ffi::SQLITE_MISMATCH), ("mismatch", true));
        assert_eq!(SqliteError::Chunk(ChunkError::Truncated).sorted(), ("unreadable_chunk", true));
    }
}
