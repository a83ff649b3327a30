//! Which file this is and how many writes it has taken: by these a start recognizes another file, or an older
//! copy.
//!
//! The table was added without a new version of the file: programs that do not know it ignore it.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, Transaction};

use super::error::SqliteError;
use crate::store::History;

const ENSURE: &str = "
CREATE TABLE IF NOT EXISTS history (id TEXT NOT NULL, writes INTEGER NOT NULL);
INSERT INTO history SELECT lower(hex(randomblob(16))), 0 WHERE NOT EXISTS (SELECT 1 FROM history);";
const COUNT: &str = "UPDATE history SET writes = writes + 1";
const READ: &str = "SELECT id, writes FROM history";

/// Gives the file an id, unless it has one.
pub(super) fn ensure(transaction: &Transaction<'_>) -> Result<(), SqliteError> {
    Ok(transaction.execute_batch(ENSURE)?)
}

/// Counts a write, as part of its transaction, unless that has changed no row since it had changed `before`.
pub(super) fn count(transaction: &Transaction<'_>, before: u64) -> Result<(), SqliteError> {
    if transaction.total_changes() == before {
        return Ok(());
    }
    transaction.prepare_cached(COUNT)?.execute([])?;
    Ok(())
}

/// What the last commit left.
pub(super) fn read(connection: &Connection) -> Result<History, SqliteError> {
    let mut statement = connection.prepare_cached(READ)?;
    Ok(statement.query_row([], |row| Ok(History { id: row.get(0)?, writes: row.get::<_, i64>(1)?.cast_unsigned() }))?)
}

/// Whether a file that nobody has open holds readings or rollups. Leaves no other file beside it. A file that
/// is not there, or not ours, holds none.
pub(super) fn holds_data(path: &Path) -> bool {
    // Not yet moved into the file: it was not closed in good order, after something was written.
    let wal = path.with_file_name(format!("{}-wal", path.file_name().unwrap_or_default().to_string_lossy()));
    if std::fs::metadata(wal).is_ok_and(|wal| wal.len() > 0) {
        return true;
    }
    let escaped = path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags(format!("file:{escaped}?immutable=1"), flags);
    opened.is_ok_and(|file| file.query_row("SELECT 1 FROM buckets LIMIT 1", [], |_| Ok(())).is_ok())
}
