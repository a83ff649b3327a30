//! Reads hours of devices.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use async_trait::async_trait;
use bson::{Document, RawDocument, doc};

use super::super::by_device::{ByDevice, of_devices};
use super::super::layout::Queries;
use super::super::names;
use super::super::rollups::Missing;
use super::Timeseries;
use super::document::{add_measurement, decode_meta, field_of};
use super::known::LatestKnown;
use super::times::{during, during_hours, parts_since};
use crate::model::{Contents, Day, Hour, Metric, SeriesFilter};
use crate::store::{
    DeviceMetadata, DeviceSet, FirstReadings, FirstReadingsBuilder, HourSamples, ReadingsQuery, StoreError,
};

/// The most measurements in one reply.
const BATCH: u32 = 10_000;

/// The fewest measurements in one reply that a query asks for: the server's default for the first reply.
const BATCH_MIN: u32 = 101;

/// The newest measurements of a device that are searched for metadata. As a rule the first one has it.
const METADATA_MEASUREMENTS_MAX: i64 = 1_000;

#[async_trait]
impl Queries for Timeseries {
    async fn add_hour_stats(
        &self,
        missing: &[Missing],
        series: &SeriesFilter,
        by_device: &mut ByDevice<'_>,
    ) -> Result<(), StoreError> {
        for rollup in self.fold(missing, series, Some(self.commands.timeout)).await? {
            by_device.of(&rollup.device)?.push(rollup.stats);
        }
        Ok(())
    }

    /// Reads the measurements of the range in the order of time, and stops at the first one that is not
    /// needed.
    async fn readings(&self, query: &ReadingsQuery) -> Result<FirstReadings, StoreError> {
        let batch = u32::try_from(query.max_instants).unwrap_or(BATCH).clamp(BATCH_MIN, BATCH);
        let mut find = self.measurements.find(in_range(query)).sort(doc! { "ts": 1 }).batch_size(batch);
        find = find.projection(fields_of(&query.series));
        let mut gathered = FirstReadingsBuilder::new(query);
        let visit = |measurement: &RawDocument| {
            let ts_ms = measurement.get_datetime("ts")?.timestamp_millis();
            match gathered.hour(Hour::of(ts_ms)) {
                Some(samples) if Hour::offset_of(ts_ms) < samples.window().end => {
                    add_measurement(measurement, ts_ms, samples)?;
                    Ok(ControlFlow::Continue(()))
                }
                _ => Ok(ControlFlow::Break(())),
            }
        };
        self.commands.each_document(self.commands.limited(find), visit).await?;
        Ok(gathered.finish())
    }

    async fn latest(&self, device: &str, hour: Hour) -> Result<Contents, StoreError> {
        let mut filter = doc! { "meta.deviceId": device };
        filter.extend(during_hours(&(hour..Hour(hour.0 + 1))));
        let find = self.measurements.find(filter).projection(doc! { "_id": 0, "meta": 0 }).batch_size(BATCH);
        let mut samples = HourSamples::last_of_each_metric(hour);
        let visit = |measurement: &RawDocument| {
            add_measurement(measurement, measurement.get_datetime("ts")?.timestamp_millis(), &mut samples)
        };
        self.commands.all_documents(self.commands.limited(find), visit).await?;
        Ok(samples.finish().0)
    }

    async fn last_ts_ms(&self, device: &str, _noted: Option<Day>) -> Result<Option<i64>, StoreError> {
        Ok(self.read_newest(device).await?.map(|newest| newest.last_ms))
    }

    async fn newest_metadata(&self, device: &str) -> Result<Option<DeviceMetadata>, StoreError> {
        let find = self.measurements.find(doc! { "meta.deviceId": device }).sort(doc! { "ts": -1 });
        let find = find.limit(METADATA_MEASUREMENTS_MAX).projection(doc! { "_id": 0, "meta": 1 });
        let mut newest = None;
        let visit = |measurement: &RawDocument| {
            newest = decode_meta(measurement.get_document("meta")?)?;
            Ok(if newest.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        };
        self.commands.each_document(self.commands.limited(find), visit).await?;
        Ok(newest.map(|text| DeviceMetadata { hour: DeviceMetadata::UNKNOWN_HOUR, text }))
    }

    async fn span_ms(&self, device: &str) -> Result<Option<(i64, i64)>, StoreError> {
        let (first, last) = (self.read_end(device, 1).await?, self.read_end(device, -1).await?);
        Ok(first.zip(last).map(|(first, last)| (first.last_ms, last.last_ms)))
    }

    async fn all_devices(&self) -> Result<Vec<Arc<str>>, StoreError> {
        self.commands.distinct(&self.measurements, "$meta.deviceId").await
    }

    async fn add_active(&self, since_ms: i64, active: &mut DeviceSet) -> Result<(), StoreError> {
        for part in parts_since(since_ms) {
            let pipeline = vec![doc! { "$match": part }, doc! { "$group": { "_id": "$meta.deviceId" } }];
            let visit = |found: &RawDocument| {
                active.insert(found.get_str("_id")?);
                Ok(())
            };
            self.commands.each_result(&self.measurements, pipeline, Some(self.commands.timeout), visit).await?;
        }
        Ok(())
    }

    async fn last_hour(&self, device: &str, _noted: Option<Day>) -> Result<Option<Hour>, StoreError> {
        Ok(self.read_newest(device).await?.map(|newest| Hour::of(newest.last_ms)))
    }

    async fn last_hour_with(
        &self,
        device: &str,
        series: &BTreeSet<Metric>,
        hours: &Range<Hour>,
    ) -> Result<Option<Hour>, StoreError> {
        let mut filter = doc! { "meta.deviceId": device };
        filter.extend(during_hours(hours));
        filter.insert("$or", series.iter().map(|metric| has(metric)).collect::<Vec<_>>());
        let find = || {
            let find = self.measurements.find(filter.clone()).sort(doc! { "ts": -1 });
            find.projection(doc! { "_id": 0, "ts": 1 })
        };
        let hour = |measurement: &RawDocument| Ok(Some(Hour::of(measurement.get_datetime("ts")?.timestamp_millis())));
        self.commands.first_readable(find, hour).await
    }
}

impl Timeseries {
    /// Whether any of these devices has measurements.
    pub(super) async fn has_any(&self, devices: &[&str]) -> Result<bool, StoreError> {
        let find = || {
            let find = self.measurements.find(doc! { "meta.deviceId": of_devices(devices) });
            find.projection(doc! { "_id": 0, "ts": 1 })
        };
        Ok(self.commands.first_readable(find, |_| Ok(Some(()))).await?.is_some())
    }

    /// The newest measurement of a device.
    pub(super) async fn read_newest(&self, device: &str) -> Result<Option<LatestKnown>, StoreError> {
        self.read_end(device, -1).await
    }

    /// The last measurement (`direction` -1) or the first (1) of a device.
    pub(super) async fn read_end(&self, device: &str, direction: i32) -> Result<Option<LatestKnown>, StoreError> {
        let find = self.measurements.find(doc! { "meta.deviceId": device }).sort(doc! { "ts": direction }).limit(1);
        let find = self.commands.limited(find);
        let mut newest = None;
        let visit = |measurement: &RawDocument| {
            let last_ms = measurement.get_datetime("ts")?.timestamp_millis();
            let metadata = decode_meta(measurement.get_document("meta")?);
            newest = Some(LatestKnown { last_ms, metadata: metadata.as_ref().ok().cloned().flatten() });
            metadata.map(|_| ControlFlow::Break(()))
        };
        self.commands.each_document(find.projection(doc! { "_id": 0, "ts": 1, "meta": 1 }), visit).await?;
        Ok(newest)
    }
}

/// Matches the measurements with a series. A comparison with a number, unlike `$exists`, lets the server skip
/// its own buckets in which no measurement has the field.
fn has(metric: &str) -> Document {
    doc! { field_of(metric): { "$gte": f64::NEG_INFINITY } }
}

/// Matches the measurements of the range with one of the series.
fn in_range(query: &ReadingsQuery) -> Document {
    let mut filter = doc! { "meta.deviceId": &*query.device };
    filter.extend(during(&query.range_ms));
    if let Some(one_of) = names::has_one_of(&query.series, "$$ROOT", has) {
        filter.insert("$or", one_of);
    }
    filter
}

/// The fields that a query needs.
///
/// They are those of its series, or all fields if the filter does not name each series.
fn fields_of(series: &SeriesFilter) -> Document {
    let Some(texts) = series.texts() else { return doc! { "_id": 0, "meta": 0 } };
    let mut fields = doc! { "_id": 0, "ts": 1 };
    fields.extend(texts.map(|text| (field_of(text).into_owned(), 1.into())));
    fields
}
