//! Where buckets live, and what every store promises.
//!
//! A store keeps, for each device and hour, the contents of the bucket and their stats. It knows nothing of
//! logs, pending or HTTP; it is handed [`BucketWrite`]s and asked for hours.
//!
//! What each store promises, and the scenario tests check:
//! - **Stored once.** Writing a [`BucketWrite`] any number of times, from any number of instances, in any
//!   order among late and resent ones, leaves each identity stored once. Of different values of one identity,
//!   the one that was *written* last stays, or the first one where [`Store::keeps`] says so. Which one a
//!   client sent last is not known here: two instances, or one that starts again, may write in another order.
//! - **Stats are the fold.** The stats of an hour always equal the fold of its stored readings. They outlive
//!   them: once readings expire, the stats stay as they were. (Where a store keeps rollups of their own, see
//!   [`Rollups`], stats are as new as the last rolling up.)
//! - **Ok means durable.** An `Ok` outcome survives a crash of the store's server or of this machine.
//! - **One broken document breaks nothing else.** Reads skip what they cannot read, and count and log it
//!   ([`UnreadableDocuments`]).
//! - **Errors are sorted.** A transient error may be retried with the same write, forever; a permanent one
//!   never helps.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::model::{BucketWrite, Contents, Hour, Keep, Metric, Stats, join_stats};

mod error;
pub mod expiry;
mod hour_samples;
mod metric_names;
pub mod mongodb;
mod readings;
pub mod sqlite;
mod unreadable;

pub use self::error::{Cause, StoreError, WriteError};
pub use self::unreadable::UnreadableDocuments;

pub use hour_samples::HourSamples;
pub use readings::{FirstReadings, FirstReadingsBuilder, ReadingsQuery};

#[cfg(test)]
mod scenarios;

/// What became of the accepted readings of one [`BucketWrite`]. `stored + duplicate` equals its `accepted`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Readings that brought something new.
    pub stored: u32,
    /// Readings that were there already, or whose values another reading of the same write replaced.
    pub duplicate: u32,
}

/// The stored stats of one hour of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct HourStats {
    /// The hour.
    pub hour: Hour,
    /// The last stored instant of the hour, of any metric, in Unix milliseconds.
    pub last_ts_ms: i64,
    /// The stats of each metric asked for that has values.
    pub stats: Vec<(Metric, Stats)>,
}

impl HourStats {
    /// Takes in the stats of other readings of the same hour.
    fn merge(&mut self, other: Self) {
        self.last_ts_ms = self.last_ts_ms.max(other.last_ts_ms);
        join_stats(&mut self.stats, other.stats, |known, more| known.merge(&more));
    }
}

/// What is known of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceSummary {
    /// The device id.
    pub device: Arc<str>,
    /// The metadata of its newest hour (see [`Store::metadata_stays`]), the text of a JSON object. It expires
    /// with the readings of that hour.
    pub metadata: Option<Arc<str>>,
    /// The metrics of its newest hour, sorted by name.
    pub metrics: Vec<Metric>,
    /// The first stored instant, in Unix milliseconds.
    pub first_ts_ms: i64,
    /// The last stored instant, in Unix milliseconds.
    pub last_ts_ms: i64,
}

/// By what a store is known again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Another one for each store that was ever made.
    pub id: String,
    /// How many writes it has taken. A copy that was made earlier has fewer.
    pub writes: u64,
}

/// A place for buckets. See the module for the promises.
#[async_trait]
pub trait Store: Send + Sync {
    /// The name of the store for metrics and messages: `sqlite` or `mongodb`.
    fn name(&self) -> &'static str;

    /// Which of several values of one identity stays, in the store and before.
    fn keeps(&self) -> Keep {
        Keep::Last
    }

    /// The causes that its errors may have, for metrics that count from the start.
    fn causes(&self) -> &'static [Cause];

    /// Writes buckets. The outcome at index i belongs to the write at index i. No two writes of one call are
    /// of the same bucket.
    async fn write(&self, writes: &[Arc<BucketWrite>]) -> Vec<Result<Written, WriteError>>;

    /// For each of `devices` (none twice), in their order: the stats of its hours in `hours` that have
    /// readings, or had some that have expired, ascending. An empty `metrics` asks for all metrics; an hour
    /// that has readings but none of the metrics is still there, with empty stats.
    async fn hour_stats(
        &self,
        devices: &[Arc<str>],
        hours: Range<Hour>,
        metrics: &[Metric],
    ) -> Result<Vec<Vec<HourStats>>, StoreError>;

    /// The first readings of a range. The answer covers at least one instant: asking again from
    /// [`FirstReadings::complete_until_ms`] reaches the end of the range.
    ///
    /// **Memory.** A call takes up to 100 bytes for each of [`ReadingsQuery::max_values`] and for each value
    /// of one more instant. It also holds what it reads at a time: one unpacked chunk in SQLite (up to 14
    /// bytes for each value of an hour), one reply of the server in MongoDB (up to 16 MiB).
    ///
    /// **Work.** A call scans the range once, even if few readings or none have one of the metrics.
    async fn readings(&self, query: &ReadingsQuery) -> Result<FirstReadings, StoreError>;

    /// The last sample of each metric in an hour. Takes memory as [`Self::readings`] does for one value of
    /// each metric.
    async fn latest(&self, device: &str, hour: Hour) -> Result<Contents, StoreError>;

    /// All contents of the hours in `hours` that have readings, ascending. Their memory has no bound.
    async fn contents(&self, device: &str, hours: Range<Hour>) -> Result<Vec<(Hour, Contents)>, StoreError> {
        Ok(self.readings(&ReadingsQuery::all(device, &hours)).await?.hours)
    }

    /// The newest hour of the device that has readings.
    async fn last_hour(&self, device: &str) -> Result<Option<Hour>, StoreError>;

    /// Up to `limit` devices that have readings, or had some that have expired while their stats are kept,
    /// whose id starts with `prefix` and comes after `after` (bytewise), ascending by id.
    async fn devices(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<DeviceSummary>, StoreError>;

    /// Whether metadata belongs to readings, and not to hours. If so, a reading without metadata gets the
    /// last known one of its device, and a [`DeviceSummary`] has that of the device's last reading. If not,
    /// it has the newest that was written to the device's newest hour.
    fn metadata_stays(&self) -> bool {
        false
    }

    /// Whether the store answers.
    async fn ping(&self) -> Result<(), StoreError>;

    /// How many bytes it takes on disk, indexes and all.
    async fn bytes(&self) -> Result<u64, StoreError>;

    /// Which store this is, and how much has been written to it, where it keeps count.
    async fn history(&self) -> Result<Option<History>, StoreError> {
        Ok(None)
    }

    /// Deletes the readings of hours that ended before `oldest_ms` (Unix milliseconds), where the store does
    /// not expire them by itself, and returns of how many buckets they went. Their stats stay.
    async fn expire_readings(&self, oldest_ms: i64) -> Result<u64, StoreError>;

    /// Deletes all that is known of hours that ended before `oldest_ms`, where the store does not expire it
    /// by itself, and returns how many buckets went.
    async fn expire_rollups(&self, oldest_ms: i64) -> Result<u64, StoreError>;

    /// The rollups that somebody has to have derived, where the store does not write them together with the
    /// readings.
    fn rollups(&self) -> Option<&dyn Rollups> {
        None
    }

    /// Gives back the disk space that the store keeps for later writes, if it can do so at once. Called now
    /// and then while the disk of the log is full, which may be the disk of the store too.
    async fn reclaim(&self) {}

    /// Leaves the store in good order for others. Nothing is written after this; nothing is lost without it.
    async fn close(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Rollups that a store keeps beside the readings, where they are quicker to read and may outlive them.
///
/// A rollup holds the stats of one device and hour. It is derived from the stored readings, never counted up,
/// so that it can be derived again at any time, by any instance, and comes out the same. Whoever writes
/// readings of an hour that has been rolled up must have it rolled up again; `flush` does.
#[async_trait]
pub trait Rollups: Send + Sync {
    /// Names what is derived from what. Where the name is another one, nothing is known to be rolled up.
    async fn identity(&self) -> Result<String, StoreError>;

    /// The first hour from `from` on of which any device has readings.
    async fn next_hour(&self, from: Hour) -> Result<Option<Hour>, StoreError>;

    /// Rolls up an hour of all devices, and returns of how many that had to be done.
    async fn roll_up_hour(&self, hour: Hour) -> Result<u64, WriteError>;

    /// Rolls up hours of devices, none twice. The outcome at index i belongs to the bucket at index i.
    ///
    /// Ok means that the rollup is durable and speaks of all readings whose write was acknowledged before
    /// this call. It stays as it is where it speaks of more than is stored, for then readings have expired.
    async fn roll_up(&self, buckets: &[(Arc<str>, Hour)]) -> Vec<Result<(), WriteError>>;
}
