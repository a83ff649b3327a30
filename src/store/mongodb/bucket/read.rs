//! Reads hours of devices.
//!
//! A query names its devices and the `_id`s of their hours (`missing_hours` for many devices). So it scans
//! parts of the index of `_id`s, and a query of one device in a sharded cluster runs on one shard. The hint
//! keeps the server from trying other indexes: the one that sharding needs, and `{ deviceId, bucket }` of
//! older collections. The hours of a device are returned in order, but not the parts of an hour, which are
//! merged in any order. Replies are decoded batch by batch, without documents in between.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use async_trait::async_trait;
use bson::{DateTime, Document, RawBsonRef, RawDocument, RawDocumentBuf, doc};
use mongodb::action::Find;
use mongodb::options::Hint;

use super::super::by_device::{ByDevice, of_devices};
use super::super::decode::{DecodeError, expect_version, integer};
use super::super::layout::Queries;
use super::super::rollups::Missing;
use super::super::stats::decode_stats;
use super::super::{metadata, names};
use super::Buckets;
use super::devices::PartSummary;
use super::document::{SCHEMA_VERSION, StoredReadings, is_emptied};
use crate::model::{Contents, Day, Hour, Metric, SeriesFilter};
use crate::store::metric_names::MetricNames;
use crate::store::{
    DeviceMetadata, DeviceSet, FirstReadings, FirstReadingsBuilder, HourSamples, HourStats, ReadingsQuery, StoreError,
};

/// The documents of stats in one batch: a month of hours fits into one reply.
const STATS_BATCH: u32 = 1_000;

/// The documents of recent hours in one batch: of some thousand devices.
const RECENT_BATCH: u32 = 10_000;

/// The most device IDs in one reply to the query for active devices.
const DEVICES_BATCH: u32 = 20_000;

/// All hours that a device may have.
pub(super) const ALL_HOURS: Range<Hour> = Hour(i32::MIN)..Hour(i32::MAX);

/// The whole documents in one batch: a day of hours.
const CONTENTS_BATCH: u32 = 24;

/// How many more parts of an hour are read after enough readings were found, before the others are queried
/// by their time. Most hours have fewer parts.
const PARTS_BEHIND_CUT: u32 = 2;

/// The newest documents of a device that are searched for metadata: ten days, if it reports every hour.
const METADATA_DOCUMENTS_MAX: i64 = 240;

#[async_trait]
impl Queries for Buckets {
    async fn add_hour_stats(
        &self,
        missing: &[Missing],
        series: &SeriesFilter,
        by_device: &mut ByDevice<'_>,
    ) -> Result<(), StoreError> {
        let mut names = MetricNames::new(series);
        let mut parts: BTreeMap<(Arc<str>, Hour), HourStats> = BTreeMap::new();
        let mut visit = |document: &RawDocument| {
            let (device, hour) = (document.get_str("deviceId")?, bucket_hour(document)?);
            let is_known = by_device.of(device)?.binary_search_by_key(&hour, |stats| stats.hour).is_ok();
            if is_known || is_emptied(document)? {
                return Ok(());
            }
            let stats = hour_stats(document, &mut names)?;
            match parts.entry((device.into(), hour)) {
                Entry::Occupied(mut known) => known.get_mut().merge(stats),
                Entry::Vacant(place) => _ = place.insert(stats),
            }
            Ok(())
        };
        for filter in self.filters_of(missing).await? {
            let find = self.find(filter).projection(stats_fields()).batch_size(STATS_BATCH);
            self.commands.all_documents(self.commands.limited(find), &mut visit).await?;
        }
        for ((device, _), stats) in parts {
            by_device.of(&device)?.push(stats);
        }
        Ok(())
    }

    /// Names the first two parts of each hour by their `_id`s, which costs the server a fraction of a range
    /// for each device. Devices with a second part are read as ranges: there may be more.
    async fn add_recent_stats(
        &self,
        devices: &[Arc<str>],
        hours: &Range<Hour>,
        by_device: &mut ByDevice<'_>,
    ) -> Result<(), StoreError> {
        let mut names = MetricNames::new(&SeriesFilter::ALL);
        let (mut found, mut in_parts) = (Vec::new(), BTreeSet::new());
        let visit = |document: &RawDocument| {
            let device: Arc<str> = document.get_str("deviceId")?.into();
            if integer(document, "part")? > 0 {
                in_parts.insert(device);
            } else if !is_emptied(document)? {
                found.push((device, hour_stats(document, &mut names)?));
            }
            Ok(())
        };
        let of = |device: &Arc<str>| {
            let parts = (hours.start.0..hours.end.0).flat_map(|hour| [(hour, 0), (hour, 1)]);
            parts.map(|(hour, part)| names::document_id(device, Hour(hour), part)).collect()
        };
        let ids: Vec<Vec<String>> = devices.iter().map(of).collect();
        let mut fields = stats_fields();
        fields.extend(doc! { "part": 1 });
        let filter = doc! { "_id": { "$in": ids.concat() }, "deviceId": of_devices(devices) };
        let find = self.find(filter).projection(fields).batch_size(RECENT_BATCH);
        self.commands.all_documents(self.commands.limited(find), visit).await?;
        for (device, stats) in found {
            if !in_parts.contains(&device) {
                by_device.of(&device)?.push(stats);
            }
        }
        if in_parts.is_empty() {
            return Ok(());
        }
        let missing = Missing { devices: in_parts.into_iter().collect(), runs: vec![hours.clone()] };
        self.add_hour_stats(&[missing], &SeriesFilter::ALL, by_device).await
    }

    /// Reads the documents of the range in the order of their hours, and stops after the last hour that is
    /// needed. The parts of an hour are not in the order of time: after enough readings were found in one of
    /// them, a second query reads only the parts that begin before the last of these readings.
    async fn readings(&self, query: &ReadingsQuery) -> Result<FirstReadings, StoreError> {
        let batch = u32::try_from(query.max_instants).unwrap_or(CONTENTS_BATCH).clamp(2, CONTENTS_BATCH);
        let find = self.find(in_range(query)).sort(doc! { "_id": 1 }).batch_size(batch);
        let mut fields = readings_fields();
        fields.extend(doc! { "bucket": 1, "part": 1 });
        let find = find.projection(fields);
        let mut gathered = FirstReadingsBuilder::new(query);
        let (mut hour_of_parts, mut parts) = (None, Vec::new()); // which parts of the hour were read
        let (mut read_behind_cut, mut unfinished) = (0, None);
        let visit = |document: &RawDocument| {
            let (hour, part) = (bucket_hour(document)?, integer(document, "part")?);
            let readings = StoredReadings::of(document)?;
            if hour_of_parts.replace(hour) != Some(hour) {
                parts.clear();
            }
            let Some(samples) = gathered.hour(hour) else { return Ok(ControlFlow::Break(())) };
            if samples.is_cut() {
                read_behind_cut += 1;
            }
            let taken = readings.add_to(samples);
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
        let find =
            self.of_hours(device, &(hour..Hour(hour.0 + 1))).projection(readings_fields()).batch_size(CONTENTS_BATCH);
        let mut samples = HourSamples::last_of_each_metric(hour);
        let visit = |document: &RawDocument| StoredReadings::of(document)?.add_to(&mut samples);
        self.commands.all_documents(self.commands.limited(find), visit).await?;
        Ok(samples.finish().0)
    }

    async fn last_ts_ms(&self, device: &str, noted: Option<Day>) -> Result<Option<i64>, StoreError> {
        let newest = self.all_parts(self.newest_part(device, noted).await?).await?;
        Ok(newest.iter().map(|part| part.last_ts_ms).max())
    }

    async fn newest_metadata(&self, device: &str) -> Result<Option<DeviceMetadata>, StoreError> {
        let find = self.of_hours(device, &ALL_HOURS).sort(doc! { "_id": -1 }).limit(METADATA_DOCUMENTS_MAX);
        let mut newest = None;
        let visit = |document: &RawDocument| {
            if let Some(RawBsonRef::Document(metadata)) = document.get("metadata")? {
                let text = metadata::to_text(metadata::decode(metadata)?);
                newest = Some(DeviceMetadata { hour: bucket_hour(document)?, text });
            }
            Ok(if newest.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        };
        let find = find.projection(doc! { "bucket": 1, "metadata": 1 });
        self.commands.each_document(self.commands.limited(find), visit).await?;
        Ok(newest)
    }

    async fn span_ms(&self, device: &str) -> Result<Option<(i64, i64)>, StoreError> {
        let newest = self.all_parts(self.end_part(device, &ALL_HOURS, -1).await?).await?;
        let oldest = self.all_parts(self.end_part(device, &ALL_HOURS, 1).await?).await?;
        let first = oldest.iter().map(|part| part.first_ts_ms).min();
        Ok(first.zip(newest.iter().map(|part| part.last_ts_ms).max()))
    }

    async fn all_devices(&self) -> Result<Vec<Arc<str>>, StoreError> {
        self.commands.distinct(&self.documents, "$deviceId").await
    }

    async fn add_active(&self, since_ms: i64, active: &mut DeviceSet) -> Result<(), StoreError> {
        let hour = DateTime::from_millis(Hour::of(since_ms).start_ms());
        let since = doc! { "createdAt": { "$gte": hour }, "lastTs": { "$gte": DateTime::from_millis(since_ms) } };
        let find = self.documents.find(since).projection(doc! { "_id": 0, "deviceId": 1 }).batch_size(DEVICES_BATCH);
        let visit = |document: &RawDocument| {
            active.insert(document.get_str("deviceId")?);
            Ok(())
        };
        self.commands.all_documents(self.commands.limited(find), visit).await
    }

    async fn last_hour(&self, device: &str, noted: Option<Day>) -> Result<Option<Hour>, StoreError> {
        Ok(self.newest_part(device, noted).await?.map(|part| part.hour))
    }

    async fn last_hour_with(
        &self,
        device: &str,
        series: &BTreeSet<Metric>,
        hours: &Range<Hour>,
    ) -> Result<Option<Hour>, StoreError> {
        let has = |metric: &Metric| doc! { format!("stats.{}", names::stored(metric)): { "$exists": true } };
        let mut filter = of_device(device, hours);
        filter.insert("$or", series.iter().map(has).collect::<Vec<_>>());
        let find = || self.find(filter.clone()).sort(doc! { "_id": -1 }).projection(doc! { "bucket": 1 });
        self.commands.first_readable(find, |document| bucket_hour(document).map(Some)).await
    }
}

impl Buckets {
    /// A query that uses the index of `_id`s.
    pub(super) fn find(&self, filter: Document) -> Find<'_, RawDocumentBuf> {
        self.documents.find(filter).hint(Hint::Keys(doc! { "_id": 1 }))
    }

    /// A query for all documents of a device in some hours.
    pub(super) fn of_hours(&self, device: &str, hours: &Range<Hour>) -> Find<'_, RawDocumentBuf> {
        self.find(of_device(device, hours))
    }

    /// A document of the newest hour of a device. The search begins with the day that the device index has:
    /// the range of all hours may hold many documents of other devices.
    async fn newest_part(&self, device: &str, noted: Option<Day>) -> Result<Option<PartSummary>, StoreError> {
        if let Some(day) = noted
            && let Some(newest) = self.end_part(device, &day.hours(), -1).await?
        {
            return Ok(Some(newest));
        }
        self.end_part(device, &ALL_HOURS, -1).await
    }

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
        let find = self.find(filter);
        let find = find.projection(readings_fields()).batch_size(CONTENTS_BATCH);
        let visit = |document: &RawDocument| match gathered.hour(hour) {
            Some(samples) => StoredReadings::of(document)?.add_to(samples),
            None => Ok(()),
        };
        self.commands.all_documents(self.commands.limited(find), visit).await
    }
}

/// The hour of a document's bucket. Its `_id` must have the same hour: queries ask for `_id`s, and continue
/// after the hour that they found.
pub(super) fn bucket_hour(document: &RawDocument) -> Result<Hour, DecodeError> {
    let hour = Hour::of(document.get_datetime("bucket")?.timestamp_millis());
    if names::is_id_of_hour(document.get_str("_id")?, hour) {
        Ok(hour)
    } else {
        Err(DecodeError("its bucket is not the hour of its _id".into()))
    }
}

/// The fields of a document that its [`StoredReadings`] need.
fn readings_fields() -> Document {
    doc! { "schemaVersion": 1, "bytes": 1, "readings": 1, "control": 1, "data": 1 }
}

/// Reads the stats of one document of a bucket.
pub(super) fn hour_stats(document: &RawDocument, metrics: &mut MetricNames) -> Result<HourStats, DecodeError> {
    expect_version(document, SCHEMA_VERSION)?;
    Ok(HourStats {
        hour: bucket_hour(document)?,
        last_ts_ms: document.get_datetime("lastTs")?.timestamp_millis(),
        stats: decode_stats(document.get_document("stats")?, metrics)?,
    })
}

/// The fields of a document that its stats need: all stats, because a projection without paths is several
/// times faster.
fn stats_fields() -> Document {
    doc! { "deviceId": 1, "bucket": 1, "schemaVersion": 1, "lastTs": 1, "stats": 1 }
}

/// Matches the documents of a device in some hours.
pub(super) fn of_device(device: &str, hours: &Range<Hour>) -> Document {
    doc! { "_id": names::ids_of_hours(device, hours), "deviceId": device }
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
