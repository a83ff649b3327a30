//! Lists devices, without an index of devices: seeks.
//!
//! In the index `{ deviceId, bucket }` each device costs one [`Seek`] to find it, which finds its first bucket too, and one
//! more to find its newest bucket. The first kind is a chain; of the second kind, [`AT_ONCE`] run at the same time.

use std::ops::ControlFlow;

use bson::{DateTime, Document, RawBsonRef, RawDocument, doc};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde_json::{Map, Value};

use super::super::decode::{Unreadable, expect_version, integer};
use super::super::metadata;
use super::super::seek::{AT_ONCE, Seek};
use super::super::stats::decode_stats;
use super::BucketStore;
use super::document::{SCHEMA_VERSION, is_full};
use super::read::bucket_hour;
use crate::model::{Hour, Metric};
use crate::store::metric_names::MetricNames;
use crate::store::{DeviceSummary, WriteError};

/// What one document says of its device.
pub(super) struct Glance {
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
    ) -> Result<Vec<DeviceSummary>, WriteError> {
        let (mut seek, mut found) = (Seek::new(prefix, after), Vec::new());
        while found.len() < limit {
            let Some(next) = self.glance(doc! { "deviceId": seek.rest() }, 1).await? else { break };
            seek.pass(&next.device);
            found.push(next);
        }
        let summaries: Vec<_> = found.into_iter().map(|first| self.summary(first)).collect();
        stream::iter(summaries).buffered(AT_ONCE).try_collect().await
    }

    /// What is known of the device whose first bucket was found.
    async fn summary(&self, first: Glance) -> Result<DeviceSummary, WriteError> {
        let device = first.device.clone();
        let newest = self.glance(doc! { "deviceId": &device }, -1).await?;
        let newest = self.whole(newest).await?;
        let oldest = self.whole(Some(first)).await?;
        let metadata = newest.iter().rev().find_map(|part| part.metadata.as_ref());
        let mut metrics: Vec<Metric> = newest.iter().flat_map(|part| part.metrics.iter().cloned()).collect();
        metrics.sort_unstable();
        metrics.dedup();
        Ok(DeviceSummary {
            device: device.into(),
            metadata: metadata.map(|object| Value::from(object.clone()).to_string().into()),
            metrics,
            first_ts_ms: oldest.iter().map(|part| part.first_ts_ms).min().unwrap_or_default(),
            last_ts_ms: newest.iter().map(|part| part.last_ts_ms).max().unwrap_or_default(),
        })
    }

    /// The first document (`direction` 1) or the last (-1) of those that `filter` finds, by device and hour.
    async fn glance(&self, filter: Document, direction: i32) -> Result<Option<Glance>, WriteError> {
        let find = || {
            let sort = doc! { "deviceId": direction, "bucket": direction };
            self.documents.find(filter.clone()).sort(sort).projection(glance_fields())
        };
        self.commands.first(find, Glance::decode).await
    }

    /// All parts of the bucket of which one was seen, ascending.
    async fn whole(&self, seen: Option<Glance>) -> Result<Vec<Glance>, WriteError> {
        let Some(seen) = seen else { return Ok(Vec::new()) };
        if seen.part == 0 && !seen.full {
            return Ok(vec![seen]); // there are no others
        }
        let bucket = doc! { "deviceId": &seen.device, "bucket": DateTime::from_millis(seen.hour.start_ms()) };
        let find = self.documents.find(bucket).sort(doc! { "deviceId": 1, "bucket": 1 }).projection(glance_fields());
        let mut parts = Vec::new();
        self.commands
            .each_document(self.commands.limited(find), |document| {
                parts.push(Glance::decode(document)?);
                Ok(ControlFlow::Continue(()))
            })
            .await?;
        parts.sort_by_key(|part| part.part);
        Ok(parts)
    }
}

/// The fields of a [`Glance`]. They are named, because leaving out `readings` instead makes the server walk through them.
fn glance_fields() -> Document {
    doc! {
        "deviceId": 1, "bucket": 1, "part": 1, "schemaVersion": 1, "full": 1, "firstTs": 1, "lastTs": 1, "metadata": 1,
        "stats": 1,
    }
}

impl Glance {
    pub(super) fn decode(document: &RawDocument) -> Result<Self, Unreadable> {
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
