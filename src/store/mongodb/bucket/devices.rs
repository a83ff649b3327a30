//! Lists devices, without an index of devices: seeks.
//!
//! In the index `{ deviceId, bucket }` each device costs one [`Seek`] to find it, which finds its first
//! bucket too, and one more to find its newest bucket. The first kind is a chain; of the second kind,
//! [`MAX_CONCURRENT_SUMMARIES`] run at the same time. Beside the first kind runs a seek in the rollups, which finds the
//! devices that have nothing else left, and since when each device is known.

use std::ops::ControlFlow;

use bson::{DateTime, Document, RawBsonRef, RawDocument, doc};
use futures_util::future::try_join;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde_json::{Map, Value};

use super::super::decode::{DecodeError, expect_version, integer};
use super::super::metadata;
use super::super::rollups::Day;
use super::super::seek::{MAX_CONCURRENT_SUMMARIES, Seek};
use super::super::stats::decode_stats;
use super::BucketStore;
use super::document::{SCHEMA_VERSION, is_full};
use super::read::bucket_hour;
use crate::model::{Hour, Metric};
use crate::store::metric_names::MetricNames;
use crate::store::{DeviceSummary, StoreError};

/// What one document says of its device.
pub(super) struct PartSummary {
    device: String,
    hour: Hour,
    part: i64,
    full: bool,
    first_ts_ms: i64,
    last_ts_ms: i64,
    metadata: Option<Map<String, Value>>,
    metrics: Vec<Metric>,
}

impl BucketStore {
    pub(super) async fn read_devices(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<DeviceSummary>, StoreError> {
        let (mut seek, mut found) = (Seek::new(prefix, after), Vec::new());
        while found.len() < limit {
            let first = self.end_part(doc! { "deviceId": seek.rest() }, 1);
            let (first, day) = try_join(Box::pin(first), Box::pin(self.rollups.first_day(seek.rest()))).await?;
            let device_of_first = first.as_ref().map(|first| first.device.as_str());
            let Some(next) = Seek::next(device_of_first, day.as_ref().map(|day| day.device.as_str())) else { break };
            seek.advance(&next);
            found.push((first.filter(|first| first.device == next), day.filter(|day| day.device == next)));
        }
        let summaries: Vec<_> = found.into_iter().map(|(first, day)| self.summary(first, day)).collect();
        let summaries: Vec<Option<DeviceSummary>> =
            stream::iter(summaries).buffered(MAX_CONCURRENT_SUMMARIES).try_collect().await?;
        Ok(summaries.into_iter().flatten().collect())
    }

    /// What is known of the device whose first bucket and whose first day of rollups were found. `None`: it
    /// has just expired.
    async fn summary(&self, first: Option<PartSummary>, day: Option<Day>) -> Result<Option<DeviceSummary>, StoreError> {
        let newest = match &first {
            Some(first) => self.all_parts(self.end_part(doc! { "deviceId": &first.device }, -1).await?).await?,
            None => Vec::new(),
        };
        let Some(device) = newest.first().map(|part| part.device.clone()) else {
            return match day {
                Some(day) => self.rollups.summary(day).await,
                None => Ok(None),
            };
        };
        let oldest = self.all_parts(first).await?;
        let first_ts_ms = oldest.iter().map(|part| part.first_ts_ms).chain(day.map(|day| day.first_ts_ms)).min();
        let metadata = newest.iter().rev().find_map(|part| part.metadata.as_ref());
        let mut metrics: Vec<Metric> = newest.iter().flat_map(|part| part.metrics.iter().cloned()).collect();
        metrics.sort_unstable();
        metrics.dedup();
        let last_ts_ms = newest.iter().map(|part| part.last_ts_ms).max().unwrap_or_default();
        Ok(Some(DeviceSummary {
            device: device.into(),
            metadata: metadata.map(|object| Value::from(object.clone()).to_string().into()),
            metrics,
            first_ts_ms: first_ts_ms.unwrap_or(last_ts_ms),
            last_ts_ms,
        }))
    }

    /// The first document (`direction` 1) or the last (-1) of those that `filter` finds, by device and hour.
    async fn end_part(&self, filter: Document, direction: i32) -> Result<Option<PartSummary>, StoreError> {
        let find = || {
            let sort = doc! { "deviceId": direction, "bucket": direction };
            self.documents.find(filter.clone()).sort(sort).projection(summary_fields())
        };
        self.commands.first(find, PartSummary::decode).await
    }

    /// All parts of the bucket of which one was seen, ascending.
    async fn all_parts(&self, seen: Option<PartSummary>) -> Result<Vec<PartSummary>, StoreError> {
        let Some(seen) = seen else { return Ok(Vec::new()) };
        if seen.part == 0 && !seen.full {
            return Ok(vec![seen]); // there are no others
        }
        let bucket = doc! { "deviceId": &seen.device, "bucket": DateTime::from_millis(seen.hour.start_ms()) };
        let find = self.documents.find(bucket).sort(doc! { "deviceId": 1, "bucket": 1 }).projection(summary_fields());
        let mut parts = Vec::new();
        self.commands
            .each_document(find, |document| {
                parts.push(PartSummary::decode(document)?);
                Ok(ControlFlow::Continue(()))
            })
            .await?;
        parts.sort_by_key(|part| part.part);
        Ok(parts)
    }
}

/// The fields of a [`PartSummary`]. They are named, because leaving out `readings` instead makes the server walk
/// through them.
fn summary_fields() -> Document {
    doc! {
        "deviceId": 1, "bucket": 1, "part": 1, "schemaVersion": 1, "full": 1, "firstTs": 1, "lastTs": 1, "metadata": 1,
        "stats": 1,
    }
}

impl PartSummary {
    pub(super) fn decode(document: &RawDocument) -> Result<Self, DecodeError> {
        expect_version(document, SCHEMA_VERSION)?;
        let metadata = document.get("metadata")?.and_then(RawBsonRef::as_document);
        let stats = decode_stats(document.get_document("stats")?, &mut MetricNames::new(&[]))?;
        Ok(Self {
            device: document.get_str("deviceId")?.to_owned(),
            hour: bucket_hour(document)?,
            part: integer(document, "part")?,
            full: is_full(document)?,
            first_ts_ms: document.get_datetime("firstTs")?.timestamp_millis(),
            last_ts_ms: document.get_datetime("lastTs")?.timestamp_millis(),
            metadata: metadata.map(metadata::decode).transpose()?,
            metrics: stats.into_iter().map(|(metric, _)| metric).collect(),
        })
    }
}
