//! Reads hours of devices.
//!
//! Stats of hours that are rolled up come from the rollups, those of other hours from an aggregation: it takes each
//! identity once, whatever its name, and folds by hour.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use bson::{DateTime, Document, RawDocument, doc};
use mongodb::options::ReadConcern;

use super::super::by_device::{ByDevice, of_devices, within};
use super::super::decode::{Unreadable, integer, number};
use super::super::rollups::{Missing, missing};
use super::TimeseriesStore;
use super::document::{HourOfSamples, decode_meta, metric_of};
use super::known::Newest;
use crate::model::{Contents, Hour, HourOffset, Metric, Stats};
use crate::store::metric_names::MetricNames;
use crate::store::{HourStats, WriteError};

/// Measurements asked for at once.
const BATCH: u32 = 10_000;

impl TimeseriesStore {
    /// The stats of hours of devices: from the rollups where they hold them, else from the readings.
    pub(super) async fn read_hour_stats(
        &self,
        devices: &[Arc<str>],
        hours: &Range<Hour>,
        metrics: &[Metric],
    ) -> Result<Vec<Vec<HourStats>>, WriteError> {
        let rolled_up = self.rollups.read(devices, hours, metrics).await?;
        let clauses: Vec<Document> = missing(devices, hours, &rolled_up).iter().flat_map(clauses_of).collect();
        if clauses.is_empty() {
            return Ok(rolled_up);
        }
        let mut by_device = ByDevice::new(devices, rolled_up);
        let mut names = MetricNames::new(metrics);
        for (device, stats) in self.fold(doc! { "$or": clauses }, &mut names).await? {
            by_device.of(&device)?.push(stats);
        }
        by_device.found.iter_mut().for_each(|hours| hours.sort_unstable_by_key(|stats| stats.hour));
        Ok(by_device.found)
    }

    /// The stats of each device and hour of the measurements that `filter` finds, as they are stored.
    pub(super) async fn fold(
        &self,
        filter: Document,
        names: &mut MetricNames,
    ) -> Result<Vec<(Arc<str>, HourStats)>, WriteError> {
        let mut found = Vec::new();
        let visit = |row: &RawDocument| {
            found.push(decode_row(row, names)?);
            Ok(ControlFlow::Continue(()))
        };
        self.commands.each_result(&self.measurements, pipeline(filter), visit).await?;
        Ok(found)
    }

    pub(super) async fn read_contents(
        &self,
        device: &str,
        hours: Range<Hour>,
        max_readings: usize,
    ) -> Result<Vec<(Hour, Contents)>, WriteError> {
        let filter = doc! { "meta.deviceId": device, "ts": within(&hours) };
        let find = self.measurements.find(filter).sort(doc! { "ts": 1 }).batch_size(BATCH);
        let (mut whole, mut taken) = (Vec::new(), 0);
        let mut current: Option<HourOfSamples> = None;
        let visit = |measurement: &RawDocument| {
            let ts_ms = measurement.get_datetime("ts")?.timestamp_millis();
            let hour = Hour::of(ts_ms);
            if let Some(done) = current.take_if(|current| current.hour != hour) {
                taken += done.count();
                whole.push((done.hour, done.finish()));
                if taken >= max_readings {
                    return Ok(ControlFlow::Break(()));
                }
            }
            current.get_or_insert_with(|| HourOfSamples::new(hour)).take(measurement, ts_ms)?;
            Ok(ControlFlow::Continue(()))
        };
        self.commands.each_document(find, visit).await?;
        whole.extend(current.map(|last| (last.hour, last.finish())));
        Ok(whole)
    }

    /// What is stored of a device within an hour, from one offset to another, both inclusive.
    ///
    /// Shows what is not with a majority yet as well: an insert may be on its way there.
    pub(super) async fn read_span(
        &self,
        device: &str,
        hour: Hour,
        first: HourOffset,
        last: HourOffset,
    ) -> Result<Contents, WriteError> {
        let [first, last] = [first, last].map(|offset| DateTime::from_millis(hour.instant_ms(offset)));
        let filter = doc! { "meta.deviceId": device, "ts": { "$gte": first, "$lte": last } };
        let find = self.measurements.find(filter).read_concern(ReadConcern::local()).batch_size(BATCH);
        let mut stored = HourOfSamples::new(hour);
        let visit = |measurement: &RawDocument| {
            stored.take(measurement, measurement.get_datetime("ts")?.timestamp_millis())?;
            Ok(ControlFlow::Continue(()))
        };
        self.commands.each_document(find, visit).await?;
        Ok(stored.finish())
    }

    /// The newest measurement of a device.
    pub(super) async fn read_newest(&self, device: &str) -> Result<Option<Newest>, WriteError> {
        self.read_end(device, -1).await
    }

    /// The last measurement (`direction` -1) or the first (1).
    pub(super) async fn read_end(&self, device: &str, direction: i32) -> Result<Option<Newest>, WriteError> {
        let find = self.measurements.find(doc! { "meta.deviceId": device }).sort(doc! { "ts": direction }).limit(1);
        let mut newest = None;
        let visit = |measurement: &RawDocument| {
            newest = Some(Newest {
                last_ms: measurement.get_datetime("ts")?.timestamp_millis(),
                metadata: decode_meta(measurement.get_document("meta")?)?,
            });
            Ok(ControlFlow::Break(()))
        };
        self.commands.each_document(find.projection(doc! { "_id": 0, "ts": 1, "meta": 1 }), visit).await?;
        Ok(newest)
    }
}

fn clauses_of(missing: &Missing) -> Vec<Document> {
    let of = |run: &Range<Hour>| doc! { "meta.deviceId": of_devices(&missing.devices), "ts": within(run) };
    missing.runs.iter().map(of).collect()
}

/// Folds measurements by device and hour. Of an identity that two writers stored, the lower value counts.
fn pipeline(filter: Document) -> Vec<Document> {
    let identity = doc! { "device": "$device", "ts": "$ts", "field": "$value.k" };
    let hour = doc! { "$dateTrunc": { "date": "$_id.ts", "unit": "hour" } };
    let of_metric = doc! {
        "_id": { "device": "$_id.device", "hour": hour, "field": "$_id.field" },
        "count": { "$sum": 1 }, "min": { "$min": "$value" }, "max": { "$max": "$value" }, "sum": { "$sum": "$value" },
        "last": { "$max": "$_id.ts" },
    };
    let of_hour = doc! {
        "_id": { "device": "$_id.device", "hour": "$_id.hour" },
        "last": { "$max": "$last" },
        "metrics": { "$push": { "field": "$_id.field", "count": "$count", "min": "$min", "max": "$max", "sum": "$sum" } },
    };
    vec![
        doc! { "$match": filter },
        doc! { "$project": { "device": "$meta.deviceId", "ts": 1, "value": { "$objectToArray": "$$ROOT" } } },
        doc! { "$unwind": "$value" },
        doc! { "$match": { "value.k": { "$nin": ["_id", "ts", "meta"] }, "value.v": { "$type": "number" } } },
        doc! { "$group": { "_id": identity, "value": { "$min": "$value.v" } } },
        doc! { "$group": of_metric },
        doc! { "$group": of_hour },
    ]
}

fn decode_row(row: &RawDocument, names: &mut MetricNames) -> Result<(Arc<str>, HourStats), Unreadable> {
    let id = row.get_document("_id")?;
    let mut stats = Vec::new();
    for metric in row.get_array("metrics")? {
        let metric =
            metric?.as_document().ok_or_else(|| Unreadable("the stats of a metric are not a document".into()))?;
        let Some(name) = metric_of(metric.get_str("field")?).and_then(|name| names.get(&name)) else { continue };
        let value = |field: &str| metric.get(field)?.map_or_else(|| Err(Unreadable("no value".into())), number);
        let count = integer(metric, "count")?.unsigned_abs();
        stats.push((name, Stats { count, min: value("min")?, max: value("max")?, sum: value("sum")? }));
    }
    let hour = Hour::of(id.get_datetime("hour")?.timestamp_millis());
    let last_ts_ms = row.get_datetime("last")?.timestamp_millis();
    Ok((id.get_str("device")?.into(), HourStats { hour, last_ts_ms, stats }))
}
