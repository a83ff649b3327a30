//! The trait of stores, and the promises of every store.
//!
//! A store keeps, for each device and hour, the contents of the bucket and their stats. It knows nothing of
//! logs, pending or HTTP: it takes [`BucketWrite`]s and answers queries by hour.
//!
//! Every store keeps these promises, which the scenario tests check:
//! - **Stored once.** Writing a [`BucketWrite`] any number of times, from any number of instances, in any
//!   order among late and resent ones, leaves each identity stored once. Of different values of one identity,
//!   the one that was *written* last stays, or the first one if [`Store::keeps`] says so, or the contents of
//!   the write do ([`Contents::keep`]). The store does not know which value a client sent last: two
//!   instances, or one that restarts, may write in another order.
//! - **Stats equal the readings.** The stats of an hour always equal the count, minimum, maximum, sum, first
//!   and last value of its stored readings. When readings expire, their stats stay as they were. (In a store
//!   with [`Rollups`], stats are as new as the last rollup.)
//! - **Ok means durable.** An `Ok` outcome survives a crash of the store's server or of this machine.
//! - **The device index is complete** ([`device_index`]): a device, its series and its metadata are in the
//!   index before a write of their readings succeeds. It may say of a device more than is stored. A device
//!   leaves the index when its last readings and rollups have expired, or some days later.
//! - **One broken document breaks nothing else.** Reads skip documents that they cannot read, count them and
//!   log them ([`UnreadableDocuments`]). A deletion that has to read one leaves its hour as it is.
//! - **Errors have a cause.** After a transient error the same write may be retried, forever; after a
//!   permanent one a retry never helps ([`Cause::is_permanent`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::model::{BucketWrite, Contents, Deletion, Hour, Keep, Metric, SeriesFilter, Stats, join_stats};

pub mod device_index;
mod error;
pub mod expiry;
mod growth;
mod hour_samples;
mod instances;
mod metric_names;
pub mod mongodb;
mod noted_devices;
mod operator_metadata;
mod readings;
pub mod sqlite;
mod unreadable;

pub use self::device_index::{DeviceList, DeviceMetadata, DeviceSeries, DeviceSet, DeviceSummary};
pub use self::error::{Cause, StoreError};
pub use self::unreadable::UnreadableDocuments;

pub use hour_samples::HourSamples;
pub use instances::{Announced, Instance, Instances, Joined, Notes};
pub use operator_metadata::OperatorMetadataStore;
pub use readings::{FirstReadings, FirstReadingsBuilder, ReadingsQuery};

#[cfg(test)]
mod scenarios;

/// The longest time that a store takes to delete expired rollups: those of a day expire together.
const EXPIRY_DELAY: Duration = Duration::from_secs(2 * 86_400);

/// The counts of the accepted readings of one [`BucketWrite`]. `stored + duplicate` equals its `accepted`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Readings with a new identity.
    pub stored: u32,
    /// Readings that were stored already, or whose values another reading of the same write replaced.
    pub duplicate: u32,
}

/// The stored stats of one hour of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct HourStats {
    /// The hour that the stats are of.
    pub hour: Hour,
    /// An instant in Unix milliseconds: no reading that the stats cover is later.
    ///
    /// As a rule it is the last stored instant of the hour, of any metric.
    pub last_ts_ms: i64,
    /// The stats of each requested series that has values.
    pub stats: Vec<(Metric, Stats)>,
}

impl HourStats {
    /// The first instant that the stats know; the start of the hour if they know none.
    fn first_ts_ms(&self) -> i64 {
        self.stats.iter().map(|(_, stats)| stats.first.ts_ms).min().unwrap_or_else(|| self.hour.start_ms())
    }

    /// Adds the stats of other readings of the same hour.
    fn merge(&mut self, other: Self) {
        self.last_ts_ms = self.last_ts_ms.max(other.last_ts_ms);
        join_stats(&mut self.stats, other.stats, |known, more| known.merge(&more));
    }
}

/// The stats that a query needs. A store may leave out others, if it is faster without them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatsNeeds {
    /// Count, minimum, maximum and sum. The first and the last value are
    /// [unknown](crate::model::ValueAt::unknown).
    Numbers,
    /// All stats that are stored.
    All,
}

/// The hours in which most devices have their last readings, for [`Store::recent_stats`]: first `now` and all
/// later ones, then the one before.
#[must_use]
pub const fn recent_hours(now: Hour) -> [Range<Hour>; 2] {
    [now..Hour(i32::MAX), Hour(now.0 - 1)..now]
}

/// Selects each series that is in at least one of these sets.
fn any_of(of: &[&BTreeSet<Metric>]) -> SeriesFilter {
    let metrics: BTreeSet<&str> = of.iter().flat_map(|of| of.iter().map(|metric| &**metric)).collect();
    SeriesFilter::new(metrics, []).unwrap_or_default()
}

/// The identity and the age of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// An ID that the store got when it was created.
    ///
    /// A store that was dropped and created again has another ID.
    pub id: String,
    /// The number of its writes; 0 if the store does not count them. An older copy of the store has fewer.
    pub writes: u64,
}

/// A database of buckets. See the module for the promises.
#[async_trait]
pub trait Store: Send + Sync {
    /// The name of the store in metrics and messages, such as `sqlite`.
    fn name(&self) -> &'static str;

    /// Which of several values of one identity stays, in pending and in the store.
    fn keeps(&self) -> Keep {
        Keep::Last
    }

    /// The causes that errors of the store may have.
    ///
    /// The metrics of these causes exist from the start.
    fn causes(&self) -> &'static [Cause];

    /// Writes buckets. The outcome at index i belongs to the write at index i. No two writes of one call are
    /// of the same bucket.
    async fn write(&self, writes: &[Arc<BucketWrite>]) -> Vec<Result<Written, StoreError>>;

    /// Returns the stats of hours, for each of `devices` (each named once) in their order.
    ///
    /// The hours of a device are those in `hours` that have readings, or had readings that have expired,
    /// ascending. An hour with readings but with none of the series is in the answer, with empty stats.
    /// `needs` says which stats may be left out.
    async fn hour_stats(
        &self,
        devices: &[Arc<str>],
        hours: Range<Hour>,
        series: &SeriesFilter,
        needs: StatsNeeds,
    ) -> Result<Vec<Vec<HourStats>>, StoreError>;

    /// Returns the stats of [recent hours](recent_hours), like [`Self::hour_stats`].
    ///
    /// A device has few such hours. An hour whose readings have expired may be missing.
    async fn recent_stats(&self, devices: &[Arc<str>], hours: Range<Hour>) -> Result<Vec<Vec<HourStats>>, StoreError> {
        self.hour_stats(devices, hours, &SeriesFilter::ALL, StatsNeeds::All).await
    }

    /// Returns the stats of a day's hours that have the last values of these series.
    ///
    /// `of[i]` has the series of `devices[i]`. The answer is that of [`Self::hour_stats`], but may lack
    /// earlier hours of a device. If its series `a` has its last stats at 3:00, and `b` at 5:00, then hours
    /// before 3:00 may be missing.
    async fn last_stats(
        &self,
        devices: &[Arc<str>],
        of: &[&BTreeSet<Metric>],
        hours: Range<Hour>,
    ) -> Result<Vec<Vec<HourStats>>, StoreError> {
        self.hour_stats(devices, hours, &any_of(of), StatsNeeds::All).await
    }

    /// Returns the first readings of a range. The answer covers at least one instant: repeated calls, each
    /// from [`FirstReadings::complete_until_ms`] on, reach the end of the range.
    ///
    /// **Memory.** A call takes up to 100 bytes for each of [`ReadingsQuery::max_values`] and for each value
    /// of one more instant. It also holds one unit of reading: one unpacked chunk in SQLite (16 bytes
    /// for each value of an hour), one reply of the server in MongoDB (up to 16 MiB).
    ///
    /// **Work.** A call scans the range once, even if few readings or none have one of the series.
    async fn readings(&self, query: &ReadingsQuery) -> Result<FirstReadings, StoreError>;

    /// Returns the last sample of each metric in an hour.
    ///
    /// The call takes as much memory as [`Self::readings`] for one value of each metric.
    async fn latest(&self, device: &str, hour: Hour) -> Result<Contents, StoreError>;

    /// Returns all contents of the hours in `hours` that have readings, ascending.
    ///
    /// The memory that they take has no bound.
    async fn contents(&self, device: &str, hours: Range<Hour>) -> Result<Vec<(Hour, Contents)>, StoreError> {
        Ok(self.readings(&ReadingsQuery::all(device, &hours)).await?.hours)
    }

    /// Returns the newest hour of the device that has readings.
    async fn last_hour(&self, device: &str) -> Result<Option<Hour>, StoreError>;

    /// Returns the newest hour of `hours` that has readings of one of these series, or stats of such readings
    /// that have expired.
    ///
    /// **Work.** One request or two. The database looks at each hour of the device, from the newest on, until
    /// it finds one, because it has no index by series.
    async fn last_hour_with(
        &self,
        device: &str,
        series: &BTreeSet<Metric>,
        hours: Range<Hour>,
    ) -> Result<Option<Hour>, StoreError>;

    /// Returns up to `limit` devices whose ID starts with `prefix` and is greater than `after` (bytewise),
    /// ascending by ID. A device is listed if it has readings, or stats of readings that have expired.
    ///
    /// The last instant of a summary is exact to the day, and not too late, if
    /// [`DeviceSummary::is_last_day_exact`]; see [`Self::last_instants`].
    ///
    /// **Memory.** The series of all devices but the last take at most 2 MiB: [`DeviceList::is_cut`] says
    /// that the list ended there.
    async fn entries(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<DeviceList, StoreError>;

    /// Returns the entries of those of `devices` that have one, in any order.
    ///
    /// They are like the entries of [`Self::entries`].
    async fn entries_of(&self, devices: &[Arc<str>]) -> Result<DeviceList, StoreError>;

    /// Returns the exact last instant of each of `entries`, in Unix milliseconds. For a device without
    /// readings and rollups, it is the last instant of the entry. The call is fast for devices with readings
    /// of the hours around `now`.
    async fn last_instants(&self, entries: &[DeviceSummary], now: Hour) -> Result<Vec<i64>, StoreError>;

    /// Returns a list of devices with their exact last instants.
    #[cfg(test)]
    async fn devices(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<DeviceList, StoreError> {
        let mut list = self.entries(prefix, after, limit).await?;
        let instants = self.last_instants(&list.devices, Hour(0)).await?;
        list.devices.iter_mut().zip(instants).for_each(|(device, last_ts_ms)| device.last_ts_ms = last_ts_ms);
        Ok(list)
    }

    /// Returns one device with its exact last instant.
    #[cfg(test)]
    async fn device(&self, device: &str) -> Result<Option<DeviceSummary>, StoreError> {
        let Some(mut entry) = self.entries_of(&[device.into()]).await?.devices.pop() else { return Ok(None) };
        entry.last_ts_ms = self.last_instants(std::slice::from_ref(&entry), Hour(0)).await?[0];
        Ok(Some(entry))
    }

    /// Returns how many devices of the device index have no stored reading at `since_ms` (Unix milliseconds)
    /// or later, and are not among `active`. A reading of an hour that was deleted in part may count as
    /// stored. An index that lacks devices is an error.
    ///
    /// **Work.** One pass over the IDs of the index, and one over the readings since that instant. No device
    /// is looked up by itself.
    async fn count_silent(&self, since_ms: i64, active: DeviceSet) -> Result<u64, StoreError>;

    /// Rebuilds the device index from what is stored, however long that takes, and returns the number of
    /// devices. It may run beside instances that write. A store whose index cannot be lost by itself has
    /// nothing to do.
    async fn rebuild_device_index(&self) -> Result<u64, StoreError> {
        Ok(0)
    }

    /// Checks that the store answers.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Waits while the store is known to take no writes: another process may hold its lock, for example.
    /// Changes nothing. A stop of the service soon gives up on a store that waits here.
    async fn takes_writes(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Returns the size of the store on disk in bytes, indexes included.
    async fn bytes(&self) -> Result<u64, StoreError>;

    /// Returns the history of the store; `None` if it is not created yet. Changes nothing.
    async fn history(&self) -> Result<Option<History>, StoreError>;

    /// Returns the longest time that the store may still have data after the end of its retention.
    fn expiry_delay(&self) -> Duration {
        EXPIRY_DELAY
    }

    /// Deletes the readings of hours that ended before `oldest_ms` (Unix milliseconds), and returns the
    /// number of their buckets. Their stats stay. Does nothing if the store expires readings by itself.
    async fn expire_readings(&self, oldest_ms: i64) -> Result<u64, StoreError>;

    /// Deletes the readings and stats of hours that ended before `oldest_ms`, and returns the number of their
    /// buckets. Does nothing if the store expires rollups by itself.
    async fn expire_rollups(&self, oldest_ms: i64) -> Result<u64, StoreError>;

    /// Adds stats of hours whose readings have expired in another store.
    ///
    /// `device` is the entry of the device in that store.
    ///
    /// Stats that the store has already stay if they cover at least as many values. Ok means that the stats
    /// of each hour are durable, and that the device and the series of these hours are in the device index.
    async fn add_expired(&self, device: &DeviceSummary, hours: &[HourStats]) -> Result<(), StoreError>;

    /// The rollups that `flush` has to derive; `None` if the store writes stats together with the readings.
    fn rollups(&self) -> Option<&dyn Rollups> {
        None
    }

    /// The part of the store that deletes readings before they expire.
    fn deletions(&self) -> &dyn Deletions;

    /// The part of the store that keeps the metadata of operators.
    fn operator_metadata(&self) -> &dyn OperatorMetadataStore;

    /// The notes of the instances that share the store.
    ///
    /// `None` for a store that a single instance uses.
    fn instances(&self) -> Option<&dyn Instances> {
        None
    }

    /// Frees the disk space that the store keeps for later writes, if that takes no wait. `flush` calls it
    /// from time to time while the disk of the log is full, which may be the disk of the store too.
    async fn reclaim(&self) {}

    /// Closes the store in good order. The caller writes nothing afterwards. Without this call, nothing is
    /// lost.
    async fn close(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Rollups that a store keeps beside the readings: queries read them faster, and they may be kept longer.
///
/// A rollup holds the stats of one device and hour. It is derived from the stored readings, never counted up.
/// So any instance can derive it again at any time, with the same result. `flush` rolls up the hours of a day
/// after its end; and after a write of readings of an hour that has been rolled up, it rolls the hour up
/// again.
#[async_trait]
pub trait Rollups: Send + Sync {
    /// Returns a text that identifies the collections of readings and rollups. If it changes, no hour counts
    /// as rolled up any more.
    async fn identity(&self) -> Result<String, StoreError>;

    /// Returns whether the device index has all devices.
    ///
    /// Until it has, [`Self::roll_up_devices`] cannot find them all.
    async fn is_ready(&self) -> Result<bool, StoreError>;

    /// Returns the first hour from `from` on of which any device has readings.
    async fn next_hour(&self, from: Hour) -> Result<Option<Hour>, StoreError>;

    /// Rolls up hours of one day, of some devices: the next ones whose ID is greater than `after` (bytewise).
    /// Its work and memory are bounded, however many devices there are.
    ///
    /// Ok means what it means for [`Self::roll_up`], for each of the devices that had readings in these hours
    /// before this call. A rollup that is refused for good is left out: queries still read its stats from the
    /// readings.
    async fn roll_up_devices(&self, hours: Range<Hour>, after: Option<&str>) -> Result<RolledUp, StoreError>;

    /// Has readings expire after the retention, also if that is earlier than before the start.
    ///
    /// Until this call, the store shortens no expiry: readings might expire before their hours are rolled up.
    async fn shorten_expiry(&self) -> Result<(), StoreError>;

    /// Rolls up hours of devices, each named once. The outcome at index i belongs to the bucket at index i.
    ///
    /// Ok means that the rollup is durable and covers all readings whose write was acknowledged before this
    /// call. A rollup that covers more readings than are stored stays as it is: some have expired. After a
    /// permanent error, there is no rollup of the hour: queries read its stats from the readings.
    async fn roll_up(&self, buckets: &[(Arc<str>, Hour)]) -> Vec<Result<(), StoreError>>;
}

/// The deletion of readings before they expire.
#[async_trait]
pub trait Deletions: Send + Sync {
    /// The reason why the store cannot execute a deletion; `None` if it can.
    fn refusal(&self, _deletion: &Deletion) -> Option<&'static str> {
        None
    }

    /// Removes all stored values that the deletion selects.
    ///
    /// `unanswered` are hours of the device for which an earlier process may have sent writes that were not
    /// answered, and that are not sent again.
    ///
    /// Ok means that the removal is durable, that the stats of the hours are those of the readings that are
    /// left, and that no write that was sent before takes effect any more. A repetition removes nothing else.
    /// The caller sends no write of these hours meanwhile. None of this holds for the hours in
    /// [`Deleted::kept`].
    ///
    /// The stats of readings that have expired are removed if the range covers their hour. A device without
    /// any hour left leaves the device index. So does a series of which no value is left.
    async fn delete(&self, deletion: &Deletion, unanswered: &BTreeSet<Hour>) -> Result<Deleted, StoreError>;
}

/// The outcome of [`Deletions::delete`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Deleted {
    /// The number of stored readings that had a value removed.
    pub readings: u64,
    /// Hours that have no rollup, but for which one may have been derived before the deletion. The caller
    /// rolls up those of closed days ([`Rollups::roll_up`]).
    pub hours: BTreeSet<Hour>,
    /// Hours that keep their readings and stats, each with its permanent error: a stored document cannot be
    /// read, for example. A store may name only the first of them.
    pub kept: BTreeMap<Hour, StoreError>,
}

/// The outcome of [`Rollups::roll_up_devices`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolledUp {
    /// The number of hours of devices with readings, also those whose rollups were stored already.
    pub found: u64,
    /// The number of hours of devices whose rollups were written. Rollups that were stored already do not
    /// count.
    pub written: u64,
    /// The number of hours of devices whose rollups were refused for good.
    pub refused: u64,
    /// The last device that was looked at; `None` if no device is left.
    pub last: Option<Arc<str>>,
}
