//! A copy of the file for a backup, made while another process writes the file.
//!
//! An open read transaction is a snapshot: SQLite keeps the pages that it sees, and writers continue beside
//! it. SQLite's backup API copies these pages within the transaction, so it never starts again because of a
//! write. Until the end of the copy, the write-ahead file grows by all that is written meanwhile.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::backup::Backup;

use super::error::SqliteError;
use super::{BUSY_TIMEOUT, history, schema};
use crate::store::{Cause, History, StoreError};

pub use super::file::files_of;

/// The number of pages that one step of a backup copies.
const PAGES_PER_STEP: i32 = 1_000;

/// The state of a file after one of its commits.
pub struct Snapshot(Connection);

impl Snapshot {
    /// Takes a snapshot of the file at `path`.
    ///
    /// It has all writes that succeeded before the call. The call blocks the thread while it reads.
    ///
    /// # Errors
    /// When the file is missing, cannot be read, or is not one of this program.
    pub fn take(path: &Path) -> Result<Self, StoreError> {
        let take = || {
            let connection = schema::open_reader(path, BUSY_TIMEOUT)?;
            connection.execute_batch("BEGIN")?;
            history::read(&connection)?; // the first read begins the transaction
            Ok(Self(connection))
        };
        take().map_err(|error: SqliteError| described("read", path, &error))
    }

    /// Copies the file to `to`, where no file is.
    ///
    /// When this returns, the bytes of the copy survive a crash. The call blocks the thread.
    ///
    /// # Errors
    /// When the copy cannot be written, or a page cannot be read.
    pub fn copy_to(&self, to: &Path) -> Result<(), StoreError> {
        let copy = || {
            let mut copy = Connection::open(to)?;
            copy.pragma_update(None, "synchronous", "OFF")?; // the copy is synced once, at its end
            Backup::new(&self.0, &mut copy)?.run_to_completion(PAGES_PER_STEP, Duration::ZERO, None)?;
            // The copy is one file, without a write-ahead file beside it.
            copy.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(()))?;
            copy.close().map_err(|(_, error)| error)?;
            Ok(())
        };
        copy().map_err(|error: SqliteError| described("copy to", to, &error))?;
        let synced = File::open(to).and_then(|file| file.sync_all());
        synced.map_err(|error| StoreError::new(Cause::Io, format!("cannot sync {}: {error}", to.display())))
    }
}

/// The ID and the number of writes of the file at `path`.
///
/// Another process may be writing the file. The call blocks the thread while it reads.
///
/// # Errors
/// When the file is missing, cannot be read, or is not one of this program.
pub fn history(path: &Path) -> Result<History, StoreError> {
    let read = || history::read(&schema::open_reader(path, BUSY_TIMEOUT)?);
    read().map_err(|error: SqliteError| described("read", path, &error))
}

/// Checks the structure of the file at `path`, which no other process has open.
///
/// The call blocks the thread while it reads.
///
/// # Errors
/// When the file is damaged, cannot be read, or is not one of this program.
pub fn check(path: &Path) -> Result<(), StoreError> {
    let check = || {
        let connection = schema::open_reader(path, BUSY_TIMEOUT)?;
        history::read(&connection)?;
        Ok(connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0))?)
    };
    let found = check().map_err(|error: SqliteError| described("check", path, &error))?;
    if found == "ok" {
        return Ok(());
    }
    Err(StoreError::new(Cause::Corrupt, format!("{} is damaged: {found}", path.display())))
}

fn described(action: &str, path: &Path, error: &SqliteError) -> StoreError {
    StoreError::new(error.cause(), format!("cannot {action} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn count(path: &Path) -> i64 {
        Connection::open(path).unwrap().query_row("SELECT count(*) FROM chunks", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn the_copy_has_what_was_written_before_the_snapshot_and_nothing_later() {
        let folder = TempDir::new().unwrap();
        let (path, copy) = (folder.path().join("db"), folder.path().join("copy"));
        let writer = schema::open_writer(&path, BUSY_TIMEOUT).unwrap();
        let insert = |seq: i64| {
            let sql = "INSERT INTO chunks VALUES ('d', 0, ?1, zeroblob(20000))";
            writer.execute(sql, [seq]).unwrap();
        };
        (0..300).for_each(insert);
        let snapshot = Snapshot::take(&path).unwrap();
        (300..600).for_each(insert);
        snapshot.copy_to(&copy).unwrap();
        drop(snapshot);
        assert_eq!((count(&copy), count(&path)), (300, 600));
        check(&copy).unwrap();
        assert!(!folder.path().join("copy-wal").exists());
    }

    #[test]
    fn a_damaged_or_foreign_file_is_found() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("db");
        Snapshot::take(&path).map(|_| ()).unwrap_err();
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE mine (x)").unwrap();
        Snapshot::take(&path).map(|_| ()).unwrap_err();
        check(&path).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        let writer = schema::open_writer(&path, BUSY_TIMEOUT).unwrap();
        (0..50).for_each(|seq| {
            writer.execute("INSERT INTO chunks VALUES ('d', 0, ?1, zeroblob(20000))", [seq]).unwrap();
        });
        writer.close().unwrap();
        check(&path).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle..middle + 8192].fill(0xff);
        std::fs::write(&path, bytes).unwrap();
        check(&path).unwrap_err();
    }
}
