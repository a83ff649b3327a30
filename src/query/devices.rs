//! The list of devices.
//!
//! The pending readings of a device are summed up like those of the store, and merged over them by the same
//! rules. So a list is the same before and after a flush.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::{Answer, Queries, QueryError, blocking};
use crate::access::DeviceScope;
use crate::flush::Pipeline;
use crate::model::{Hour, Metric};
use crate::pending::{PendingDevice, PendingHour};
use crate::store::{DeviceList, DeviceSummary};

/// A request for a list of devices.
#[derive(Debug, Clone)]
pub struct DevicesRequest {
    /// The start of the client IDs.
    pub prefix: String,
    /// The list begins after this client ID.
    pub after: Option<String>,
    /// The most devices in the answer, at least 1.
    pub limit: usize,
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

/// How many devices are fetched at once if some are outside of the device scope.
const DEVICES_PER_FETCH: usize = 1_000;

/// The most devices that are fetched for one page.
const MAX_FETCHED: usize = 100_000;

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

impl Queries {
    /// Returns devices in the order of their IDs, and whether there are more. It returns fewer than the limit
    /// if they have many metrics.
    ///
    /// # Errors
    /// If too many devices outside of the scope precede the first one inside, or the store does not answer.
    pub async fn devices(
        &self,
        scope: &DeviceScope,
        request: &DevicesRequest,
    ) -> Result<Answer<(Vec<Device>, bool)>, QueryError> {
        self.list(scope, request, true, |device| device).await
    }

    /// Returns the client IDs of devices in their order, and whether there are more.
    ///
    /// # Errors
    /// Those of [`Self::devices`].
    pub async fn device_ids(
        &self,
        scope: &DeviceScope,
        request: &DevicesRequest,
    ) -> Result<Answer<(Vec<Arc<str>>, bool)>, QueryError> {
        self.list(scope, request, false, |device| device.id).await
    }

    /// Lists what `keep` keeps of each device. `ends_when_cut` says whether the list ends with a page of the
    /// store that ended early.
    async fn list<T>(
        &self,
        scope: &DeviceScope,
        request: &DevicesRequest,
        ends_when_cut: bool,
        keep: impl Fn(Device) -> T,
    ) -> Result<Answer<(Vec<T>, bool)>, QueryError> {
        let deadline = self.deadline();
        let lagging = self.catch_up().await;
        let wanted = request.limit + 1; // one more tells whether there is a next page
        let (mut found, mut fetched, mut partial) = (Vec::new(), 0, false);
        for range in scope.ranges(&request.prefix) {
            let mut after = request.after.as_deref().map(|after| scope.with_prefix(after));
            let mut step = if range.is_one_id { 1 } else { wanted };
            while found.len() < wanted {
                let page = self.page(deadline, &range.prefix, after.as_deref(), step).await?;
                partial |= page.partial;
                let is_last = range.is_one_id || (page.devices.len() < step && !page.is_cut);
                fetched += page.devices.len();
                after = page.devices.last().map(|last| last.device.to_string());
                let in_range = page.devices.into_iter().filter(|summary| range.holds(&summary.device));
                found.extend(in_range.filter_map(|summary| in_scope(scope, summary)).map(&keep));
                if is_last {
                    break;
                }
                let is_short = page.is_cut && ends_when_cut && !found.is_empty();
                if is_short || (found.len() < wanted && fetched > MAX_FETCHED) {
                    if found.is_empty() {
                        return Err(QueryError::TooManyDevices(fetched));
                    }
                    found.truncate(request.limit);
                    return Ok(Answer { body: (found, true), lagging, partial }); // a short page
                }
                step = step.max(DEVICES_PER_FETCH);
            }
        }
        let more = found.len() > request.limit;
        found.truncate(request.limit);
        Ok(Answer { body: (found, more), lagging, partial })
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
        let (stored, partial) = match self.ask(deadline, self.store.devices(prefix, after, limit)).await {
            Ok(stored) => (stored, false),
            Err(_) if !pending.devices.is_empty() => (DeviceList::default(), true),
            Err(error) => return Err(error),
        };
        let is_cut = stored.is_cut || pending.is_cut;
        let ends = [&stored, &pending].map(|list| list.devices.last().filter(|_| list.is_cut));
        let end = ends.into_iter().flatten().map(|last| Arc::clone(&last.device)).min();
        let mut devices: BTreeMap<Arc<str>, DeviceSummary> = BTreeMap::new();
        for summary in stored.devices.into_iter().chain(pending.devices) {
            match devices.get_mut(&summary.device) {
                Some(known) => known.merge(summary),
                None => _ = devices.insert(Arc::clone(&summary.device), summary),
            }
        }
        let is_before_end = |summary: &DeviceSummary| end.as_ref().is_none_or(|end| summary.device <= *end);
        let devices = devices.into_values().take_while(is_before_end).take(limit).collect();
        Ok(DevicePage { devices, is_cut, partial })
    }
}

/// Returns a device with its client ID if it is inside of the scope.
fn in_scope(scope: &DeviceScope, summary: DeviceSummary) -> Option<Device> {
    let DeviceSummary { device, metadata, series, has_more_series, first_ts_ms, last_ts_ms } = summary;
    let id = if scope.is_all() { device } else { scope.to_client_id(&device)?.into() };
    let metadata = metadata.map(|metadata| metadata.text);
    let metrics = series.into_iter().map(|series| series.metric).collect();
    Some(Device { id, metadata, metrics, has_more_metrics: has_more_series, first_ts_ms, last_ts_ms })
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
