//! The latest values of many devices, a page at a time.
//!
//! No request to the store is of one device. The stats of the hours around now have the last values of most
//! devices, with one request for all of them. The device index says on which day each of the other
//! series had its last reading, and the stats of that day have its value: one request for each day and some
//! hundred devices.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::devices::Keeping;
use super::latest::{Latest, MAX_DAYS};
use super::{Answer, DevicesRequest, Listed, Queries, QueryError};
use crate::access::DeviceScope;
use crate::model::{Day, Hour, Keep, Metric, SeriesFilter};
use crate::store::{DeviceSummary, HourStats, StatsNeeds, Store, StoreError, recent_from};

/// The most devices in one request for a day, and the most requests at once, for a store with a second
/// processor.
const DEVICES_PER_REQUEST: usize = 500;
const REQUESTS_AT_ONCE: usize = 2;

impl Queries {
    /// Returns the latest values of the wanted series of devices, by client ID.
    ///
    /// # Errors
    /// Those of [`Self::devices`].
    pub async fn latest_of_devices(
        &self,
        scope: &DeviceScope,
        request: &DevicesRequest,
        series: &SeriesFilter,
    ) -> Result<Answer<Listed<(Arc<str>, Latest)>>, QueryError> {
        let deadline = self.deadline();
        let found = self.list(deadline, scope, request, Keeping::Entries, |id, entry| (id, entry)).await?;
        let Answer { body: Listed { devices, next }, lagging, mut partial } = found;
        let (ids, entries): (Vec<Arc<str>>, Vec<DeviceSummary>) = devices.into_iter().unzip();
        let devices = entries.iter().map(|entry| Arc::clone(&entry.device)).collect();
        let pending = self.latest_pending(devices).await?;
        let mut latest: Vec<Latest> = entries.iter().map(|_| Latest::default()).collect();
        if !partial {
            let reader = LatestReader { store: &*self.store, entries: &entries, pending: &pending, series };
            match self.ask(deadline, reader.read(Hour::of(request.now_ms))).await {
                Ok(stored) => latest = stored,
                Err(_) if pending.iter().any(|pending| !pending.values.is_empty()) => partial = true,
                Err(error) => return Err(error),
            }
        }
        for (latest, pending) in latest.iter_mut().zip(pending) {
            latest.complete(pending, self.store.keeps(), series);
        }
        Ok(Answer { body: Listed { devices: ids.into_iter().zip(latest).collect(), next }, lagging, partial })
    }
}

/// Reads the last stored values of the devices of a page.
struct LatestReader<'a> {
    store: &'a dyn Store,
    entries: &'a [DeviceSummary],
    pending: &'a [Latest],
    series: &'a SeriesFilter,
}

/// The series of devices whose last reading is on one day: the metrics of each device, by its index.
type OfDay = BTreeMap<usize, BTreeSet<Metric>>;

/// Stats of some hours of devices, by their indexes.
type StatsOf = Vec<(usize, Vec<HourStats>)>;

impl LatestReader<'_> {
    /// Reads the last stored values of the wanted series, and of others.
    async fn read(&self, now: Hour) -> Result<Vec<Latest>, StoreError> {
        let from = recent_from(now);
        let mut latest: Vec<Latest> = self.entries.iter().map(|_| Latest::default()).collect();
        let is_recent = |at: &usize| Day::of(Hour::of(self.entries[*at].last_ts_ms)) >= Day::of(from);
        let recent: Vec<usize> = (0..self.entries.len()).filter(is_recent).collect();
        self.add_all(vec![self.recent(&recent, now)], &mut latest).await?;
        let silent = self.silent(from, &mut latest);
        let silent = silent.into_iter().map(|(day, of_day)| (day, of_day.into_iter().collect::<Vec<_>>()));
        let silent: Vec<_> = silent.collect();
        let requests = silent
            .iter()
            .flat_map(|(day, of_day)| of_day.chunks(DEVICES_PER_REQUEST).map(|some| self.of_day(*day, some)));
        self.add_all(requests.collect(), &mut latest).await?;
        Ok(latest)
    }

    /// Reads the stats of recent hours of some devices.
    async fn recent(&self, of: &[usize], now: Hour) -> Result<StatsOf, StoreError> {
        let stats = self.store.recent_stats(&self.devices(of), now).await?;
        Ok(of.iter().copied().zip(stats).collect())
    }

    /// Reads the stats of a day of some series.
    async fn of_day(&self, day: Day, some: &[(usize, BTreeSet<Metric>)]) -> Result<StatsOf, StoreError> {
        let of: Vec<usize> = some.iter().map(|(at, _)| *at).collect();
        let metrics: BTreeSet<&str> = some.iter().flat_map(|(_, of)| of.iter().map(|metric| &**metric)).collect();
        let wanted = SeriesFilter::new(metrics, []).unwrap_or_default();
        let stats = self.store.hour_stats(&self.devices(&of), day.hours(), &wanted, StatsNeeds::All).await?;
        Ok(of.into_iter().zip(stats).collect())
    }

    /// Asks the store, and adds the last values of its answers.
    async fn add_all<'a>(
        &'a self,
        requests: Vec<impl Future<Output = Result<StatsOf, StoreError>> + 'a>,
        latest: &mut [Latest],
    ) -> Result<(), StoreError> {
        let mut answers = stream::iter(requests).buffered(REQUESTS_AT_ONCE);
        while let Some(stats) = answers.try_next().await? {
            for (at, hours) in stats {
                self.add(at, hours, &mut latest[at]).await?;
            }
        }
        Ok(())
    }

    fn devices(&self, of: &[usize]) -> Vec<Arc<str>> {
        of.iter().map(|at| Arc::clone(&self.entries[*at].device)).collect()
    }

    /// The wanted series that have no value since `from`, neither stored nor pending, by the day of their
    /// last reading.
    fn silent(&self, from: Hour, latest: &mut [Latest]) -> BTreeMap<Day, OfDay> {
        let mut silent: BTreeMap<Day, OfDay> = BTreeMap::new();
        for (at, entry) in self.entries.iter().enumerate() {
            let is_found = |metric: &Metric| {
                let found = [&latest[at], &self.pending[at]];
                found.iter().any(|of| of.values.get(metric).is_some_and(|(ts_ms, _)| *ts_ms >= from.start_ms()))
            };
            let mut days: BTreeMap<Day, BTreeSet<Metric>> = BTreeMap::new();
            for of_device in &entry.series {
                if self.series.matches(&of_device.metric) && !is_found(&of_device.metric) {
                    days.entry(of_device.last_day).or_default().insert(of_device.metric.clone());
                }
            }
            latest[at].has_more = entry.has_more_series || days.len() > MAX_DAYS;
            for (day, metrics) in days.into_iter().rev().take(MAX_DAYS) {
                silent.entry(day).or_default().insert(at, metrics);
            }
        }
        silent
    }

    /// Adds the last values of some hours of a device, ascending. Stats of an older version lack them, so the
    /// readings are read.
    async fn add(&self, at: usize, hours: Vec<HourStats>, latest: &mut Latest) -> Result<(), StoreError> {
        for hour in hours {
            if hour.stats.iter().any(|(metric, stats)| stats.last.is_none() && self.series.matches(metric)) {
                latest.add_hour(hour.hour, &self.store.latest(&self.entries[at].device, hour.hour).await?);
            }
            for (metric, stats) in hour.stats {
                if let Some(last) = stats.last {
                    latest.add(metric, (last.ts_ms, last.value), Keep::Last);
                }
            }
        }
        Ok(())
    }
}
