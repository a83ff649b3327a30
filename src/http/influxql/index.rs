//! The series of statements: those of the device index.

use std::sync::Arc;

use super::catalogue::Found;
use super::source::{Stored, grow};
use crate::influxql::{Series, StatementError, WantedTag};
use crate::query::{Device, DeviceSelection, DevicesRequest, Listed};

/// The devices of one page of the device index.
const DEVICES_PER_PAGE: usize = 1_000;

impl Stored<'_> {
    /// Visits the devices of the scope: those with these client IDs, or all.
    pub(super) fn each_device(
        &mut self,
        ids: Option<Vec<Arc<str>>>,
        mut visit: impl FnMut(&Self, Device) -> Result<(), StatementError>,
    ) -> Result<(), StatementError> {
        let selection = DeviceSelection { ids, ..DeviceSelection::default() };
        let mut request = DevicesRequest { selection, after: None, limit: DEVICES_PER_PAGE, now_ms: self.now_ms };
        loop {
            let (queries, scope) = (self.queries, self.scope);
            let Listed { devices, next } = self.wait_for_all(queries.device_entries(scope, &request))?;
            for device in devices {
                if device.has_more_metrics {
                    let id = &device.id;
                    return Err(format!("device {id} has more series than the device index keeps (4096)").into());
                }
                visit(self, device)?;
            }
            let Some(next) = next else { return Ok(()) };
            request.after = Some(next.to_string());
        }
    }

    /// The series of a measurement that have all wanted tags.
    pub(super) fn find(&mut self, measurement: &str, wanted: &[WantedTag]) -> Result<Vec<Found>, StatementError> {
        let (mut found, mut bytes, max) = (Vec::new(), 0, self.max_series);
        self.each_device(self.ids(wanted), |source, device| {
            for (_, one) in source.catalogue.series_of(&device, Some(measurement)) {
                if !has_all(&one.series, wanted) {
                    continue;
                }
                if found.len() == max {
                    return Err(too_many_series(max));
                }
                grow(source.memory, &mut bytes, one.bytes())?;
                found.push(one);
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// The client IDs of the only devices that can have the wanted tags; `None` if any may have them.
    fn ids(&self, wanted: &[WantedTag]) -> Option<Vec<Arc<str>>> {
        let of_device = wanted.iter().find(|wanted| self.catalogue.is_of_device(&wanted.key))?;
        Some(of_device.values.iter().map(|id| Arc::from(&**id)).collect())
    }
}

/// Whether a series has all wanted tags.
pub(super) fn has_all(series: &Series, wanted: &[WantedTag]) -> bool {
    wanted.iter().all(|wanted| wanted.values.contains(series.tag(&wanted.key)))
}

pub(super) fn too_many_series(max: usize) -> StatementError {
    format!("max-select-series limit exceeded: ({}/{max}); query.max_points is the limit", max + 1).into()
}
