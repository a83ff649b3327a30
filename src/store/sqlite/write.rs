//! Writing buckets: one transaction per call, all or nothing.
//!
//! The transaction is an immediate one: between reading a bucket and writing it nobody else writes, whichever process
//! they live in. That is what makes resending safe, and it needs no state beside the rows.

use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::sync::Arc;

use super::bucket::BucketRows;
use super::chunk::Packer;
use super::error::SqliteError;
use super::history;
use crate::model::BucketWrite;
use crate::store::{WriteError, Written};

/// The one connection of a store that writes.
pub(super) struct Writer {
    pub(super) connection: Connection,
    packer: Packer,
}

impl Writer {
    pub(super) fn new(connection: Connection) -> Result<Self, SqliteError> {
        Ok(Self { connection, packer: Packer::new().map_err(SqliteError::Compressor)? })
    }

    /// Writes all buckets or none; only those that are refused for good are left out. The outcomes stand in the order
    /// of the writes.
    pub(super) fn write(&mut self, writes: &[Arc<BucketWrite>]) -> Vec<Result<Written, WriteError>> {
        let outcomes = match self.write_all(writes) {
            Err(error) if error.is_permanent() => self.write_each(writes),
            outcome => outcome.map(|written| written.into_iter().map(Ok).collect()),
        };
        outcomes.unwrap_or_else(|error| vec![Err(WriteError::from(&error)); writes.len()])
    }

    fn write_all(&mut self, writes: &[Arc<BucketWrite>]) -> Result<Vec<Written>, SqliteError> {
        let transaction = begin(&mut self.connection)?;
        let before = transaction.total_changes();
        let mut written = Vec::with_capacity(writes.len());
        for write in writes {
            written.push(BucketRows::of(&transaction, write).write(&mut self.packer, write)?);
        }
        history::count(&transaction, before)?;
        transaction.commit()?;
        Ok(written)
    }

    /// As [`Writer::write_all`], with a savepoint around each bucket, so that one that is refused takes no other along.
    /// Savepoints cost time, so they are kept for this rare case.
    fn write_each(&mut self, writes: &[Arc<BucketWrite>]) -> Result<Vec<Result<Written, WriteError>>, SqliteError> {
        let mut transaction = begin(&mut self.connection)?;
        let before = transaction.total_changes();
        let mut outcomes = Vec::with_capacity(writes.len());
        for write in writes {
            let savepoint = transaction.savepoint()?;
            match BucketRows::of(&savepoint, write).write(&mut self.packer, write) {
                Ok(written) => {
                    savepoint.commit()?;
                    outcomes.push(Ok(written));
                }
                Err(error) if error.is_permanent() => {
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
