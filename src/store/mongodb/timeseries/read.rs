//! Reads hours of devices. An aggregation computes their stats: it counts each identity once.

use std::ops::{ControlFlow, Range};

use async_trait::async_trait;
use bson::{DateTime, Document, RawDocument, doc};
use mongodb::options::ReadConcern;

use super::super::by_device::{ByDevice, of_devices};
use super::super::decode::DecodeError;
use super::super::layout::Queries;
use super::super::names;
use super::super::rollups::{HourRollup, Missing};
use super::super::stats::decode_stats_of_metric;
use super::Timeseries;
use super::document::{add_measurement, decode_meta, field_of, metric_of};
use super::known::LatestKnown;
use super::times::{during, during_hours, since};
use crate::model::{Contents, Day, Hour, HourOffset, Metric, SeriesFilter, Stats};
use crate::store::metric_names::MetricNames;
use crate::store::{
    DeviceMetadata, FirstReadings, FirstReadingsBuilder, HourSamples, HourStats, ReadingsQuery, StoreError,
};

/// The most measurements of a batch.
const BATCH: u32 = 10_000;

/// The fewest measurements of a batch: the server's default for the first one.
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
        let clauses: Vec<Document> = missing.iter().flat_map(clauses_of).collect();
        for rollup in self.fold(doc! { "$or": clauses }, &mut MetricNames::new(series)).await? {
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
        let filter = doc! { "meta.deviceId": device, "ts": during_hours(&(hour..Hour(hour.0 + 1))) };
        let find = self.measurements.find(filter).projection(doc! { "_id": 0, "meta": 0 }).batch_size(BATCH);
        let mut samples = HourSamples::last_of_each_metric(hour);
        let visit = |measurement: &RawDocument| {
            add_measurement(measurement, measurement.get_datetime("ts")?.timestamp_millis(), &mut samples)?;
            Ok(ControlFlow::Continue(()))
        };
        self.commands.each_document(self.commands.limited(find), visit).await?;
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

    async fn last_hour(&self, device: &str, _noted: Option<Day>) -> Result<Option<Hour>, StoreError> {
        Ok(self.read_newest(device).await?.map(|newest| Hour::of(newest.last_ms)))
    }
}

impl Timeseries {
    /// The rollup of each device and hour of the measurements that match `filter`.
    pub(super) async fn fold(&self, filter: Document, names: &mut MetricNames) -> Result<Vec<HourRollup>, StoreError> {
        let mut found = Vec::new();
        let visit = |row: &RawDocument| {
            found.push(decode_row(row, names)?);
            Ok(ControlFlow::Continue(()))
        };
        self.commands.each_result(&self.measurements, pipeline(filter), visit).await?;
        Ok(found)
    }

    /// The stored readings of a device within an hour, from one offset to another, both inclusive.
    ///
    /// It also returns measurements that a majority does not have yet: an insert may be on its way there.
    pub(super) async fn read_span(
        &self,
        device: &str,
        hour: Hour,
        first: HourOffset,
        last: HourOffset,
    ) -> Result<Contents, StoreError> {
        let mut span = since(hour.instant_ms(first));
        span.insert("$lte", DateTime::from_millis(hour.instant_ms(last)));
        let filter = doc! { "meta.deviceId": device, "ts": span };
        let find = self.measurements.find(filter).read_concern(ReadConcern::local()).batch_size(BATCH);
        let mut stored = HourSamples::all(hour);
        let visit = |measurement: &RawDocument| {
            add_measurement(measurement, measurement.get_datetime("ts")?.timestamp_millis(), &mut stored)?;
            Ok(ControlFlow::Continue(()))
        };
        self.commands.each_document(find, visit).await?;
        Ok(stored.finish().0)
    }

    /// The newest measurement of a device.
    pub(super) async fn read_newest(&self, device: &str) -> Result<Option<LatestKnown>, StoreError> {
        self.read_end(device, -1).await
    }

    /// The last measurement (`direction` -1) or the first (1).
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

/// Matches the measurements of the range with one of the series. A comparison with a number, unlike
/// `$exists`, lets the server skip its own buckets in which no measurement has the field.
fn in_range(query: &ReadingsQuery) -> Document {
    let mut filter = doc! { "meta.deviceId": &*query.device, "ts": during(&query.range_ms) };
    let has = |metric: &str| doc! { field_of(metric): { "$gte": f64::NEG_INFINITY } };
    if let Some(one_of) = names::has_one_of(&query.series, "$$ROOT", has) {
        filter.insert("$or", one_of);
    }
    filter
}

/// The fields that a query needs: those of its series if it names each of them, else all.
fn fields_of(series: &SeriesFilter) -> Document {
    let Some(texts) = series.texts() else { return doc! { "_id": 0, "meta": 0 } };
    let mut fields = doc! { "_id": 0, "ts": 1 };
    fields.extend(texts.map(|text| (field_of(text).into_owned(), 1.into())));
    fields
}

fn clauses_of(missing: &Missing) -> Vec<Document> {
    let of = |run: &Range<Hour>| doc! { "meta.deviceId": of_devices(&missing.devices), "ts": during_hours(run) };
    missing.runs.iter().map(of).collect()
}

/// Computes stats by device and hour. Of an identity that two writers stored, the lower value counts.
fn pipeline(filter: Document) -> Vec<Document> {
    let finite = doc! { "$type": ["double", "int", "long"], "$gte": f64::MIN, "$lte": f64::MAX };
    let identity = doc! { "device": "$device", "ts": "$ts", "field": "$value.k" };
    let hour = doc! { "$dateTrunc": { "date": "$_id.ts", "unit": "hour" } };
    let value_at = &doc! { "ts": "$_id.ts", "value": "$value" }; // documents are compared field by field
    let of_metric = doc! {
        "_id": { "device": "$_id.device", "hour": hour, "field": "$_id.field" },
        "count": { "$sum": 1 }, "min": { "$min": "$value" }, "max": { "$max": "$value" }, "sum": { "$sum": "$value" },
        "first": { "$min": value_at }, "last": { "$max": value_at },
    };
    let of_hour = doc! {
        "_id": { "device": "$_id.device", "hour": "$_id.hour" },
        "first": { "$min": "$first.ts" }, "last": { "$max": "$last.ts" },
        "metrics": { "$push": {
            "field": "$_id.field", "count": "$count", "min": "$min", "max": "$max", "sum": "$sum",
            "first": "$first", "last": "$last",
        } },
    };
    vec![
        doc! { "$match": filter },
        doc! { "$project": { "device": "$meta.deviceId", "ts": 1, "value": { "$objectToArray": "$$ROOT" } } },
        doc! { "$unwind": "$value" },
        doc! { "$match": { "value.k": { "$nin": ["_id", "ts", "meta"] }, "value.v": finite } },
        doc! { "$group": { "_id": identity, "value": { "$min": "$value.v" } } },
        doc! { "$group": of_metric },
        doc! { "$group": of_hour },
    ]
}

/// Decodes a rollup. Its `rev` is the number of its values: it grows with each write, because no stored value
/// is ever replaced. When readings expire it falls, and then the stored rollup stays as it is.
fn decode_row(row: &RawDocument, names: &mut MetricNames) -> Result<HourRollup, DecodeError> {
    let id = row.get_document("_id")?;
    let mut stats = Vec::new();
    for metric in row.get_array("metrics")? {
        let metric =
            metric?.as_document().ok_or_else(|| DecodeError("the stats of a metric are not a document".into()))?;
        let Some(name) = metric_of(metric.get_str("field")?).and_then(|name| names.get(&name)) else { continue };
        stats.push((name, decode_stats_of_metric(metric)?));
    }
    let hour = Hour::of(id.get_datetime("hour")?.timestamp_millis());
    let [first_ts_ms, last_ts_ms] =
        [row.get_datetime("first")?, row.get_datetime("last")?].map(DateTime::timestamp_millis);
    let values = stats.iter().map(|(_, stats): &(Metric, Stats)| stats.count).sum::<u64>();
    Ok(HourRollup {
        device: id.get_str("device")?.into(),
        rev: i64::try_from(values).unwrap_or(i64::MAX),
        first_ts_ms,
        stats: HourStats { hour, last_ts_ms, stats },
    })
}
