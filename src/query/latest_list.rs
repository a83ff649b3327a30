//! The latest values of many devices, a page at a time.
//!
//! As a rule, a request to the store is for many devices. One request reads the stats of recent hours, which
//! have the last values of most series. For each other series, the device index has the day of its last
//! reading, and the stats of that day have the last value. One request reads a day of up to 500 devices.
//!
//! A series may have no readings on that day, because they were deleted or refused. Then the store searches
//! the days before, device by device.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::time::Instant;

use super::devices::Keeping;
use super::latest::{Latest, MAX_DAYS};
use super::{Answer, DevicesRequest, Listed, Missing, Queries, QueryError};
use crate::access::DeviceScope;
use crate::model::{Day, Hour, Keep, Metric, SeriesFilter};
use crate::store::{DeviceSeries, DeviceSummary, HourStats, StatsNeeds, Store, StoreError, recent_from};

/// The most devices in one request for the stats of a day.
const DEVICES_PER_REQUEST: usize = 500;
/// The most requests at once. A store with two processors answers two.
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
        let Answer { body: Listed { devices, next }, lagging, partial } = found;
        let (ids, entries): (Vec<Arc<str>>, Vec<DeviceSummary>) = devices.into_iter().unzip();
        let (latest, partial) = self.latest_of_entries(deadline, entries, series, request.now_ms, partial).await?;
        Ok(Answer { body: Listed { devices: ids.into_iter().zip(latest).collect(), next }, lagging, partial })
    }

    /// Returns the latest values of the devices of `entries`, and what is missing. `partial` says what is
    /// missing in `entries`.
    pub(super) async fn latest_of_entries(
        &self,
        deadline: Instant,
        entries: Vec<DeviceSummary>,
        series: &SeriesFilter,
        now_ms: i64,
        mut partial: Option<Missing>,
    ) -> Result<(Vec<Latest>, Option<Missing>), QueryError> {
        let devices = entries.iter().map(|entry| Arc::clone(&entry.device)).collect();
        let pending = self.latest_pending(devices).await?;
        let mut latest: Vec<Latest> = entries.iter().map(|_| Latest::default()).collect();
        if partial != Some(Missing::Stored) {
            let kept_from = self.limits().kept_from(now_ms);
            let reader = LatestReader { store: &*self.store, entries: &entries, pending: &pending, series, kept_from };
            match self.ask(deadline, reader.read(Hour::of(now_ms))).await {
                Ok(stored) => latest = stored,
                Err(_) if pending.iter().any(|pending| !pending.values.is_empty()) => {
                    partial = Some(Missing::Stored);
                }
                Err(error) => return Err(error),
            }
        }
        for ((latest, entry), pending) in latest.iter_mut().zip(entries).zip(pending) {
            latest.complete(pending, self.store.keeps(), series);
            latest.metadata = entry.metadata; // the metadata in effect, also of pending readings
        }
        Ok((latest, partial))
    }
}

/// Reads the last stored values of the devices of a page.
struct LatestReader<'a> {
    store: &'a dyn Store,
    entries: &'a [DeviceSummary],
    pending: &'a [Latest],
    series: &'a SeriesFilter,
    /// The first hour of which the store may have data.
    kept_from: Hour,
}

/// The metrics of each device to look for on a day, by the index of the device.
type OfDay = BTreeMap<usize, BTreeSet<Metric>>;

/// The series to look for on each day. The day is from the device index, or from a search.
type Silent = BTreeMap<Day, OfDay>;

/// Stats of some hours of devices. The number is the index of the device.
type StatsOf = Vec<(usize, Vec<HourStats>)>;

impl LatestReader<'_> {
    /// Reads the last stored values of the wanted series, and perhaps of others.
    async fn read(&self, now: Hour) -> Result<Vec<Latest>, StoreError> {
        let from = recent_from(now);
        let new = |entry: &DeviceSummary| Latest { has_more: entry.has_more_series, ..Latest::default() };
        let mut latest: Vec<Latest> = self.entries.iter().map(new).collect();
        let is_recent = |at: &usize| Day::of(Hour::of(self.entries[*at].last_ts_ms)) >= Day::of(from);
        let recent: Vec<usize> = (0..self.entries.len()).filter(is_recent).collect();
        self.add_all(vec![self.recent(&recent, now)], &mut latest).await?;
        let mut days_left = vec![MAX_DAYS; self.entries.len()];
        let mut silent = self.silent(from, &latest);
        while !silent.is_empty() {
            limit_days(&mut silent, &mut days_left, &mut latest);
            self.read_days(&silent, &mut latest).await?;
            silent = self.search(silent, &latest).await?;
        }
        Ok(latest)
    }

    /// Reads the stats of each day in `silent`, and adds the last values to `latest`.
    async fn read_days(&self, silent: &Silent, latest: &mut [Latest]) -> Result<(), StoreError> {
        let by_day = silent.iter().map(|(day, of_day)| (*day, of_day.iter().collect::<Vec<_>>()));
        let by_day: Vec<_> = by_day.collect();
        let requests = by_day
            .iter()
            .flat_map(|(day, of_day)| of_day.chunks(DEVICES_PER_REQUEST).map(|some| self.of_day(*day, some)));
        self.add_all(requests.collect(), latest).await
    }

    /// Searches the days before for series without a value on their day or later. Returns the series that it
    /// has found. The series of one device stay together, on the newest day on which one of them has a value.
    async fn search(&self, silent: Silent, latest: &[Latest]) -> Result<Silent, StoreError> {
        let mut searches = Vec::new();
        for (day, of_day) in silent {
            for (at, mut metrics) in of_day {
                metrics.retain(|metric| !self.has_since(at, latest, metric, day.start_ms()));
                let first = self.kept_from.max(Hour::of(self.entries[at].first_ts_ms));
                let before = first..day.hours().start;
                if !metrics.is_empty() && !before.is_empty() {
                    searches.push(async move {
                        let found = self.store.last_hour_with(&self.entries[at].device, &metrics, before).await?;
                        Ok::<_, StoreError>(found.map(|hour| (at, Day::of(hour), metrics)))
                    });
                }
            }
        }
        let mut answers = stream::iter(searches).buffered(REQUESTS_AT_ONCE);
        let mut silent = Silent::new();
        while let Some(found) = answers.try_next().await? {
            if let Some((at, day, metrics)) = found {
                silent.entry(day).or_default().entry(at).or_default().extend(metrics);
            }
        }
        Ok(silent)
    }

    /// Whether a metric has a stored or pending value at `since_ms` or later.
    fn has_since(&self, at: usize, latest: &[Latest], metric: &Metric, since_ms: i64) -> bool {
        let found = [&latest[at], &self.pending[at]];
        found.iter().any(|of| of.values.get(metric).is_some_and(|(ts_ms, _)| *ts_ms >= since_ms))
    }

    /// Reads the stats of recent hours of some devices.
    async fn recent(&self, of: &[usize], now: Hour) -> Result<StatsOf, StoreError> {
        let stats = self.store.recent_stats(&self.devices(of), now).await?;
        Ok(of.iter().copied().zip(stats).collect())
    }

    /// Reads the stats of some series on one day.
    async fn of_day(&self, day: Day, some: &[(&usize, &BTreeSet<Metric>)]) -> Result<StatsOf, StoreError> {
        let of: Vec<usize> = some.iter().map(|(at, _)| **at).collect();
        let metrics: BTreeSet<&str> = some.iter().flat_map(|(_, of)| of.iter().map(|metric| &**metric)).collect();
        let wanted = SeriesFilter::new(metrics, []).unwrap_or_default();
        let stats = self.store.hour_stats(&self.devices(&of), day.hours(), &wanted, StatsNeeds::All).await?;
        Ok(of.into_iter().zip(stats).collect())
    }

    /// Sends the requests to the store, and adds the last values of the answers.
    async fn add_all<'a>(
        &'a self,
        requests: Vec<impl Future<Output = Result<StatsOf, StoreError>> + 'a>,
        latest: &mut [Latest],
    ) -> Result<(), StoreError> {
        let mut answers = stream::iter(requests).buffered(REQUESTS_AT_ONCE);
        while let Some(stats) = answers.try_next().await? {
            for (at, hours) in stats {
                for (metric, stats) in hours.into_iter().flat_map(|hour| hour.stats) {
                    latest[at].add(metric, (stats.last.ts_ms, stats.last.value), Keep::Last);
                }
            }
        }
        Ok(())
    }

    fn devices(&self, of: &[usize]) -> Vec<Arc<str>> {
        of.iter().map(|at| Arc::clone(&self.entries[*at].device)).collect()
    }

    /// Returns the wanted series without a stored or pending value since `from`. The day of each is that of
    /// its last reading in the device index.
    fn silent(&self, from: Hour, latest: &[Latest]) -> Silent {
        let mut silent = Silent::new();
        for (at, entry) in self.entries.iter().enumerate() {
            for DeviceSeries { metric, last_day } in &entry.series {
                if self.series.matches(metric) && !self.has_since(at, latest, metric, from.start_ms()) {
                    silent.entry(*last_day).or_default().entry(at).or_default().insert(metric.clone());
                }
            }
        }
        silent
    }
}

/// Limits the days to read of each device to its `days_left`. The newest days remain. A device with dropped
/// days gets [`Latest::has_more`].
fn limit_days(silent: &mut Silent, days_left: &mut [usize], latest: &mut [Latest]) {
    for of_day in silent.values_mut().rev() {
        of_day.retain(|at, _| {
            let is_read = days_left[*at] > 0;
            days_left[*at] -= usize::from(is_read);
            latest[*at].has_more |= !is_read;
            is_read
        });
    }
    silent.retain(|_, of_day| !of_day.is_empty());
}
