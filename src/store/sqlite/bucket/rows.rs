//! Single rows of a bucket: read, and written as they are.

use rusqlite::{CachedStatement, OptionalExtension, Row, params};

use super::BucketRows;
use crate::model::{BucketWrite, Contents, Hour, Metric, MetricTable, Stats};
use crate::store::hour_samples::HourSamples;
use crate::store::sqlite::error::SqliteError;
use crate::store::sqlite::read::stats_at;
use crate::store::sqlite::schema::ReadingsState;

const BUCKET: &str = "SELECT first_ts, last_ts, readings, metadata, readings_state, first_chunk FROM buckets
    WHERE device = ?1 AND hour = ?2";
pub(super) const ROLLUPS: &str =
    "SELECT metric, count, min, max, sum, first_at, first_value, last_at, last_value FROM rollups
    WHERE device = ?1 AND hour = ?2";
const LAST_SEQ: &str = "SELECT max(seq) FROM chunks WHERE device = ?1 AND hour = ?2";
const FIRST_CHUNK_BELOW: &str = "SELECT data FROM first_chunks WHERE id = ?1 AND length(data) < ?2";
const CHUNKS_BELOW: &str =
    "SELECT seq, data FROM chunks WHERE device = ?1 AND hour = ?2 AND length(data) < ?3 ORDER BY seq";
const DELETE_CHUNK: &str = "DELETE FROM chunks WHERE device = ?1 AND hour = ?2 AND seq = ?3";
/// Gives a new chunk, whose `id` is NULL, the next number.
const PUT_FIRST_CHUNK: &str = "INSERT OR REPLACE INTO first_chunks (id, data) VALUES (?1, ?2)";
const ADD_CHUNK: &str = "INSERT INTO chunks (device, hour, seq, data) VALUES (?1, ?2, ?3, ?4)";
pub(super) const PUT_ROLLUP: &str = "INSERT OR REPLACE INTO rollups
        (device, hour, metric, count, min, max, sum, first_at, first_value, last_at, last_value)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
pub(super) const DELETE_ROLLUPS: &str = "DELETE FROM rollups WHERE device = ?1 AND hour = ?2";
pub(super) const DELETE_ROLLUP: &str = "DELETE FROM rollups WHERE device = ?1 AND hour = ?2 AND metric = ?3";
pub(super) const PUT_ROLLUP_OF_NO_FEWER: &str = "INSERT INTO rollups
        (device, hour, metric, count, min, max, sum, first_at, first_value, last_at, last_value)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
    ON CONFLICT (device, hour, metric) DO UPDATE SET count = ?4, min = ?5, max = ?6, sum = ?7,
        first_at = ?8, first_value = ?9, last_at = ?10, last_value = ?11
        WHERE ?4 >= count AND ?8 <= first_at AND ?10 >= last_at";
/// Sets [`ReadingsState::AfterExpiry`].
pub(super) const HAS_READINGS_AFTER_EXPIRY: &str =
    "UPDATE buckets SET readings_state = 2 WHERE device = ?1 AND hour = ?2";
/// Writes a bucket's row. A REPLACE would change the index by hour each time.
const PUT_BUCKET: &str = "INSERT INTO buckets (device, hour, first_ts, last_ts, readings, metadata, first_chunk)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
    ON CONFLICT (device, hour)
        DO UPDATE SET first_ts = ?3, last_ts = ?4, readings = ?5, metadata = ?6, first_chunk = ?7";

/// Adds the row of a bucket without readings; or notes that some readings of a bucket have expired. See
/// [`ReadingsState`].
pub(super) const ADD_EXPIRED: &str = "INSERT INTO buckets (device, hour, first_ts, last_ts, readings, readings_state)
    VALUES (?1, ?2, ?3, ?4, ?5, 1)
    ON CONFLICT (device, hour) DO UPDATE SET first_ts = min(first_ts, ?3), last_ts = max(last_ts, ?4),
        readings_state = CASE readings_state WHEN 0 THEN 2 ELSE readings_state END";

/// The queries and statements that must seek in a key.
#[cfg(test)]
pub(in super::super) const QUERIES: [&str; 9] = [
    BUCKET,
    ROLLUPS,
    LAST_SEQ,
    FIRST_CHUNK_BELOW,
    CHUNKS_BELOW,
    DELETE_CHUNK,
    HAS_READINGS_AFTER_EXPIRY,
    DELETE_ROLLUPS,
    DELETE_ROLLUP,
];

/// The row of a bucket in `buckets`.
pub(super) struct BucketSummary {
    pub(super) first_ts: i64,
    pub(super) last_ts: i64,
    pub(super) readings: i64,
    pub(super) metadata: Option<String>,
    pub(super) readings_state: ReadingsState,
    /// The number of the first chunk, if there is one.
    pub(super) first_chunk: Option<i64>,
}

/// Some chunks of a bucket.
pub(super) struct Chunks {
    /// Whether the first chunk is among them.
    pub(super) has_first: bool,
    /// The numbers of the other chunks.
    pub(super) seqs: Vec<i64>,
    pub(super) contents: Contents,
}

impl BucketRows<'_> {
    pub(super) fn prepare(&self, sql: &str) -> Result<CachedStatement<'_>, SqliteError> {
        Ok(self.connection.prepare_cached(sql)?)
    }

    pub(super) fn summary(&self) -> Result<Option<BucketSummary>, SqliteError> {
        let row = self.prepare(BUCKET)?.query_row(params![self.device, self.hour], |row| {
            Ok(BucketSummary {
                first_ts: row.get(0)?,
                last_ts: row.get(1)?,
                readings: row.get(2)?,
                metadata: row.get(3)?,
                readings_state: row.get(4)?,
                first_chunk: row.get(5)?,
            })
        });
        Ok(row.optional()?)
    }

    pub(super) fn put_summary(&self, to: &BucketSummary) -> Result<(), SqliteError> {
        let values = params![self.device, self.hour, to.first_ts, to.last_ts, to.readings, to.metadata, to.first_chunk];
        self.prepare(PUT_BUCKET)?.execute(values)?;
        Ok(())
    }

    /// The stored stats of these metrics, in their order.
    pub(super) fn stats_of(&self, metrics: &[(Metric, Stats)]) -> Result<Vec<Option<Stats>>, SqliteError> {
        let mut found = vec![None; metrics.len()];
        let mut table = MetricTable::new(metrics.iter().map(|(metric, _)| metric.clone()).collect());
        let mut statement = self.prepare(ROLLUPS)?;
        let mut rows = statement.query(params![self.device, self.hour])?;
        while let Some(row) = rows.next()? {
            let name = row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?;
            if let Some(at) = table.find(name) {
                found[at as usize] = Some(stats_at(row, 1)?);
            }
        }
        Ok(found)
    }

    /// The stored stats of the metrics of `write`, with its samples added, which are all later. Sums are
    /// added as queries add them, so that a flush changes no answer.
    pub(super) fn continued_stats(&self, write: &BucketWrite) -> Result<Vec<(Metric, Stats)>, SqliteError> {
        let mut continued = write.contents.stats(write.hour);
        let stored = self.stats_of(&continued)?;
        for ((_, newer), stored) in continued.iter_mut().zip(stored) {
            if let Some(mut stats) = stored {
                stats.append(newer);
                *newer = stats;
            }
        }
        Ok(continued)
    }

    pub(super) fn put_rollups(&self, sql: &str, stats: &[(Metric, Stats)]) -> Result<(), SqliteError> {
        let mut statement = self.prepare(sql)?;
        for (metric, Stats { count, min, max, sum, first, last }) in stats {
            let count = count.cast_signed();
            statement.execute(params![
                self.device,
                self.hour,
                &**metric,
                count,
                min,
                max,
                sum,
                first.ts_ms,
                first.value,
                last.ts_ms,
                last.value
            ])?;
        }
        Ok(())
    }

    pub(super) fn next_seq(&self) -> Result<i64, SqliteError> {
        let last: Option<i64> = self.prepare(LAST_SEQ)?.query_row(params![self.device, self.hour], |row| row.get(0))?;
        Ok(last.map_or(0, |last| last + 1))
    }

    /// Writes the first chunk, and returns its number.
    ///
    /// It replaces the chunk with the number `id`, or gets a new number if `id` is `None`.
    pub(super) fn put_first_chunk(&self, id: Option<i64>, chunk: &[u8]) -> Result<i64, SqliteError> {
        Ok(self.prepare(PUT_FIRST_CHUNK)?.insert(params![id, chunk])?)
    }

    pub(super) fn put_chunk(&self, seq: i64, chunk: &[u8]) -> Result<(), SqliteError> {
        self.prepare(ADD_CHUNK)?.execute(params![self.device, self.hour, seq, chunk])?;
        Ok(())
    }

    pub(super) fn delete_chunks(&self, seqs: &[i64]) -> Result<(), SqliteError> {
        let mut statement = self.prepare(DELETE_CHUNK)?;
        for seq in seqs {
            statement.execute(params![self.device, self.hour, seq])?;
        }
        Ok(())
    }

    /// Reads the chunks of fewer than `bytes` bytes.
    ///
    /// `first_chunk` is the number of the first chunk of the bucket.
    pub(super) fn chunks_below(&self, bytes: i64, first_chunk: Option<i64>) -> Result<Chunks, SqliteError> {
        let mut samples = HourSamples::all(Hour::of(self.hour));
        let mut has_first = false;
        let mut statement = self.prepare(FIRST_CHUNK_BELOW)?;
        let mut rows = statement.query(params![first_chunk, bytes])?;
        if let Some(row) = rows.next()? {
            has_first = true;
            add_chunk(row, 0, &mut samples)?;
        }
        let mut seqs = Vec::new();
        let mut statement = self.prepare(CHUNKS_BELOW)?;
        let mut rows = statement.query(params![self.device, self.hour, bytes])?;
        while let Some(row) = rows.next()? {
            seqs.push(row.get(0)?);
            add_chunk(row, 1, &mut samples)?;
        }
        Ok(Chunks { has_first, seqs, contents: samples.finish().0 })
    }
}

/// Adds the samples of the chunk in the column `at` of a row.
fn add_chunk(row: &Row<'_>, at: usize, into: &mut HourSamples) -> Result<(), SqliteError> {
    let chunk = row.get_ref(at)?.as_blob().map_err(rusqlite::Error::from)?;
    into.add_chunk(chunk).map_err(SqliteError::Chunk)
}
