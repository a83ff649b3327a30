//! Deletes readings, then their rollups, then what the device index has of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::RwLockWriteGuard;

use super::collection::Deployment;
use super::devices::Correction;
use super::layout::Layout;
use super::store::MongoStore;
use crate::model::{Day, Deletion, Hour, Metric, SeriesFilter};
use crate::store::{Deleted, DeviceSeries, DeviceSummary, ReadingsQuery, StatsNeeds, Store, StoreError};

/// The most instants that one query counts.
const INSTANTS_AT_ONCE: usize = 10_000;

/// The most hours that are read to learn which series have a value left.
const HOURS_LOOKED_AT: usize = 32;

impl<L: Layout> MongoStore<L> {
    /// See [`crate::store::Deletions::delete`].
    pub(super) async fn delete_all(
        &self,
        deletion: &Deletion,
        unanswered: &BTreeSet<Hour>,
        deployment: Deployment,
    ) -> Result<Deleted, StoreError> {
        if L::DELETES_DEVICES_ONLY.is_some() {
            let readings = self.count_instants(&deletion.device).await?;
            self.rollups.span_ms(&deletion.device).await?; // for the reason in `alone`
            let _alone = self.alone(&deletion.device).await?;
            let deleted = self.layout.delete(deletion, unanswered, deployment).await?;
            self.rollups.delete_device(&deletion.device).await?;
            self.update_entry(deletion, deleted.kept.is_empty()).await?;
            return Ok(Deleted { readings, ..deleted });
        }
        let mut deleted = self.layout.delete(deletion, unanswered, deployment).await?;
        let rolled_up = self.rollups.delete(deletion, &deleted.hours).await?;
        deleted.hours.retain(|hour| !deleted.kept.contains_key(hour)); // a kept hour keeps its rollup too
        let of_hour = |hour: &Hour| (Arc::clone(&deletion.device), *hour);
        let again: Vec<(Arc<str>, Hour)> = deleted.hours.intersection(&rolled_up).map(of_hour).collect();
        for buckets in again.chunks(L::HOURS_PER_STEP) {
            let derived = self.derive_again(buckets, Some(deletion)).await?;
            for outcome in self.rollups.put_derived(buckets, derived).await {
                match outcome {
                    // The hour has no rollup then: queries read its stats from the readings.
                    Err(error) if error.is_permanent() => {
                        let device = &*deletion.device;
                        tracing::error!(device, %error, "an hour cannot be rolled up after a deletion");
                    }
                    outcome => outcome?,
                }
            }
        }
        deleted.hours.retain(|hour| !rolled_up.contains(hour));
        let _alone = self.alone(&deletion.device).await?;
        self.update_entry(deletion, deleted.kept.is_empty()).await?;
        Ok(deleted)
    }

    /// Waits for the writes in progress, and holds up others.
    ///
    /// Asks the index first. So while its shard is away, each attempt at the deletion fails here, and writes
    /// to other shards do not wait for the answer.
    async fn alone(&self, device: &str) -> Result<RwLockWriteGuard<'_, ()>, StoreError> {
        self.devices.one(device).await?;
        Ok(self.changes.write().await)
    }

    /// Counts the instants at which a device has readings: several documents may be of one instant.
    async fn count_instants(&self, device: &str) -> Result<u64, StoreError> {
        let all = ReadingsQuery::all(device, &Hour::ALL);
        let mut query = ReadingsQuery { max_instants: INSTANTS_AT_ONCE, ..all };
        let mut count = 0;
        while !query.range_ms.is_empty() {
            let page = self.layout.readings(&query).await?;
            count += page.hours.iter().map(|(_, contents)| contents.reading_count() as u64).sum::<u64>();
            query.range_ms.start = page.complete_until_ms;
        }
        Ok(count)
    }

    /// Brings the entry of a device in the device index up to date.
    ///
    /// If hours keep readings that the deletion selects, `is_whole` is false. These hours may be unreadable,
    /// so the entry then loses nothing.
    async fn update_entry(&self, deletion: &Deletion, is_whole: bool) -> Result<(), StoreError> {
        let device = &deletion.device;
        let noted = self.devices.noted.forget_and_collect(device);
        let span = self.span_of(device).await?;
        if span.is_none() && is_whole {
            return self.devices.remove(device).await;
        }
        let Some(mut entry) = self.devices.one(device).await? else {
            let Some(summary) = span else { return Ok(()) };
            let summary = self.with_all_hours(summary).await?;
            return self.devices.add(&[summary]).await;
        };
        if let Some(noted) = noted {
            entry.merge(noted); // another instance may have removed some of it
        }
        let last_ts_ms = span.as_ref().map_or(i64::MIN, |left| left.last_ts_ms);
        let removed_until = (last_ts_ms < entry.last_ts_ms).then(|| Day::of(Hour::of(entry.last_ts_ms)));
        let mut correction = Correction { removed_until, ..Correction::default() };
        if let Some(left) = span
            && is_whole
        {
            correction.first_ts_ms = deletion.has_instant(entry.first_ts_ms).then_some(left.first_ts_ms);
            correction.series = self.series_without_values(deletion, &entry).await?;
        }
        self.devices.correct(device, &correction).await
    }

    /// Finds the series of a device of which a deletion has left no value.
    async fn series_without_values(
        &self,
        deletion: &Deletion,
        entry: &DeviceSummary,
    ) -> Result<Vec<Metric>, StoreError> {
        // The last reading of a series may be of an earlier day than the entry says.
        let may_be_without = |DeviceSeries { metric, last_day }: &&DeviceSeries| {
            last_day.hours().end > deletion.hours().start && deletion.series.matches(metric)
        };
        let of_deletion = entry.series.iter().filter(may_be_without);
        let mut left: BTreeSet<Metric> = of_deletion.map(|series| series.metric.clone()).collect();
        if deletion.range_ms.is_none() {
            return Ok(left.into_iter().collect());
        }
        let (device, mut end) = (Arc::clone(&deletion.device), Hour(i32::MAX));
        for _ in 0..HOURS_LOOKED_AT {
            let Some(hour) = self.last_hour_with(&device, &left, Hour(i32::MIN)..end).await? else {
                return Ok(left.into_iter().collect());
            };
            let only = hour..Hour(hour.0 + 1);
            let devices = [Arc::clone(&device)];
            let found = self.hour_stats(&devices, only, &SeriesFilter::ALL, StatsNeeds::Numbers).await?;
            for (metric, _) in found.iter().flatten().flat_map(|hour| &hour.stats) {
                left.remove(metric);
            }
            end = hour;
        }
        Ok(Vec::new()) // they stay: a series that has no value is found out again by each query
    }
}
