//! Derives the [`rollups`](super::super::rollups) of hours from the parts of their buckets.
//!
//! Buckets are read by the `_id`s that they may have: part 0 of each, and where that is marked `full`,
//! further parts, twice as many at each round. So reading costs one seek for each hour of a device, however
//! many days are stored, and needs no other index.
//!
//! The `rev` of a rollup is the sum of the `rev`s of the bucket's parts, each of which only grows. The store
//! reads parts one after the other while others write, so a sum may combine parts that never existed at the
//! same time. But then a part has been written since: its writer rolls up the hour again, with a higher sum.
//!
//! Reads are local reads of the primary, which return every acknowledged write. What they return may not be
//! durable yet; but a majority has the rollup only when it has everything that the primary wrote before.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use async_trait::async_trait;
use bson::{DateTime, Document, RawDocument, doc};
use mongodb::options::Hint;

use super::super::by_device::of_devices;
use super::super::decode::{DecodeError, integer};
use super::super::layout::Derivation;
use super::super::names;
use super::super::rollups::HourRollup;
use super::Buckets;
use super::document::is_full;
use super::read::{bucket_hour, hour_stats};
use crate::model::{Hour, SeriesFilter};
use crate::store::StoreError;
use crate::store::metric_names::MetricNames;

/// The documents of one batch.
const BATCH: u32 = 1_000;

/// The most `_id`s in one query.
const IDS_PER_QUERY: usize = 10_000;

/// The most parts of a bucket in one round.
const PARTS_PER_ROUND: i32 = 64;

/// The rollups of some buckets, from the parts that were read so far.
type Derived = HashMap<(Arc<str>, Hour), HourRollup>;

#[async_trait]
impl Derivation for Buckets {
    const HOURS_PER_STEP: usize = 10_000;

    async fn next_hour(&self, from: Hour) -> Result<Option<Hour>, StoreError> {
        let from = DateTime::from_millis(from.start_ms());
        let find = self.documents.find(doc! { "createdAt": { "$gte": from } }).sort(doc! { "createdAt": 1 }).limit(1);
        let mut hour = None;
        self.commands
            .each_document(find.projection(doc! { "_id": 0, "createdAt": 1 }), |document| {
                hour = Some(Hour::of(document.get_datetime("createdAt")?.timestamp_millis()));
                Ok(ControlFlow::Break(()))
            })
            .await?;
        Ok(hour)
    }

    async fn derive(&self, buckets: &[(Arc<str>, Hour)]) -> Result<Vec<HourRollup>, StoreError> {
        let mut derived = Derived::with_capacity(buckets.len());
        let mut continued = self.derive_parts(buckets, 0..1, &mut derived).await?;
        let mut parts = 1..2;
        while !continued.is_empty() {
            continued = self.derive_parts(&continued, parts.clone(), &mut derived).await?;
            parts = parts.end..parts.end + (2 * (parts.end - parts.start)).min(PARTS_PER_ROUND);
        }
        Ok(derived.into_values().collect())
    }
}

impl Buckets {
    /// Adds these parts of buckets. Returns the buckets that have more.
    async fn derive_parts(
        &self,
        buckets: &[(Arc<str>, Hour)],
        parts: Range<i32>,
        derived: &mut Derived,
    ) -> Result<Vec<(Arc<str>, Hour)>, StoreError> {
        let (mut continued, mut names) = (Vec::new(), MetricNames::new(&SeriesFilter::ALL));
        for buckets in buckets.chunks((IDS_PER_QUERY / parts.len()).max(1)) {
            let mut known: HashSet<&Arc<str>> = HashSet::with_capacity(buckets.len());
            known.extend(buckets.iter().map(|(device, _)| device));
            let devices: Vec<&Arc<str>> = known.iter().copied().collect();
            let ids_of = |(device, hour): &(Arc<str>, Hour)| {
                let (device, hour) = (Arc::clone(device), *hour);
                parts.clone().map(move |part| names::document_id(&device, hour, part))
            };
            let ids: Vec<String> = buckets.iter().flat_map(ids_of).collect();
            let find = self.documents.find(doc! { "_id": { "$in": ids }, "deviceId": of_devices(&devices) });
            let find = find.hint(Hint::Keys(doc! { "_id": 1 })).projection(rollup_fields()).batch_size(BATCH);
            let visit = |document: &RawDocument| {
                let device = document.get_str("deviceId")?;
                let device =
                    known.get(&Arc::from(device)).ok_or_else(|| DecodeError("its device was not asked for".into()))?;
                if integer(document, "part")? == i64::from(parts.end - 1) && is_full(document)? {
                    continued.push((Arc::clone(device), bucket_hour(document)?));
                }
                add(derived, Arc::clone(device), document, &mut names)?;
                Ok(ControlFlow::Continue(()))
            };
            self.commands.each_document(find, visit).await?;
        }
        Ok(continued)
    }
}

/// The fields of a bucket's document that its rollup is derived from.
fn rollup_fields() -> Document {
    doc! {
        "deviceId": 1, "bucket": 1, "part": 1, "schemaVersion": 1, "full": 1, "rev": 1, "firstTs": 1, "lastTs": 1,
        "stats": 1,
    }
}

/// Adds one part of a bucket.
fn add(
    derived: &mut Derived,
    device: Arc<str>,
    document: &RawDocument,
    names: &mut MetricNames,
) -> Result<(), DecodeError> {
    let part = part_of(Arc::clone(&device), document, names)?;
    match derived.entry((device, part.stats.hour)) {
        Entry::Vacant(place) => _ = place.insert(part),
        Entry::Occupied(mut known) => {
            let known = known.get_mut();
            known.rev += part.rev;
            known.first_ts_ms = known.first_ts_ms.min(part.first_ts_ms);
            known.stats.merge(part.stats);
        }
    }
    Ok(())
}

fn part_of(device: Arc<str>, document: &RawDocument, names: &mut MetricNames) -> Result<HourRollup, DecodeError> {
    let first_ts_ms = document.get_datetime("firstTs")?.timestamp_millis();
    Ok(HourRollup { device, rev: integer(document, "rev")?, first_ts_ms, stats: hour_stats(document, names)? })
}
