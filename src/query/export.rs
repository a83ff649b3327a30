//! Exports: the readings of one or many devices, slice by slice, device after device.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use tokio::runtime::Handle;

use super::readings::{ReadingSlices, ReadingsRequest, Slice};
use super::{Answer, DevicesRequest, Listed, Queries, QueryError, blocking};
use crate::access::{DeviceScope, Grant};
use crate::model::{Day, Hour, Metric, SeriesFilter};

/// A request for the readings of devices.
#[derive(Debug, Clone)]
pub struct ExportRequest {
    /// The devices.
    pub devices: ExportedDevices,
    /// The first instant, in Unix milliseconds.
    pub from_ms: i64,
    /// The end of the range, exclusive, in Unix milliseconds.
    pub to_ms: i64,
    /// Selects the series.
    pub series: SeriesFilter,
    /// The most readings of all devices together; `usize::MAX` for all.
    pub limit: usize,
}

/// The devices of an export, by client ID.
#[derive(Debug, Clone)]
pub enum ExportedDevices {
    /// The devices with these IDs, in this order.
    Named(Vec<Arc<str>>),
    /// All devices of a list. The limit of its request is the size of a page.
    Listed(DevicesRequest),
}

/// The readings of devices, slice by slice.
pub struct Export {
    queries: Queries,
    grant: Arc<Grant>,
    request: ExportRequest,
    /// The client IDs of the next devices, the next one last.
    next: Vec<Arc<str>>,
    /// The request for the devices after `next`. `None`: no others follow.
    list: Option<DevicesRequest>,
    /// The devices that precede `next`. The first slices of all but the first one may be read ahead.
    begun: VecDeque<(Arc<str>, ReadingSlices)>,
    open: Option<(Arc<str>, ReadingSlices)>,
    /// Whether the last device had few values. False before the first one: all may have many.
    was_short: bool,
}

impl Queries {
    /// Returns the readings of devices, slice by slice. The range may have any length.
    ///
    /// # Errors
    /// If a named device is outside of the scope.
    pub fn export(&self, grant: Arc<Grant>, request: ExportRequest) -> Result<Export, QueryError> {
        let (next, list) = match &request.devices {
            ExportedDevices::Named(devices) => (devices.iter().rev().cloned().collect(), None),
            ExportedDevices::Listed(list) => (Vec::new(), Some(list.clone())),
        };
        for device in &next {
            grant.device_scope.to_stored_id(device)?;
        }
        let begun = VecDeque::new();
        Ok(Export { queries: self.clone(), grant, request, next, list, begun, open: None, was_short: false })
    }

    /// Returns the series that a device may have since `from_ms`, sorted.
    ///
    /// # Errors
    /// If there are more than `max`, the device is outside of the scope, the device index may lack its
    /// series, or the store does not answer.
    pub async fn columns(
        &self,
        scope: &DeviceScope,
        device: &str,
        (series, from_ms): (&SeriesFilter, i64),
        max: usize,
    ) -> Result<Vec<Metric>, QueryError> {
        let deadline = self.deadline();
        let stored_id: Arc<str> = scope.to_stored_id(device)?.as_ref().into();
        // Pending is read first. A series that is stored in between is then in both, not in neither.
        let (pipeline, of_device) = (Arc::clone(&self.pipeline), Arc::clone(&stored_id));
        let mut found: BTreeSet<Metric> = blocking(move || {
            let mut found = BTreeSet::new();
            pipeline.each_pending_hour(&of_device, Hour::of(from_ms)..Hour(i32::MAX), |hour| {
                found.extend(hour.metrics());
            });
            found
        })
        .await?;
        if let Some(texts) = series.texts() {
            found.extend(texts.map(Metric::from)); // the device may lack some of them
        } else if let Some(known) = self.entry(deadline, &stored_id).await? {
            if known.has_more_series {
                return Err(QueryError::TooManyColumns { max });
            }
            let first_day = Day::of(Hour::of(from_ms));
            let in_range = known.series.into_iter().filter(|series| series.last_day >= first_day);
            found.extend(in_range.map(|series| series.metric));
        }
        found.retain(|metric| series.matches(metric));
        if found.len() > max { Err(QueryError::TooManyColumns { max }) } else { Ok(found.into_iter().collect()) }
    }
}

impl Export {
    /// Returns the next readings and the client ID of their device. `None`: the export is complete.
    ///
    /// # Errors
    /// If the store does not answer, or one step takes too long. Stored readings are never left out.
    pub async fn next(&mut self) -> Result<Option<(Arc<str>, Slice)>, QueryError> {
        while self.request.limit > 0 {
            if let Some((device, slices)) = &mut self.open {
                if let Some(slice) = slices.next().await? {
                    return Ok(Some((Arc::clone(device), slice)));
                }
                self.request.limit = slices.left();
                self.was_short = slices.is_short();
                self.open = None;
            } else if self.begin()? {
                self.open = self.begun.pop_front();
            } else if let Some(list) = self.list.take() {
                self.next_page(list).await?;
            } else {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Begins with the next device, and with several if no limit may end the export before them.
    ///
    /// Returns whether a device is left.
    fn begin(&mut self) -> Result<bool, QueryError> {
        let ExportRequest { from_ms, to_ms, limit, .. } = self.request;
        let at_once = if self.was_short && limit == usize::MAX { ReadingSlices::AT_ONCE } else { 1 };
        while self.begun.len() < at_once
            && let Some(device) = self.next.pop()
        {
            let (series, of) = (self.request.series.clone(), device.to_string());
            let request = ReadingsRequest { device: of, from_ms, to_ms, series, limit };
            let mut slices = self.queries.reading_slices(&self.grant.device_scope, &request)?;
            if !self.begun.is_empty() {
                slices.read_ahead(&Handle::current());
            }
            self.begun.push_back((device, slices));
        }
        Ok(!self.begun.is_empty())
    }

    async fn next_page(&mut self, mut list: DevicesRequest) -> Result<(), QueryError> {
        let found = self.queries.device_ids(&self.grant.device_scope, &list).await?;
        let Answer { body: Listed { mut devices, next }, partial, .. } = found;
        if let Some(missing) = partial {
            return Err(QueryError::incomplete(missing));
        }
        if let Some(last) = next {
            list.after = Some(last.to_string());
            self.list = Some(list);
        }
        devices.reverse();
        self.next = devices;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Quota;
    use crate::model::MS_PER_HOUR;
    use crate::query::tests::{limits, over, store_of};

    #[tokio::test]
    async fn after_a_short_device_the_next_ones_are_read_ahead_unless_a_limit_may_end_the_export() {
        let folder = tempfile::tempdir().unwrap();
        let ids: Vec<String> = (0..20).map(|nth| format!("d{nth:02}")).collect();
        let names: Vec<&str> = ids.iter().map(String::as_str).collect();
        let queries = over(store_of(folder.path(), &names, 3, &["m".into()]).await, folder.path(), limits());
        let (quota, device_scope) = (Arc::new(Quota::default()), DeviceScope::all().clone());
        let grant = Arc::new(Grant { name: None, scopes: Vec::new(), device_scope, quota });
        let named = ExportedDevices::Named(names.iter().map(|name| (*name).into()).collect());
        let listed = ExportedDevices::Listed(DevicesRequest { limit: 15, ..DevicesRequest::of_each(None, 0) });
        let all: Vec<(&str, usize)> = names.iter().map(|name| (*name, 3)).collect();
        let first = [("d00", 3), ("d01", 3), ("d02", 3), ("d03", 1)];
        for devices in [named, listed] {
            for (limit, expected, most) in [(usize::MAX, &all[..], 7), (10, &first[..], 0)] {
                let (devices, series) = (devices.clone(), SeriesFilter::ALL);
                let request = ExportRequest { devices, from_ms: 0, to_ms: 3 * MS_PER_HOUR, series, limit };
                let mut export = queries.export(Arc::clone(&grant), request).unwrap();
                let (mut found, mut ahead) = (Vec::new(), Vec::new());
                while let Some((device, slice)) = export.next().await.unwrap() {
                    ahead.push(export.begun.len());
                    found.push((device, slice.hours().map(|hour| hour.samples.len()).sum::<usize>()));
                }
                let found: Vec<(&str, usize)> = found.iter().map(|(device, count)| (&**device, *count)).collect();
                assert_eq!((&found[..], ahead[0], ahead.iter().max()), (expected, 0, Some(&most)));
            }
        }
    }
}
