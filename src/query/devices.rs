//! The list of devices.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::{Answer, Queries, QueryError, blocking};
use crate::access::DeviceScope;
use crate::model::{Hour, Metric};
use crate::pending::PendingDevice;
use crate::store::DeviceSummary;

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
    /// The metrics of its newest hour, sorted by name.
    pub metrics: Vec<Metric>,
    /// The first instant, in Unix milliseconds.
    pub first_ts_ms: i64,
    /// The last instant, in Unix milliseconds.
    pub last_ts_ms: i64,
}

/// How many devices are fetched at once if some are outside of the device scope.
const DEVICES_PER_FETCH: usize = 1_000;

/// The most devices that are fetched for one page.
const MAX_FETCHED: usize = 100_000;

/// Some devices with their stored IDs.
pub(super) struct DevicePage {
    pub(super) devices: Vec<DeviceSummary>,
    /// The store did not answer: the pending devices only.
    partial: bool,
}

impl Queries {
    /// Returns devices in the order of their IDs, and whether there are more.
    ///
    /// # Errors
    /// If too many devices outside of the scope precede the first one inside, or the store does not answer.
    pub async fn devices(
        &self,
        scope: &DeviceScope,
        request: &DevicesRequest,
    ) -> Result<Answer<(Vec<Device>, bool)>, QueryError> {
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
                let is_last = range.is_one_id || page.devices.len() < step;
                fetched += page.devices.len();
                after = page.devices.last().map(|last| last.device.to_string());
                let in_range = page.devices.into_iter().filter(|summary| range.holds(&summary.device));
                found.extend(in_range.filter_map(|summary| in_scope(scope, summary)));
                if is_last {
                    break;
                }
                if found.len() < wanted && fetched > MAX_FETCHED {
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
        let list =
            move || pipeline.pending_devices(&of_prefix, from.as_deref(), limit, |device| PendingSummary::of(&device));
        let pending = blocking(list).await?;
        let (stored, partial) = match self.ask(deadline, self.store.devices(prefix, after, limit)).await {
            Ok(stored) => (stored, false),
            Err(_) if !pending.is_empty() => (Vec::new(), true),
            Err(error) => return Err(error),
        };
        let mut devices: BTreeMap<Arc<str>, DeviceSummary> =
            stored.into_iter().map(|summary| (Arc::clone(&summary.device), summary)).collect();
        let metadata_stays = self.store.metadata_stays();
        for pending in pending {
            let stored = devices.remove(&pending.device);
            devices.insert(Arc::clone(&pending.device), pending.over(stored, metadata_stays));
        }
        Ok(DevicePage { devices: devices.into_values().take(limit).collect(), partial })
    }
}

/// Returns a device with its client ID if it is inside of the scope.
fn in_scope(scope: &DeviceScope, summary: DeviceSummary) -> Option<Device> {
    let DeviceSummary { device, metadata, metrics, first_ts_ms, last_ts_ms } = summary;
    let id = if scope.is_all() { device } else { scope.to_client_id(&device)?.into() };
    Some(Device { id, metadata, metrics, first_ts_ms, last_ts_ms })
}

/// The summary of the pending readings of a device.
struct PendingSummary {
    device: Arc<str>,
    first_ts_ms: i64,
    last_ts_ms: i64,
    /// The metrics of the newest pending hour, sorted by name.
    metrics: Vec<Metric>,
    /// The newest metadata of the hours before that.
    earlier_metadata: Option<Arc<str>>,
    /// The last instant and the metadata of each write of the newest hour, in the order of the writes.
    metadata: Vec<(i64, Option<Arc<str>>)>,
}

impl PendingSummary {
    fn of(pending: &PendingDevice) -> Self {
        let newest = &pending.newest;
        Self {
            device: Arc::clone(&pending.device),
            first_ts_ms: pending.first_ts_ms,
            last_ts_ms: newest.span_ms().1,
            metrics: newest.metrics(),
            earlier_metadata: pending.earlier_metadata.clone(),
            metadata: newest.metadata().map(|(last_ms, metadata)| (last_ms, metadata.cloned())).collect(),
        }
    }

    /// Returns the summary that the store will have once this is stored, from the one that it has now.
    fn over(self, stored: Option<DeviceSummary>, metadata_stays: bool) -> DeviceSummary {
        let Some(mut known) = stored else {
            let nothing = DeviceSummary {
                device: Arc::clone(&self.device),
                metadata: None,
                metrics: Vec::new(),
                first_ts_ms: self.first_ts_ms,
                last_ts_ms: i64::MIN,
            };
            return self.over(Some(nothing), metadata_stays);
        };
        let stored_hour = (known.last_ts_ms > i64::MIN).then(|| Hour::of(known.last_ts_ms));
        let is_newer_hour = stored_hour < Some(Hour::of(self.last_ts_ms));
        let is_same_hour = stored_hour == Some(Hour::of(self.last_ts_ms));
        if metadata_stays {
            known.metadata = self.metadata_of_last_reading(&known);
        } else if is_newer_hour || is_same_hour {
            let newest = self.metadata.into_iter().rev().find_map(|(_, metadata)| metadata);
            known.metadata = newest.or(known.metadata.filter(|_| is_same_hour));
        }
        if is_newer_hour {
            known.metrics = self.metrics;
        } else if is_same_hour {
            known.metrics.extend(self.metrics);
            known.metrics.sort_unstable();
            known.metrics.dedup();
        }
        known.first_ts_ms = known.first_ts_ms.min(self.first_ts_ms);
        known.last_ts_ms = known.last_ts_ms.max(self.last_ts_ms);
        known
    }

    /// Returns the metadata if [`Store::metadata_stays`](crate::store::Store::metadata_stays).
    fn metadata_of_last_reading(&self, stored: &DeviceSummary) -> Option<Arc<str>> {
        let (mut last_ms, mut shown) = (stored.last_ts_ms, stored.metadata.clone());
        let mut known = self.earlier_metadata.clone().or_else(|| shown.clone());
        for (of_write_ms, metadata) in &self.metadata {
            known = metadata.clone().or(known);
            if *of_write_ms > last_ms {
                (last_ms, shown) = (*of_write_ms, known.clone());
            }
        }
        shown
    }
}
