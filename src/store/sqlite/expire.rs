//! Retention: deleting old readings and old rollups, a few buckets at a time.
//!
//! The pages that become free are used by the next writes, so a file under steady retention stops growing. It
//! never shrinks by itself; `VACUUM`, with any SQLite tool while the service is stopped, makes it small.

use rusqlite::{Connection, params};

use super::error::SqliteError;
use super::write::begin;
use crate::model::MS_PER_HOUR;

/// How many buckets one transaction deletes: few enough that a write does not wait long behind it.
const BATCH: i64 = 1000;

/// What is deleted: which buckets are the oldest that have it, and what then is done to each.
#[derive(Clone, Copy)]
pub(super) struct What {
    oldest: &'static str,
    each: &'static [&'static str],
}

const DELETE_CHUNKS: &str = "DELETE FROM chunks WHERE device = ?1 AND hour = ?2";

/// The readings. What is known of their hour stays.
pub(super) const READINGS: What = What {
    oldest: "SELECT device, hour FROM buckets WHERE outlived <> 1 AND hour <= ?1 ORDER BY hour LIMIT ?2",
    each: &[DELETE_CHUNKS, "UPDATE buckets SET outlived = 1 WHERE device = ?1 AND hour = ?2"],
};

/// All that is known of an hour.
pub(super) const ROLLUPS: What = What {
    oldest: "SELECT device, hour FROM buckets WHERE hour <= ?1 ORDER BY hour LIMIT ?2",
    each: &[
        DELETE_CHUNKS,
        "DELETE FROM rollups WHERE device = ?1 AND hour = ?2",
        "DELETE FROM buckets WHERE device = ?1 AND hour = ?2",
    ],
};

#[cfg(test)]
pub(super) fn queries() -> Vec<&'static str> {
    [READINGS, ROLLUPS].iter().flat_map(|what| what.each.iter().copied().chain([what.oldest])).collect()
}

/// What one batch did.
pub(super) struct Expired {
    /// How many buckets it was about.
    pub(super) buckets: u64,
    /// Whether there may be more.
    pub(super) more: bool,
}

/// Deletes `what` of some of the buckets whose hour ended at `oldest_ms` (Unix milliseconds) or before, the
/// oldest first.
pub(super) fn expire_some(connection: &mut Connection, what: What, oldest_ms: i64) -> Result<Expired, SqliteError> {
    let transaction = begin(connection)?;
    let newest_start_ms = oldest_ms.saturating_sub(MS_PER_HOUR);
    let oldest: Vec<(String, i64)> = transaction
        .prepare_cached(what.oldest)?
        .query_map(params![newest_start_ms, BATCH], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    for sql in what.each {
        let mut statement = transaction.prepare_cached(sql)?;
        for (device, hour) in &oldest {
            statement.execute(params![device, hour])?;
        }
    }
    transaction.commit()?;
    Ok(Expired { buckets: oldest.len() as u64, more: oldest.len() as i64 == BATCH })
}
