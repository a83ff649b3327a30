//! Lists devices: from the device index, and until that has all devices, by a search in the readings and the
//! rollups.
//!
//! The index has the last instant of a device to the day. The newest document of that day has it exactly.
//! The search looks for the next device in the readings and in the rollups at the same time.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use futures_util::future::try_join;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::by_device::ByDevice;
use super::devices::Progress;
use super::layout::Layout;
use super::rollups::Missing;
use super::seek::{MAX_CONCURRENT_SUMMARIES, Seek};
use super::store::MongoStore;
use crate::model::{Day, Hour, Metric, SeriesFilter};
use crate::store::{DeviceList, DeviceSeries, DeviceSummary, HourStats, StatsNeeds, Store, StoreError, recent_from};

/// How many devices are added to the index at once.
const DEVICES_PER_STEP: usize = 100;

/// The most devices in one query for recent stats, and the most queries at once.
const DEVICES_PER_QUERY: usize = 500;
const QUERIES_AT_ONCE: usize = 2;

/// The hours that one query for the series of a device covers: a year.
const HOURS_PER_QUERY: i32 = 366 * 24;

impl<L: Layout> MongoStore<L> {
    /// See [`Store::entries`].
    pub(super) async fn list_devices(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<DeviceList, StoreError> {
        if !self.devices.is_complete() {
            return self.list_of_search(prefix, after, limit).await;
        }
        self.devices.list(Seek::new(prefix, after).rest(), limit).await
    }

    /// See [`Store::entries_of`].
    pub(super) async fn some_devices(&self, devices: &[Arc<str>]) -> Result<Vec<DeviceSummary>, StoreError> {
        let names: Vec<&str> = devices.iter().map(|device| &**device).collect();
        let mut indexed = self.devices.some(&names).await?;
        if self.devices.is_complete() {
            return Ok(indexed.into_values().collect());
        }
        let searched: Vec<_> = names.iter().map(|device| self.summary(device)).collect();
        let searched = stream::iter(searched).buffered(MAX_CONCURRENT_SUMMARIES);
        let searched: Vec<Option<DeviceSummary>> = searched.try_collect().await?;
        let found = searched.into_iter().zip(names);
        Ok(found.filter_map(|(searched, device)| merged(searched, indexed.remove(device))).collect())
    }

    /// See [`Store::last_instants`]. The stats of the hours around `now` have the last instants of most
    /// devices; the newest documents of the others are looked up one by one.
    pub(super) async fn exact_last_instants(
        &self,
        entries: &[DeviceSummary],
        now: Hour,
    ) -> Result<Vec<i64>, StoreError> {
        let mut instants: Vec<Option<i64>> = vec![None; entries.len()];
        if L::STATS_ARE_STORED {
            let from = Day::of(recent_from(now));
            let is_recent = |at: &usize| Day::of(Hour::of(entries[*at].last_ts_ms)) >= from;
            let recent: Vec<usize> = (0..entries.len()).filter(is_recent).collect();
            let devices: Vec<_> = recent.iter().map(|at| Arc::clone(&entries[*at].device)).collect();
            for (at, hours) in recent.into_iter().zip(self.stats_of_recent_hours(&devices, now).await?) {
                instants[at] = hours.iter().map(|hour| hour.last_ts_ms).max();
            }
        }
        let exact = entries.iter().zip(instants).map(|(entry, known)| async move {
            match known {
                Some(known) => Ok(known),
                None => self.last_ts_ms(entry).await,
            }
        });
        stream::iter(exact.collect::<Vec<_>>()).buffered(MAX_CONCURRENT_SUMMARIES).try_collect().await
    }

    /// See [`Store::recent_stats`].
    pub(super) async fn stats_of_recent_hours(
        &self,
        devices: &[Arc<str>],
        now: Hour,
    ) -> Result<Vec<Vec<HourStats>>, StoreError> {
        if devices.is_empty() {
            return Ok(Vec::new());
        }
        let near = recent_from(now)..Hour(now.0 + 2);
        let parts: Vec<_> = devices.chunks(DEVICES_PER_QUERY).map(|some| self.near_stats(some, &near)).collect();
        let found = stream::iter(parts).buffered(QUERIES_AT_ONCE).try_collect::<Vec<_>>();
        // As a rule no device has later readings, which one seek tells.
        let (later, found) = try_join(self.layout.next_hour(near.end), found).await?;
        let found = found.into_iter().flatten().collect();
        if later.is_none() {
            return Ok(found);
        }
        let mut found = ByDevice::new(devices, found);
        let later = Missing { devices: devices.to_vec(), runs: vec![near.end..Hour(i32::MAX)] };
        self.layout.add_hour_stats(&[later], &SeriesFilter::ALL, &mut found).await?;
        Ok(found.sorted())
    }

    /// The stats of a few hours of devices.
    async fn near_stats(&self, devices: &[Arc<str>], hours: &Range<Hour>) -> Result<Vec<Vec<HourStats>>, StoreError> {
        let mut found = ByDevice::new(devices, vec![Vec::new(); devices.len()]);
        self.layout.add_recent_stats(devices, hours, &mut found).await?;
        Ok(found.sorted())
    }

    /// Adds the next devices to the index; see [`Store::build_device_index`].
    pub(super) async fn index_some_devices(&self) -> Result<bool, StoreError> {
        if self.devices.is_complete() {
            return Ok(true);
        }
        let after = match self.devices.progress().await? {
            Progress::Complete => return Ok(true),
            Progress::After(after) => after,
        };
        let found = self.search(Seek::new("", after.as_deref()), DEVICES_PER_STEP).await?;
        let is_last = found.len() < DEVICES_PER_STEP;
        let last = found.last().cloned();
        let summaries = self.summaries(&found).await?.into_iter().map(|summary| self.with_all_hours(summary));
        let summaries = stream::iter(summaries.collect::<Vec<_>>()).buffered(MAX_CONCURRENT_SUMMARIES);
        let summaries: Vec<DeviceSummary> = summaries.try_collect().await?;
        self.devices.advance(&summaries, last.as_deref(), is_last).await?;
        if is_last {
            self.devices.progress().await?;
        }
        if is_last && last.is_some() {
            tracing::info!("the device index has all stored devices");
        }
        Ok(is_last)
    }

    /// The exact last instant of a device, if it has not expired.
    async fn last_ts_ms(&self, entry: &DeviceSummary) -> Result<i64, StoreError> {
        let noted = Day::of(Hour::of(entry.last_ts_ms));
        let last_ts_ms = match self.layout.last_ts_ms(&entry.device, Some(noted)).await? {
            None => self.rollups.last_ts_ms(&entry.device).await?,
            known => known,
        };
        Ok(last_ts_ms.unwrap_or(entry.last_ts_ms))
    }

    async fn list_of_search(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<DeviceList, StoreError> {
        let searched = self.summaries(&self.search(Seek::new(prefix, after), limit).await?).await?;
        let devices: Vec<&str> = searched.iter().map(|summary| &*summary.device).collect();
        let mut indexed = self.devices.some(&devices).await?;
        let (mut list, mut bytes) = (DeviceList::default(), 0);
        for summary in searched {
            let indexed = indexed.remove(&summary.device);
            let Some(summary) = merged(Some(summary), indexed) else { continue };
            if !list.push(summary, &mut bytes) {
                break;
            }
        }
        Ok(list)
    }

    /// See [`Store::last_hour`].
    pub(super) async fn newest_hour(&self, device: &str) -> Result<Option<Hour>, StoreError> {
        if !self.devices.is_complete() {
            return self.layout.last_hour(device, None).await;
        }
        match self.devices.one(device).await? {
            Some(indexed) => self.layout.last_hour(device, Some(Day::of(Hour::of(indexed.last_ts_ms)))).await,
            None => Ok(None),
        }
    }

    /// Finds devices in the readings and the rollups.
    async fn search(&self, mut seek: Seek, limit: usize) -> Result<Vec<String>, StoreError> {
        let mut found = Vec::new();
        while found.len() < limit {
            let (readings, rollups) = (self.layout.next_device(&seek), Box::pin(self.rollups.next_device(&seek)));
            let (readings, rollups) = try_join(readings, rollups).await?;
            let Some(device) = Seek::next(readings, rollups) else { break };
            seek.advance(&device);
            found.push(device);
        }
        Ok(found)
    }

    /// Summarizes devices by their newest hours. Those that have just expired are left out.
    async fn summaries(&self, devices: &[String]) -> Result<Vec<DeviceSummary>, StoreError> {
        let summaries: Vec<_> = devices.iter().map(|device| self.summary(device)).collect();
        let summaries = stream::iter(summaries).buffered(MAX_CONCURRENT_SUMMARIES);
        let summaries: Vec<Option<DeviceSummary>> = summaries.try_collect().await?;
        Ok(summaries.into_iter().flatten().collect())
    }

    /// The summary of a device, from its readings if it has any, else from its rollups.
    pub(super) async fn summary(&self, device: &str) -> Result<Option<DeviceSummary>, StoreError> {
        let (of_readings, day) =
            try_join(self.layout.summary(device), Box::pin(self.rollups.first_day(device))).await?;
        match (of_readings, day) {
            (Some(summary), None) => Ok(Some(summary)),
            (Some(summary), Some(day)) => {
                let first_ts_ms = summary.first_ts_ms.min(day.first_ts_ms);
                Ok(Some(DeviceSummary { first_ts_ms, ..summary }))
            }
            (None, Some(day)) => self.rollups.summary(day).await,
            (None, None) => Ok(None),
        }
    }

    /// Adds the series of all hours, and the newest metadata.
    pub(super) async fn with_all_hours(&self, mut summary: DeviceSummary) -> Result<DeviceSummary, StoreError> {
        let (first, last) = (Hour::of(summary.first_ts_ms), Hour::of(summary.last_ts_ms));
        let mut end = last.0 + 1;
        while end > first.0 {
            let start = (end - HOURS_PER_QUERY).max(first.0);
            let hours = self
                .hour_stats(
                    &[Arc::clone(&summary.device)],
                    Hour(start)..Hour(end),
                    &SeriesFilter::ALL,
                    StatsNeeds::Numbers,
                )
                .await?;
            let mut last_hours: BTreeMap<Metric, Hour> = BTreeMap::new();
            for hour in hours.into_iter().flatten() {
                last_hours.extend(hour.stats.into_iter().map(|(metric, _)| (metric, hour.hour))); // ascending
            }
            let series = last_hours.into_iter().map(|(metric, hour)| DeviceSeries::of(metric, hour)).collect();
            summary.merge(DeviceSummary { series, metadata: None, ..summary.clone() });
            end = start;
        }
        if summary.metadata.is_none() {
            summary.metadata = self.layout.newest_metadata(&summary.device).await?;
        }
        Ok(summary)
    }
}

/// The summary of a device from the search and from the index.
fn merged(searched: Option<DeviceSummary>, indexed: Option<DeviceSummary>) -> Option<DeviceSummary> {
    match (searched, indexed) {
        (Some(mut searched), Some(indexed)) => {
            let last_ts_ms = searched.last_ts_ms;
            searched.merge(indexed);
            Some(DeviceSummary { last_ts_ms, ..searched })
        }
        (searched, indexed) => searched.or(indexed),
    }
}
