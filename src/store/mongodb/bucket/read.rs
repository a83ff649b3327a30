//! Reads hours of devices.
//!
//! A query names its devices and a range of hours. So it scans one range of the index for each device, and a
//! query of one device in a sharded cluster runs on one shard. Queries sort by the index alone: the parts of
//! an hour are returned in the order of their insertion, and merged in that order. Replies are decoded batch
//! by batch, without documents in between.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use async_trait::async_trait;
use bson::{DateTime, Document, RawArray, RawDocument, doc};

use super::super::by_device::{ByDevice, of_devices, within};
use super::super::decode::{DecodeError, expect_version, integer};
use super::super::layout::Queries;
use super::super::rollups::Missing;
use super::super::stats::decode_stats;
use super::super::{metadata, names};
use super::Buckets;
use super::document::{SCHEMA_VERSION, add_readings};
use crate::model::{Contents, Hour, SeriesFilter};
use crate::store::metric_names::MetricNames;
use crate::store::{
    DeviceMetadata, FirstReadings, FirstReadingsBuilder, HourSamples, HourStats, ReadingsQuery, StoreError,
};

/// The documents of stats in one batch: a month of hours fits into one reply.
const STATS_BATCH: u32 = 1_000;

/// The most runs of hours of a device that a query names one by one.
const RUNS_MAX: usize = 8;

/// The whole documents in one batch: a day of hours.
const CONTENTS_BATCH: u32 = 24;

/// How many more parts of an hour are read after enough readings were found, before the others are queried
/// by their time. Most hours have fewer parts.
const PARTS_BEHIND_CUT: u32 = 2;

/// The newest documents of a device that are searched for metadata: ten days, if it reports every hour.
const METADATA_DOCUMENTS_MAX: i32 = 240;

#[async_trait]
impl Queries for Buckets {
    async fn add_hour_stats(
        &self,
        missing: &[Missing],
        series: &SeriesFilter,
        by_device: &mut ByDevice<'_>,
    ) -> Result<(), StoreError> {
        let Some(filter) = of_missing(missing) else { return Ok(()) };
        let mut names = MetricNames::new(series);
        // All stats, not only those of `series`: a projection without paths is several times faster.
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

    /// Reads the documents of the range in the order of their hours, and stops after the last hour that is
    /// needed. The parts of an hour are not in the order of time: after enough readings were found in one of
    /// them, a second query reads only the parts that begin before the last of these readings.
    async fn readings(&self, query: &ReadingsQuery) -> Result<FirstReadings, StoreError> {
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

    async fn latest(&self, device: &str, hour: Hour) -> Result<Contents, StoreError> {
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

    async fn last_ts_ms(&self, device: &str) -> Result<Option<i64>, StoreError> {
        let newest = self.all_parts(self.end_part(doc! { "deviceId": device }, -1).await?).await?;
        Ok(newest.iter().map(|part| part.last_ts_ms).max())
    }

    async fn newest_metadata(&self, device: &str) -> Result<Option<DeviceMetadata>, StoreError> {
        let pipeline = vec![
            doc! { "$match": { "deviceId": device } },
            doc! { "$sort": { "deviceId": -1, "bucket": -1 } },
            doc! { "$limit": METADATA_DOCUMENTS_MAX },
            doc! { "$match": { "metadata": { "$type": "object" } } },
            doc! { "$limit": 1 },
            doc! { "$project": { "bucket": 1, "metadata": 1 } },
        ];
        let mut newest = None;
        let visit = |document: &RawDocument| {
            let hour = Hour::of(document.get_datetime("bucket")?.timestamp_millis());
            let text = metadata::to_text(metadata::decode(document.get_document("metadata")?)?);
            newest = Some(DeviceMetadata { hour, text });
            Ok(ControlFlow::Break(()))
        };
        self.commands.each_result(&self.documents, pipeline, visit).await?;
        Ok(newest)
    }

    async fn last_hour(&self, device: &str) -> Result<Option<Hour>, StoreError> {
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

impl Buckets {
    /// Reads the parts of an hour that begin before `until_ms`, except those that were read.
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

/// The stats of a document.
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

/// Matches the documents that may have readings of the range: `lastTs` is never before a document's own last
/// instant.
fn in_range(query: &ReadingsQuery) -> Document {
    let [from, to] = [query.range_ms.start, query.range_ms.end].map(DateTime::from_millis);
    let mut filter = of_device(&query.device, &query.hours());
    filter.insert("firstTs", doc! { "$lt": to });
    filter.insert("lastTs", doc! { "$gte": from });
    let has = |metric: &str| doc! { format!("stats.{}", names::stored(metric)): { "$exists": true } };
    if let Some(one_of) = names::has_one_of(&query.series, "$stats", has) {
        filter.insert("$or", one_of);
    }
    filter
}

/// Matches the documents of the missing hours; `None` if no hour is missing.
fn of_missing(missing: &[Missing]) -> Option<Document> {
    let mut clauses: Vec<Document> = missing.iter().flat_map(clauses_of).collect();
    match clauses.len() {
        0 | 1 => clauses.pop(),
        _ => Some(doc! { "$or": clauses }),
    }
}

/// A range of the index for each run of hours.
///
/// The server plans each clause. So many runs become one clause: a list of hours, or, if few hours from the
/// first to the last are known, all of them.
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
