//! The ID of the file and the number of its writes. By them, the service recognizes at its start that the
//! file was replaced by another one or by an older copy.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, Transaction};

use super::error::SqliteError;
use super::file;
use crate::store::History;

/// The table, and its one row with a new ID.
pub(super) const TABLE: &str = "
CREATE TABLE history (id TEXT NOT NULL, writes INTEGER NOT NULL);
INSERT INTO history VALUES (lower(hex(randomblob(16))), 0);";
const COUNT: &str = "UPDATE history SET writes = writes + 1";
const READ: &str = "SELECT id, writes FROM history";

/// Adds 1 to the number of writes if a transaction has changed anything.
///
/// `before` is the count of all changes (`total_changes`) before the transaction. The new number is part of
/// the transaction.
pub(super) fn count(transaction: &Transaction<'_>, before: u64) -> Result<(), SqliteError> {
    if transaction.total_changes() == before {
        return Ok(());
    }
    transaction.prepare_cached(COUNT)?.execute([])?;
    Ok(())
}

/// The history as of the last commit.
pub(super) fn read(connection: &Connection) -> Result<History, SqliteError> {
    let mut statement = connection.prepare_cached(READ)?;
    Ok(statement.query_row([], |row| Ok(History { id: row.get(0)?, writes: row.get::<_, i64>(1)?.cast_unsigned() }))?)
}

/// Whether the file at `path` holds readings or rollups.
///
/// No process may have the file open. A missing file, or one of another program, holds none. The check
/// creates no file beside it. It blocks the thread while it reads.
#[must_use]
pub fn holds_data(path: &Path) -> bool {
    if file::expect_regular(path).is_err() {
        return false;
    }
    // A write-ahead file with data: the last process wrote to the database and did not close it.
    let [_, wal, ..] = file::files_of(path);
    if std::fs::metadata(wal).is_ok_and(|wal| wal.len() > 0) {
        return true;
    }
    let escaped = path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags(format!("file:{escaped}?immutable=1"), flags);
    opened.is_ok_and(|file| file.query_row("SELECT 1 FROM buckets LIMIT 1", [], |_| Ok(())).is_ok())
}
