//! Finds and summarizes devices that are not in the device index yet, by the `_id`s of their buckets.

use std::ops::{ControlFlow, Range};

use async_trait::async_trait;
use bson::{Document, RawBsonRef, RawDocument, doc};
use serde_json::{Map, Value};

use super::super::decode::{DecodeError, integer};
use super::super::id_walk::{Suffix, next_device};
use super::super::layout::Devices;
use super::super::metadata;
use super::super::seek::Seek;
use super::super::stats::decode_stats;
use super::Buckets;
use super::document::{is_emptied, is_full, layout_of};
use super::read::{ALL_HOURS, bucket_hour};
use crate::config::BucketLayout;
use crate::model::{Hour, Metric, SeriesFilter};
use crate::store::metric_names::MetricNames;
use crate::store::{DeviceSummary, StoreError};

/// The fields of one document that a list of devices needs.
#[derive(Debug)]
pub(super) struct PartSummary {
    device: String,
    pub(super) hour: Hour,
    part: i64,
    /// Whether the bucket may have other parts.
    may_have_others: bool,
    first_ts_ms: i64,
    pub(super) last_ts_ms: i64,
    metadata: Option<Map<String, Value>>,
    metrics: Vec<Metric>,
}

#[async_trait]
impl Devices for Buckets {
    async fn next_device(&self, seek: &Seek) -> Result<Option<String>, StoreError> {
        next_device(&self.commands, &self.documents, Suffix::Bucket, seek).await
    }

    async fn summary(&self, device: &str) -> Result<Option<DeviceSummary>, StoreError> {
        let newest = self.all_parts(self.end_part(device, &ALL_HOURS, -1).await?).await?;
        let oldest = self.all_parts(self.end_part(device, &ALL_HOURS, 1).await?).await?;
        let Some(last_ts_ms) = newest.iter().map(|part| part.last_ts_ms).max() else { return Ok(None) };
        let first_ts_ms = oldest.iter().map(|part| part.first_ts_ms).min().unwrap_or(last_ts_ms);
        let metadata = newest.iter().rev().find_map(|part| part.metadata.clone());
        let metrics = newest.iter().flat_map(|part| part.metrics.iter().cloned());
        let span_ms = (first_ts_ms, last_ts_ms);
        let summary = DeviceSummary::of_hour(device.into(), Hour::of(last_ts_ms), span_ms, metrics);
        Ok(Some(summary.with_metadata(metadata.map(metadata::to_text))))
    }
}

impl Buckets {
    /// A document of the first (`direction` 1) or the last hour (-1) of a device.
    pub(super) async fn end_part(
        &self,
        device: &str,
        hours: &Range<Hour>,
        direction: i32,
    ) -> Result<Option<PartSummary>, StoreError> {
        let find = || self.of_hours(device, hours).sort(doc! { "_id": direction }).projection(summary_fields());
        self.commands.first_readable(find, PartSummary::decode).await
    }

    /// All parts of the bucket that `part` belongs to, ascending.
    pub(super) async fn all_parts(&self, part: Option<PartSummary>) -> Result<Vec<PartSummary>, StoreError> {
        let Some(part) = part else { return Ok(Vec::new()) };
        if !part.may_have_others {
            return Ok(vec![part]);
        }
        let find = self.of_hours(&part.device, &(part.hour..Hour(part.hour.0 + 1))).projection(summary_fields());
        let mut parts = Vec::new();
        self.commands
            .each_document(find, |document| {
                parts.extend(PartSummary::decode(document)?);
                Ok(ControlFlow::Continue(()))
            })
            .await?;
        parts.sort_by_key(|part| part.part);
        Ok(parts)
    }
}

/// The fields of a [`PartSummary`]. The projection names them, because a projection that leaves out
/// `readings` instead makes the server walk through them.
fn summary_fields() -> Document {
    doc! {
        "deviceId": 1, "bucket": 1, "part": 1, "schemaVersion": 1, "full": 1, "firstTs": 1, "lastTs": 1, "metadata": 1,
        "stats": 1,
    }
}

impl PartSummary {
    /// Reads a document; `None` if a deletion has emptied it.
    pub(super) fn decode(document: &RawDocument) -> Result<Option<Self>, DecodeError> {
        if is_emptied(document)? {
            return Ok(None);
        }
        let layout = layout_of(document)?;
        let metadata = document.get("metadata")?.and_then(RawBsonRef::as_document);
        let stats = decode_stats(document.get_document("stats")?, &mut MetricNames::new(&SeriesFilter::ALL))?;
        let part = integer(document, "part")?;
        Ok(Some(Self {
            device: document.get_str("deviceId")?.to_owned(),
            hour: bucket_hour(document)?,
            part,
            may_have_others: part > 0 || layout == BucketLayout::Packed || is_full(document)?,
            first_ts_ms: document.get_datetime("firstTs")?.timestamp_millis(),
            last_ts_ms: document.get_datetime("lastTs")?.timestamp_millis(),
            metadata: metadata.map(metadata::decode).transpose()?,
            metrics: stats.into_iter().map(|(metric, _)| metric).collect(),
        }))
    }
}
