//! Errors of the SQLite store, and their causes.

use std::path::PathBuf;

use rusqlite::ErrorCode;

use super::file::INDEX_BYTES;
use crate::codec::ChunkError;
use crate::store::{Cause, StoreError};

/// All causes that [`SqliteError::cause`] returns.
pub(super) const CAUSES: &[Cause] = &[
    Cause::Busy,
    Cause::Io,
    Cause::DiskFull,
    Cause::Memory,
    Cause::Interrupted,
    Cause::ReadOnly,
    Cause::Corrupt,
    Cause::Schema,
    Cause::FileGone,
    Cause::Stopping,
    Cause::Sqlite,
    Cause::Constraint,
    Cause::TooBig,
    Cause::Mismatch,
    Cause::UnreadableRow,
    Cause::UnreadableChunk,
];

/// An error of the SQLite store.
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
    #[error("this process may only read the file")]
    ReadOnly,
    #[error("SQLite cannot keep a write-ahead file there: it uses journal mode {mode}")]
    NoWal { mode: String },
    #[error(
        "{} was removed while it is in use: put it back, or start tidegauge again to begin with an empty database",
        .0.display()
    )]
    FileGone(PathBuf),
    #[error(
        "another file is in the place of {}: put the first one back, or start tidegauge again to use this one",
        .0.display()
    )]
    FileReplaced(PathBuf),
    #[error("cannot check whether {} is still there: {}", .0.display(), .1)]
    FileUnknown(PathBuf, std::io::Error),
    #[error("{}: {}", .0.display(), .1)]
    NotRegular(PathBuf, std::io::Error),
    #[error("the disk has {free} bytes free, and SQLite needs {needed} on a disk with blocks of {block} bytes")]
    NoIndexSpace { free: u64, needed: u64, block: u64 },
    #[error("the program is stopping")]
    Stopping,
}

impl SqliteError {
    /// The cause. An error that is not known to be permanent counts as transient: a retry too many costs
    /// little, but a reading given up too early is lost to the database.
    pub(super) fn cause(&self) -> Cause {
        match self {
            Self::Sqlite(error) => match error.sqlite_error_code() {
                Some(code) => cause_of(code),
                None => Cause::UnreadableRow, // the row has a value that this program never wrote
            },
            Self::Chunk(_) => Cause::UnreadableChunk,
            Self::Compressor(_) => Cause::Memory,
            Self::UnknownVersion { .. } | Self::Foreign | Self::NoWal { .. } => Cause::Schema,
            Self::ReadOnly => Cause::ReadOnly,
            Self::FileGone(_) | Self::FileReplaced(_) => Cause::FileGone,
            Self::FileUnknown(..) | Self::NotRegular(..) => Cause::Io,
            Self::NoIndexSpace { .. } => Cause::DiskFull,
            Self::Stopping => Cause::Stopping,
        }
    }

    /// The advice if the file cannot be opened because of this error, to append to its text.
    ///
    /// `free` is the free space of the disk, in bytes, if it is known.
    pub(super) fn mend(&self, free: Option<u64>) -> String {
        match (self.cause(), free) {
            (Cause::ReadOnly, _) => {
                "; the user of the service has to own the file, the files beside it and the folder, and the disk must \
                 not be read-only"
                    .to_owned()
            }
            (Cause::Corrupt, _) => "; `tidegauge check --full` shows the damage and the mend".to_owned(),
            // SQLite calls a disk that is full an I/O error, too.
            (Cause::Io | Cause::DiskFull, Some(free @ ..INDEX_BYTES)) if matches!(self, Self::Sqlite(_)) => {
                format!("; the disk has {free} bytes free: remove other files from it, or enlarge it")
            }
            _ => String::new(),
        }
    }
}

fn cause_of(code: ErrorCode) -> Cause {
    match code {
        ErrorCode::ConstraintViolation => Cause::Constraint,
        ErrorCode::TooBig => Cause::TooBig,
        ErrorCode::TypeMismatch => Cause::Mismatch,
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Cause::Busy,
        ErrorCode::SystemIoFailure | ErrorCode::CannotOpen => Cause::Io,
        ErrorCode::DiskFull => Cause::DiskFull,
        ErrorCode::OutOfMemory => Cause::Memory,
        ErrorCode::OperationInterrupted => Cause::Interrupted,
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied => Cause::ReadOnly,
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Cause::Corrupt,
        _ => Cause::Sqlite,
    }
}

impl From<&SqliteError> for StoreError {
    fn from(error: &SqliteError) -> Self {
        Self::new(error.cause(), error.to_string())
    }
}

impl From<SqliteError> for StoreError {
    fn from(error: SqliteError) -> Self {
        Self::new(error.cause(), error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    #[test]
    fn an_error_of_a_full_disk_names_its_free_space() {
        let mend = |code, free| {
            SqliteError::from(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)).mend(Some(free))
        };
        for code in [ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_FULL] {
            assert!(mend(code, 4096).contains("the disk has 4096 bytes free"), "{code}");
            assert_eq!(mend(code, 1 << 30), "", "{code}");
        }
        assert_eq!(mend(ffi::SQLITE_BUSY, 0), "");
    }

    #[test]
    fn each_code_of_sqlite_has_a_cause() {
        let cause = |code| {
            let error = SqliteError::from(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
            assert!(CAUSES.contains(&error.cause()), "{error}");
            error.cause()
        };
        assert_eq!(cause(ffi::SQLITE_BUSY), Cause::Busy);
        assert_eq!(cause(ffi::SQLITE_BUSY_SNAPSHOT), Cause::Busy);
        assert_eq!(cause(ffi::SQLITE_IOERR_FSYNC), Cause::Io);
        assert_eq!(cause(ffi::SQLITE_FULL), Cause::DiskFull);
        assert_eq!(cause(ffi::SQLITE_NOMEM), Cause::Memory);
        assert_eq!(cause(ffi::SQLITE_INTERRUPT), Cause::Interrupted);
        assert_eq!(cause(ffi::SQLITE_CORRUPT), Cause::Corrupt);
        assert_eq!(cause(ffi::SQLITE_ERROR), Cause::Sqlite);
        assert_eq!(cause(ffi::SQLITE_CONSTRAINT_CHECK), Cause::Constraint);
        assert_eq!(cause(ffi::SQLITE_TOOBIG), Cause::TooBig);
        assert_eq!(cause(ffi::SQLITE_MISMATCH), Cause::Mismatch);
        assert_eq!(SqliteError::Chunk(ChunkError::Truncated).cause(), Cause::UnreadableChunk);
    }
}
