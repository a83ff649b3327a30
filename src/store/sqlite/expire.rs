//! Retention: deleting old buckets a few at a time.
//!
//! The pages that become free are used by the next writes, so a file under steady retention stops growing. It never
//! shrinks by itself; `VACUUM`, with any SQLite tool while the service is stopped, makes it small.

use rusqlite::{Connection, params};

use super::error::SqliteError;
use super::write::begin;
use crate::model::MS_PER_HOUR;

/// How many buckets one transaction deletes: few enough that a write does not wait long behind it.
const BATCH: i64 = 1000;

const OLDEST: &str = "SELECT device, hour FROM buckets WHERE hour <= ?1 ORDER BY hour LIMIT ?2";
const DELETE_BUCKET: &str = "DELETE FROM buckets WHERE device = ?1 AND hour = ?2";
const DELETE_ROLLUPS: &str = "DELETE FROM rollups WHERE device = ?1 AND hour = ?2";
const DELETE_CHUNKS: &str = "DELETE FROM chunks WHERE device = ?1 AND hour = ?2";

#[cfg(test)]
pub(super) const QUERIES: [&str; 4] = [OLDEST, DELETE_BUCKET, DELETE_ROLLUPS, DELETE_CHUNKS];

/// What one batch did.
pub(super) struct Expired {
    /// How many buckets it deleted.
    pub(super) buckets: u64,
    /// Whether there may be more.
    pub(super) more: bool,
}

/// Deletes some of the buckets whose hour ended at `oldest_ms` (Unix milliseconds) or before, the oldest first.
pub(super) fn expire_some(connection: &mut Connection, oldest_ms: i64) -> Result<Expired, SqliteError> {
    let transaction = begin(connection)?;
    let newest_start_ms = oldest_ms.saturating_sub(MS_PER_HOUR);
    let oldest: Vec<(String, i64)> = transaction
        .prepare_cached(OLDEST)?
        .query_map(params![newest_start_ms, BATCH], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    for sql in [DELETE_CHUNKS, DELETE_ROLLUPS, DELETE_BUCKET] {
        let mut statement = transaction.prepare_cached(sql)?;
        for (device, hour) in &oldest {
            statement.execute(params![device, hour])?;
        }
    }
    transaction.commit()?;
    Ok(Expired { buckets: oldest.len() as u64, more: oldest.len() as i64 == BATCH })
}
