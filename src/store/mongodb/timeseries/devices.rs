//! Summarizes devices that are not in the device index yet: seeks in the index `{ meta.deviceId, ts }`.

use std::ops::ControlFlow;

use async_trait::async_trait;
use bson::doc;

use super::super::layout::Devices;
use super::super::rollups::Missing;
use super::super::seek::Seek;
use super::Timeseries;
use crate::model::{Hour, SeriesFilter};
use crate::store::{DeviceMetadata, DeviceSummary, StoreError};

#[async_trait]
impl Devices for Timeseries {
    async fn next_device(&self, seek: &Seek) -> Result<Option<String>, StoreError> {
        let find =
            self.measurements.find(doc! { "meta.deviceId": seek.rest() }).sort(doc! { "meta.deviceId": 1 }).limit(1);
        let find = self.commands.limited(find).projection(doc! { "_id": 0, "meta.deviceId": 1 });
        let mut first = None;
        self.commands
            .each_document(find, |measurement| {
                first = Some(measurement.get_document("meta")?.get_str("deviceId")?.to_owned());
                Ok(ControlFlow::Break(()))
            })
            .await?;
        Ok(first)
    }

    async fn summary(&self, device: &str) -> Result<Option<DeviceSummary>, StoreError> {
        let (Some(first), Some(last)) = (self.read_end(device, 1).await?, self.read_end(device, -1).await?) else {
            return Ok(None);
        };
        let hour = Hour::of(last.last_ms);
        let newest = Missing { devices: vec![device.into()], runs: vec![hour..Hour(hour.0 + 1)] };
        let hours = self.fold(&[newest], &SeriesFilter::ALL).await?;
        let metrics = hours.into_iter().flat_map(|of| of.stats.stats).map(|(metric, _)| metric);
        let span_ms = (first.last_ms, last.last_ms);
        let summary = DeviceSummary::of_hour(device.into(), hour, span_ms, metrics);
        // A measurement does not say when its metadata was sent.
        let metadata = last.metadata.map(|text| DeviceMetadata { hour: DeviceMetadata::UNKNOWN_HOUR, text });
        Ok(Some(DeviceSummary { metadata, ..summary }))
    }
}
