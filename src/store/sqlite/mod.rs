//! The embedded store: one SQLite file that any SQLite tool can open.
//!
//! For each bucket the file has a row in `buckets`, a row per metric in `rollups`, and its readings in
//! `first_chunks` and `chunks`. When the readings expire, the rows in `buckets` and `rollups` stay until the
//! rollups expire as well. `devices` and `series` are the device index; `operator_metadata` has the metadata
//! that operators have set. `schema.rs` has the tables, and [`crate::codec`] the bytes of a chunk. The hourly
//! averages of a device, with any tool:
//!
//! ```sql
//! SELECT datetime(hour / 1000, 'unixepoch'), metric, count, min, max, sum / count
//! FROM rollups WHERE device = 'LIGHT-FL02-ZONE4' ORDER BY hour;
//! ```
//!
//! - **Stored once**: a write reads the rows that it changes inside the same transaction, and merges.
//! - **Ok means durable**: SQLite syncs the write-ahead file at each commit, before the answer, and the file
//!   is still at its path (`file.rs`).
//! - **Bounded**: one connection writes, and a few read. Reads never wait for a write, nor writes for reads,
//!   except for a moment when reads keep the write-ahead file large (`write.rs`).
//!
//! All calls into SQLite run on tokio's blocking threads. Only this room knows SQLite.

pub mod backup;
mod bucket;
mod check;
mod delete;
mod devices;
mod error;
mod expire;
mod file;
mod history;
mod operator_metadata;
mod read;
mod readers;
mod schema;
mod write;

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;
use tokio::sync::Mutex;

use self::bucket::BucketRows;
pub use self::check::SqliteCheck;
use self::error::{CAUSES, SqliteError};
use self::expire::{Expired, Expiry};
use self::file::DatabaseFile;
pub use self::file::lock_of;
pub use self::history::holds_data;
use self::readers::Readers;
use self::write::Writer;
use super::{
    Cause, Deleted, Deletions, DeviceList, DeviceSet, DeviceSummary, FirstReadings, History, HourStats,
    OperatorMetadataStore, ReadingsQuery, StatsNeeds, Store, StoreError, UnreadableDocuments, Written,
};
use crate::common::joined::joined;
use crate::model::{BucketWrite, Contents, Deletion, Hour, Metric, SeriesFilter};

/// How long a connection waits for another process that holds the file before it answers `busy`.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the last checkpoint waits for another process that holds the file.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// The time between two looks at whether the writer waits for a lock: many times [`write::LOCK_INTERVAL`].
const LOCK_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// A [`Store`] in one file. Several processes may open the same file; their writes take turns.
pub struct SqliteStore {
    writer: Arc<Mutex<Writer>>,
    /// How often the writer has slept because another process holds the lock of the file.
    lock_sleeps: Arc<AtomicU64>,
    readers: Arc<Readers>,
    file: Arc<DatabaseFile>,
    unreadable: UnreadableDocuments,
}

impl SqliteStore {
    /// The most disk space, in bytes, for a write of this many buckets: the write-ahead file before its
    /// checkpoint, and the pages of the write, once in that file and once in the database.
    #[must_use]
    pub const fn space_needed(buckets_per_write: usize) -> u64 {
        schema::CHECKPOINT_BYTES + 2 * write::WAL_BYTES_PER_BUCKET * buckets_per_write as u64
    }

    /// Opens the file at `path`, and creates it if it is missing.
    ///
    /// The folder of the file must exist. The call blocks the thread while it waits for the disk.
    ///
    /// # Errors
    /// When the file cannot be opened or created, belongs to another program, or is of a newer version.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_with(path, BUSY_TIMEOUT)
    }

    fn open_with(path: &Path, busy_timeout: Duration) -> Result<Self, StoreError> {
        let refused = |error: SqliteError| {
            let mend = error.mend(file::free_bytes(path));
            StoreError::new(error.cause(), format!("cannot open {}: {error}{mend}", path.display()))
        };
        let lock_sleeps = Arc::<AtomicU64>::default();
        let writer = schema::open_writer(path, busy_timeout)
            .and_then(|connection| Writer::new(connection, busy_timeout, Arc::clone(&lock_sleeps)))
            .map_err(refused)?;
        let file = Arc::new(DatabaseFile::of(path).map_err(refused)?);
        let readers = Readers::new(path.to_owned(), Arc::clone(&file), busy_timeout);
        Ok(Self {
            writer: Arc::new(Mutex::new(writer)),
            lock_sleeps,
            readers: Arc::new(readers),
            file,
            unreadable: UnreadableDocuments::default(),
        })
    }

    /// Counts the chunks that reads skip.
    #[must_use]
    pub fn counting(self, unreadable: UnreadableDocuments) -> Self {
        Self { unreadable, ..self }
    }

    async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut Connection) -> Result<T, SqliteError> + Send + 'static,
    ) -> Result<T, StoreError> {
        Ok(self.readers.read(query).await?)
    }

    /// Expires batch by batch, so that writes get their turns in between.
    async fn expire(&self, expiry: Expiry, oldest_ms: i64) -> Result<u64, StoreError> {
        let mut expired = 0;
        loop {
            let batch = move |writer: &mut Writer| {
                let expired = expire::expire_some(&mut writer.connection, expiry, oldest_ms)?;
                expired.devices.iter().for_each(|device| writer.noted.forget(device));
                Ok(expired)
            };
            let Expired { buckets, more, .. } = self.with_writer(batch).await?;
            expired += buckets;
            if !more {
                return Ok(expired);
            }
        }
    }

    /// Runs `work` after all earlier writes. It succeeds only if the file is still at its path afterwards.
    async fn with_writer<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Writer) -> Result<T, SqliteError> + Send + 'static,
    ) -> Result<T, SqliteError> {
        let mut writer = Arc::clone(&self.writer).lock_owned().await;
        let file = Arc::clone(&self.file);
        blocking(move || {
            let done = work(&mut writer)?;
            file.check()?;
            Ok(done)
        })
        .await
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn causes(&self) -> &'static [Cause] {
        CAUSES
    }

    async fn write(&self, writes: &[Arc<BucketWrite>]) -> Vec<Result<Written, StoreError>> {
        let owned = writes.to_vec(); // the work continues if the caller is dropped
        let outcomes = self.with_writer(move |writer| Ok(writer.write(&owned))).await;
        outcomes.unwrap_or_else(|error| vec![Err(error.into()); writes.len()])
    }

    async fn hour_stats(
        &self,
        devices: &[Arc<str>],
        hours: Range<Hour>,
        series: &SeriesFilter,
        needs: StatsNeeds,
    ) -> Result<Vec<Vec<HourStats>>, StoreError> {
        let (devices, series) = (devices.to_vec(), series.clone());
        self.read(move |connection| read::hour_stats(connection, &devices, &hours, &series, needs)).await
    }

    async fn readings(&self, query: &ReadingsQuery) -> Result<FirstReadings, StoreError> {
        let (query, unreadable) = (query.clone(), self.unreadable.clone());
        self.read(move |connection| read::readings(connection, &query, &unreadable)).await
    }

    async fn latest(&self, device: &str, hour: Hour) -> Result<Contents, StoreError> {
        let (device, unreadable) = (device.to_owned(), self.unreadable.clone());
        self.read(move |connection| read::latest(connection, &device, hour, &unreadable)).await
    }

    async fn last_hour(&self, device: &str) -> Result<Option<Hour>, StoreError> {
        let device = device.to_owned();
        self.read(move |connection| read::last_hour(connection, &device)).await
    }

    async fn last_hour_with(
        &self,
        device: &str,
        series: &BTreeSet<Metric>,
        hours: Range<Hour>,
    ) -> Result<Option<Hour>, StoreError> {
        let (device, series) = (device.to_owned(), series.clone());
        self.read(move |connection| read::last_hour_with(connection, &device, &series, &hours)).await
    }

    async fn entries(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<DeviceList, StoreError> {
        let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
        self.read(move |connection| devices::list(connection, &prefix, after.as_deref(), limit)).await
    }

    async fn entries_of(&self, devices: &[Arc<str>]) -> Result<DeviceList, StoreError> {
        let devices = devices.to_vec();
        let devices = self.read(move |connection| devices::some(connection, &devices)).await?;
        Ok(DeviceList { devices, ..DeviceList::default() })
    }

    async fn last_instants(&self, entries: &[DeviceSummary], _now: Hour) -> Result<Vec<i64>, StoreError> {
        let entries: Vec<_> = entries.iter().map(|entry| (Arc::clone(&entry.device), entry.last_ts_ms)).collect();
        self.read(move |connection| devices::last_instants(connection, &entries)).await
    }

    async fn count_silent(&self, since_ms: i64, active: DeviceSet) -> Result<u64, StoreError> {
        self.read(move |connection| devices::count_silent(connection, since_ms, &active)).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Ok(self.readers.ping().await?)
    }

    /// Waits while another process holds the lock of the file and keeps a write waiting.
    async fn takes_writes(&self) -> Result<(), StoreError> {
        let sleeps = || self.lock_sleeps.load(Ordering::Relaxed);
        let mut before = sleeps();
        loop {
            tokio::time::sleep(LOCK_CHECK_INTERVAL).await;
            let now = std::mem::replace(&mut before, sleeps());
            if now == before {
                return Ok(());
            }
        }
    }

    /// The size of the file and its write-ahead file.
    async fn bytes(&self) -> Result<u64, StoreError> {
        let [path, wal, ..] = file::files_of(&self.readers.path);
        let bytes = |path: &Path| std::fs::metadata(path).map(|file| file.len());
        let file = bytes(&path).map_err(|error| StoreError::new(Cause::Io, format!("{}: {error}", path.display())))?;
        Ok(file + bytes(&wal).unwrap_or(0))
    }

    async fn history(&self) -> Result<Option<History>, StoreError> {
        self.read(|connection| history::read(connection)).await.map(Some)
    }

    async fn expire_readings(&self, oldest_ms: i64) -> Result<u64, StoreError> {
        self.expire(expire::READINGS, oldest_ms).await
    }

    async fn expire_rollups(&self, oldest_ms: i64) -> Result<u64, StoreError> {
        self.expire(expire::ROLLUPS, oldest_ms).await
    }

    async fn add_expired(&self, device: &DeviceSummary, hours: &[HourStats]) -> Result<(), StoreError> {
        let Some(summary) = device.of_stats(hours) else { return Ok(()) };
        let hours = hours.to_vec();
        let add = move |writer: &mut Writer| {
            let transaction = write::begin(&mut writer.connection)?;
            let before = transaction.total_changes();
            devices::note(&transaction, [&summary])?;
            for of_hour in &hours {
                BucketRows::at(&transaction, &summary.device, of_hour.hour).add_expired(of_hour)?;
            }
            history::count(&transaction, before)?;
            Ok(transaction.commit()?)
        };
        Ok(self.with_writer(add).await?)
    }

    fn deletions(&self) -> &dyn Deletions {
        self
    }

    fn operator_metadata(&self) -> &dyn OperatorMetadataStore {
        self
    }

    /// Truncates the write-ahead file. A write in progress does so itself on a full disk.
    async fn reclaim(&self) {
        if let Ok(writer) = Arc::clone(&self.writer).try_lock_owned() {
            let _ = tokio::task::spawn_blocking(move || writer.truncate_wal()).await;
        }
    }

    /// Copies the write-ahead file into the database, so that a copy of the one file is complete. Does not
    /// wait long for a process that holds the lock of the file.
    async fn close(&self) -> Result<(), StoreError> {
        let checkpoint = |writer: &mut Writer| {
            writer.connection.busy_timeout(CLOSE_TIMEOUT)?;
            writer.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
            Ok(())
        };
        Ok(self.with_writer(checkpoint).await?)
    }
}

#[async_trait]
impl Deletions for SqliteStore {
    /// Deletes batch by batch, so that writes get their turns in between.
    async fn delete(&self, deletion: &Deletion, _unanswered: &BTreeSet<Hour>) -> Result<Deleted, StoreError> {
        let (mut readings, mut damaged, mut next) = (0, None, Some(deletion.hours().start));
        while let Some(from) = next {
            let (deletion, has_damaged) = (deletion.clone(), damaged.is_some());
            let batch = move |writer: &mut Writer| writer.delete_some(&deletion, from, has_damaged);
            let deleted = self.with_writer(batch).await?;
            (readings, next) = (readings + deleted.readings, deleted.next);
            damaged = damaged.or(deleted.damaged);
        }
        let kept = damaged.into_iter().map(|(hour, error)| (hour, error.into())).collect();
        Ok(Deleted { readings, hours: BTreeSet::new(), kept })
    }
}

/// Runs `work` on a blocking thread. A panic in it continues in the caller.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SqliteError> + Send + 'static,
) -> Result<T, SqliteError> {
    joined(tokio::task::spawn_blocking(work)).await.unwrap_or(Err(SqliteError::Stopping))
}

#[cfg(test)]
mod tests;
