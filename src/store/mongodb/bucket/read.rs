//! Reads hours of devices.
//!
//! Queries name their devices and a range of hours, so that they walk one stretch of the index for each
//! device and, when sharded and of one device, ask one shard. They sort by the index alone: the parts of an
//! hour come in the order in which they were inserted, and are folded as they come. Replies are read batch by
//! batch without turning documents into anything in between.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use bson::{DateTime, Document, RawArray, RawDocument, doc};

use super::super::by_device::{ByDevice, of_devices, within};
use super::super::decode::{DecodeError, expect_version, integer};
use super::super::names;
use super::super::rollups::Missing;
use super::super::stats::decode_stats;
use super::Buckets;
use super::document::{SCHEMA_VERSION, add_readings};
use crate::model::{Contents, Hour, Metric};
use crate::store::metric_names::MetricNames;
use crate::store::{FirstReadings, FirstReadingsBuilder, HourSamples, HourStats, ReadingsQuery, StoreError};

/// Documents of stats asked for at once: a month of hours comes in one reply.
const STATS_BATCH: u32 = 1_000;

/// Up to so many runs of hours of a device are asked for as such.
const RUNS_MAX: usize = 8;

/// Whole documents asked for at once: a day of hours.
const CONTENTS_BATCH: u32 = 24;

/// How many more parts of an hour are read once enough is found in it, before the others are asked for by
/// their time. Most hours have fewer parts.
const PARTS_BEHIND_CUT: u32 = 2;

impl Buckets {
    /// Adds the stats of missing hours to those that `by_device` has.
    pub(super) async fn read_hour_stats(
        &self,
        missing: &[Missing],
        metrics: &[Metric],
        by_device: &mut ByDevice<'_>,
    ) -> Result<(), StoreError> {
        let Some(filter) = of_missing(missing) else { return Ok(()) };
        let mut names = MetricNames::new(metrics);
        // All stats, and not only those of `metrics`: a projection without paths is several times faster.
        let fields = doc! { "deviceId": 1, "bucket": 1, "schemaVersion": 1, "lastTs": 1, "stats": 1 };
        let find = self.documents.find(filter).projection(fields).batch_size(STATS_BATCH);
        let mut parts: BTreeMap<(Arc<str>, Hour), HourStats> = BTreeMap::new();
        self.commands
            .each_document(self.commands.limited(find), |document| {
                let (device, hour) = (document.get_str("deviceId")?, bucket_hour(document)?);
                if by_device.of(device)?.binary_search_by_key(&hour, |stats| stats.hour).is_ok() {
                    return Ok(ControlFlow::Continue(()));
                }
                let stats = hour_stats(document, &mut names)?;
                match parts.entry((device.into(), hour)) {
                    Entry::Occupied(mut known) => known.get_mut().merge(stats),
                    Entry::Vacant(place) => _ = place.insert(stats),
                }
                Ok(ControlFlow::Continue(()))
            })
            .await?;
        for ((device, _), stats) in parts {
            by_device.of(&device)?.push(stats);
        }
        Ok(())
    }

    /// Goes through the documents of the range in the order of their hours, and stops at the hour behind the
    /// last one that is needed. The parts of an hour come in no order of time: once enough is found in one of
    /// them, only those parts are asked for that begin before what was found last.
    pub(super) async fn read_readings(&self, query: &ReadingsQuery) -> Result<FirstReadings, StoreError> {
        let batch = u32::try_from(query.max_instants).unwrap_or(CONTENTS_BATCH).clamp(2, CONTENTS_BATCH);
        let find = self.documents.find(in_range(query)).sort(doc! { "bucket": 1 }).batch_size(batch);
        let find = find.projection(doc! { "bucket": 1, "part": 1, "schemaVersion": 1, "readings": 1 });
        let mut gathered = FirstReadingsBuilder::new(query);
        let (mut hour_of_parts, mut parts) = (None, Vec::new()); // which parts of the hour were read
        let (mut read_behind_cut, mut unfinished) = (0, None);
        let visit = |document: &RawDocument| {
            let (hour, part, readings) = (bucket_hour(document)?, integer(document, "part")?, readings_of(document)?);
            if hour_of_parts.replace(hour) != Some(hour) {
                parts.clear();
            }
            let Some(samples) = gathered.hour(hour) else { return Ok(ControlFlow::Break(())) };
            if samples.is_cut() {
                read_behind_cut += 1;
            }
            let taken = add_readings(readings, samples);
            parts.push(part);
            if samples.is_cut() && read_behind_cut >= PARTS_BEHIND_CUT {
                unfinished = Some(hour.instant_ms(samples.window().end));
                return Ok(ControlFlow::Break(()));
            }
            taken.map(|()| ControlFlow::Continue(()))
        };
        self.commands.each_document(self.commands.limited(find), visit).await?;
        if let Some(until_ms) = unfinished {
            self.read_other_parts(query, until_ms, &parts, &mut gathered).await?;
        }
        Ok(gathered.finish())
    }

    /// Reads the parts of an hour that begin before `until_ms`, but for those that were read.
    async fn read_other_parts(
        &self,
        query: &ReadingsQuery,
        until_ms: i64,
        read: &[i64],
        gathered: &mut FirstReadingsBuilder,
    ) -> Result<(), StoreError> {
        let hour = Hour::of(until_ms);
        let range_ms = query.range_ms.start.max(hour.start_ms())..until_ms;
        let mut filter = in_range(&ReadingsQuery { range_ms, ..query.clone() });
        filter.insert("part", doc! { "$nin": read });
        let find = self
            .documents
            .find(filter)
            .projection(doc! { "schemaVersion": 1, "readings": 1 })
            .batch_size(CONTENTS_BATCH);
        let visit = |document: &RawDocument| {
            if let Some(samples) = gathered.hour(hour) {
                add_readings(readings_of(document)?, samples)?;
            }
            Ok(ControlFlow::Continue(()))
        };
        self.commands.each_document(self.commands.limited(find), visit).await
    }

    pub(super) async fn read_latest(&self, device: &str, hour: Hour) -> Result<Contents, StoreError> {
        let filter = of_device(device, &(hour..Hour(hour.0 + 1)));
        let find = self
            .documents
            .find(filter)
            .projection(doc! { "schemaVersion": 1, "readings": 1 })
            .batch_size(CONTENTS_BATCH);
        let mut samples = HourSamples::last_of_each_metric(hour);
        let visit = |document: &RawDocument| {
            add_readings(readings_of(document)?, &mut samples)?;
            Ok(ControlFlow::Continue(()))
        };
        self.commands.each_document(self.commands.limited(find), visit).await?;
        Ok(samples.finish().0)
    }

    pub(super) async fn read_last_hour(&self, device: &str) -> Result<Option<Hour>, StoreError> {
        let newest = || {
            let find = self.documents.find(doc! { "deviceId": device }).sort(doc! { "deviceId": -1, "bucket": -1 });
            find.projection(doc! { "bucket": 1, "schemaVersion": 1, "lastTs": 1 })
        };
        let read = |document: &RawDocument| {
            expect_version(document, SCHEMA_VERSION)?;
            document.get_datetime("lastTs")?;
            bucket_hour(document)
        };
        self.commands.first_readable(newest, read).await
    }
}

/// The hour of a document's bucket.
pub(super) fn bucket_hour(document: &RawDocument) -> Result<Hour, DecodeError> {
    Ok(Hour::of(document.get_datetime("bucket")?.timestamp_millis()))
}

/// The readings of a document.
fn readings_of(document: &RawDocument) -> Result<&RawArray, DecodeError> {
    expect_version(document, SCHEMA_VERSION)?;
    Ok(document.get_array("readings")?)
}

/// What a document says of its hour.
pub(super) fn hour_stats(document: &RawDocument, metrics: &mut MetricNames) -> Result<HourStats, DecodeError> {
    expect_version(document, SCHEMA_VERSION)?;
    Ok(HourStats {
        hour: bucket_hour(document)?,
        last_ts_ms: document.get_datetime("lastTs")?.timestamp_millis(),
        stats: decode_stats(document.get_document("stats")?, metrics)?,
    })
}

fn of_device(device: &str, hours: &Range<Hour>) -> Document {
    doc! { "deviceId": device, "bucket": within(hours) }
}

/// The documents that may hold what is asked for: `lastTs` is never before a document's own last instant.
fn in_range(query: &ReadingsQuery) -> Document {
    let [from, to] = [query.range_ms.start, query.range_ms.end].map(DateTime::from_millis);
    let mut filter = of_device(&query.device, &query.hours());
    filter.insert("firstTs", doc! { "$lt": to });
    filter.insert("lastTs", doc! { "$gte": from });
    if !query.metrics.is_empty() {
        let has = |metric: &Metric| doc! { format!("stats.{}", names::stored(metric)): { "$exists": true } };
        filter.insert("$or", query.metrics.iter().map(has).collect::<Vec<_>>());
    }
    filter
}

/// The documents of the hours that are missing; `None` when none are.
fn of_missing(missing: &[Missing]) -> Option<Document> {
    let mut clauses: Vec<Document> = missing.iter().flat_map(clauses_of).collect();
    match clauses.len() {
        0 | 1 => clauses.pop(),
        _ => Some(doc! { "$or": clauses }),
    }
}

/// A stretch of the index for each run of hours. Each clause has to be planned by the server, so that many
/// runs are asked for in another way: hour by hour, or all of the hours from the first to the last where few
/// of these are known.
fn clauses_of(missing: &Missing) -> Vec<Document> {
    let Missing { devices, runs } = missing;
    let of = |bucket: Document| doc! { "deviceId": of_devices(devices), "bucket": bucket };
    let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return Vec::new() };
    if runs.len() <= RUNS_MAX {
        return runs.iter().map(|run| of(within(run))).collect();
    }
    let hours: Vec<i32> = runs.iter().flat_map(|run| run.start.0..run.end.0).collect();
    let known = (last.end.0 - first.start.0) as usize - hours.len();
    if hours.len() > known {
        return vec![of(within(&(first.start..last.end)))];
    }
    let hours: Vec<DateTime> = hours.into_iter().map(|hour| DateTime::from_millis(Hour(hour).start_ms())).collect();
    vec![of(doc! { "$in": hours })]
}
