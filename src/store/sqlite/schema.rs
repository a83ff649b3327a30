//! The file: its tables, its version, and the settings of its connections.
//!
//! `buckets`, `rollups` and `chunks` have the device and the hour as plain columns, so that any SQLite tool
//! can read the file. Integer device keys would save some bytes per row, but each query by hand would need a
//! join, and each write a lookup.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ValueRef};
use rusqlite::{Connection, MAIN_DB, OpenFlags, TransactionBehavior};

use super::error::SqliteError;
use super::{file, history, operator_metadata};
use crate::disk;

/// The version of the file, kept in its `user_version`.
pub(super) const VERSION: i32 = 1;
/// `Tide` in ASCII. It marks the file as tidegauge's own for `file(1)` and for [`open_writer`].
pub(super) const APPLICATION_ID: i32 = 0x5469_6465;

/// The tables. Times are Unix milliseconds; `hour` is the start of the hour.
///
/// - `buckets`: one row per bucket. The indexes serve expiry, which asks by hour across all devices; each
///   bucket is in one of them. `readings_state` is the [`ReadingsState`]. `first_chunk` is NULL if the
///   readings have expired.
/// - `rollups`: the stats of one metric in one bucket.
/// - `first_chunks`: the readings of a bucket as a chunk; as a rule, a bucket has no other. New ones are all
///   at the end of the table, which fills its pages, and the number in `buckets` is their only key.
/// - `chunks`: further chunks of a bucket. The chunks of a bucket share no identity. Unlike `buckets` it has
///   a rowid: blobs are too large for an index.
const TABLES: &str = "
CREATE TABLE buckets (
    device   TEXT    NOT NULL,
    hour     INTEGER NOT NULL,
    first_ts INTEGER NOT NULL,
    last_ts  INTEGER NOT NULL,
    readings INTEGER NOT NULL,
    metadata TEXT,
    readings_state INTEGER NOT NULL DEFAULT 0,
    first_chunk    INTEGER,
    PRIMARY KEY (device, hour)
) WITHOUT ROWID;
CREATE INDEX readings_by_hour ON buckets (hour) WHERE readings_state <> 1;
CREATE INDEX expired_by_hour ON buckets (hour) WHERE readings_state = 1;
CREATE TABLE first_chunks (
    id   INTEGER PRIMARY KEY,
    data BLOB    NOT NULL
);
CREATE TABLE rollups (
    device TEXT    NOT NULL,
    hour   INTEGER NOT NULL,
    metric TEXT    NOT NULL,
    count  INTEGER NOT NULL,
    min    REAL    NOT NULL,
    max    REAL    NOT NULL,
    sum    REAL    NOT NULL,
    first_at    INTEGER NOT NULL,
    first_value REAL    NOT NULL,
    last_at     INTEGER NOT NULL,
    last_value  REAL    NOT NULL,
    PRIMARY KEY (device, hour, metric)
) WITHOUT ROWID;
CREATE TABLE chunks (
    device TEXT    NOT NULL,
    hour   INTEGER NOT NULL,
    seq    INTEGER NOT NULL,
    data   BLOB    NOT NULL,
    PRIMARY KEY (device, hour, seq)
);";

/// The tables of the device index.
///
/// - `devices`: one row per device. `metadata_hour` is the hour that the metadata was sent with, `last_ts`
///   the last instant when the row was written.
/// - `series`: the series of a device, and the start of the last day with a reading of each. `measurement` is
///   the length of the measurement with which the name begins, or 0.
const DEVICE_TABLES: &str = "
CREATE TABLE devices (
    device        TEXT    NOT NULL PRIMARY KEY,
    metadata      TEXT,
    metadata_hour INTEGER,
    first_ts      INTEGER NOT NULL,
    last_ts       INTEGER NOT NULL,
    more_series   INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE series (
    device      TEXT    NOT NULL,
    series      TEXT    NOT NULL,
    last_day    INTEGER NOT NULL,
    measurement INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (device, series)
) WITHOUT ROWID;";

/// Which readings of a bucket the file has, beside its rollups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadingsState {
    /// All readings that were written to the bucket.
    Complete = 0,
    /// None: the readings have expired, and only the rollups are kept.
    Expired = 1,
    /// Only readings that were written after the others had expired.
    AfterExpiry = 2,
}

impl FromSql for ReadingsState {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value.as_i64()? {
            0 => Ok(Self::Complete),
            1 => Ok(Self::Expired),
            2 => Ok(Self::AfterExpiry),
            other => Err(FromSqlError::OutOfRange(other)),
        }
    }
}

/// The number of prepared statements that a connection keeps: more than this store has.
const STATEMENTS: usize = 32;
/// The page cache of the writing connection, in KiB. Buckets of many devices are far apart in the tables.
const WRITER_CACHE_KIB: i32 = 32 * 1024;
/// The page cache of each reading connection, in KiB.
const READER_CACHE_KIB: i32 = 8 * 1024;
/// The size of the write-ahead file at a checkpoint: several full flushes.
///
/// On a small disk it is smaller.
pub(super) const CHECKPOINT_BYTES: u64 = 32 << 20;
/// Before a checkpoint, the write-ahead file may take the size of the disk divided by this.
const CHECKPOINT_PART: u64 = 64;
/// The size of a page of the database.
const PAGE_BYTES: u64 = 4096;

/// Opens the file for writing, and creates it if it is missing.
///
/// A commit is durable when it returns: SQLite syncs the write-ahead file at each one.
pub(super) fn open_writer(path: &Path, busy_timeout: Duration) -> Result<Connection, SqliteError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let path = &file::target_of(path); // its disk may be another one than that of a link
    file::expect_regular(path)?;
    file::expect_index_space(path)?;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(busy_timeout)?;
    if connection.is_readonly(MAIN_DB)? {
        return Err(SqliteError::ReadOnly); // SQLite opens a file for reading if it may not write it
    }
    claim(&mut connection)?;
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        return Err(SqliteError::NoWal { mode });
    }
    connection.pragma_update(None, "synchronous", "FULL")?;
    let checkpoint_bytes = checkpoint_bytes(path);
    connection.pragma_update(None, "wal_autocheckpoint", checkpoint_bytes / PAGE_BYTES.cast_signed())?;
    // The size to which SQLite truncates the write-ahead file after a checkpoint.
    connection.pragma_update(None, "journal_size_limit", 2 * checkpoint_bytes)?;
    connection.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    keep_statements(&connection)?;
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?; // creates the write-ahead file
    Ok(connection)
}

/// The size at which SQLite copies the write-ahead file of `path` back (a checkpoint).
pub(super) fn checkpoint_bytes(path: &Path) -> i64 {
    let disk = disk::space(path.parent().unwrap_or(Path::new(""))).map_or(u64::MAX, |space| space.total);
    (disk / CHECKPOINT_PART).clamp(64 * PAGE_BYTES, CHECKPOINT_BYTES).cast_signed()
}

/// Opens the file for reading. A reader sees the last commit before its transaction, and never waits for a
/// writer.
pub(super) fn open_reader(path: &Path, busy_timeout: Duration) -> Result<Connection, SqliteError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    file::expect_regular(path)?;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(busy_timeout)?;
    connection.pragma_update(None, "cache_size", -READER_CACHE_KIB)?;
    keep_statements(&connection)?;
    Ok(connection)
}

/// Keeps prepared statements as they are. Without the stability guarantee of the query planner, SQLite
/// compiles a statement again when another device is bound, because the plan could depend on its ID.
fn keep_statements(connection: &Connection) -> Result<(), SqliteError> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

/// Creates the tables in an empty file, and refuses a file with unknown tables.
///
/// It uses one transaction, so that of two processes that start at once only one creates the tables.
fn claim(connection: &mut Connection) -> Result<(), SqliteError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let pragma = |name| transaction.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    let tables: i64 = transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    match (pragma("application_id")?, pragma("user_version")?) {
        (APPLICATION_ID, VERSION) => {}
        (APPLICATION_ID, version) => return Err(SqliteError::UnknownVersion { found: version, known: VERSION }),
        (0, 0) if tables == 0 => {
            transaction.execute_batch(TABLES)?;
            transaction.execute_batch(DEVICE_TABLES)?;
            transaction.execute_batch(operator_metadata::TABLE)?;
            transaction.execute_batch(history::TABLE)?;
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
            transaction.pragma_update(None, "user_version", VERSION)?;
        }
        _ => return Err(SqliteError::Foreign),
    }
    Ok(transaction.commit()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: Duration = Duration::from_secs(5);

    fn open_error_after(prepare: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        drop(open_writer(&path, BUSY).unwrap());
        Connection::open(&path).unwrap().execute_batch(prepare).unwrap();
        open_writer(&path, BUSY).unwrap_err().to_string()
    }

    #[test]
    fn a_file_is_opened_again_with_its_settings() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        for _ in 0..2 {
            let connection = open_writer(&path, BUSY).unwrap();
            let text = |name| connection.pragma_query_value(None, name, |row| row.get::<_, String>(0)).unwrap();
            let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).unwrap();
            assert_eq!(text("journal_mode"), "wal");
            assert_eq!(number("synchronous"), 2, "FULL");
            assert_eq!((number("application_id"), number("user_version")), (0x5469_6465, 1));
        }
    }

    #[test]
    fn a_file_of_an_unknown_version_is_refused_with_both_versions() {
        for unknown in [0, 2] {
            let message = open_error_after(&format!("PRAGMA user_version = {unknown}"));
            assert!(message.contains(&format!("version {unknown}")) && message.contains("version 1"), "{message}");
        }
    }

    #[test]
    fn a_file_of_another_program_is_refused_and_unchanged() {
        assert!(open_error_after("PRAGMA application_id = 5").contains("another program"));

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE mine (x)").unwrap();
        let before = std::fs::read(&path).unwrap();
        assert!(matches!(open_writer(&path, BUSY), Err(SqliteError::Foreign)));
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    #[test]
    fn a_database_in_memory_is_refused() {
        let message = open_writer(Path::new(":memory:"), BUSY).unwrap_err().to_string();
        assert!(message.contains("journal mode memory"), "{message}");
    }

    #[test]
    fn a_file_that_is_no_database_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        std::fs::write(&path, "deviceId,ts,value\n".repeat(100)).unwrap();
        let message = open_writer(&path, BUSY).unwrap_err().to_string();
        assert!(message.contains("not a database"), "{message}");
    }
}
