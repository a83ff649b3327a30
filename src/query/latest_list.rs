//! The latest values of many devices, a page at a time.
//!
//! As a rule, each request to the store is for many devices. The stats of this hour have the last values of
//! most devices, with one request for all of them. The hour before is read only for series that have no value
//! in this hour and none in pending. The device index says on which day each of the other series had its last
//! reading, and the stats of that day have its value: one request for each day and some hundred devices.
//!
//! A series may have no readings on that day, because they were deleted or refused. Then the store searches
//! the days before, device by device.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::time::Instant;

use super::devices::Keeping;
use super::latest::{Latest, MAX_DAYS};
use super::{Answer, DevicesRequest, Listed, Missing, Queries, QueryError};
use crate::access::DeviceScope;
use crate::model::{Day, Hour, Keep, Metric, SeriesFilter};
use crate::store::{DeviceSeries, DeviceSummary, HourStats, Store, StoreError, recent_hours};

/// The most devices in one request for the stats of a day.
const DEVICES_PER_REQUEST: usize = 500;
/// The most requests to the store at the same time.
///
/// A store with two processors works on two at the same time.
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
        let pending = self.latest_pending(deadline, devices).await?;
        let mut latest: Vec<Latest> = entries.iter().map(|_| Latest::default()).collect();
        if partial != Some(Missing::Stored) {
            let (store, is_complete) = (&*self.store, partial.is_none());
            let kept_from = self.limits().kept_from(now_ms, store);
            let reader = LatestReader { store, entries: &entries, pending: &pending, series, is_complete, kept_from };
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
    /// Whether nothing is missing in the entries, except series of devices with `has_more_series`.
    is_complete: bool,
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
        let new = |entry: &DeviceSummary| Latest { has_more: entry.has_more_series, ..Latest::default() };
        let mut latest: Vec<Latest> = self.entries.iter().map(new).collect();
        for hours in recent_hours(now) {
            let lacking = self.lacking(&hours, &latest);
            self.add_all(vec![self.recent(&lacking, hours)], &mut latest).await?;
        }
        let mut days_left = vec![MAX_DAYS; self.entries.len()];
        let until = recent_hours(now)[1].start;
        let mut silent = self.silent(until, &latest);
        while !silent.is_empty() {
            limit_days(&mut silent, &mut days_left, &mut latest);
            self.read_days(&silent, until, &mut latest).await?;
            silent = self.search(silent, &latest).await?;
        }
        Ok(latest)
    }

    /// Reads the stats of the series on their days, up to the hour `until`. Later hours were read before.
    async fn read_days(&self, silent: &Silent, until: Hour, latest: &mut [Latest]) -> Result<(), StoreError> {
        let by_day = silent.iter().map(|(day, of_day)| (*day, of_day.iter().collect::<Vec<_>>()));
        let by_day: Vec<_> = by_day.collect();
        let requests = by_day.iter().flat_map(|(day, of_day)| {
            of_day.chunks(DEVICES_PER_REQUEST).map(move |some| self.of_day(*day, some, until))
        });
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

    /// Returns the devices of which wanted series may have a stored value in `hours` that is not known yet. A
    /// series with a known value after `hours` does not count.
    fn lacking(&self, hours: &Range<Hour>, latest: &[Latest]) -> Vec<usize> {
        let day = Day::of(hours.start);
        let lacks = |at: &usize| {
            let entry = &self.entries[*at];
            // Later hours were read before.
            let is_known = |metric: &Metric| {
                hours.end < Hour(i32::MAX) && self.has_since(*at, latest, metric, hours.end.start_ms())
            };
            let lacks =
                |of: &DeviceSeries| of.last_day >= day && self.series.matches(&of.metric) && !is_known(&of.metric);
            let may_have_others =
                (entry.has_more_series || !self.is_complete) && Day::of(Hour::of(entry.last_ts_ms)) >= day;
            may_have_others || entry.series.iter().any(lacks)
        };
        (0..self.entries.len()).filter(lacks).collect()
    }

    /// Reads the stats of recent hours of some devices.
    async fn recent(&self, of: &[usize], hours: Range<Hour>) -> Result<StatsOf, StoreError> {
        let stats = self.store.recent_stats(&self.devices(of), hours).await?;
        Ok(of.iter().copied().zip(stats).collect())
    }

    /// Reads the stats of some series on a day, up to the hour `until`.
    async fn of_day(&self, day: Day, some: &[(&usize, &BTreeSet<Metric>)], until: Hour) -> Result<StatsOf, StoreError> {
        let (at, of): (Vec<usize>, Vec<&BTreeSet<Metric>>) = some.iter().map(|&(at, of)| (*at, of)).unzip();
        let Range { start, end } = day.hours();
        let stats = self.store.last_stats(&self.devices(&at), &of, start..end.min(until)).await?;
        Ok(at.into_iter().zip(stats).collect())
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
