//! Answers questions about devices from the device index.
//!
//! The index has the last instant of a device to the day. The newest document of that day has it exactly.

use std::ops::Range;
use std::sync::Arc;

use futures_util::future::try_join;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::by_device::ByDevice;
use super::layout::Layout;
use super::rollups::Missing;
use super::store::MongoStore;
use crate::model::{Day, Hour, SeriesFilter};
use crate::store::{DeviceList, DeviceSet, DeviceSummary, HourStats, StoreError, recent_from};

/// The most devices in one query for recent stats, and the most queries at once.
const DEVICES_PER_QUERY: usize = 500;
const QUERIES_AT_ONCE: usize = 2;

/// How many last instants are looked up at the same time.
const LOOKED_UP_AT_ONCE: usize = 8;

impl<L: Layout> MongoStore<L> {
    /// See [`Store::entries`].
    pub(super) async fn list_devices(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<DeviceList, StoreError> {
        let (list, is_complete) = Box::pin(self.in_index(self.devices.list(prefix, after, limit))).await?;
        Ok(DeviceList { is_incomplete: !is_complete, ..list })
    }

    /// See [`Store::entries_of`].
    pub(super) async fn some_devices(&self, devices: &[Arc<str>]) -> Result<DeviceList, StoreError> {
        let names: Vec<&str> = devices.iter().map(|device| &**device).collect();
        let (found, is_complete) = Box::pin(self.in_index(self.devices.some(&names))).await?;
        Ok(DeviceList { devices: found.into_values().collect(), is_cut: false, is_incomplete: !is_complete })
    }

    /// See [`Store::count_silent`].
    pub(super) async fn count_silent_devices(&self, since_ms: i64, mut active: DeviceSet) -> Result<u64, StoreError> {
        self.layout.add_active(since_ms, &mut active).await?;
        let mut silent = 0;
        let count = self.devices.each_id(|device| silent += u64::from(!active.contains(device)));
        Box::pin(self.in_whole_index(count)).await?;
        Ok(silent)
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
        stream::iter(exact.collect::<Vec<_>>()).buffered(LOOKED_UP_AT_ONCE).try_collect().await
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

    /// The exact last instant of a device, if it has not expired.
    async fn last_ts_ms(&self, entry: &DeviceSummary) -> Result<i64, StoreError> {
        let noted = Day::of(Hour::of(entry.last_ts_ms));
        let last_ts_ms = match self.layout.last_ts_ms(&entry.device, Some(noted)).await? {
            None => self.rollups.last_ts_ms(&entry.device).await?,
            known => known,
        };
        Ok(last_ts_ms.unwrap_or(entry.last_ts_ms))
    }

    /// See [`Store::last_hour`].
    pub(super) async fn newest_hour(&self, device: &str) -> Result<Option<Hour>, StoreError> {
        let (entry, is_complete) = Box::pin(self.in_index(self.devices.one(device))).await?;
        let noted = entry.map(|entry| Day::of(Hour::of(entry.last_ts_ms)));
        if noted.is_none() && is_complete {
            return Ok(None);
        }
        self.layout.last_hour(device, noted).await
    }
}
