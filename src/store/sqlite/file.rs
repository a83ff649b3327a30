//! The database file as it was opened, and whether it is still at its path.
//!
//! A process that has a file open goes on reading and writing it after somebody removed it or put another one
//! in its place. What it writes then is gone when it ends. So a commit counts only when the file is still
//! there afterwards.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::error::SqliteError;

/// A file of the database, with its device and inode.
#[derive(Debug)]
struct Opened {
    path: PathBuf,
    identity: (u64, u64),
}

/// The database file and its write-ahead file.
#[derive(Debug)]
pub(super) struct DatabaseFile(Vec<Opened>);

impl DatabaseFile {
    /// Notes the files of a database that was just opened for writing: both are there as long as it is open.
    pub(super) fn of(path: &Path) -> Result<Self, SqliteError> {
        let mut wal = path.as_os_str().to_owned();
        wal.push("-wal");
        let opened = [path.to_owned(), wal.into()].into_iter().map(|path| {
            let identity = identity_of(&path)?.ok_or_else(|| SqliteError::FileGone(path.clone()))?;
            Ok(Opened { path, identity })
        });
        opened.collect::<Result<_, SqliteError>>().map(Self)
    }

    /// # Errors
    /// When one of the files is gone, or another one is in its place.
    pub(super) fn check(&self) -> Result<(), SqliteError> {
        self.0.iter().try_for_each(|Opened { path, identity }| match identity_of(path)? {
            Some(found) if found == *identity => Ok(()),
            Some(_) => Err(SqliteError::FileReplaced(path.clone())),
            None => Err(SqliteError::FileGone(path.clone())),
        })
    }
}

/// The device and inode of what is at a path, if anything is.
fn identity_of(path: &Path) -> Result<Option<(u64, u64)>, SqliteError> {
    match std::fs::metadata(path) {
        Ok(found) => Ok(Some((found.dev(), found.ino()))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(SqliteError::FileUnknown(path.to_owned(), error)),
    }
}
