//! Folds stored measurements into hours. Each identity counts once: of one that two writers stored, the lower
//! value.
//!
//! The server only unpacks the measurements. To group and add them there would cost it six times as much.

use std::collections::HashMap;
use std::mem;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use bson::{Document, RawDocument, doc};

use super::super::by_device::of_devices;
use super::super::decode::DecodeError;
use super::super::rollups::{HourRollup, Missing};
use super::Timeseries;
use super::document::add_measurement;
use super::times::during_hours;
use crate::model::{Contents, Hour, Metric, SeriesFilter, Stats};
use crate::store::metric_names::MetricNames;
use crate::store::{HourSamples, HourStats, StoreError};

/// The most hours of devices whose measurements are in memory at the same time.
const HOURS_IN_MEMORY: usize = 64;

/// Hours of devices, gathered from their measurements.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    places: HashMap<(Arc<str>, Hour), usize>,
    hours: Vec<(Arc<str>, HourSamples)>,
    /// The place of the last measurement. Most are of the same hour as the one before.
    last: usize,
}

impl Gathered {
    fn add(&mut self, measurement: &RawDocument) -> Result<(), DecodeError> {
        let device = measurement.get_str("meta")?;
        let ts_ms = measurement.get_datetime("ts")?.timestamp_millis();
        let hour = Hour::of(ts_ms);
        let is_same = |(of, samples): &(Arc<str>, HourSamples)| **of == *device && samples.hour() == hour;
        if !self.hours.get(self.last).is_some_and(is_same) {
            let device: Arc<str> = device.into();
            self.last = *self.places.entry((Arc::clone(&device), hour)).or_insert(self.hours.len());
            if self.last == self.hours.len() {
                self.hours.push((device, HourSamples::all(hour)));
            }
        }
        add_measurement(measurement, ts_ms, &mut self.hours[self.last].1)
    }

    /// The contents of each hour, in no order.
    pub(super) fn finish(self) -> impl Iterator<Item = (Arc<str>, Hour, Contents)> {
        self.hours.into_iter().map(|(device, samples)| (device, samples.hour(), samples.finish().0))
    }

    pub(super) fn rollups(self, names: &mut MetricNames) -> impl Iterator<Item = HourRollup> {
        self.finish().filter_map(|(device, hour, contents)| rollup(device, hour, &contents, names))
    }
}

impl Timeseries {
    /// The rollups of hours of devices.
    pub(super) async fn fold(&self, of: &[Missing], series: &SeriesFilter) -> Result<Vec<HourRollup>, StoreError> {
        let mut rollups = Vec::new();
        let mut names = MetricNames::new(series);
        for Missing { devices, runs } in of {
            for run in runs {
                self.fold_run(devices, run, &mut names, &mut rollups).await?;
            }
        }
        Ok(rollups)
    }

    async fn fold_run(
        &self,
        devices: &[Arc<str>],
        run: &Range<Hour>,
        names: &mut MetricNames,
        rollups: &mut Vec<HourRollup>,
    ) -> Result<(), StoreError> {
        let hours = usize::try_from(run.end.0.saturating_sub(run.start.0)).unwrap_or(0);
        if hours > HOURS_IN_MEMORY {
            for device in devices {
                self.fold_in_order(device, run, names, rollups).await?;
            }
            return Ok(());
        }
        for devices in devices.chunks(HOURS_IN_MEMORY / hours.max(1)) {
            let filter = doc! { "meta.deviceId": of_devices(devices), "ts": during_hours(run) };
            rollups.extend(self.gather(filter).await?.rollups(names));
        }
        Ok(())
    }

    /// All measurements that match `filter`.
    pub(super) async fn gather(&self, filter: Document) -> Result<Gathered, StoreError> {
        let mut gathered = Gathered::default();
        let visit = |measurement: &RawDocument| {
            gathered.add(measurement)?;
            Ok(ControlFlow::Continue(()))
        };
        self.commands.each_result(&self.measurements, pipeline(filter, None), visit).await?;
        Ok(gathered)
    }

    /// The rollups of many hours of a device, one hour in memory at a time.
    async fn fold_in_order(
        &self,
        device: &Arc<str>,
        hours: &Range<Hour>,
        names: &mut MetricNames,
        rollups: &mut Vec<HourRollup>,
    ) -> Result<(), StoreError> {
        let filter = doc! { "meta.deviceId": &**device, "ts": during_hours(hours) };
        let (mut gathered, mut current) = (Gathered::default(), None);
        let visit = |measurement: &RawDocument| {
            let hour = Hour::of(measurement.get_datetime("ts")?.timestamp_millis());
            if current.replace(hour) != Some(hour) {
                rollups.extend(mem::take(&mut gathered).rollups(names));
            }
            gathered.add(measurement)?;
            Ok(ControlFlow::Continue(()))
        };
        let by_time = Some(doc! { "ts": 1 });
        self.commands.each_result(&self.measurements, pipeline(filter, by_time), visit).await?;
        rollups.extend(gathered.rollups(names));
        Ok(())
    }
}

/// The measurements that match `filter`. Their `meta` is the device alone, which the server computes once for
/// each of its buckets.
fn pipeline(filter: Document, sort: Option<Document>) -> Vec<Document> {
    let sort = sort.map(|sort| doc! { "$sort": sort });
    let device = doc! { "$set": { "meta": "$meta.deviceId" } };
    [doc! { "$match": filter }].into_iter().chain(sort).chain([device]).collect()
}

/// The rollup of an hour; `None` if it has no values. Its `rev` is the number of its values: it grows with
/// each write, because no stored value is ever replaced. When readings expire it falls, and then the stored
/// rollup stays as it is.
fn rollup(device: Arc<str>, hour: Hour, contents: &Contents, names: &mut MetricNames) -> Option<HourRollup> {
    let (first, last) = contents.span()?;
    let wanted = |(metric, stats): (Metric, Stats)| Some((names.get(&metric)?, stats));
    let stats = contents.stats(hour).into_iter().filter_map(wanted).collect();
    Some(HourRollup {
        device,
        rev: i64::try_from(contents.samples().len()).unwrap_or(i64::MAX),
        first_ts_ms: hour.instant_ms(first),
        stats: HourStats { hour, last_ts_ms: hour.instant_ms(last), stats },
    })
}
