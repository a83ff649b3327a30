//! The interface between the store and the shape of the readings in their collection.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::by_device::ByDevice;
use super::check::{Example, Expected, Question};
use super::collection::Deployment;
use super::rollups::{HourRollup, Missing};
use crate::model::{BucketWrite, Contents, Day, Deletion, Hour, Keep, Metric, SeriesFilter};
use crate::store::{Deleted, DeviceMetadata, DeviceSet, FirstReadings, ReadingsQuery, StoreError, Written};

/// One shape of the readings in their collection.
///
/// [`MongoStore`](super::MongoStore) has everything else: the connection, the state of the schema, the
/// rollups, the list of devices.
#[async_trait]
pub trait Layout: Queries + Derivation + Debug + Send + Sync {
    /// The name of the store in metrics and messages.
    const NAME: &'static str;

    /// Which of several values of one identity stays.
    const KEEPS: Keep;

    /// Whether the stats of an hour are stored, so that they cost less than its readings.
    const STATS_ARE_STORED: bool;

    /// The beginning of [`Rollups::identity`](crate::store::Rollups::identity).
    const IDENTITY: &'static str;

    /// The reason why only whole devices can be deleted.
    ///
    /// `None` if single readings can be deleted.
    const DELETES_DEVICES_ONLY: Option<&'static str>;

    /// The longest time that the server may still have readings after the end of their retention.
    fn expiry_delay(&self) -> Duration;

    /// The names under which the server may list the collection of the readings.
    fn collection_names(&self) -> Vec<String>;

    /// Brings the collection of the readings to what the options ask for, but lets readings expire no earlier
    /// than before. `was_ensured` says whether this instance has done so before.
    async fn ensure_schema(&self, was_ensured: bool) -> Result<Deployment, StoreError>;

    /// Has readings expire after the retention; see
    /// [`Rollups::shorten_expiry`](crate::store::Rollups::shorten_expiry).
    async fn shorten_expiry(&self) -> Result<(), StoreError>;

    /// The state that the collection of the readings should have, for `tidegauge check`.
    fn expected(&self) -> Expected;

    /// The queries and statements that the layout sends, as they would be for `example`.
    fn questions(&self, example: &Example) -> Vec<Question>;

    /// Writes buckets; see [`Store::write`](crate::store::Store::write).
    async fn write(&self, writes: &[Arc<BucketWrite>], deployment: Deployment) -> Vec<Result<Written, StoreError>>;

    /// Deletes readings; see [`Deletions::delete`](crate::store::Deletions::delete). The caller deletes the
    /// rollups. If only whole devices can be deleted, no write is in progress, and the readings need not be
    /// counted.
    async fn delete(
        &self,
        deletion: &Deletion,
        unanswered: &BTreeSet<Hour>,
        deployment: Deployment,
    ) -> Result<Deleted, StoreError>;
}

/// The queries of a layout. [`Store`](crate::store::Store) has the same ones.
#[async_trait]
pub trait Queries {
    /// Adds the stats of hours without a rollup to the stats in `found`.
    async fn add_hour_stats(
        &self,
        missing: &[Missing],
        series: &SeriesFilter,
        found: &mut ByDevice<'_>,
    ) -> Result<(), StoreError>;

    /// Adds the stats of an hour in which most devices have readings.
    async fn add_recent_stats(
        &self,
        devices: &[Arc<str>],
        hour: Hour,
        found: &mut ByDevice<'_>,
    ) -> Result<(), StoreError> {
        let missing = Missing { devices: devices.to_vec(), runs: vec![hour..Hour(hour.0 + 1)] };
        self.add_hour_stats(&[missing], &SeriesFilter::ALL, found).await
    }

    /// Reads the first readings of a range.
    async fn readings(&self, query: &ReadingsQuery) -> Result<FirstReadings, StoreError>;

    /// Reads the last sample of each metric in an hour.
    async fn latest(&self, device: &str, hour: Hour) -> Result<Contents, StoreError>;

    /// The last instant at which a device has readings, in Unix milliseconds. `noted` is the last day of the
    /// device according to the device index.
    async fn last_ts_ms(&self, device: &str, noted: Option<Day>) -> Result<Option<i64>, StoreError>;

    /// The newest metadata that is stored with the readings of a device. It looks at the newest hours only.
    async fn newest_metadata(&self, device: &str) -> Result<Option<DeviceMetadata>, StoreError>;

    /// The first and the last instant at which a device has readings, in Unix milliseconds.
    async fn span_ms(&self, device: &str) -> Result<Option<(i64, i64)>, StoreError>;

    /// The devices that have readings, each once, in any order. The server looks at all readings.
    async fn all_devices(&self) -> Result<Vec<Arc<str>>, StoreError>;

    /// Adds to `active` the devices that have readings at `since_ms` (Unix milliseconds) or later.
    async fn add_active(&self, since_ms: i64, active: &mut DeviceSet) -> Result<(), StoreError>;

    /// The newest hour in which a device has readings. `noted` is as for [`Self::last_ts_ms`].
    async fn last_hour(&self, device: &str, noted: Option<Day>) -> Result<Option<Hour>, StoreError>;

    /// The newest of these hours that has readings of one of `series`, which is not empty.
    async fn last_hour_with(
        &self,
        device: &str,
        series: &BTreeSet<Metric>,
        hours: &Range<Hour>,
    ) -> Result<Option<Hour>, StoreError>;
}

/// The derivation of rollups from the readings of a layout.
#[async_trait]
pub trait Derivation {
    /// The most hours of devices that are derived in one step of the roller.
    const HOURS_PER_STEP: usize;

    /// The first hour from `from` on of which any device has readings.
    async fn next_hour(&self, from: Hour) -> Result<Option<Hour>, StoreError>;

    /// Derives the rollups of buckets. A bucket without readings has none.
    async fn derive(&self, buckets: &[(Arc<str>, Hour)]) -> Result<Vec<HourRollup>, StoreError>;
}
