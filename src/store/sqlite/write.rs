//! Writing buckets: one transaction per call, all or nothing. When the disk is short of space, the buckets of
//! a call go into several smaller transactions, and the write-ahead file is truncated after each, so that
//! they take little space.
//!
//! The transaction is an immediate one: between reading a bucket and writing it nobody else writes, whichever
//! process they live in. That is what makes resending safe, and it needs no state beside the rows.

use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::bucket::BucketRows;
use super::error::SqliteError;
use super::history;
use crate::codec::ChunkEncoder;
use crate::disk;
use crate::model::BucketWrite;
use crate::store::{Cause, WriteError, Written};

/// About how many bytes of the write-ahead file a bucket takes: ten pages.
pub(super) const WAL_BYTES_PER_BUCKET: u64 = 40 << 10;
/// The part of the free space that one transaction may take: the database grows as well when the pages are
/// copied there.
const FREE_PART: u64 = 8;

/// The one connection of a store that writes.
pub(super) struct Writer {
    pub(super) connection: Connection,
    encoder: ChunkEncoder,
    /// The most buckets of a transaction since the disk was full. It doubles with each transaction that
    /// succeeds.
    most: Option<usize>,
}

impl Writer {
    pub(super) fn new(connection: Connection) -> Result<Self, SqliteError> {
        Ok(Self { connection, encoder: ChunkEncoder::new().map_err(SqliteError::Compressor)?, most: None })
    }

    /// Writes all buckets in one transaction, or in several if the disk is short of space. The outcomes are
    /// in the order of the writes.
    pub(super) fn write(&mut self, writes: &[Arc<BucketWrite>]) -> Vec<Result<Written, WriteError>> {
        let mut outcomes = Vec::with_capacity(writes.len());
        let mut rest = writes;
        while !rest.is_empty() {
            let fit = self.buckets_that_fit();
            let is_short = fit < rest.len();
            let (now, later) = rest.split_at(fit.min(rest.len()));
            match self.write_some(now) {
                Ok(written) => {
                    outcomes.extend(written);
                    rest = later;
                    self.most = self.most.map(|most| most.saturating_mul(2)).filter(|most| *most < writes.len());
                    if is_short {
                        self.give_back();
                    }
                }
                Err(error) if error.cause() == Cause::DiskFull && now.len() > 1 => {
                    self.give_back();
                    self.most = Some(now.len() / 2);
                }
                Err(error) => {
                    if error.cause() == Cause::DiskFull {
                        self.give_back();
                    }
                    outcomes.extend(rest.iter().map(|_| Err(WriteError::from(&error))));
                    break;
                }
            }
        }
        outcomes
    }

    /// How many buckets a transaction may have, for the space that there is. One at least.
    fn buckets_that_fit(&self) -> usize {
        let folder = self.connection.path().and_then(|path| Path::new(path).parent());
        let free = folder.and_then(|folder| disk::space(folder).ok()).map_or(u64::MAX, |space| space.free);
        let by_space = usize::try_from(free / FREE_PART / WAL_BYTES_PER_BUCKET).unwrap_or(usize::MAX);
        by_space.min(self.most.unwrap_or(usize::MAX)).max(1)
    }

    /// Moves the write-ahead file into the database and truncates it, as far as readers and the space allow.
    /// If that fails, nothing is lost, and the next transaction reuses the file.
    pub(super) fn give_back(&self) {
        let truncated = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        if let Err(error) = truncated {
            tracing::debug!(%error, "the write-ahead file was not truncated");
        }
    }

    /// Writes all buckets or none; only those that are refused for good are left out.
    fn write_some(&mut self, writes: &[Arc<BucketWrite>]) -> Result<Vec<Result<Written, WriteError>>, SqliteError> {
        match self.write_all(writes) {
            Err(error) if error.cause().is_permanent() => self.write_each(writes),
            outcome => Ok(outcome?.into_iter().map(Ok).collect()),
        }
    }

    fn write_all(&mut self, writes: &[Arc<BucketWrite>]) -> Result<Vec<Written>, SqliteError> {
        let transaction = begin(&mut self.connection)?;
        let before = transaction.total_changes();
        let mut written = Vec::with_capacity(writes.len());
        for write in writes {
            written.push(BucketRows::of(&transaction, write).write(&mut self.encoder, write)?);
        }
        history::count(&transaction, before)?;
        transaction.commit()?;
        Ok(written)
    }

    /// As [`Writer::write_all`], with a savepoint around each bucket, so that one that is refused takes no
    /// other along. Savepoints cost time, so they are kept for this rare case.
    fn write_each(&mut self, writes: &[Arc<BucketWrite>]) -> Result<Vec<Result<Written, WriteError>>, SqliteError> {
        let mut transaction = begin(&mut self.connection)?;
        let before = transaction.total_changes();
        let mut outcomes = Vec::with_capacity(writes.len());
        for write in writes {
            let savepoint = transaction.savepoint()?;
            match BucketRows::of(&savepoint, write).write(&mut self.encoder, write) {
                Ok(written) => {
                    savepoint.commit()?;
                    outcomes.push(Ok(written));
                }
                Err(error) if error.cause().is_permanent() => {
                    savepoint.finish()?; // takes back what was done of this bucket
                    outcomes.push(Err(WriteError::from(&error)));
                }
                Err(error) => return Err(error),
            }
        }
        history::count(&transaction, before)?;
        transaction.commit()?;
        Ok(outcomes)
    }
}

/// Waits for other processes to finish writing, then keeps them out.
pub(super) fn begin(connection: &mut Connection) -> Result<Transaction<'_>, SqliteError> {
    Ok(connection.transaction_with_behavior(TransactionBehavior::Immediate)?)
}
