//! Writes buckets: one transaction per call, all or nothing.
//!
//! On a disk with little space, a call uses several smaller transactions, and truncates the write-ahead file
//! after each. If SQLite never takes a bucket, smaller transactions write the others.
//!
//! SQLite begins the write-ahead file anew only when no query reads from it. Queries that always overlap let
//! the file grow. So if it is large, a write waits a moment for the queries that read from it, and truncates
//! it. Queries that begin meanwhile do not wait. After a wait in vain, the file grows for a minute before a
//! write waits again.
//!
//! The transaction is immediate: no other connection, in this process or another, writes between the read and
//! the write of a bucket. So resending is safe, and needs no state beside the rows.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::bucket::BucketRows;
use super::error::SqliteError;
use super::{devices, file, history, schema};
use crate::codec::ChunkEncoder;
use crate::disk;
use crate::model::BucketWrite;
use crate::store::noted_devices::NotedDevices;
use crate::store::{Cause, StoreError, Written};

/// The approximate bytes of a bucket in the write-ahead file: ten pages.
pub(super) const WAL_BYTES_PER_BUCKET: u64 = 40 << 10;
/// One transaction may use the free space divided by this. The database grows as well, when the pages are
/// copied there.
const FREE_PART: u64 = 8;

/// A write-ahead file is large if it is this many times larger than at a checkpoint.
const LARGE_WAL_CHECKPOINTS: u64 = 4;
/// How long a write waits for the queries that read from a large write-ahead file.
///
/// Most queries take less. Another process waits longer for its lock, and a stop for a store that takes no
/// writes.
const WAL_WAIT: Duration = Duration::from_secs(1);
/// The time from such a wait in vain to the next one: the snapshot of a backup may be read for long.
const WAL_WAIT_INTERVAL: Duration = Duration::from_secs(60);

/// The sleep between two attempts to get the lock of the file from another process.
pub(super) const LOCK_INTERVAL: Duration = Duration::from_millis(10);

/// The query whose result changes when another connection has committed.
const DATA_VERSION: &str = "PRAGMA data_version";

/// The writing connection of a store.
pub(super) struct Writer {
    pub(super) connection: Connection,
    pub(super) encoder: ChunkEncoder,
    /// The most buckets in a transaction since the disk was full.
    ///
    /// It doubles with each successful transaction. `None`: the disk has not been full, or a whole call fits
    /// again.
    max_buckets: Option<usize>,
    /// The devices whose rows in the device index are up to date.
    pub(super) noted: NotedDevices,
    /// The number of changes by other connections that `noted` knows of.
    data_version: i64,
    /// How long the connection waits for a lock, in milliseconds.
    lock_wait_ms: Arc<AtomicU64>,
    /// The bytes from which on a write-ahead file is large.
    pub(super) large_wal_bytes: u64,
    /// See [`WAL_WAIT`].
    pub(super) wal_wait: Duration,
    /// When a write last waited in vain for the queries that read from a large write-ahead file.
    wal_waited: Option<Instant>,
}

impl Writer {
    /// A writer that counts how often it sleeps because another process holds the lock of the file.
    pub(super) fn new(
        mut connection: Connection,
        busy_timeout: Duration,
        sleeps: Arc<AtomicU64>,
    ) -> Result<Self, SqliteError> {
        let lock_wait_ms = Arc::new(AtomicU64::new(busy_timeout.as_millis() as u64));
        let (mut since, wait_ms) = (Instant::now(), Arc::clone(&lock_wait_ms));
        connection.busy_handler(Some(move |before| {
            if before == 0 {
                since = Instant::now();
            }
            sleeps.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(LOCK_INTERVAL);
            since.elapsed() < Duration::from_millis(wait_ms.load(Ordering::Relaxed))
        }))?;
        let encoder = ChunkEncoder::new().map_err(SqliteError::Compressor)?;
        let checkpoint_bytes = schema::checkpoint_bytes(Path::new(connection.path().unwrap_or_default()));
        Ok(Self {
            connection,
            encoder,
            max_buckets: None,
            noted: NotedDevices::default(),
            data_version: 0,
            lock_wait_ms,
            large_wal_bytes: LARGE_WAL_CHECKPOINTS * checkpoint_bytes.cast_unsigned(),
            wal_wait: WAL_WAIT,
            wal_waited: None,
        })
    }

    /// Writes all buckets in one transaction, or in several if the disk has little space or a bucket is
    /// refused. The outcomes are in the order of the writes.
    pub(super) fn write(&mut self, writes: &[Arc<BucketWrite>]) -> Vec<Result<Written, StoreError>> {
        let mut outcomes = Vec::with_capacity(writes.len());
        let (mut rest, mut limit) = (writes, writes.len());
        while !rest.is_empty() {
            let fit = self.buckets_that_fit();
            let is_short = fit < rest.len();
            let (now, later) = rest.split_at(fit.min(limit).min(rest.len()));
            match self.write_all(now) {
                Ok(written) => {
                    outcomes.extend(written.into_iter().map(Ok));
                    rest = later;
                    limit = limit.saturating_mul(2);
                    self.max_buckets =
                        self.max_buckets.map(|max| max.saturating_mul(2)).filter(|max| *max < writes.len());
                    if is_short {
                        self.truncate_wal();
                    } else {
                        self.limit_wal();
                    }
                }
                // Fewer buckets in a transaction, until the bucket to blame is alone.
                Err(error) if error.cause().is_permanent() && now.len() > 1 => limit = now.len() / 2,
                Err(error) if error.cause().is_permanent() => {
                    outcomes.push(Err(error.into()));
                    rest = later;
                }
                Err(error) if error.cause() == Cause::DiskFull && now.len() > 1 => {
                    self.truncate_wal();
                    self.max_buckets = Some(now.len() / 2);
                }
                Err(error) => {
                    if error.cause() == Cause::DiskFull {
                        self.truncate_wal();
                    }
                    outcomes.extend(rest.iter().map(|_| Err(StoreError::from(&error))));
                    break;
                }
            }
        }
        outcomes
    }

    /// The number of buckets that a transaction may have, by the free space. At least 1.
    fn buckets_that_fit(&self) -> usize {
        let folder = self.connection.path().and_then(|path| Path::new(path).parent());
        let free = folder.and_then(|folder| disk::space(folder).ok()).map_or(u64::MAX, |space| space.free);
        let by_space = usize::try_from(free / FREE_PART / WAL_BYTES_PER_BUCKET).unwrap_or(usize::MAX);
        by_space.min(self.max_buckets.unwrap_or(usize::MAX)).max(1)
    }

    /// Copies the write-ahead file into the database and truncates it, if readers and the free space allow.
    /// If that fails, nothing is lost, and the next transaction reuses the file.
    pub(super) fn truncate_wal(&self) {
        let truncated = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        if let Err(error) = truncated {
            tracing::debug!(%error, "the write-ahead file was not truncated");
        }
    }

    /// Truncates a large write-ahead file, and waits for the queries that read from it. See the module.
    fn limit_wal(&mut self) {
        let has_waited = self.wal_waited.is_some_and(|at| at.elapsed() < WAL_WAIT_INTERVAL);
        if has_waited || self.wal_bytes() <= self.large_wal_bytes {
            return;
        }
        let usual_ms = self.lock_wait_ms.swap(self.wal_wait.as_millis() as u64, Ordering::Relaxed);
        self.truncate_wal();
        self.lock_wait_ms.store(usual_ms, Ordering::Relaxed);
        self.wal_waited = (self.wal_bytes() > self.large_wal_bytes).then(Instant::now);
    }

    fn wal_bytes(&self) -> u64 {
        let database = Path::new(self.connection.path().unwrap_or_default()); // no link
        std::fs::metadata(file::with_ending(database, "-wal")).map_or(0, |wal| wal.len())
    }

    /// Writes all buckets in one transaction, or none.
    fn write_all(&mut self, writes: &[Arc<BucketWrite>]) -> Result<Vec<Written>, SqliteError> {
        let transaction = begin(&mut self.connection)?;
        let before = transaction.total_changes();
        let version: i64 = transaction.prepare_cached(DATA_VERSION)?.query_row([], |row| row.get(0))?;
        if self.data_version != version {
            self.noted.clear(); // another connection has changed the file, and may have removed devices
            self.data_version = version;
        }
        let changes = self.noted.changes(writes);
        devices::note(&transaction, changes.notes.iter().map(|note| &note.summary))?;
        let mut written = Vec::with_capacity(writes.len());
        for write in writes {
            written.push(BucketRows::of(&transaction, write).write(&mut self.encoder, write)?);
        }
        history::count(&transaction, before)?;
        transaction.commit()?;
        changes.notes.iter().for_each(|note| self.noted.confirm(&changes, note, true));
        Ok(written)
    }
}

/// Starts a writing transaction: waits for writes of other processes, then excludes them.
pub(super) fn begin(connection: &mut Connection) -> Result<Transaction<'_>, SqliteError> {
    file::expect_index_space(Path::new(connection.path().unwrap_or_default()))?;
    Ok(connection.transaction_with_behavior(TransactionBehavior::Immediate)?)
}
