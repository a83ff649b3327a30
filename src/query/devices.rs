//! The list of devices.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::{Answer, Queries, QueryError};
use crate::access::Reach;
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
struct DevicePage {
    devices: Vec<DeviceSummary>,
    partial: bool,
}

impl Queries {
    /// Devices in the order of their ids, and whether there are more.
    ///
    /// # Errors
    /// When there are too many out of reach between those in reach, or the store does not answer.
    pub async fn devices(
        &self,
        reach: &Reach,
        request: &DevicesRequest,
    ) -> Result<Answer<(Vec<DeviceSummary>, bool)>, QueryError> {
        let deadline = self.deadline();
        let lagging = self.catch_up().await;
        let wanted = request.limit + 1; // one more tells whether there is a next page
        let (mut found, mut looked_at, mut partial) = (Vec::new(), 0, false);
        for span in reach.spans(&request.prefix) {
            let mut after = request.after.as_deref().map(|after| reach.behind_prefix(after));
            let mut step = if span.is_one_id { 1 } else { wanted };
            while found.len() < wanted {
                let page = self.page(deadline, &span.prefix, after.as_deref(), step).await?;
                partial |= page.partial;
                let is_last = span.is_one_id || page.devices.len() < step;
                looked_at += page.devices.len();
                after = page.devices.last().map(|last| last.device.to_string());
                let of_span = page.devices.into_iter().filter(|summary| span.holds(&summary.device));
                found.extend(of_span.filter_map(|summary| seen_from(reach, summary)));
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
    async fn page(
        &self,
        deadline: Instant,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<DevicePage, QueryError> {
        let pending = self.flush.with_pending(|pending| pending.devices(prefix, after, limit));
        let (stored, partial) = match self.ask(deadline, self.store.devices(prefix, after, limit)).await {
            Ok(stored) => (stored, false),
            Err(_) if !pending.is_empty() => (Vec::new(), true),
            Err(error) => return Err(error),
        };
        let mut devices: BTreeMap<Arc<str>, DeviceSummary> =
            stored.into_iter().map(|summary| (Arc::clone(&summary.device), summary)).collect();
        for summary in pending.iter().filter_map(summarize) {
            match devices.get_mut(&summary.device) {
                Some(known) => take_in(known, summary),
                None => _ = devices.insert(Arc::clone(&summary.device), summary),
            }
        }
        Ok(DevicePage { devices: devices.into_values().take(limit).collect(), partial })
    }
}

/// A device as it looks from there, if it is in reach.
fn seen_from(reach: &Reach, summary: DeviceSummary) -> Option<DeviceSummary> {
    if reach.is_all() {
        return Some(summary);
    }
    let device = reach.shown(&summary.device)?.into();
    Some(DeviceSummary { device, ..summary })
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
