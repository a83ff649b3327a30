//! Deletions: remove readings before they expire, some hours of a device in each transaction.
//!
//! An hour that loses all its readings is removed from all tables. In any other hour, the readings that are
//! left become one chunk, and the rollups are folded from them. Rollups of expired readings cannot be folded
//! again: those of the selected series are removed if the range covers the whole hour, and else stay.
//!
//! An hour stays as it is if its readings have to be read, and a chunk is damaged. The deletion goes on with
//! the other hours, and its outcome names the first hour that stays.

use rusqlite::{Connection, params};

use super::bucket::BucketRows;
use super::devices;
use super::error::SqliteError;
use super::history;
use super::write::{Writer, begin};
use crate::model::{Deletion, Hour};

/// The number of hours that one transaction reads and rewrites: few, so that a write does not wait long.
const BATCH: i64 = 100;

/// The next hours of a range that have a bucket.
const HOURS: &str = "SELECT hour FROM buckets WHERE device = ?1 AND hour >= ?2 AND hour < ?3 ORDER BY hour LIMIT ?4";

#[cfg(test)]
pub(super) const QUERIES: [&str; 1] = [HOURS];

/// The result of one batch of a deletion.
#[derive(Debug)]
pub(super) struct Deleted {
    /// The number of readings that had a value removed.
    pub(super) readings: u64,
    /// The first hour that stays as it is because of a damaged chunk, and the error.
    pub(super) damaged: Option<(Hour, SqliteError)>,
    /// Where the next batch begins; `None` after the last one.
    pub(super) next: Option<Hour>,
}

impl Writer {
    /// Executes a deletion for some of its hours from `from` on.
    ///
    /// `has_damaged` says whether an earlier batch has found a damaged chunk.
    pub(super) fn delete_some(
        &mut self,
        deletion: &Deletion,
        from: Hour,
        has_damaged: bool,
    ) -> Result<Deleted, SqliteError> {
        let Self { connection, encoder, .. } = self;
        let transaction = begin(connection)?;
        let before = transaction.total_changes();
        let hours = hours(&transaction, deletion, from)?;
        let (mut readings, mut damaged) = (0, None);
        for hour in &hours {
            let hour = Hour::of(*hour);
            let rows = BucketRows::at(&transaction, &deletion.device, hour);
            let is_whole = deletion.covers(hour) && deletion.series.is_all();
            let deleted = if is_whole { rows.remove() } else { rows.delete(encoder, deletion) };
            match deleted {
                Ok(of_hour) => readings += of_hour,
                Err(error @ SqliteError::Chunk(_)) => damaged = damaged.or(Some((hour, error))),
                Err(error) => return Err(error),
            }
        }
        let next = hours.last().filter(|_| hours.len() as i64 == BATCH).map(|hour| Hour(Hour::of(*hour).0 + 1));
        if next.is_none() {
            devices::delete(&transaction, deletion, has_damaged || damaged.is_some())?;
        }
        history::count(&transaction, before)?;
        transaction.commit()?;
        // The next write may have to bring the device back into the index.
        self.noted.forget(&deletion.device);
        Ok(Deleted { readings, damaged, next })
    }
}

fn hours(connection: &Connection, deletion: &Deletion, from: Hour) -> Result<Vec<i64>, SqliteError> {
    let mut statement = connection.prepare_cached(HOURS)?;
    let range = params![&*deletion.device, from.start_ms(), deletion.hours().end.start_ms(), BATCH];
    Ok(statement.query_map(range, |row| row.get(0))?.collect::<Result<_, _>>()?)
}
