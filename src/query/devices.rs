//! The list of devices.
//!
//! A selection by metadata, silence or limits is a scan of the device index. One request looks at a bounded
//! number of entries. So a page may have few devices, or none, and more may follow. The index has last
//! instants that are exact to the day only. Exact last instants are read only for devices that may be silent
//! and for devices of the answer. Latest values are read only for devices with limits.

use std::ops::Range;
use std::sync::Arc;

use tokio::time::Instant;

use self::pages::Pages;
use super::{Answer, Missing, Queries, QueryError, RollupsRequest};
use crate::access::DeviceScope;
use crate::model::series::metric_of;
use crate::model::{Day, Hour, MetadataFilter, Metric, SeriesFilter, ValueLimits};
use crate::store::{DeviceSeries, DeviceSummary};

mod pages;

pub(super) use pages::DevicePage;

/// The devices that a list has. A device must meet all conditions.
#[derive(Debug, Clone, Default)]
pub struct DeviceSelection {
    /// Client IDs, each once. `None`: any.
    pub ids: Option<Vec<Arc<str>>>,
    /// The start of the client IDs. Empty: any.
    pub prefix: String,
    /// The conditions on the metadata.
    pub metadata: MetadataFilter,
    /// Only devices whose last instant is before this one, in Unix milliseconds.
    pub silent_since_ms: Option<i64>,
    /// Only devices with a latest value beyond the limits in their metadata.
    pub beyond_limits: bool,
}

/// A request for a list of devices.
#[derive(Debug, Clone)]
pub struct DevicesRequest {
    /// The devices.
    pub selection: DeviceSelection,
    /// The client ID after which the list begins.
    pub after: Option<String>,
    /// The most devices in the answer, at least 1.
    pub limit: usize,
    /// The instant of the request, in Unix milliseconds.
    pub now_ms: i64,
    /// Whether the list may skip any number of devices outside of the scope. [`Listed::next`] may then be one
    /// of them, so clients must not see it.
    pub skips_any: bool,
}

impl DevicesRequest {
    /// Requests devices in pages of a thousand. `ids` are client IDs. `None`: all devices.
    pub(crate) fn of_each(ids: Option<Vec<Arc<str>>>, now_ms: i64) -> Self {
        let selection = DeviceSelection { ids, ..DeviceSelection::default() };
        Self { selection, after: None, limit: 1_000, now_ms, skips_any: true }
    }
}

/// A page of a list, in the order of the IDs.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed<T> {
    /// The devices of the page.
    pub devices: Vec<T>,
    /// The client ID after which the list continues; `None` at its end.
    pub next: Option<Arc<str>>,
}

/// The most metrics of a [`Device`].
pub const MAX_METRICS: usize = crate::store::device_index::MAX_SERIES;

/// A device in the answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// The client ID.
    pub id: Arc<str>,
    /// The metadata, as the text of a JSON object.
    pub metadata: Option<Arc<str>>,
    /// Its metrics, sorted by name, at most [`MAX_METRICS`].
    pub metrics: Vec<Metric>,
    /// Whether the device has or had more metrics, which `metrics` lacks.
    pub has_more_metrics: bool,
    /// The first instant, in Unix milliseconds.
    pub first_ts_ms: i64,
    /// The last instant, in Unix milliseconds.
    pub last_ts_ms: i64,
}

/// A page ends after more than this many devices outside of the device scope.
const MAX_FETCHED: usize = 100_000;

/// The number of devices to match by metadata before other tasks get the thread.
const MATCHED_AT_ONCE: usize = 64;

/// A page ends after it has looked at this many devices.
///
/// A page that selects by ID alone has no such limit.
const MAX_LOOKED_AT: usize = 10_000;

/// A page ends after last instants or latest values of this many devices were read.
const MAX_LOOKED_UP: usize = 2_000;

/// How much a list keeps of each device: an ID or some values, or an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeping {
    Ids,
    /// Entries with their series. Because series take memory, the list ends where a page of the store ended
    /// early.
    Entries,
}

impl DeviceSelection {
    /// Whether the selection is by ID alone.
    fn is_by_id(&self) -> bool {
        !self.reads_metadata() && self.silent_since_ms.is_none()
    }

    fn reads_metadata(&self) -> bool {
        !self.metadata.is_all() || self.beyond_limits
    }

    fn matches_metadata(&self, summary: &DeviceSummary) -> bool {
        let text = summary.metadata.as_ref().map(|metadata| &*metadata.text);
        let has_limits = || text.is_some_and(|text| !ValueLimits::of_metadata(text).is_empty());
        self.metadata.matches(text) && (!self.beyond_limits || has_limits())
    }

    /// Keeps the devices whose metadata matches. Returns true if the instant `until` passed before all
    /// devices were matched. Then the devices after `last`, which were not matched, are dropped.
    async fn keep_matching(
        &self,
        devices: &mut Vec<(Arc<str>, DeviceSummary)>,
        until: Instant,
        looked_at: &mut usize,
        last: &mut Option<Arc<str>>,
    ) -> bool {
        if !self.reads_metadata() {
            *looked_at += devices.len();
            *last = devices.last().map(|(id, _)| Arc::clone(id)).or(last.take());
            return false;
        }
        let mut left = std::mem::take(devices).into_iter();
        while left.len() > 0 {
            for (id, summary) in left.by_ref().take(MATCHED_AT_ONCE) {
                *looked_at += 1;
                *last = Some(Arc::clone(&id));
                if self.matches_metadata(&summary) {
                    devices.push((id, summary));
                }
            }
            tokio::task::yield_now().await;
            if left.len() > 0 && Instant::now() > until {
                return true;
            }
        }
        false
    }
}

impl Queries {
    /// Returns devices in the order of their IDs.
    ///
    /// A page has fewer devices than the limit if they have many metrics, or if few of the entries that one
    /// request looks at match.
    ///
    /// # Errors
    /// If too many devices outside of the scope precede the first one inside, or the store does not answer.
    pub async fn devices(
        &self,
        scope: &DeviceScope,
        request: &DevicesRequest,
    ) -> Result<Answer<Listed<Device>>, QueryError> {
        let deadline = self.deadline();
        let Answer { body: Listed { devices, next }, lagging, partial } =
            self.list(deadline, scope, request, Keeping::Entries, |id, summary| (id, summary)).await?;
        let (ids, mut summaries): (Vec<Arc<str>>, Vec<DeviceSummary>) = devices.into_iter().unzip();
        if partial != Some(Missing::Stored) {
            self.make_exact(deadline, summaries.iter_mut().collect(), request.now_ms).await?;
        }
        let devices = ids.into_iter().zip(summaries).map(|(id, summary)| Device::new(id, summary)).collect();
        Ok(Answer { body: Listed { devices, next }, lagging, partial })
    }

    /// Returns devices in the order of their IDs. Their last instants are exact to the day only.
    ///
    /// # Errors
    /// Those of [`Self::devices`].
    pub async fn device_entries(
        &self,
        scope: &DeviceScope,
        request: &DevicesRequest,
    ) -> Result<Answer<Listed<Device>>, QueryError> {
        self.list(self.deadline(), scope, request, Keeping::Entries, Device::new).await
    }

    /// Returns the client IDs of devices in their order.
    ///
    /// # Errors
    /// Those of [`Self::devices`].
    pub async fn device_ids(
        &self,
        scope: &DeviceScope,
        request: &DevicesRequest,
    ) -> Result<Answer<Listed<Arc<str>>>, QueryError> {
        self.list(self.deadline(), scope, request, Keeping::Ids, |id, _| id).await
    }

    /// Returns the client IDs of devices in their order. Beside each is the number of its series that
    /// `rollups` reads, for [`RollupsRequest::known_series`].
    ///
    /// # Errors
    /// Those of [`Self::devices`]. Also if the range of `rollups` is too long.
    pub async fn device_ids_with_series(
        &self,
        scope: &DeviceScope,
        request: &DevicesRequest,
        rollups: &RollupsRequest,
    ) -> Result<Answer<Listed<(Arc<str>, usize)>>, QueryError> {
        let first = self.first_day(rollups)?;
        let keep = |id, entry: DeviceSummary| (id, wanted_series(&entry, &rollups.series, first));
        self.list(self.deadline(), scope, request, Keeping::Ids, keep).await
    }

    /// Returns the entry of a device in the store, without pending readings. Fails if the device index may
    /// lack the entry or a part of it.
    pub(super) async fn entry(
        &self,
        deadline: Instant,
        device: &Arc<str>,
    ) -> Result<Option<DeviceSummary>, QueryError> {
        let mut found = self.ask(deadline, self.store.entries_of(std::slice::from_ref(device))).await?;
        if found.is_incomplete {
            return Err(QueryError::DeviceIndexIncomplete);
        }
        Ok(found.devices.pop())
    }

    /// Lists devices. `keep` converts the client ID and the entry of each.
    pub(super) async fn list<T>(
        &self,
        deadline: Instant,
        scope: &DeviceScope,
        request: &DevicesRequest,
        keeping: Keeping,
        keep: impl Fn(Arc<str>, DeviceSummary) -> T,
    ) -> Result<Answer<Listed<T>>, QueryError> {
        let lagging = self.catch_up().await;
        let DevicesRequest { selection, limit, now_ms, .. } = request;
        let begun = Instant::now();
        let until = begun + deadline.saturating_duration_since(begun) / 2;
        let mut pages = Pages::new(scope, request, keeping);
        let (mut found, mut partial) = (Vec::new(), None);
        let (mut outside, mut looked_at, mut looked_up) = (0, 0, 0);
        let (mut last_found, mut last_looked_at) = (None, None);
        let mut last_fetched = None;
        while let Some(page) = pages.next(self, deadline).await? {
            partial = partial.max(page.partial);
            let fetched = page.devices.len();
            last_fetched = page.devices.last().map(|last| Arc::clone(&last.device)).or(last_fetched);
            let inside = page.devices.into_iter().filter_map(|summary| Some((client_id(scope, &summary)?, summary)));
            let mut inside: Vec<(Arc<str>, DeviceSummary)> = inside.collect();
            outside += fetched - inside.len();
            let is_late = selection.keep_matching(&mut inside, until, &mut looked_at, &mut last_looked_at).await;
            if let Some(since_ms) = selection.silent_since_ms {
                looked_up += self.keep_silent(deadline, &mut inside, since_ms, *now_ms, page.partial).await?;
            }
            if selection.beyond_limits {
                looked_up += self.keep_beyond(deadline, &mut inside, *now_ms, &mut partial).await?;
            }
            for (id, summary) in inside {
                if found.len() == *limit {
                    return Ok(Answer { body: Listed { devices: found, next: last_found }, lagging, partial });
                }
                last_found = Some(Arc::clone(&id));
                found.push(keep(id, summary));
            }
            let is_short = page.is_cut && keeping == Keeping::Entries && !found.is_empty();
            let is_long = looked_at >= MAX_LOOKED_AT || looked_up >= MAX_LOOKED_UP || Instant::now() > until;
            let is_long = is_long && !selection.is_by_id();
            if is_late || ((is_short || is_long || outside > MAX_FETCHED) && !pages.is_done()) {
                let skipped = last_fetched.filter(|_| request.skips_any && !is_late);
                let skipped = skipped.and_then(|last| scope.without_prefix(&last).map(Arc::from));
                let next = skipped.or(last_looked_at);
                if next.is_none() {
                    return Err(QueryError::TooManyDevices(outside));
                }
                return Ok(Answer { body: Listed { devices: found, next }, lagging, partial });
            }
        }
        Ok(Answer { body: Listed { devices: found, next: None }, lagging, partial })
    }

    /// Keeps the devices without a reading since `since_ms`.
    ///
    /// Returns the number of devices whose last instant had to be looked up.
    async fn keep_silent(
        &self,
        deadline: Instant,
        devices: &mut Vec<(Arc<str>, DeviceSummary)>,
        since_ms: i64,
        now_ms: i64,
        partial: Option<Missing>,
    ) -> Result<usize, QueryError> {
        devices.retain(|(_, summary)| summary.last_ts_ms < since_ms || !summary.is_last_day_exact());
        let mut uncertain: Vec<&mut DeviceSummary> = devices.iter_mut().map(|(_, summary)| summary).collect();
        uncertain.retain(|summary| Day(Day::of(Hour::of(summary.last_ts_ms)).0 + 1).start_ms() > since_ms);
        let looked_up = uncertain.len();
        if partial != Some(Missing::Stored) {
            self.make_exact(deadline, uncertain, now_ms).await?;
        }
        devices.retain(|(_, summary)| summary.last_ts_ms < since_ms);
        Ok(looked_up)
    }

    /// Keeps the devices with a latest value beyond its limits. Returns the number of devices whose values it
    /// has read.
    async fn keep_beyond(
        &self,
        deadline: Instant,
        devices: &mut Vec<(Arc<str>, DeviceSummary)>,
        now_ms: i64,
        partial: &mut Option<Missing>,
    ) -> Result<usize, QueryError> {
        let limited = std::mem::take(devices).into_iter();
        let limited = limited.filter_map(|(id, entry)| Some((with_limited_series(&entry)?, (id, entry))));
        let (entries, limited): (Vec<DeviceSummary>, Vec<_>) = limited.unzip();
        if entries.is_empty() {
            return Ok(0);
        }
        let read = entries.len();
        let latest = self.latest_of_entries(deadline, entries, &SeriesFilter::ALL, now_ms, *partial);
        let (latest, missing) = latest.await?;
        *partial = missing;
        let beyond = limited.into_iter().zip(latest).filter(|(_, latest)| latest.is_beyond_limits());
        devices.extend(beyond.map(|(device, _)| device));
        Ok(read)
    }

    /// Replaces the last instants of entries by exact ones. In an entry, the last instant is exact to the day
    /// only, and may be on a later day than the last reading.
    async fn make_exact(
        &self,
        deadline: Instant,
        entries: Vec<&mut DeviceSummary>,
        now_ms: i64,
    ) -> Result<(), QueryError> {
        if entries.is_empty() {
            return Ok(());
        }
        let too_late = entries.iter().filter(|entry| !entry.is_last_day_exact());
        let pending = self.last_pending(too_late.map(|entry| Arc::clone(&entry.device)).collect()).await?;
        let of_store: Vec<DeviceSummary> = entries.iter().map(|entry| entry.without_series()).collect();
        let exact = self.ask(deadline, self.store.last_instants(&of_store, Hour::of(now_ms))).await?;
        for (entry, exact_ms) in entries.into_iter().zip(exact) {
            entry.last_ts_ms = match pending.get(&entry.device) {
                Some(pending_ms) => exact_ms.max(pending_ms.unwrap_or(i64::MIN)),
                None => exact_ms.max(entry.last_ts_ms),
            };
        }
        Ok(())
    }
}

/// Returns the most series of a device that `series` selects. If it does not name whole series, this is the
/// most that the device index keeps.
pub(super) fn most_series(series: &SeriesFilter) -> usize {
    series.texts().map_or(MAX_METRICS, Iterator::count)
}

/// Returns how many of the series that `series` selects a device may have on the day `first` or later.
///
/// An entry leaves out the series that are silent for longest. If it has one that was silent before that day,
/// it has all later ones, unless readings were deleted.
pub(super) fn wanted_series(entry: &DeviceSummary, series: &SeriesFilter, first: Day) -> usize {
    if entry.has_more_series && entry.series.iter().all(|known| known.last_day >= first) {
        return most_series(series);
    }
    entry.series.iter().filter(|known| known.last_day >= first && series.matches(&known.metric)).count()
}

/// Returns an entry with only those of its series that have limits.
///
/// `None`: no series has limits. But if the entry has metadata and lacks series (`has_more_series`), it is
/// returned, because the lacking series may have limits.
fn with_limited_series(entry: &DeviceSummary) -> Option<DeviceSummary> {
    let limits = ValueLimits::of_metadata(&entry.metadata.as_ref()?.text);
    let is_limited = |series: &&DeviceSeries| limits.bounds_of(metric_of(&series.metric)).is_some();
    let series: Vec<DeviceSeries> = entry.series.iter().filter(is_limited).cloned().collect();
    (!series.is_empty() || entry.has_more_series).then(|| DeviceSummary { series, ..entry.without_series() })
}

/// Returns the client ID of a device. `None`: it is outside of the scope.
fn client_id(scope: &DeviceScope, summary: &DeviceSummary) -> Option<Arc<str>> {
    let device = &summary.device;
    if scope.is_all() { Some(Arc::clone(device)) } else { Some(scope.to_client_id(device)?.into()) }
}

impl Device {
    fn new(id: Arc<str>, summary: DeviceSummary) -> Self {
        let DeviceSummary { metadata, series, has_more_series, first_ts_ms, last_ts_ms, .. } = summary;
        let metadata = metadata.map(|metadata| metadata.text);
        let metrics = series.into_iter().map(|series| series.metric).collect();
        Self { id, metadata, metrics, has_more_metrics: has_more_series, first_ts_ms, last_ts_ms }
    }

    /// Returns a range that includes all readings of the device, in Unix milliseconds. It ends with the last
    /// day, because the last instant may be exact to the day only.
    pub(crate) const fn span_ms(&self) -> Range<i64> {
        let last_day = Day::of(Hour::of(self.last_ts_ms));
        self.first_ts_ms..Day(last_day.0 + 1).start_ms()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::query::tests::{limits, over, store_of};

    #[tokio::test]
    async fn only_pages_of_entries_with_many_series_end_early_and_the_next_has_no_more_devices() {
        let folder = tempfile::tempdir().unwrap();
        let metrics: Vec<Metric> = (0..2_100).map(|nth| Metric::from(&*format!("m{{l={nth:0480}}}"))).collect();
        let ids = ["a", "b", "c", "d", "e"];
        let queries = over(store_of(folder.path(), &ids, 1, &metrics).await, folder.path(), limits());
        let request = DevicesRequest::of_each(Some(ids.iter().map(|id| (*id).into()).collect()), 0);
        for (keeping, expected) in
            [(Keeping::Ids, vec![(5, false, 100)]), (Keeping::Entries, vec![(2, true, 2), (2, true, 2), (1, false, 4)])]
        {
            let mut pages = Pages::new(DeviceScope::all(), &request, keeping);
            let mut found = Vec::new();
            while let Some(page) = pages.next(&queries, queries.deadline()).await.unwrap() {
                let Pages::Named { step, .. } = pages else { panic!("the request has IDs") };
                found.push((page.devices.len(), page.is_cut, step));
            }
            assert_eq!(found, expected, "{keeping:?}");
        }
    }

    #[test]
    fn series_that_are_silent_since_before_the_range_do_not_count() {
        let [all, named] = [SeriesFilter::ALL, SeriesFilter::new(["m{a=4}", "m{a=9}"], []).unwrap()];
        let series = |day: i32| DeviceSeries { metric: (&*format!("m{{a={day}}}")).into(), last_day: Day(day) };
        let mut entry = DeviceSummary::of_hour("d".into(), Hour(0), (0, 0), []);
        entry.series = (2..6).map(series).collect();
        let counts = |entry: &DeviceSummary| {
            [(&all, 2), (&all, 3), (&all, 4), (&named, 2), (&named, 5)]
                .map(|(series, first)| wanted_series(entry, series, Day(first)))
        };
        assert_eq!(counts(&entry), [4, 3, 2, 1, 0]);
        entry.has_more_series = true;
        assert_eq!(counts(&entry), [MAX_METRICS, 3, 2, 2, 0], "from day 2 on, others may have been left out");
    }

    #[tokio::test]
    async fn a_page_ends_with_the_last_device_that_was_looked_at_in_time() {
        let devices = || -> Vec<(Arc<str>, DeviceSummary)> {
            let of = |nth: usize| {
                let id: Arc<str> = format!("d{nth:03}").into();
                let metadata = format!(r#"{{"nth":{}}}"#, nth % 2).into();
                let summary = DeviceSummary::of_hour(Arc::clone(&id), Hour(0), (0, 0), []);
                (id, summary.with_metadata(Some(metadata)))
            };
            (0..200).map(of).collect()
        };
        let metadata = MetadataFilter::new([("nth", "1")]).unwrap();
        let selection = DeviceSelection { metadata, ..DeviceSelection::default() };
        for (until, late, looked, kept) in [
            (Instant::now() + Duration::from_secs(3_600), false, 200, 100),
            (Instant::now() - Duration::from_secs(1), true, MATCHED_AT_ONCE, MATCHED_AT_ONCE / 2),
        ] {
            let (mut inside, mut looked_at, mut last) = (devices(), 0, None);
            assert_eq!(selection.keep_matching(&mut inside, until, &mut looked_at, &mut last).await, late);
            assert_eq!((looked_at, inside.len()), (looked, kept));
            assert_eq!(last.as_deref(), Some(&*format!("d{:03}", looked - 1)));
        }
    }
}
