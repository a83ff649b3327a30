//! The ways in which a write changes the rows of one bucket (`rows`).
//!
//! - **Append**, the usual way: all new readings are later than the stored ones. They become the first chunk
//!   of the bucket, or one more, and the write adds them to the rollups. It reads only the bucket's row and
//!   rollups.
//! - **Rewrite**, for late and resent readings: the write reads all chunks of the bucket, merges the new
//!   readings, and writes one chunk back, as the first. The cost grows with the bucket: some milliseconds for
//!   a device that sends 100 readings a second. If the merge changes nothing, the write changes no row.
//! - **Compaction**: each append leaves a small chunk. Every [`COMPACT_EVERY`]th append joins the small
//!   chunks of the bucket, in the first chunk unless that is large. It leaves large chunks alone, so that a
//!   compaction rewrites at most some ten KiB, however fast the device sends.
//! - **Expired readings**: the rollups of a bucket may cover readings that have expired (see
//!   [`ReadingsState`]). A later write to such an hour is a rewrite. It replaces only the rollups of metrics
//!   whose readings now may include the expired ones ([`Stats::may_include`]).
//! - **Deletion** of some readings: the others become one chunk, and the rollups are folded anew (`delete`).
//!
//! In each case the chunks of a bucket share no identity, and its rollups are the fold of its samples; each
//! append rounds the sum once. If a sum is beyond a double, each write folds it from all samples. A fold of
//! finite values is never NaN, which SQLite could not store.

use rusqlite::{Connection, params};

use self::rows::{
    ADD_EXPIRED, BucketSummary, Chunks, DELETE_ROLLUP, DELETE_ROLLUPS, HAS_READINGS_AFTER_EXPIRY, PUT_ROLLUP,
    PUT_ROLLUP_OF_NO_FEWER, ROLLUPS,
};
use super::error::SqliteError;
use super::expire;
use super::schema::ReadingsState;
use crate::codec::{ChunkEncoder, ChunkError, VALUES_MAX};
use crate::model::{BucketWrite, Deletion, Hour, Metric, Stats};
use crate::store::{HourStats, Written};

pub(super) mod rows;

/// The number of appends to a bucket between two compactions.
pub(super) const COMPACT_EVERY: i64 = 16;
/// The size below which a chunk is small.
const SMALL_CHUNK_BYTES: i64 = 4 * 1024;

/// The error of a write after which the hour would have more values than a chunk can hold.
const TOO_MANY_VALUES: SqliteError = SqliteError::Chunk(ChunkError::Invalid("its hour has too many values"));

/// The rows of one bucket, inside a transaction that writes.
pub(super) struct BucketRows<'a> {
    connection: &'a Connection,
    device: &'a str,
    /// The start of the hour, in Unix milliseconds.
    hour: i64,
}

impl<'a> BucketRows<'a> {
    /// The rows of the bucket of `write`.
    pub(super) fn of(connection: &'a Connection, write: &'a BucketWrite) -> Self {
        Self { connection, device: &write.device, hour: write.hour.start_ms() }
    }

    /// The rows of the bucket of a device and hour.
    pub(super) const fn at(connection: &'a Connection, device: &'a str, hour: Hour) -> Self {
        Self { connection, device, hour: hour.start_ms() }
    }

    /// Adds the new readings of `write` to the bucket.
    pub(super) fn write(&self, encoder: &mut ChunkEncoder, write: &BucketWrite) -> Result<Written, SqliteError> {
        let Some((first, last)) = write.contents.span() else {
            return Ok(Written { stored: 0, duplicate: write.accepted });
        };
        if write.contents.samples().len() > VALUES_MAX {
            return Err(TOO_MANY_VALUES);
        }
        let (first_ts, last_ts) = (write.hour.instant_ms(first), write.hour.instant_ms(last));
        let stored = match self.summary()? {
            Some(summary) if first_ts <= summary.last_ts || summary.readings_state != ReadingsState::Complete => {
                self.rewrite(encoder, write, summary)?
            }
            None => {
                self.append(encoder, write, None, &write.contents.stats(write.hour), (first_ts, last_ts))?;
                write.count_stored(|_| true)
            }
            Some(summary) => {
                let stats = self.continued_stats(write)?;
                if stats.iter().all(|(_, stats)| stats.sum.is_finite()) {
                    self.append(encoder, write, Some(summary), &stats, (first_ts, last_ts))?;
                    write.count_stored(|_| true)
                } else {
                    // The sum of all readings may be finite.
                    self.rewrite(encoder, write, summary)?
                }
            }
        };
        Ok(Written { stored, duplicate: write.accepted - stored })
    }

    fn append(
        &self,
        encoder: &mut ChunkEncoder,
        write: &BucketWrite,
        before: Option<BucketSummary>,
        stats: &[(Metric, Stats)],
        (first_ts, last_ts): (i64, i64),
    ) -> Result<(), SqliteError> {
        self.put_rollups(PUT_ROLLUP, stats)?;
        let contents = &write.contents;
        let added = contents.reading_count() as i64;
        let metadata = write.metadata.as_deref().map(str::to_owned);
        let Some(before) = before else {
            let first_chunk = Some(self.put_first_chunk(None, &encoder.encode(contents))?);
            let readings_state = ReadingsState::Complete;
            let readings = added;
            return self.put_summary(&BucketSummary {
                first_ts,
                last_ts,
                readings,
                metadata,
                readings_state,
                first_chunk,
            });
        };
        let seq = self.next_seq()?;
        self.put_chunk(seq, &encoder.encode(contents))?;
        let mut first_chunk = before.first_chunk;
        if seq % COMPACT_EVERY == COMPACT_EVERY - 1 {
            first_chunk = self.compact(encoder, first_chunk, seq)?;
        }
        self.put_summary(&BucketSummary {
            last_ts,
            readings: before.readings + added,
            metadata: metadata.or(before.metadata),
            first_chunk,
            ..before
        })
    }

    /// Merges the new readings, and returns how many of the accepted readings were new.
    fn rewrite(
        &self,
        encoder: &mut ChunkEncoder,
        write: &BucketWrite,
        mut summary: BucketSummary,
    ) -> Result<u32, SqliteError> {
        let Chunks { seqs, contents: stored, .. } = self.chunks_below(i64::MAX, summary.first_chunk)?;
        let new = &write.contents;
        let before = stored.values_for(new.metrics());
        let brings_metadata = write.metadata.is_some() && write.metadata.as_deref() != summary.metadata.as_deref();
        if brings_metadata {
            summary.metadata = write.metadata.as_deref().map(str::to_owned);
        }
        if !new.samples().iter().all(|sample| before.has(sample)) {
            let merged = stored.merge(new);
            if merged.samples().len() > VALUES_MAX {
                return Err(TOO_MANY_VALUES);
            }
            let (first, last) = merged.span().expect("the merge has the new readings");
            self.delete_chunks(&seqs)?;
            let first_chunk = Some(self.put_first_chunk(summary.first_chunk, &encoder.encode(&merged))?);
            let (mut first_ts, mut last_ts) = (write.hour.instant_ms(first), write.hour.instant_ms(last));
            if summary.readings_state == ReadingsState::Complete {
                self.put_rollups(PUT_ROLLUP, &merged.stats(write.hour))?;
            } else {
                (first_ts, last_ts) = (first_ts.min(summary.first_ts), last_ts.max(summary.last_ts));
                self.put_rollups(PUT_ROLLUP_OF_NO_FEWER, &merged.stats(write.hour))?;
                self.prepare(HAS_READINGS_AFTER_EXPIRY)?.execute(params![self.device, self.hour])?;
            }
            let readings = merged.reading_count() as i64;
            self.put_summary(&BucketSummary { first_ts, last_ts, readings, first_chunk, ..summary })?;
        } else if brings_metadata {
            self.put_summary(&summary)?;
        }
        Ok(write.count_stored(|sample| before.of(sample).is_none()))
    }

    /// Joins the small chunks into one: the first, or another one if the first is large. Returns the number
    /// of the first chunk.
    fn compact(
        &self,
        encoder: &mut ChunkEncoder,
        first_chunk: Option<i64>,
        last_seq: i64,
    ) -> Result<Option<i64>, SqliteError> {
        let Chunks { has_first, seqs, contents } = self.chunks_below(SMALL_CHUNK_BYTES, first_chunk)?;
        if seqs.is_empty() {
            return Ok(first_chunk);
        }
        self.delete_chunks(&seqs)?;
        let joined = encoder.encode(&contents);
        if has_first {
            return self.put_first_chunk(first_chunk, &joined).map(Some);
        }
        self.put_chunk(if seqs.contains(&last_seq) { last_seq } else { last_seq + 1 }, &joined)?;
        Ok(first_chunk)
    }
}

/// Rollups of expired readings.
impl BucketRows<'_> {
    /// Adds the rollups of readings that have expired in another store, unless this store has rollups of at
    /// least as many values.
    pub(super) fn add_expired(&self, of: &HourStats) -> Result<(), SqliteError> {
        let known = self.stats_of(&of.stats)?;
        if of.stats.iter().zip(known).all(|((_, stats), known)| known.is_some_and(|known| known.count >= stats.count)) {
            return Ok(());
        }
        self.put_rollups(PUT_ROLLUP_OF_NO_FEWER, &of.stats)?;
        let readings = of.stats.iter().map(|(_, stats)| stats.count).max().unwrap_or_default().cast_signed();
        let values = params![self.device, self.hour, of.first_ts_ms(), of.last_ts_ms, readings];
        self.prepare(ADD_EXPIRED)?.execute(values)?;
        Ok(())
    }
}

/// Deletions.
impl BucketRows<'_> {
    /// Removes the bucket with all that belongs to it, and returns the number of its readings.
    pub(super) fn remove(&self) -> Result<u64, SqliteError> {
        let Some(summary) = self.summary()? else { return Ok(0) };
        for sql in expire::ROLLUPS.each {
            self.prepare(sql)?.execute(params![self.device, self.hour])?;
        }
        let has_readings = summary.readings_state != ReadingsState::Expired;
        Ok(if has_readings { summary.readings.cast_unsigned() } else { 0 })
    }

    /// Removes the values that a deletion selects.
    ///
    /// Returns the number of readings that had at least one of them. If a chunk is damaged, no row changes.
    pub(super) fn delete(&self, encoder: &mut ChunkEncoder, deletion: &Deletion) -> Result<u64, SqliteError> {
        let Some(summary) = self.summary()? else { return Ok(0) };
        let hour = Hour::of(self.hour);
        let Chunks { seqs, contents: stored, .. } = self.chunks_below(i64::MAX, summary.first_chunk)?;
        let (selected, left) = deletion.split(hour, &stored);
        let is_complete = summary.readings_state == ReadingsState::Complete;
        if !selected.is_empty() {
            match left.span() {
                None if is_complete => return self.remove(),
                None => self.expire()?,
                Some((first, last)) => {
                    self.delete_chunks(&seqs)?;
                    let first_chunk = Some(self.put_first_chunk(summary.first_chunk, &encoder.encode(&left))?);
                    let readings = left.reading_count() as i64;
                    let mut after = BucketSummary { readings, first_chunk, ..summary };
                    if is_complete {
                        (after.first_ts, after.last_ts) = (hour.instant_ms(first), hour.instant_ms(last));
                        self.prepare(DELETE_ROLLUPS)?.execute(params![self.device, self.hour])?;
                        self.put_rollups(PUT_ROLLUP, &left.stats(hour))?;
                    }
                    self.put_summary(&after)?;
                }
            }
        }
        if !is_complete && deletion.covers(hour) {
            self.delete_rollups(deletion)?;
        }
        Ok(selected.reading_count() as u64)
    }

    /// Removes the readings of an hour, and leaves the rollups of those that had expired before.
    fn expire(&self) -> Result<(), SqliteError> {
        for sql in expire::READINGS.each {
            self.prepare(sql)?.execute(params![self.device, self.hour])?;
        }
        Ok(())
    }

    /// Removes the rollups of the series that a deletion selects.
    ///
    /// Removes the bucket too if no other rollup is left.
    fn delete_rollups(&self, deletion: &Deletion) -> Result<(), SqliteError> {
        let metrics: Vec<String> = self
            .prepare(ROLLUPS)?
            .query_map(params![self.device, self.hour], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        let (selected, left): (Vec<_>, Vec<_>) = metrics.iter().partition(|metric| deletion.series.matches(metric));
        let mut delete = self.prepare(DELETE_ROLLUP)?;
        for metric in selected {
            delete.execute(params![self.device, self.hour, metric])?;
        }
        if left.is_empty() { self.remove().map(drop) } else { Ok(()) }
    }
}
