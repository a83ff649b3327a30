//! The list of devices.
//!
//! The pending readings of a device are summed up like those of the store, and merged over them by the same
//! rules. So a list is the same before and after a flush.
//!
//! A selection by metadata or silence is a scan of the device index. One request looks at a bounded number of
//! entries, so a page may have few devices, or none, and more may follow. The index has last instants to the
//! day, so only devices that may be silent, and those of the answer, are looked up exactly.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::vec;

use tokio::time::Instant;

use super::{Answer, Queries, QueryError, blocking};
use crate::access::{DeviceScope, IdRange};
use crate::flush::Pipeline;
use crate::model::{Day, Hour, MetadataFilter, Metric};
use crate::pending::{PendingDevice, PendingHour};
use crate::store::{DeviceList, DeviceSummary};

/// Selects devices.
#[derive(Debug, Clone, Default)]
pub struct DeviceSelection {
    /// Client IDs, each once. `None`: any.
    pub ids: Option<Vec<Arc<str>>>,
    /// The start of the client IDs.
    pub prefix: String,
    /// The metadata.
    pub metadata: MetadataFilter,
    /// Only devices whose last instant is before this one, in Unix milliseconds.
    pub silent_since_ms: Option<i64>,
}

/// A request for a list of devices.
#[derive(Debug, Clone)]
pub struct DevicesRequest {
    /// The devices.
    pub selection: DeviceSelection,
    /// The list begins after this client ID.
    pub after: Option<String>,
    /// The most devices in the answer, at least 1.
    pub limit: usize,
    /// The instant of the request, in Unix milliseconds.
    pub now_ms: i64,
}

/// A page of a list, in the order of the IDs.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed<T> {
    /// The devices of the page.
    pub devices: Vec<T>,
    /// The client ID after which the list continues; `None` at its end.
    pub next: Option<Arc<str>>,
}

/// A device in the answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// The client ID.
    pub id: Arc<str>,
    /// The metadata, as the text of a JSON object.
    pub metadata: Option<Arc<str>>,
    /// Its metrics, sorted by name, at most [`MAX_SERIES`](crate::store::device_index::MAX_SERIES).
    pub metrics: Vec<Metric>,
    /// Whether it has or had other metrics, which are left out.
    pub has_more_metrics: bool,
    /// The first instant, in Unix milliseconds.
    pub first_ts_ms: i64,
    /// The last instant, in Unix milliseconds.
    pub last_ts_ms: i64,
}

/// How many devices are fetched at once if some of them may not be in the answer.
const DEVICES_PER_FETCH: usize = 1_000;

/// The most devices outside of the device scope that are fetched for one page.
const MAX_FETCHED: usize = 100_000;

/// The most devices that one page looks at, if it selects by metadata or silence.
const MAX_LOOKED_AT: usize = 10_000;

/// The number of exact last instants after which a page ends.
const MAX_LOOKED_UP: usize = 2_000;

/// How many pending devices are summed up before the size of the list is checked.
const PENDING_PER_STEP: usize = 64;

/// Some devices with their stored IDs.
pub(super) struct DevicePage {
    pub(super) devices: Vec<DeviceSummary>,
    /// More devices may follow, because the page ended early (see [`DeviceList::is_cut`]).
    is_cut: bool,
    /// The store did not answer: the pending devices only.
    partial: bool,
}

/// The part of each device that a list keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeping {
    Ids,
    /// Entries with their series. So the list ends with a page of the store that ended early.
    Entries,
}

/// The devices of a request that may match, some at a time.
enum Pages {
    /// The stored IDs that are left, ascending.
    Named(vec::IntoIter<Arc<str>>),
    Ranges {
        /// The ranges that are left, the next one last.
        ranges: Vec<IdRange>,
        after: Option<String>,
        step: usize,
    },
}

impl DeviceSelection {
    /// Whether the IDs decide.
    #[must_use]
    pub fn is_by_id(&self) -> bool {
        self.metadata.is_all() && self.silent_since_ms.is_none()
    }

    fn matches_metadata(&self, summary: &DeviceSummary) -> bool {
        self.metadata.matches(summary.metadata.as_ref().map(|metadata| &*metadata.text))
    }
}

impl Queries {
    /// Returns devices in the order of their IDs. It returns fewer than the limit if they have many metrics,
    /// or if few of those that it has looked at match.
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
        if !partial {
            self.make_exact(deadline, summaries.iter_mut().collect(), request.now_ms).await?;
        }
        let devices = ids.into_iter().zip(summaries).map(|(id, summary)| Device::new(id, summary)).collect();
        Ok(Answer { body: Listed { devices, next }, lagging, partial })
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

    /// Returns the entry of a device in the store, without pending readings.
    pub(super) async fn entry(
        &self,
        deadline: Instant,
        device: &Arc<str>,
    ) -> Result<Option<DeviceSummary>, QueryError> {
        Ok(self.ask(deadline, self.store.entries_of(std::slice::from_ref(device))).await?.pop())
    }

    /// Lists what `keep` keeps of the client ID and the entry of each device.
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
        let mut pages = Pages::new(scope, request);
        let (mut found, mut partial) = (Vec::new(), false);
        let (mut outside, mut looked_at, mut looked_up) = (0, 0, 0);
        let (mut last_found, mut last_looked_at) = (None, None);
        while let Some(page) = pages.next(self, deadline).await? {
            partial |= page.partial;
            let fetched = page.devices.len();
            let inside = page.devices.into_iter().filter_map(|summary| Some((client_id(scope, &summary)?, summary)));
            let mut inside: Vec<(Arc<str>, DeviceSummary)> = inside.collect();
            outside += fetched - inside.len();
            looked_at += inside.len();
            last_looked_at = inside.last().map(|(id, _)| Arc::clone(id)).or(last_looked_at);
            inside.retain(|(_, summary)| selection.matches_metadata(summary));
            if let Some(since_ms) = selection.silent_since_ms {
                looked_up += self.keep_silent(deadline, &mut inside, since_ms, *now_ms, page.partial).await?;
            }
            for (id, summary) in inside {
                if found.len() == *limit {
                    return Ok(Answer { body: Listed { devices: found, next: last_found }, lagging, partial });
                }
                last_found = Some(Arc::clone(&id));
                found.push(keep(id, summary));
            }
            let is_short = page.is_cut && keeping == Keeping::Entries && !found.is_empty();
            let is_long = !selection.is_by_id() && (looked_at >= MAX_LOOKED_AT || looked_up >= MAX_LOOKED_UP);
            if (is_short || is_long || outside > MAX_FETCHED) && !pages.is_done() {
                if last_looked_at.is_none() {
                    return Err(QueryError::TooManyDevices(outside));
                }
                return Ok(Answer { body: Listed { devices: found, next: last_looked_at }, lagging, partial });
            }
        }
        Ok(Answer { body: Listed { devices: found, next: None }, lagging, partial })
    }

    /// Keeps the devices without a reading since an instant. Returns how many it has looked up.
    async fn keep_silent(
        &self,
        deadline: Instant,
        devices: &mut Vec<(Arc<str>, DeviceSummary)>,
        since_ms: i64,
        now_ms: i64,
        partial: bool,
    ) -> Result<usize, QueryError> {
        devices.retain(|(_, summary)| summary.last_ts_ms < since_ms);
        let mut uncertain: Vec<&mut DeviceSummary> = devices.iter_mut().map(|(_, summary)| summary).collect();
        uncertain.retain(|summary| Day(Day::of(Hour::of(summary.last_ts_ms)).0 + 1).start_ms() > since_ms);
        let looked_up = uncertain.len();
        if !partial {
            self.make_exact(deadline, uncertain, now_ms).await?;
        }
        devices.retain(|(_, summary)| summary.last_ts_ms < since_ms);
        Ok(looked_up)
    }

    /// Replaces last instants that are exact to the day. Those of pending readings are exact.
    async fn make_exact(
        &self,
        deadline: Instant,
        entries: Vec<&mut DeviceSummary>,
        now_ms: i64,
    ) -> Result<(), QueryError> {
        if entries.is_empty() {
            return Ok(());
        }
        let of_store: Vec<DeviceSummary> = entries.iter().map(|entry| entry.without_series()).collect();
        let exact = self.ask(deadline, self.store.last_instants(&of_store, Hour::of(now_ms))).await?;
        for (entry, exact_ms) in entries.into_iter().zip(exact) {
            entry.last_ts_ms = entry.last_ts_ms.max(exact_ms);
        }
        Ok(())
    }

    /// Returns the first devices whose stored IDs start with `prefix` and follow `after`.
    pub(super) async fn page(
        &self,
        deadline: Instant,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<DevicePage, QueryError> {
        let (pipeline, of_prefix, from) = (Arc::clone(&self.pipeline), prefix.to_owned(), after.map(str::to_owned));
        let pending = blocking(move || pending_devices(&pipeline, &of_prefix, from, limit)).await?;
        let (stored, partial) = match self.ask(deadline, self.store.entries(prefix, after, limit)).await {
            Ok(stored) => (stored, false),
            Err(_) if !pending.devices.is_empty() => (DeviceList::default(), true),
            Err(error) => return Err(error),
        };
        let is_cut = stored.is_cut || pending.is_cut;
        let ends = [&stored, &pending].map(|list| list.devices.last().filter(|_| list.is_cut));
        let end = ends.into_iter().flatten().map(|last| Arc::clone(&last.device)).min();
        let is_before_end = |summary: &DeviceSummary| end.as_ref().is_none_or(|end| summary.device <= *end);
        let devices = merged(stored.devices, pending.devices).take_while(is_before_end).take(limit).collect();
        Ok(DevicePage { devices, is_cut, partial })
    }

    /// Returns those of the devices that are known, in the order of their stored IDs.
    async fn page_of(&self, deadline: Instant, devices: Vec<Arc<str>>) -> Result<DevicePage, QueryError> {
        let (pipeline, wanted) = (Arc::clone(&self.pipeline), devices.clone());
        let pending = blocking(move || {
            let of = |device: &Arc<str>| {
                let found = pipeline.pending_devices(device, None, 1, |found| sum_up(&pipeline, &found));
                found.into_iter().find(|found| found.device == *device)
            };
            wanted.iter().filter_map(of).collect::<Vec<_>>()
        })
        .await?;
        let (stored, partial) = match self.ask(deadline, self.store.entries_of(&devices)).await {
            Ok(stored) => (stored, false),
            Err(_) if !pending.is_empty() => (Vec::new(), true),
            Err(error) => return Err(error),
        };
        Ok(DevicePage { devices: merged(stored, pending).collect(), is_cut: false, partial })
    }
}

impl Pages {
    fn new(scope: &DeviceScope, request: &DevicesRequest) -> Self {
        let DeviceSelection { ids, prefix, .. } = &request.selection;
        let after = request.after.as_deref();
        if let Some(ids) = ids {
            let is_left = |id: &&Arc<str>| id.starts_with(&**prefix) && after.is_none_or(|after| ***id > *after);
            let to_stored = |id: &Arc<str>| scope.to_stored_id(id).ok().map(Arc::from);
            let mut stored: Vec<Arc<str>> = ids.iter().filter(is_left).filter_map(to_stored).collect();
            stored.sort_unstable();
            return Self::Named(stored.into_iter());
        }
        let mut ranges = scope.ranges(prefix);
        ranges.reverse();
        // One more than the limit tells whether more follow.
        let step = if request.selection.is_by_id() { request.limit + 1 } else { DEVICES_PER_FETCH };
        Self::Ranges { ranges, after: after.map(|after| scope.with_prefix(after)), step }
    }

    fn is_done(&self) -> bool {
        match self {
            Self::Named(left) => left.len() == 0,
            Self::Ranges { ranges, .. } => ranges.is_empty(),
        }
    }

    async fn next(&mut self, queries: &Queries, deadline: Instant) -> Result<Option<DevicePage>, QueryError> {
        match self {
            Self::Named(left) => {
                let some: Vec<_> = left.by_ref().take(DEVICES_PER_FETCH).collect();
                if some.is_empty() { Ok(None) } else { queries.page_of(deadline, some).await.map(Some) }
            }
            Self::Ranges { ranges, after, step } => {
                let Some(range) = ranges.last() else { return Ok(None) };
                let limit = if range.is_one_id { 1 } else { *step };
                let mut page = queries.page(deadline, &range.prefix, after.as_deref(), limit).await?;
                let is_last = range.is_one_id || (page.devices.len() < limit && !page.is_cut);
                if let Some(last) = page.devices.last() {
                    *after = Some(last.device.to_string());
                }
                page.devices.retain(|summary| range.holds(&summary.device));
                if is_last {
                    ranges.pop();
                }
                *step = (*step).max(DEVICES_PER_FETCH);
                Ok(Some(page))
            }
        }
    }
}

/// Returns the client ID of a device that is inside of the scope.
fn client_id(scope: &DeviceScope, summary: &DeviceSummary) -> Option<Arc<str>> {
    let device = &summary.device;
    if scope.is_all() { Some(Arc::clone(device)) } else { Some(scope.to_client_id(device)?.into()) }
}

/// Merges pending devices over stored ones. Returns them in the order of their IDs.
fn merged(stored: Vec<DeviceSummary>, pending: Vec<DeviceSummary>) -> impl Iterator<Item = DeviceSummary> {
    let mut devices: BTreeMap<Arc<str>, DeviceSummary> = BTreeMap::new();
    for summary in stored.into_iter().chain(pending) {
        match devices.get_mut(&summary.device) {
            Some(known) => known.merge(summary),
            None => _ = devices.insert(Arc::clone(&summary.device), summary),
        }
    }
    devices.into_values()
}

impl Device {
    fn new(id: Arc<str>, summary: DeviceSummary) -> Self {
        let DeviceSummary { metadata, series, has_more_series, first_ts_ms, last_ts_ms, .. } = summary;
        let metadata = metadata.map(|metadata| metadata.text);
        let metrics = series.into_iter().map(|series| series.metric).collect();
        Self { id, metadata, metrics, has_more_metrics: has_more_series, first_ts_ms, last_ts_ms }
    }
}

/// Sums up pending devices.
fn pending_devices(pipeline: &Pipeline, prefix: &str, mut after: Option<String>, limit: usize) -> DeviceList {
    let (mut list, mut bytes) = (DeviceList::default(), 0);
    loop {
        let step = PENDING_PER_STEP.min(limit - list.devices.len());
        let sum_up = |device| sum_up(pipeline, &device);
        let found = pipeline.pending_devices(prefix, after.as_deref(), step, sum_up);
        let is_last = found.len() < step;
        for summary in found {
            if !list.push(summary, &mut bytes) {
                return list;
            }
        }
        if is_last || list.devices.len() == limit {
            return list;
        }
        after = list.devices.last().map(|last| last.device.to_string());
    }
}

/// Sums up all pending hours of a device.
fn sum_up(pipeline: &Pipeline, pending: &PendingDevice) -> DeviceSummary {
    let mut summary = summary_of(&pending.device, &pending.newest);
    summary.first_ts_ms = pending.first_ts_ms;
    if pending.has_earlier {
        pipeline.each_pending_hour(&pending.device, Hour(i32::MIN)..pending.newest.hour, |hour| {
            summary.merge(summary_of(&pending.device, &hour));
        });
    }
    summary
}

fn summary_of(device: &Arc<str>, pending: &PendingHour) -> DeviceSummary {
    let span_ms = pending.span_ms();
    let summary = DeviceSummary::of_hour(Arc::clone(device), pending.hour, span_ms, pending.metrics());
    summary.with_metadata(pending.metadata().cloned())
}
