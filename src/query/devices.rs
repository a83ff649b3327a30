//! The list of devices.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Answer, Queries, QueryError};
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

impl Queries {
    /// Devices in the order of their ids, and whether there are more.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn devices(&self, request: &DevicesRequest) -> Result<Answer<(Vec<DeviceSummary>, bool)>, QueryError> {
        let lagging = self.catch_up().await;
        let wanted = request.limit + 1; // one more tells whether there is a next page
        let (prefix, after) = (request.prefix.as_str(), request.after.as_deref());
        let pending = self.flush.with_pending(|pending| pending.devices(prefix, after, wanted));
        let (stored, partial) = match self.ask(self.store.devices(prefix, after, wanted)).await {
            Ok(stored) => (stored, false),
            Err(_) if !pending.is_empty() => (Vec::new(), true),
            Err(error) => return Err(error.into()),
        };
        let mut devices: BTreeMap<Arc<str>, DeviceSummary> =
            stored.into_iter().map(|summary| (Arc::clone(&summary.device), summary)).collect();
        for summary in pending.iter().filter_map(summarize) {
            match devices.get_mut(&summary.device) {
                Some(known) => take_in(known, summary),
                None => _ = devices.insert(Arc::clone(&summary.device), summary),
            }
        }
        let more = devices.len() > request.limit;
        Ok(Answer { body: (devices.into_values().take(request.limit).collect(), more), lagging, partial })
    }
}

fn summarize(device: &PendingDevice) -> Option<DeviceSummary> {
    let (first, last) = &device.hours;
    let newest = last.contents();
    let mut metrics: Vec<_> = newest.stats().into_iter().map(|(metric, _)| metric).collect();
    metrics.sort_unstable();
    Some(DeviceSummary {
        device: Arc::clone(&device.device),
        metadata: last.metadata(),
        metrics,
        first_ts_ms: first.hour.instant_ms(first.contents().span()?.0),
        last_ts_ms: last.hour.instant_ms(newest.span()?.1),
    })
}

/// Lays what is pending of a device over what is stored of it.
fn take_in(known: &mut DeviceSummary, pending: DeviceSummary) {
    if pending.last_ts_ms >= known.last_ts_ms {
        known.metadata = pending.metadata.or(known.metadata.take());
    }
    known.metrics.extend(pending.metrics);
    known.metrics.sort_unstable();
    known.metrics.dedup();
    known.first_ts_ms = known.first_ts_ms.min(pending.first_ts_ms);
    known.last_ts_ms = known.last_ts_ms.max(pending.last_ts_ms);
}
