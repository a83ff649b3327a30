//! The list of devices.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::{Answer, Queries, QueryError, blocking};
use crate::access::DeviceScope;
use crate::model::{Hour, Metric};
use crate::pending::PendingDevice;
use crate::store::DeviceSummary;

/// A question for devices.
#[derive(Debug, Clone)]
pub struct DevicesRequest {
    /// What the ids start with.
    pub prefix: String,
    /// Only ids behind this one.
    pub after: Option<String>,
    /// The most devices in the answer, at least 1.
    pub limit: usize,
}

/// How many devices are looked at at once where some had to be left out, and how many in all for one page.
const LOOKED_AT_ONCE: usize = 1_000;
const MAX_LOOKED_AT: usize = 100_000;

/// Some devices as they are kept; `partial`: of what is pending only.
pub(super) struct DevicePage {
    pub(super) devices: Vec<DeviceSummary>,
    partial: bool,
}

impl Queries {
    /// Devices in the order of their ids, and whether there are more.
    ///
    /// # Errors
    /// When there are too many out of reach between those in reach, or the store does not answer.
    pub async fn devices(
        &self,
        scope: &DeviceScope,
        request: &DevicesRequest,
    ) -> Result<Answer<(Vec<DeviceSummary>, bool)>, QueryError> {
        let deadline = self.deadline();
        let lagging = self.catch_up().await;
        let wanted = request.limit + 1; // one more tells whether there is a next page
        let (mut found, mut looked_at, mut partial) = (Vec::new(), 0, false);
        for range in scope.ranges(&request.prefix) {
            let mut after = request.after.as_deref().map(|after| scope.with_prefix(after));
            let mut step = if range.is_one_id { 1 } else { wanted };
            while found.len() < wanted {
                let page = self.page(deadline, &range.prefix, after.as_deref(), step).await?;
                partial |= page.partial;
                let is_last = range.is_one_id || page.devices.len() < step;
                looked_at += page.devices.len();
                after = page.devices.last().map(|last| last.device.to_string());
                let of_span = page.devices.into_iter().filter(|summary| range.holds(&summary.device));
                found.extend(of_span.filter_map(|summary| seen_from(scope, summary)));
                if is_last {
                    break;
                }
                if found.len() < wanted && looked_at > MAX_LOOKED_AT {
                    if found.is_empty() {
                        return Err(QueryError::TooManyDevices(looked_at));
                    }
                    found.truncate(request.limit);
                    return Ok(Answer { body: (found, true), lagging, partial }); // a short page, and there may be more
                }
                step = step.max(LOOKED_AT_ONCE);
            }
        }
        let more = found.len() > request.limit;
        found.truncate(request.limit);
        Ok(Answer { body: (found, more), lagging, partial })
    }

    /// The first devices behind `after` of those whose ids, as they are kept, start with `prefix`.
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

/// A device as it looks from there, if it is in reach.
fn seen_from(scope: &DeviceScope, summary: DeviceSummary) -> Option<DeviceSummary> {
    if scope.is_all() {
        return Some(summary);
    }
    let device = scope.to_client_id(&summary.device)?.into();
    Some(DeviceSummary { device, ..summary })
}

/// What is pending of a device.
struct PendingSummary {
    device: Arc<str>,
    first_ts_ms: i64,
    last_ts_ms: i64,
    /// The metrics of its newest hour, sorted by name.
    metrics: Vec<Metric>,
    /// Of the hours before that.
    earlier_metadata: Option<Arc<str>>,
    /// Of the newest hour: the last instant of each write that it becomes, and the metadata that goes with
    /// it.
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

    /// The summary that the store will give of the device once this is stored, from the one that it gives
    /// now.
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

    /// Metadata as [`Store::metadata_stays`](crate::store::Store::metadata_stays) has it.
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
