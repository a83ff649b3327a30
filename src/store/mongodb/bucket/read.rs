//! Reads hours of devices.
//!
//! Queries name their devices and a range of hours, so that they walk one stretch of the index for each device and, when
//! sharded and of one device, ask one shard. They sort by the index alone: the parts of an hour come in the order in which they were inserted, and are
//! folded as they come. Replies are read batch by batch without turning documents into anything in between.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use bson::{DateTime, Document, RawDocument, doc};

use super::super::by_device::{ByDevice, of_devices, within};
use super::super::decode::Unreadable;
use super::super::rollups::{Missing, missing};
use super::super::stats::decode_stats;
use super::BucketStore;
use super::document::Readings;
use crate::model::{Contents, Hour, Metric};
use crate::store::metric_names::MetricNames;
use crate::store::{HourStats, WriteError};

/// Documents of stats asked for at once: a month of hours comes in one reply.
const STATS_BATCH: u32 = 1_000;

/// Up to so many runs of hours of a device are asked for as such.
const RUNS_MAX: usize = 8;

/// Whole documents asked for at once: a day of hours.
const CONTENTS_BATCH: u32 = 24;

impl BucketStore {
    /// The stats of hours of devices: from the rollups where they hold them, else from the buckets.
    pub(super) async fn read_hour_stats(
        &self,
        devices: &[Arc<str>],
        hours: &Range<Hour>,
        metrics: &[Metric],
    ) -> Result<Vec<Vec<HourStats>>, WriteError> {
        let rolled_up = self.rollups.read(devices, hours, metrics).await?;
        let Some(filter) = of_missing(&missing(devices, hours, &rolled_up)) else { return Ok(rolled_up) };
        let mut by_device = ByDevice::new(devices, rolled_up);
        let mut names = MetricNames::new(metrics);
        // All stats, and not only those of `metrics`: a projection without paths is several times faster.
        let fields = doc! { "_id": 0, "deviceId": 1, "bucket": 1, "lastTs": 1, "stats": 1 };
        let find = self.documents.find(filter).projection(fields).batch_size(STATS_BATCH);
        let mut parts: BTreeMap<(Arc<str>, Hour), HourStats> = BTreeMap::new();
        self.commands
            .each_document(find, |document| {
                let stats = hour_stats(document, &mut names)?;
                match parts.entry((document.get_str("deviceId")?.into(), stats.hour)) {
                    Entry::Occupied(mut known) => known.get_mut().merge(stats),
                    Entry::Vacant(place) => _ = place.insert(stats),
                }
                Ok(ControlFlow::Continue(()))
            })
            .await?;
        for ((device, _), stats) in parts {
            by_device.of(&device)?.push(stats);
        }
        by_device.found.iter_mut().for_each(|hours| hours.sort_unstable_by_key(|stats| stats.hour));
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

/// What a document says of its hour.
pub(super) fn hour_stats(document: &RawDocument, metrics: &mut MetricNames) -> Result<HourStats, Unreadable> {
    Ok(HourStats {
        hour: bucket_hour(document)?,
        last_ts_ms: document.get_datetime("lastTs")?.timestamp_millis(),
        stats: decode_stats(document.get_document("stats")?, metrics)?,
    })
}

fn of_device(device: &str, hours: &Range<Hour>) -> Document {
    doc! { "deviceId": device, "bucket": within(hours) }
}

/// The documents of the hours that are missing; `None` when none are.
fn of_missing(missing: &[Missing]) -> Option<Document> {
    let mut clauses: Vec<Document> = missing.iter().flat_map(clauses_of).collect();
    match clauses.len() {
        0 | 1 => clauses.pop(),
        _ => Some(doc! { "$or": clauses }),
    }
}

/// A stretch of the index for each run of hours, or a look for each hour when there are many runs: each clause has to be
/// planned by the server.
fn clauses_of(missing: &Missing) -> Vec<Document> {
    let Missing { devices, runs } = missing;
    let of = |bucket: Document| doc! { "deviceId": of_devices(devices), "bucket": bucket };
    if runs.len() <= RUNS_MAX {
        return runs.iter().map(|run| of(within(run))).collect();
    }
    let hours = runs.iter().flat_map(|run| run.start.0..run.end.0);
    let hours: Vec<DateTime> = hours.map(|hour| DateTime::from_millis(Hour(hour).start_ms())).collect();
    vec![of(doc! { "$in": hours })]
}
