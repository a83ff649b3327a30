//! Pages of devices: the entries of the store, and pending devices merged over them.
//!
//! The pending readings of a device are summed up as an entry like those of the store, and merged over the
//! stored entry by the same rules. So a list is the same before and after a flush.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::vec;

use futures_util::future::join;
use tokio::time::Instant;

use super::super::{Missing, Queries, QueryError, blocking};
use super::{DeviceSelection, DevicesRequest, Keeping};
use crate::access::{DeviceScope, IdRange};
use crate::flush::Pipeline;
use crate::model::Hour;
use crate::pending::{PendingDevice, PendingHour};
use crate::store::{DeviceList, DeviceSummary};

/// The number of devices to fetch at once if the answer may not have all of them.
const DEVICES_PER_FETCH: usize = 1_000;

/// The most named devices to fetch at once. Their series are in memory before their page is cut.
const NAMED_PER_FETCH: usize = 100;

/// How many pending devices are summed up before the size of the list is checked.
const PENDING_PER_STEP: usize = 64;

/// Some devices with their stored IDs.
pub(in crate::query) struct DevicePage {
    pub(in crate::query) devices: Vec<DeviceSummary>,
    /// Whether the page ended early, as in [`DeviceList::is_cut`]. More devices may follow.
    pub(super) is_cut: bool,
    /// The part that is missing in the page. `None`: the page is complete.
    pub(in crate::query) partial: Option<Missing>,
}

impl DevicePage {
    /// Ends the page early if its devices have many series. `bytes` is the size of those since the last cut.
    fn cut(self, bytes: &mut usize) -> Self {
        let mut list = DeviceList::default();
        for summary in self.devices {
            if !list.push(summary, bytes) {
                *bytes = 0;
                break;
            }
        }
        Self { devices: list.devices, is_cut: list.is_cut, partial: self.partial }
    }
}

/// Fetches the devices that may match a request, a page at a time.
pub(super) enum Pages {
    /// For a request with IDs.
    Named {
        /// The stored IDs that are left, ascending.
        left: vec::IntoIter<Arc<str>>,
        /// The number of devices to fetch next.
        step: usize,
        /// The bytes of the series of the pages since one ended early. `None`: no page ends early.
        bytes: Option<usize>,
    },
    Ranges {
        /// The ranges of stored IDs that are left, the next one last.
        ranges: Vec<IdRange>,
        after: Option<String>,
        step: usize,
    },
}

impl Pages {
    pub(super) fn new(scope: &DeviceScope, request: &DevicesRequest, keeping: Keeping) -> Self {
        let DeviceSelection { ids, prefix, .. } = &request.selection;
        let after = request.after.as_deref();
        if let Some(ids) = ids {
            let is_left = |id: &&Arc<str>| id.starts_with(&**prefix) && after.is_none_or(|after| ***id > *after);
            let to_stored = |id: &Arc<str>| scope.to_stored_id(id).ok().map(Arc::from);
            let mut stored: Vec<Arc<str>> = ids.iter().filter(is_left).filter_map(to_stored).collect();
            stored.sort_unstable();
            let bytes = (keeping == Keeping::Entries).then_some(0);
            return Self::Named { left: stored.into_iter(), step: NAMED_PER_FETCH, bytes };
        }
        let mut ranges = scope.ranges(prefix);
        ranges.reverse();
        // One device more than the limit tells whether more follow.
        let step = if request.selection.is_by_id() { request.limit + 1 } else { DEVICES_PER_FETCH };
        Self::Ranges { ranges, after: after.map(|after| scope.with_prefix(after)), step }
    }

    pub(super) fn is_done(&self) -> bool {
        match self {
            Self::Named { left, .. } => left.len() == 0,
            Self::Ranges { ranges, .. } => ranges.is_empty(),
        }
    }

    pub(super) async fn next(
        &mut self,
        queries: &Queries,
        deadline: Instant,
    ) -> Result<Option<DevicePage>, QueryError> {
        match self {
            Self::Named { left, step, bytes } => {
                let some: Vec<_> = left.by_ref().take(*step).collect();
                if some.is_empty() {
                    return Ok(None);
                }
                let page = queries.page_of(deadline, some.clone());
                let (page, described) = join(page, queries.operator_metadata(deadline, &some)).await;
                let mut page = queries.with_operator_metadata(page?, described)?;
                if let Some(bytes) = bytes {
                    page = page.cut(bytes);
                }
                if let Some(last) = page.devices.last().filter(|_| page.is_cut) {
                    let again = some.into_iter().filter(|device| *device > last.device);
                    *left = again.chain(left.by_ref()).collect::<Vec<_>>().into_iter();
                }
                // The next devices may have as many series. So few of them are fetched in vain.
                *step = if page.is_cut { page.devices.len() } else { NAMED_PER_FETCH.min(2 * *step) };
                Ok(Some(page))
            }
            Self::Ranges { ranges, after, step } => {
                let Some(range) = ranges.last() else { return Ok(None) };
                let limit = if range.is_one_id { 1 } else { *step };
                let (prefix, from) = (&*range.prefix, after.as_deref());
                let described = queries.operator_metadata_after(deadline, prefix, from, limit);
                let (page, described) = join(queries.page(deadline, prefix, from, limit), described).await;
                let mut page = page?;
                let is_last = range.is_one_id || (page.devices.len() < limit && !page.is_cut);
                // Instead of one ID, the page may have a longer one, which a later range may hold. So `after`
                // does not pass it.
                page.devices.retain(|summary| range.holds(&summary.device));
                let described = match described {
                    Ok((described, until)) => queries.with_rest(deadline, described, until, &page).await,
                    Err(error) => Err(error),
                };
                if let Some(last) = page.devices.last() {
                    *after = Some(last.device.to_string());
                }
                if is_last {
                    ranges.pop();
                }
                *step = (*step).max(DEVICES_PER_FETCH);
                Ok(Some(queries.with_operator_metadata(page, described)?))
            }
        }
    }
}

impl Queries {
    /// Returns devices with stored IDs that start with `prefix` and follow `after`.
    pub(in crate::query) async fn page(
        &self,
        deadline: Instant,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<DevicePage, QueryError> {
        let (pipeline, of_prefix, from) = (Arc::clone(&self.pipeline), prefix.to_owned(), after.map(str::to_owned));
        let pending = blocking(move || pending_devices(&pipeline, &of_prefix, from, limit)).await?;
        let (stored, partial) = match self.ask(deadline, self.store.entries(prefix, after, limit)).await {
            Ok(stored) => missing_in(stored),
            Err(_) if !pending.devices.is_empty() => (DeviceList::default(), Some(Missing::Stored)),
            Err(error) => return Err(error),
        };
        let is_cut = stored.is_cut || pending.is_cut;
        let ends = [&stored, &pending].map(|list| list.devices.last().filter(|_| list.is_cut));
        let end = ends.into_iter().flatten().map(|last| Arc::clone(&last.device)).min();
        let is_before_end = |summary: &DeviceSummary| end.as_ref().is_none_or(|end| summary.device <= *end);
        let devices = merged(stored.devices, pending.devices).take_while(is_before_end).take(limit).collect();
        Ok(DevicePage { devices, is_cut, partial })
    }

    /// Returns the last pending instant of each device, in Unix milliseconds. `None`: it has no pending
    /// readings.
    pub(super) async fn last_pending(
        &self,
        devices: Vec<Arc<str>>,
    ) -> Result<HashMap<Arc<str>, Option<i64>>, QueryError> {
        if devices.is_empty() {
            return Ok(HashMap::new());
        }
        let pipeline = Arc::clone(&self.pipeline);
        let last_ms = move |device: Arc<str>| {
            let found = pipeline.pending_devices(&device, None, 1, |found| (found.device, found.newest.span_ms().1));
            let found = found.into_iter().find(|(found, _)| *found == device);
            (device, found.map(|(_, last_ms)| last_ms))
        };
        blocking(move || devices.into_iter().map(last_ms).collect()).await
    }

    /// Returns the entries of these devices, in the order of their stored IDs. Unknown devices are left out.
    pub(in crate::query) async fn page_of(
        &self,
        deadline: Instant,
        devices: Vec<Arc<str>>,
    ) -> Result<DevicePage, QueryError> {
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
            Ok(stored) => missing_in(stored),
            Err(_) if !pending.is_empty() => (DeviceList::default(), Some(Missing::Stored)),
            Err(error) => return Err(error),
        };
        Ok(DevicePage { devices: merged(stored.devices, pending).collect(), is_cut: false, partial })
    }
}

/// Returns a list of the store, and what is missing in it.
fn missing_in(stored: DeviceList) -> (DeviceList, Option<Missing>) {
    let missing = stored.is_incomplete.then_some(Missing::Devices);
    (stored, missing)
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

/// Sums up the pending devices of a page, each with all of its hours.
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

/// Sums up all pending hours of a device as an entry of the device index.
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
