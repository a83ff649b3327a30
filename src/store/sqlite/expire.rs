//! Retention: deletes old readings and old rollups, a batch of buckets at a time. A device without a bucket
//! leaves the device index.
//!
//! SQLite reuses the free pages for later writes, so a file under steady retention stops growing. It never
//! shrinks by itself; `VACUUM`, with any SQLite tool while the service is stopped, makes it smaller.

use std::collections::BTreeSet;

use rusqlite::{Connection, params};

use super::devices;
use super::error::SqliteError;
use super::write::begin;
use crate::model::MS_PER_HOUR;

/// The number of buckets that one transaction deletes: few, so that a write does not wait long.
const BATCH: i64 = 1000;

/// The statements of one kind of expiry.
#[derive(Clone, Copy)]
pub(super) struct Expiry {
    /// Selects the oldest buckets that have something to delete.
    oldest: &'static str,
    /// The statements that run for each of these buckets.
    pub(super) each: &'static [&'static str],
    /// Whether `each` deletes the rows of the buckets, too.
    deletes_buckets: bool,
}

const DELETE_FIRST_CHUNK: &str =
    "DELETE FROM first_chunks WHERE id = (SELECT first_chunk FROM buckets WHERE device = ?1 AND hour = ?2)";
const DELETE_CHUNKS: &str = "DELETE FROM chunks WHERE device = ?1 AND hour = ?2";

/// Deletes readings, keeps the rollups of their hour, and sets [`super::schema::ReadingsState::Expired`].
pub(super) const READINGS: Expiry = Expiry {
    oldest: "SELECT device, hour FROM buckets WHERE readings_state <> 1 AND hour <= ?1 ORDER BY hour LIMIT ?2",
    each: &[
        DELETE_FIRST_CHUNK,
        DELETE_CHUNKS,
        "UPDATE buckets SET readings_state = 1, first_chunk = NULL WHERE device = ?1 AND hour = ?2",
    ],
    deletes_buckets: false,
};

/// Deletes readings and rollups.
pub(super) const ROLLUPS: Expiry = Expiry {
    oldest: "SELECT device, hour FROM buckets WHERE readings_state = 1 AND hour <= ?1
        UNION ALL SELECT device, hour FROM buckets WHERE readings_state <> 1 AND hour <= ?1 ORDER BY hour LIMIT ?2",
    each: &[
        DELETE_FIRST_CHUNK,
        DELETE_CHUNKS,
        "DELETE FROM rollups WHERE device = ?1 AND hour = ?2",
        "DELETE FROM buckets WHERE device = ?1 AND hour = ?2",
    ],
    deletes_buckets: true,
};

#[cfg(test)]
pub(super) fn queries() -> Vec<&'static str> {
    [READINGS, ROLLUPS].iter().flat_map(|expiry| expiry.each.iter().copied().chain([expiry.oldest])).collect()
}

/// The result of one batch of an expiry.
pub(super) struct Expired {
    /// The number of buckets whose readings, or readings and rollups, were deleted.
    pub(super) buckets: u64,
    /// Whether more buckets may have expired.
    pub(super) more: bool,
    /// The devices that have left the device index.
    pub(super) devices: Vec<String>,
}

/// Expires one batch of the buckets whose hour ended at or before `oldest_ms` (Unix milliseconds), the oldest
/// first.
pub(super) fn expire_some(connection: &mut Connection, expiry: Expiry, oldest_ms: i64) -> Result<Expired, SqliteError> {
    let transaction = begin(connection)?;
    let newest_start_ms = oldest_ms.saturating_sub(MS_PER_HOUR);
    let oldest: Vec<(String, i64)> = transaction
        .prepare_cached(expiry.oldest)?
        .query_map(params![newest_start_ms, BATCH], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    for sql in expiry.each {
        let mut statement = transaction.prepare_cached(sql)?;
        for (device, hour) in &oldest {
            statement.execute(params![device, hour])?;
        }
    }
    let mut gone = Vec::new();
    if expiry.deletes_buckets {
        let mut expired: BTreeSet<&str> = oldest.iter().map(|(device, _)| device.as_str()).collect();
        while let Some(device) = expired.pop_first() {
            if devices::remove_without_buckets(&transaction, device)? {
                gone.push(device.to_owned());
            }
        }
    }
    transaction.commit()?;
    Ok(Expired { buckets: oldest.len() as u64, more: oldest.len() as i64 == BATCH, devices: gone })
}
