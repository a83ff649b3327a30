//! Reads hours of devices.
//!
//! A query names its devices and the `_id`s of their hours. So it scans parts of the index of `_id`s, and a
//! query of one device in a sharded cluster runs on one shard. The hint keeps the server from trying other
//! indexes: the one that sharding needs, and `{ deviceId, bucket }` of older collections. The hours of a
//! device are returned in order, but not the parts of an hour, which are merged in any order. Replies are
//! decoded batch by batch, without documents in between.
//!
//! A range of `_id`s for each device costs the server some 15 µs, a single `_id` less than a twentieth of
//! that. So few hours of a device are named by their `_id`s, and many are read as ranges.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use async_trait::async_trait;
use bson::{DateTime, Document, RawBsonRef, RawDocument, RawDocumentBuf, doc};
use mongodb::action::Find;
use mongodb::options::Hint;

use super::super::by_device::{ByDevice, of_devices};
use super::super::collection::CREATED_AT;
use super::super::decode::{DecodeError, check_version, document_in, instant_ms, integer, integer_in, text, values_of};
use super::super::layout::Queries;
use super::super::rollups::Missing;
use super::super::stats::decode_stats;
use super::super::{metadata, names};
use super::Buckets;
use super::devices::PartSummary;
use super::document::{SCHEMA_VERSION, StoredReadings};
use crate::config::BucketLayout;
use crate::model::{Contents, Day, Hour, Metric, SeriesFilter};
use crate::store::metric_names::MetricNames;
use crate::store::{
    DeviceMetadata, DeviceSet, FirstReadings, FirstReadingsBuilder, HourSamples, HourStats, ReadingsQuery, StoreError,
};

/// The documents of stats in one batch: a month of hours fits into one reply.
const STATS_BATCH: u32 = 1_000;

/// The most documents that one query names by their `_id`s, and the most in one of its batches.
///
/// If device IDs are long, the query has some 3 MB; the server takes 16 MiB.
const NAMED_BATCH: u32 = 10_000;

/// The most device IDs in one reply to the query for active devices.
const DEVICES_BATCH: u32 = 20_000;

/// The whole documents in one batch: a day of hours.
const CONTENTS_BATCH: u32 = 24;

/// How many more parts of an hour are read after enough readings were found.
///
/// A second query then finds the other parts by their time. Most hours have fewer parts.
const PARTS_BEHIND_CUT: u32 = 2;

/// The newest documents of a device that are searched for metadata: ten days, if it reports every hour.
const METADATA_DOCUMENTS_MAX: i64 = 240;

/// Up to this many runs of hours of a device are read one by one, however many hours are between them.
const RUNS_MAX: usize = 8;

/// The most ranges of `_id`s in one query.
pub(super) const RANGES_MAX: usize = 250;

/// The most hours in one run that a query names by `_id`, for one device.
///
/// [`NAMED_IN_RUNS_MAX`] is the limit for several runs together.
const NAMED_MAX: usize = 12;
const NAMED_IN_RUNS_MAX: usize = 24;

/// The parts of buckets to ask for, by device and hour.
type Asked = BTreeMap<Arc<str>, BTreeMap<Hour, Range<i32>>>;

#[async_trait]
impl Queries for Buckets {
    async fn add_hour_stats(
        &self,
        missing: &[Missing],
        series: &SeriesFilter,
        by_device: &mut ByDevice<'_>,
    ) -> Result<(), StoreError> {
        let (mut asked, mut ranges) = (Asked::new(), Vec::new());
        for of in missing {
            match hours_to_name(&of.runs) {
                Some(hours) => asked.extend(of.devices.iter().map(|device| {
                    (Arc::clone(device), hours.iter().map(|hour| (*hour, 0..1)).collect::<BTreeMap<_, _>>())
                })),
                None => ranges.extend(ranges_of(of)),
            }
        }
        self.add_named(asked, series, by_device).await?;
        let mut names = MetricNames::new(series);
        let mut parts: BTreeMap<(Arc<str>, Hour), HourStats> = BTreeMap::new();
        let mut visit = |document: &RawDocument| {
            let part = StatsPart::of(document)?;
            let is_known = by_device.of(part.device)?.binary_search_by_key(&part.hour, |stats| stats.hour).is_ok();
            if !is_known && !part.is_emptied() {
                add_part(&mut parts, part.device.into(), part.stats(&mut names)?);
            }
            Ok(())
        };
        for some in ranges.chunks(RANGES_MAX) {
            let find = self.find(doc! { "$or": some.to_vec() }).projection(stats_fields()).batch_size(STATS_BATCH);
            self.commands.all_documents(self.commands.limited(find), &mut visit).await?;
        }
        for ((device, _), stats) in parts {
            by_device.of(&device)?.push(stats);
        }
        Ok(())
    }

    async fn add_recent_stats(
        &self,
        devices: &[Arc<str>],
        hour: Hour,
        by_device: &mut ByDevice<'_>,
    ) -> Result<(), StoreError> {
        let parts = |device: &Arc<str>| BTreeMap::from([(hour, 0..self.expected_parts(device, hour))]);
        let asked = devices.iter().map(|device| (Arc::clone(device), parts(device))).collect();
        self.add_named(asked, &SeriesFilter::ALL, by_device).await
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
        let find = self.of_hours(device, &Hour::ALL).sort(doc! { "_id": -1 }).limit(METADATA_DOCUMENTS_MAX);
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
        let newest = self.all_parts(self.end_part(device, &Hour::ALL, -1).await?).await?;
        let oldest = self.all_parts(self.end_part(device, &Hour::ALL, 1).await?).await?;
        let first = oldest.iter().map(|part| part.first_ts_ms).min();
        Ok(first.zip(newest.iter().map(|part| part.last_ts_ms).max()))
    }

    async fn all_devices(&self) -> Result<Vec<Arc<str>>, StoreError> {
        self.commands.distinct(&self.documents, "$deviceId").await
    }

    async fn add_active(&self, since_ms: i64, active: &mut DeviceSet) -> Result<(), StoreError> {
        let hour = DateTime::from_millis(Hour::of(since_ms).start_ms());
        let since = doc! { CREATED_AT: { "$gte": hour }, "lastTs": { "$gte": DateTime::from_millis(since_ms) } };
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

    /// A query for the documents with these `_id`s, of these devices.
    pub(super) fn find_named(&self, ids: Vec<String>, devices: &[impl AsRef<str>]) -> Find<'_, RawDocumentBuf> {
        self.find(doc! { "_id": { "$in": ids }, "deviceId": of_devices(devices) }).batch_size(NAMED_BATCH)
    }

    /// A query for all documents of a device in some hours.
    pub(super) fn of_hours(&self, device: &str, hours: &Range<Hour>) -> Find<'_, RawDocumentBuf> {
        self.find(of_device(device, hours))
    }

    /// Adds the stats of buckets, whose parts the query names by their `_id`s.
    ///
    /// It asks for further parts of a bucket as long as there may be some.
    async fn add_named(
        &self,
        mut asked: Asked,
        series: &SeriesFilter,
        by_device: &mut ByDevice<'_>,
    ) -> Result<(), StoreError> {
        let mut names = MetricNames::new(series);
        let mut fields = stats_fields();
        fields.extend(doc! { "part": 1, "full": 1, "control": 1 });
        let mut found = BTreeMap::new();
        while !asked.is_empty() {
            let mut named: Vec<(&Arc<str>, Hour, i32)> = Vec::new();
            for (device, hours) in &asked {
                let parts = hours.iter().flat_map(|(hour, parts)| parts.clone().map(|part| (*hour, part)));
                named.extend(parts.map(|(hour, part)| (device, hour, part)));
            }
            let mut further = Asked::new();
            let mut visit = |document: &RawDocument| {
                let part = StatsPart::of(document)?;
                let Some((device, hours)) = asked.get_key_value(part.device) else { return Ok(()) };
                if let Some(parts) = hours.get(&part.hour)
                    && integer_in(part.number, "part")? + 1 == i64::from(parts.end)
                    && part.may_have_next
                {
                    let next = parts.end..2 * parts.end;
                    further.entry(Arc::clone(device)).or_default().insert(part.hour, next);
                }
                if !part.is_emptied() {
                    add_part(&mut found, Arc::clone(device), part.stats(&mut names)?);
                }
                Ok(())
            };
            for some in named.chunks(NAMED_BATCH as usize) {
                let id = |&(device, hour, part): &(&Arc<str>, Hour, i32)| names::document_id(device, hour, part);
                let mut devices: Vec<&Arc<str>> = some.iter().map(|(device, ..)| *device).collect();
                devices.dedup();
                let find = self.find_named(some.iter().map(id).collect(), &devices).projection(fields.clone());
                self.commands.all_documents(self.commands.limited(find), &mut visit).await?;
            }
            asked = further;
        }
        for ((device, _), stats) in found {
            by_device.of(&device)?.push(stats);
        }
        Ok(())
    }

    /// The number of parts to ask for: those that a bucket probably has.
    ///
    /// In the packed layout it is one more: if that part is missing, the bucket has no further parts.
    fn expected_parts(&self, device: &Arc<str>, hour: Hour) -> i32 {
        let known = self.overflowing.last_part(device, hour) + 1;
        match self.layout {
            BucketLayout::Readable => known,
            BucketLayout::Packed => known.max(self.known.last_part(device, hour).unwrap_or(0) + 2),
        }
    }

    /// A document of the newest hour of a device. The search begins with the day that the device index has:
    /// the range of all hours may hold many documents of other devices.
    async fn newest_part(&self, device: &str, noted: Option<Day>) -> Result<Option<PartSummary>, StoreError> {
        if let Some(day) = noted
            && let Some(newest) = self.end_part(device, &day.hours(), -1).await?
        {
            return Ok(Some(newest));
        }
        self.end_part(device, &Hour::ALL, -1).await
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

/// The hours of these runs, if they are few enough to be named by their `_id`s.
fn hours_to_name(runs: &[Range<Hour>]) -> Option<Vec<Hour>> {
    let max = if runs.len() > 1 { NAMED_IN_RUNS_MAX } else { NAMED_MAX };
    let hours = runs.iter().flat_map(|run| run.start.0..run.end.0).map(Hour);
    let hours: Vec<Hour> = hours.take(max + 1).collect();
    (hours.len() <= max).then_some(hours)
}

/// Matches the documents of the missing hours, for each device by itself.
fn ranges_of(Missing { devices, runs }: &Missing) -> Vec<Document> {
    let runs = joined(runs);
    devices.iter().flat_map(|device| runs.iter().map(move |run| of_device(device, run))).collect()
}

/// The runs themselves, or one range from the first hour to the last.
///
/// It is one range if there are more than [`RUNS_MAX`] runs, which have more than half of the hours: to read
/// an hour that is known costs less than another range.
fn joined(runs: &[Range<Hour>]) -> Vec<Range<Hour>> {
    let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return Vec::new() };
    let missing: i64 = runs.iter().map(|run| i64::from(run.end.0) - i64::from(run.start.0)).sum();
    let all = i64::from(last.end.0) - i64::from(first.start.0);
    if runs.len() > RUNS_MAX && 2 * missing > all { vec![first.start..last.end] } else { runs.to_vec() }
}

/// Adds a part of a bucket to the parts that were read before.
fn add_part(found: &mut BTreeMap<(Arc<str>, Hour), HourStats>, device: Arc<str>, stats: HourStats) {
    match found.entry((device, stats.hour)) {
        Entry::Occupied(mut known) => known.get_mut().merge(stats),
        Entry::Vacant(place) => _ = place.insert(stats),
    }
}

/// The hour of a document's bucket. Its `_id` must have the same hour: queries ask for `_id`s, and continue
/// after the hour that they found.
pub(super) fn bucket_hour(document: &RawDocument) -> Result<Hour, DecodeError> {
    hour_of(document.get("bucket")?, document.get("_id")?)
}

fn hour_of(bucket: Option<RawBsonRef<'_>>, id: Option<RawBsonRef<'_>>) -> Result<Hour, DecodeError> {
    let hour = Hour::of(instant_ms(bucket, "bucket")?);
    if names::is_id_of_hour(text(id, "_id")?, hour) {
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
    StatsPart::of(document)?.stats(metrics)
}

/// One document of a bucket with its stats.
struct StatsPart<'a> {
    device: &'a str,
    hour: Hour,
    number: Option<RawBsonRef<'a>>,
    /// Whether there may be a part after it: it is packed, or readable and marked full.
    may_have_next: bool,
    last_ts_ms: i64,
    stats: &'a RawDocument,
}

impl<'a> StatsPart<'a> {
    fn of(document: &'a RawDocument) -> Result<Self, DecodeError> {
        let names = ["_id", "deviceId", "bucket", "part", "schemaVersion", "full", "lastTs", "stats", "control"];
        let [id, device, bucket, number, version, full, last, stats, control] = values_of(document, names)?;
        check_version(version, SCHEMA_VERSION)?;
        Ok(Self {
            device: text(device, "deviceId")?,
            hour: hour_of(bucket, id)?,
            number,
            may_have_next: full.is_some() || control.is_some(),
            last_ts_ms: instant_ms(last, "lastTs")?,
            stats: document_in(stats, "stats")?,
        })
    }

    /// Whether a deletion has emptied the document.
    fn is_emptied(&self) -> bool {
        self.stats.is_empty()
    }

    fn stats(&self, metrics: &mut MetricNames) -> Result<HourStats, DecodeError> {
        Ok(HourStats { hour: self.hour, last_ts_ms: self.last_ts_ms, stats: decode_stats(self.stats, metrics)? })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_runs_with_short_gaps_become_one_range() {
        let runs =
            |count: i32, length: i32| (0..count).map(|nth| Hour(nth * 10)..Hour(nth * 10 + length)).collect::<Vec<_>>();
        assert_eq!(joined(&runs(20, 9)), [Hour(0)..Hour(199)]);
        assert_eq!(joined(&runs(8, 9)), runs(8, 9), "few");
        assert_eq!(joined(&runs(20, 2)), runs(20, 2), "long gaps");
        assert_eq!(joined(&[]), []);
    }

    #[test]
    fn few_hours_are_named() {
        let named = |runs: &[(i32, i32)]| {
            let runs: Vec<_> = runs.iter().map(|(from, to)| Hour(*from)..Hour(*to)).collect();
            hours_to_name(&runs).map(|hours| hours.into_iter().map(|hour| hour.0).collect::<Vec<_>>())
        };
        assert_eq!(named(&[(5, 7), (9, 10)]), Some(vec![5, 6, 9]));
        assert_eq!(named(&[(0, 12)]), Some((0..12).collect()));
        assert_eq!(named(&[(0, 12), (13, 25)]), Some((0..12).chain(13..25).collect()));
        for many in [&[(0, 13)][..], &[(0, 12), (13, 26)], &[(5, i32::MAX)]] {
            assert_eq!(named(many), None, "{many:?}");
        }
    }
}
