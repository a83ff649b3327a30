//! The newest and the oldest documents of a device.

use std::ops::Range;

use bson::{Document, RawDocument, doc};

use super::super::decode::{DecodeError, integer};
use super::Buckets;
use super::document::{is_emptied, is_full, layout_of};
use super::read::bucket_hour;
use crate::config::BucketLayout;
use crate::model::Hour;
use crate::store::StoreError;

/// The hour of one document, and the first and the last instant of its readings.
#[derive(Debug)]
pub(super) struct PartSummary {
    device: String,
    pub(super) hour: Hour,
    part: i64,
    /// Whether the bucket may have other parts.
    may_have_others: bool,
    pub(super) first_ts_ms: i64,
    pub(super) last_ts_ms: i64,
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
        let visit = |document: &RawDocument| PartSummary::decode(document).map(|part| parts.extend(part));
        self.commands.all_documents(find, visit).await?;
        parts.sort_by_key(|part| part.part);
        Ok(parts)
    }
}

/// The fields of a [`PartSummary`]. The projection names them, because a projection that leaves out
/// `readings` instead makes the server walk through them.
fn summary_fields() -> Document {
    doc! {
        "deviceId": 1, "bucket": 1, "part": 1, "schemaVersion": 1, "full": 1, "firstTs": 1, "lastTs": 1, "stats": 1,
        "bytes": 1, "control": 1,
    }
}

impl PartSummary {
    /// Reads a document; `None` if a deletion has emptied it.
    pub(super) fn decode(document: &RawDocument) -> Result<Option<Self>, DecodeError> {
        if is_emptied(document)? {
            return Ok(None);
        }
        let layout = layout_of(document)?;
        let part = integer(document, "part")?;
        Ok(Some(Self {
            device: document.get_str("deviceId")?.to_owned(),
            hour: bucket_hour(document)?,
            part,
            may_have_others: part > 0 || layout == BucketLayout::Packed || is_full(document)?,
            first_ts_ms: document.get_datetime("firstTs")?.timestamp_millis(),
            last_ts_ms: document.get_datetime("lastTs")?.timestamp_millis(),
        }))
    }
}
