//! Reads hours of devices.
//!
//! Queries name their devices and a range of hours, so that they walk one stretch of the index for each device and, when
//! sharded and of one device, ask one shard. They sort by the index alone: the parts of an hour come in the order in which they were inserted, and are
//! folded as they come. Replies are read batch by batch without turning documents into anything in between.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use bson::{DateTime, Document, RawDocument, doc};

use super::super::decode::{Unreadable, decode_stats};
use super::BucketStore;
use super::document::Readings;
use crate::model::{Contents, Hour, Metric, Stats};
use crate::store::{HourStats, WriteError};

/// Documents of stats asked for at once: a month of hours comes in one reply.
const STATS_BATCH: u32 = 1_000;

/// Whole documents asked for at once: a day of hours.
const CONTENTS_BATCH: u32 = 24;

impl BucketStore {
    pub(super) async fn read_hour_stats(
        &self,
        devices: &[Arc<str>],
        hours: &Range<Hour>,
        metrics: &[Metric],
    ) -> Result<Vec<Vec<HourStats>>, WriteError> {
        let mut by_device = ByDevice::new(devices);
        let Some(filter) = of_devices(devices, hours) else { return Ok(by_device.found) };
        let find = self.documents.find(filter).sort(doc! { "deviceId": 1, "bucket": 1 }).batch_size(STATS_BATCH);
        // All stats, and not only those of `metrics`: a projection without paths is several times faster.
        let find = find.projection(doc! { "_id": 0, "deviceId": 1, "bucket": 1, "lastTs": 1, "stats": 1 });
        self.commands
            .each_document(find, |document| {
                let found = by_device.of(document.get_str("deviceId")?)?;
                let hour = bucket_hour(document)?;
                let last_ts_ms = document.get_datetime("lastTs")?.timestamp_millis();
                let mut stats = decode_stats(document.get_document("stats")?)?;
                if !metrics.is_empty() {
                    stats.retain(|(metric, _)| metrics.contains(metric));
                }
                match found.last_mut().filter(|last| last.hour == hour) {
                    Some(last) => fold(last, last_ts_ms, stats),
                    None => found.push(HourStats { hour, last_ts_ms, stats }),
                }
                Ok(ControlFlow::Continue(()))
            })
            .await?;
        Ok(by_device.found)
    }

    pub(super) async fn read_contents(
        &self,
        device: &str,
        hours: Range<Hour>,
        max_readings: usize,
    ) -> Result<Vec<(Hour, Contents)>, WriteError> {
        let find = self.documents.find(of_device(device, &hours)).sort(doc! { "bucket": 1 }).batch_size(CONTENTS_BATCH);
        let find = find.projection(doc! { "_id": 0, "bucket": 1, "readings": 1 });
        let mut whole = Vec::new();
        let mut taken = 0;
        let mut current: Option<Readings> = None;
        self.commands
            .each_document(find, |document| {
                let hour = bucket_hour(document)?;
                if let Some(done) = current.take_if(|current| current.hour() != hour) {
                    taken += done.count();
                    whole.push((done.hour(), done.finish()));
                    if taken >= max_readings {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                current.get_or_insert_with(|| Readings::new(hour)).take(document.get_array("readings")?)?;
                Ok(ControlFlow::Continue(()))
            })
            .await?;
        whole.extend(current.map(|last| (last.hour(), last.finish())));
        Ok(whole)
    }

    pub(super) async fn read_last_hour(&self, device: &str) -> Result<Option<Hour>, WriteError> {
        let find =
            self.documents.find(doc! { "deviceId": device }).sort(doc! { "deviceId": -1, "bucket": -1 }).limit(1);
        let find = find.projection(doc! { "_id": 0, "bucket": 1 });
        let mut hour = None;
        self.commands
            .each_document(find, |document| {
                hour = Some(bucket_hour(document)?);
                Ok(ControlFlow::Continue(()))
            })
            .await?;
        Ok(hour)
    }
}

/// The hour of a document's bucket.
pub(super) fn bucket_hour(document: &RawDocument) -> Result<Hour, Unreadable> {
    Ok(Hour::of(document.get_datetime("bucket")?.timestamp_millis()))
}

/// The stats of several devices, while they are being read.
struct ByDevice<'a> {
    places: HashMap<&'a str, usize>,
    found: Vec<Vec<HourStats>>,
}

impl<'a> ByDevice<'a> {
    fn new(devices: &'a [Arc<str>]) -> Self {
        let places = devices.iter().enumerate().map(|(at, device)| (&**device, at)).collect();
        Self { places, found: vec![Vec::new(); devices.len()] }
    }

    fn of(&mut self, device: &str) -> Result<&mut Vec<HourStats>, Unreadable> {
        let at = self.places.get(device).ok_or_else(|| Unreadable("a device that nobody asked for".into()))?;
        Ok(&mut self.found[*at])
    }
}

/// `None` for no devices. One device is asked for by equality, which a sharded cluster sends to its shard alone.
fn of_devices(devices: &[Arc<str>], hours: &Range<Hour>) -> Option<Document> {
    match devices {
        [] => None,
        [device] => Some(of_device(device, hours)),
        several => {
            let several: Vec<&str> = several.iter().map(|device| &**device).collect();
            Some(doc! { "deviceId": { "$in": several }, "bucket": within(hours) })
        }
    }
}

fn of_device(device: &str, hours: &Range<Hour>) -> Document {
    doc! { "deviceId": device, "bucket": within(hours) }
}

fn within(hours: &Range<Hour>) -> Document {
    let [from, to] = [hours.start, hours.end].map(|hour| DateTime::from_millis(hour.start_ms()));
    doc! { "$gte": from, "$lt": to }
}

/// Folds the stats of another part of the hour in.
pub(super) fn fold(hour: &mut HourStats, last_ts_ms: i64, stats: Vec<(Metric, Stats)>) {
    hour.last_ts_ms = hour.last_ts_ms.max(last_ts_ms);
    for (metric, more) in stats {
        match hour.stats.iter_mut().find(|(known, _)| *known == metric) {
            Some((_, stats)) => stats.merge(&more),
            None => hour.stats.push((metric, more)),
        }
    }
}
