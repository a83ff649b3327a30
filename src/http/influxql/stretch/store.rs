//! A store that counts the values and stats that it scans and returns.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Barrier;

use crate::model::{BucketWrite, Contents, Hour, Metric, SeriesFilter};
use crate::store::sqlite::SqliteStore;
use crate::store::{
    Cause, Deletions, DeviceList, DeviceSet, DeviceSummary, FirstReadings, History, HourStats, OperatorMetadataStore,
    ReadingsQuery, StatsNeeds, Store, StoreError, Written,
};

/// The numbers of values and of series of a device in an hour.
type OfHour = (usize, usize);

/// A real store with some buckets, and counts of the data that was read.
pub(super) struct Counted {
    store: SqliteStore,
    hours: BTreeMap<Arc<str>, BTreeMap<Hour, OfHour>>,
    /// The number of values, stats and entries of the index that the store has.
    size: usize,
    scanned: AtomicUsize,
    passed: AtomicUsize,
    /// The number of requests for stats.
    requests: AtomicUsize,
    /// The number of requests for readings.
    reads: AtomicUsize,
    /// Requests for readings, but not those of the device `d0`, wait here until there are enough of them.
    barrier: OnceLock<Barrier>,
    /// The most stats that one request has returned.
    most_passed: AtomicUsize,
    /// The most metrics that one request for stats has named.
    most_named: AtomicUsize,
}

impl Counted {
    pub(super) async fn new(path: &Path, buckets: Vec<BucketWrite>) -> Self {
        let store = SqliteStore::open(path).unwrap();
        let (mut hours, mut size) = (BTreeMap::<Arc<str>, BTreeMap<Hour, OfHour>>::new(), 0);
        let mut series: BTreeSet<(Arc<str>, Metric)> = BTreeSet::new();
        for bucket in &buckets {
            let of_hour = (bucket.contents.samples().len(), bucket.contents.metrics().len());
            hours.entry(Arc::clone(&bucket.device)).or_default().insert(bucket.hour, of_hour);
            size += of_hour.0 + of_hour.1;
            series.extend(bucket.contents.metrics().iter().map(|metric| (Arc::clone(&bucket.device), metric.clone())));
        }
        size += series.len();
        let writes: Vec<_> = buckets.into_iter().map(Arc::new).collect();
        for outcome in store.write(&writes).await {
            outcome.unwrap();
        }
        let [scanned, passed, requests, reads, most_passed, most_named] = [0; 6].map(AtomicUsize::new);
        let barrier = OnceLock::new();
        Self { store, hours, size, scanned, passed, requests, reads, barrier, most_passed, most_named }
    }

    pub(super) const fn size(&self) -> usize {
        self.size
    }

    /// Returns the number of values, stats and entries of the index that were scanned.
    pub(super) fn scanned(&self) -> usize {
        self.scanned.load(Ordering::Relaxed)
    }

    /// Returns the number of values and stats that were returned.
    pub(super) fn passed(&self) -> usize {
        self.passed.load(Ordering::Relaxed)
    }

    /// The number of requests for stats.
    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// The number of requests for readings.
    pub(super) fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }

    /// From now on, requests for readings, but not those of the device `d0`, are answered only when so many
    /// of them wait for an answer.
    pub(super) fn answer_reads_by(&self, count: usize) {
        self.barrier.set(Barrier::new(count)).unwrap();
    }

    /// The most stats that one request has returned.
    pub(super) fn most_passed(&self) -> usize {
        self.most_passed.load(Ordering::Relaxed)
    }

    /// The most metrics that one request for stats has named.
    pub(super) fn most_named(&self) -> usize {
        self.most_named.load(Ordering::Relaxed)
    }

    fn scan(&self, device: &str, hours: Range<Hour>, count: impl Fn(OfHour) -> usize) {
        let found = self.hours.get(device).into_iter().flat_map(|of_device| of_device.range(hours.clone()));
        self.scanned.fetch_add(found.map(|(_, of_hour)| count(*of_hour)).sum(), Ordering::Relaxed);
    }

    fn list(&self, devices: &[DeviceSummary]) {
        self.scanned.fetch_add(devices.iter().map(|device| 1 + device.series.len()).sum(), Ordering::Relaxed);
    }
}

#[async_trait]
impl Store for Counted {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn causes(&self) -> &'static [Cause] {
        self.store.causes()
    }

    async fn write(&self, writes: &[Arc<BucketWrite>]) -> Vec<Result<Written, StoreError>> {
        self.store.write(writes).await
    }

    async fn hour_stats(
        &self,
        devices: &[Arc<str>],
        hours: Range<Hour>,
        series: &SeriesFilter,
        needs: StatsNeeds,
    ) -> Result<Vec<Vec<HourStats>>, StoreError> {
        let found = self.store.hour_stats(devices, hours.clone(), series, needs).await?;
        for device in devices {
            self.scan(device, hours.clone(), |(_, series)| series);
        }
        let stats: usize = found.iter().flatten().map(|hour| hour.stats.len()).sum();
        self.passed.fetch_add(stats, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.most_passed.fetch_max(stats, Ordering::Relaxed);
        let named = series.metrics().map_or(0, Iterator::count);
        self.most_named.fetch_max(named, Ordering::Relaxed);
        Ok(found)
    }

    async fn readings(&self, query: &ReadingsQuery) -> Result<FirstReadings, StoreError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if let Some(barrier) = self.barrier.get().filter(|_| &*query.device != "d0") {
            let others = tokio::time::timeout(Duration::from_secs(60), barrier.wait()).await;
            others.expect("other reads have begun");
        }
        let found = self.store.readings(query).await?;
        let hours = Hour::of(query.range_ms.start)..Hour::at_or_after(found.complete_until_ms);
        self.scan(&query.device, hours, |(values, _)| values);
        self.passed.fetch_add(found.hours.iter().map(|(_, hour)| hour.samples().len()).sum(), Ordering::Relaxed);
        Ok(found)
    }

    async fn latest(&self, device: &str, hour: Hour) -> Result<Contents, StoreError> {
        self.store.latest(device, hour).await
    }

    async fn last_hour(&self, device: &str) -> Result<Option<Hour>, StoreError> {
        self.store.last_hour(device).await
    }

    async fn last_hour_with(
        &self,
        device: &str,
        series: &BTreeSet<Metric>,
        hours: Range<Hour>,
    ) -> Result<Option<Hour>, StoreError> {
        self.store.last_hour_with(device, series, hours).await
    }

    async fn entries(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<DeviceList, StoreError> {
        let found = self.store.entries(prefix, after, limit).await?;
        self.list(&found.devices);
        Ok(found)
    }

    async fn entries_of(&self, devices: &[Arc<str>]) -> Result<DeviceList, StoreError> {
        let found = self.store.entries_of(devices).await?;
        self.list(&found.devices);
        Ok(found)
    }

    async fn last_instants(&self, entries: &[DeviceSummary], now: Hour) -> Result<Vec<i64>, StoreError> {
        self.store.last_instants(entries, now).await
    }

    async fn count_silent(&self, since_ms: i64, active: DeviceSet) -> Result<u64, StoreError> {
        self.store.count_silent(since_ms, active).await
    }

    fn deletions(&self) -> &dyn Deletions {
        self.store.deletions()
    }

    fn operator_metadata(&self) -> &dyn OperatorMetadataStore {
        self.store.operator_metadata()
    }

    async fn bytes(&self) -> Result<u64, StoreError> {
        self.store.bytes().await
    }

    async fn history(&self) -> Result<Option<History>, StoreError> {
        self.store.history().await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.store.ping().await
    }

    async fn expire_readings(&self, oldest_ms: i64) -> Result<u64, StoreError> {
        self.store.expire_readings(oldest_ms).await
    }

    async fn expire_rollups(&self, oldest_ms: i64) -> Result<u64, StoreError> {
        self.store.expire_rollups(oldest_ms).await
    }

    async fn add_expired(&self, device: &DeviceSummary, hours: &[HourStats]) -> Result<(), StoreError> {
        self.store.add_expired(device, hours).await
    }
}
