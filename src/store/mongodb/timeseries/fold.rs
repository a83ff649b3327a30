//! Folds stored measurements into the rollups of hours. Each identity counts once: if two writers have stored
//! it, its lower value counts.
//!
//! The server unpacks the measurements and merges its own buckets in the order of devices and times. To group
//! and add the measurements there would cost it six times as much. So tidegauge folds each hour while the
//! measurements arrive, and keeps a bounded number of values, however many an hour has.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bson::{Document, RawDocument, doc};

use super::super::by_device::of_devices;
use super::super::decode::DecodeError;
use super::super::layout::Derivation;
use super::super::rollups::{HourRollup, Missing, grouped};
use super::Timeseries;
use super::document::add_measurement;
use super::times::{during_hours, parts_since};
use crate::model::{Contents, Hour, Metric, SeriesFilter, Stats};
use crate::store::metric_names::MetricNames;
use crate::store::{HourSamples, HourStats, StoreError};

/// The most hours of devices in one query, if it is of more than one device: the server has to answer that of
/// a client within the time limit of commands.
const HOURS_PER_QUERY: usize = 600;

/// The most values of an hour in memory at the same time.
///
/// If the hour has more metrics than this, the limit is the number of its metrics. The values of one instant
/// may exceed the limit.
const VALUES_IN_MEMORY: usize = 65_536;

/// Hours of devices, gathered from their measurements.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    places: HashMap<(Arc<str>, Hour), usize>,
    hours: Vec<(Arc<str>, HourSamples)>,
    /// The place in `hours` of the last measurement.
    ///
    /// Most measurements are of the same hour as the measurement before.
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
}

#[async_trait]
impl Derivation for Timeseries {
    /// Each hour costs the reading and the folding of its measurements.
    const HOURS_PER_STEP: usize = 2_400;

    async fn next_hour(&self, from: Hour) -> Result<Option<Hour>, StoreError> {
        let mut hour = None;
        for part in parts_since(from.start_ms()) {
            let find = self.measurements.find(part).sort(doc! { "ts": 1 }).limit(1);
            let visit = |measurement: &RawDocument| {
                hour = Some(Hour::of(measurement.get_datetime("ts")?.timestamp_millis()));
                Ok(ControlFlow::Break(()))
            };
            self.commands.each_document(find.projection(doc! { "_id": 0, "ts": 1 }), visit).await?;
            if hour.is_some() {
                break;
            }
        }
        Ok(hour)
    }

    /// Without a time limit for all measurements together: devices may have any number of them.
    async fn derive(&self, buckets: &[(Arc<str>, Hour)]) -> Result<Vec<HourRollup>, StoreError> {
        self.fold(&grouped(buckets), &SeriesFilter::ALL, None).await
    }
}

impl Timeseries {
    /// Folds the measurements of hours of devices into rollups. `max_time` is the time limit of each query.
    pub(super) async fn fold(
        &self,
        of: &[Missing],
        series: &SeriesFilter,
        max_time: Option<Duration>,
    ) -> Result<Vec<HourRollup>, StoreError> {
        let mut rollups = Vec::new();
        let mut names = MetricNames::new(series);
        for Missing { devices, runs } in of {
            for run in runs {
                self.fold_run(devices, run, max_time, &mut names, &mut rollups).await?;
            }
        }
        Ok(rollups)
    }

    async fn fold_run(
        &self,
        devices: &[Arc<str>],
        run: &Range<Hour>,
        max_time: Option<Duration>,
        names: &mut MetricNames,
        rollups: &mut Vec<HourRollup>,
    ) -> Result<(), StoreError> {
        let hours = usize::try_from(i64::from(run.end.0) - i64::from(run.start.0)).unwrap_or(0).max(1);
        for devices in devices.chunks((HOURS_PER_QUERY / hours).max(1)) {
            let mut filter = doc! { "meta.deviceId": of_devices(devices) };
            filter.extend(during_hours(run));
            let mut folding = Folding::new(VALUES_IN_MEMORY, names, rollups);
            let sorted = pipeline(filter, Some(doc! { "meta.deviceId": 1, "ts": 1 }));
            let add = |measurement: &RawDocument| folding.add(measurement);
            self.commands.each_result(&self.measurements, sorted, max_time, add).await?;
            folding.end_hour();
        }
        Ok(())
    }

    /// Gathers all measurements that match `filter`, by device and hour.
    pub(super) async fn gather(&self, filter: Document) -> Result<Gathered, StoreError> {
        let mut gathered = Gathered::default();
        let add = |measurement: &RawDocument| gathered.add(measurement);
        let max_time = Some(self.commands.timeout);
        self.commands.each_result(&self.measurements, pipeline(filter, None), max_time, add).await?;
        Ok(gathered)
    }
}

/// Folds the measurements of some devices in the order of devices and times.
struct Folding<'a> {
    max_values: usize,
    names: &'a mut MetricNames,
    /// The rollups of the hours that are complete.
    rollups: &'a mut Vec<HourRollup>,
    hour: Option<FoldedHour>,
}

/// An hour of a device that is not complete yet.
struct FoldedHour {
    device: Arc<str>,
    /// The values of the last instants, which are not in `folded` yet.
    samples: HourSamples,
    last_ts_ms: i64,
    /// The rollup of all earlier values.
    folded: Option<HourRollup>,
}

impl<'a> Folding<'a> {
    fn new(max_values: usize, names: &'a mut MetricNames, rollups: &'a mut Vec<HourRollup>) -> Self {
        Self { max_values, names, rollups, hour: None }
    }

    fn add(&mut self, measurement: &RawDocument) -> Result<(), DecodeError> {
        let device = measurement.get_str("meta")?;
        let ts_ms = measurement.get_datetime("ts")?.timestamp_millis();
        let hour = Hour::of(ts_ms);
        if !self.hour.as_ref().is_some_and(|of| *of.device == *device && of.samples.hour() == hour) {
            self.end_hour();
        }
        let new =
            || FoldedHour { device: device.into(), samples: HourSamples::all(hour), last_ts_ms: ts_ms, folded: None };
        let of = self.hour.get_or_insert_with(new);
        if ts_ms > of.last_ts_ms && of.samples.len() >= of.metrics().max(self.max_values) {
            of.fold(self.names);
        }
        of.last_ts_ms = ts_ms;
        add_measurement(measurement, ts_ms, &mut of.samples)
    }

    /// Completes the hour of the last measurement.
    fn end_hour(&mut self) {
        if let Some(mut of) = self.hour.take() {
            of.fold(self.names);
            self.rollups.extend(of.folded);
        }
    }
}

impl FoldedHour {
    fn metrics(&self) -> usize {
        self.folded.as_ref().map_or(0, |rollup| rollup.stats.stats.len())
    }

    /// Adds the values of the last instants to the rollup of the earlier values.
    fn fold(&mut self, names: &mut MetricNames) {
        let hour = self.samples.hour();
        let samples = std::mem::replace(&mut self.samples, HourSamples::all(hour));
        let Some(later) = rollup(Arc::clone(&self.device), hour, &samples.finish().0, names) else { return };
        match &mut self.folded {
            Some(folded) => folded.add(later),
            None => self.folded = Some(later),
        }
    }
}

/// The stages that return the measurements that match `filter`.
///
/// In them, `meta` is the device alone, which the server computes once for each of its buckets.
fn pipeline(filter: Document, sort: Option<Document>) -> Vec<Document> {
    let sort = sort.map(|sort| doc! { "$sort": sort });
    let device = doc! { "$set": { "meta": "$meta.deviceId" } };
    [doc! { "$match": filter }].into_iter().chain(sort).chain([device]).collect()
}

/// The rollup of an hour; `None` if it has no values. Its `rev` is the number of its values: it grows with
/// each write, because no stored value is ever replaced or removed by itself. When readings expire it falls,
/// and then the stored rollup stays as it is.
fn rollup(device: Arc<str>, hour: Hour, contents: &Contents, names: &mut MetricNames) -> Option<HourRollup> {
    let (first, last) = contents.span()?;
    let wanted = |(metric, stats): (Metric, Stats)| Some((names.get(&metric)?, stats));
    let stats = contents.stats(hour).into_iter().filter_map(wanted).collect();
    Some(HourRollup {
        device,
        rev: i64::try_from(contents.samples().len()).unwrap_or(i64::MAX),
        first_ts_ms: hour.instant_ms(first),
        stats: HourStats { hour, last_ts_ms: hour.instant_ms(last), stats },
        may_lack_deleted: false,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NAMES: [&str; 3] = ["a", "b", "c"];

    /// The offset, the metric and the value; some of them twice, with another value.
    fn any_values() -> impl Strategy<Value = Vec<(u32, usize, i32)>> {
        prop::collection::vec((0..40u32, 0..3usize, -9..9i32), 0..120).prop_map(|mut values| {
            values.sort_by_key(|value| value.0);
            values
        })
    }

    fn contents_of(hour: Hour, values: &[(u32, usize, i32)]) -> Contents {
        let mut samples = HourSamples::all(hour);
        for &(offset, metric, value) in values {
            let metric = samples.metric(NAMES[metric], str::to_owned).unwrap();
            samples.push(offset, metric, f64::from(value) / 4.0);
        }
        samples.finish().0
    }

    proptest! {
        #[test]
        fn an_hour_is_the_same_however_few_values_are_in_memory(
            hours in prop::collection::vec(((0..2usize, 0..2i32), any_values()), 0..4), max_values in 1..30usize,
        ) {
            let mut hours: Vec<((usize, i32), Vec<_>)> = hours;
            hours.sort_by_key(|hour| hour.0);
            hours.dedup_by_key(|hour| hour.0);
            let (mut names, mut rollups) = (MetricNames::new(&SeriesFilter::ALL), Vec::new());
            let mut folding = Folding::new(max_values, &mut names, &mut rollups);
            let mut expected = Vec::new();
            for ((device, hour), values) in &hours {
                let (device, hour) = (NAMES[*device], Hour(*hour));
                for &(offset, metric, value) in values {
                    let measurement = doc! {
                        "ts": bson::DateTime::from_millis(hour.instant_ms(offset)), "meta": device,
                        NAMES[metric]: f64::from(value) / 4.0,
                    };
                    folding.add(&bson::RawDocumentBuf::try_from(&measurement).unwrap()).unwrap();
                    let held = folding.hour.as_ref().unwrap();
                    let of_instant = values.iter().filter(|value| value.0 == offset).count();
                    prop_assert!(held.samples.len() <= max_values.max(NAMES.len()) + of_instant);
                }
                let contents = contents_of(hour, values);
                expected.extend(rollup(device.into(), hour, &contents, &mut MetricNames::new(&SeriesFilter::ALL)));
            }
            folding.end_hour();
            for rollup in rollups.iter_mut().chain(&mut expected) {
                rollup.stats.stats.sort_by(|a, b| a.0.cmp(&b.0));
            }
            prop_assert_eq!(rollups, expected);
        }
    }
}
