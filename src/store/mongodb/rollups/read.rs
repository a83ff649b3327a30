//! Reads the rollups of hours of devices.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use bson::doc;

use super::super::by_device::{ByDevice, of_devices, within};
use super::RollupCollection;
use super::document::{add_hours, day_of, start_of};
use crate::model::{Hour, SeriesFilter};
use crate::store::metric_names::MetricNames;
use crate::store::{HourStats, StoreError};

/// The documents of one batch: a month of many devices fits into one reply, or as much as a reply can hold.
const BATCH: u32 = 10_000;

impl RollupCollection {
    /// The hours with a rollup, of each of the devices, ascending; see [`crate::store::Store::hour_stats`].
    pub(in super::super) async fn read(
        &self,
        devices: &[Arc<str>],
        hours: &Range<Hour>,
        series: &SeriesFilter,
    ) -> Result<Vec<Vec<HourStats>>, StoreError> {
        let mut by_device = ByDevice::new(devices, vec![Vec::new(); devices.len()]);
        if devices.is_empty() || hours.is_empty() {
            return Ok(by_device.sorted());
        }
        let days = start_of(day_of(hours.start))..hours.end;
        let mut names = MetricNames::new(series);
        // Whole documents: a projection would cost the server more than sending them.
        let find = self.documents.find(doc! { "deviceId": of_devices(devices), "day": within(&days) });
        self.commands
            .each_document(self.commands.limited(find.batch_size(BATCH)), |document| {
                let found = by_device.of(document.get_str("deviceId")?)?;
                add_hours(document, hours, &mut names, found)?;
                Ok(ControlFlow::Continue(()))
            })
            .await?;
        Ok(by_device.sorted())
    }
}
