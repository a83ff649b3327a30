//! Derives the [`rollups`](super::super::rollups) of hours from the parts of their buckets.
//!
//! The `rev` of a rollup is the sum of the `rev`s of the bucket's parts, each of which only grows. The store
//! reads parts one after the other while others write, so a sum may combine parts that never existed at the
//! same time. But then a part has been written since: its writer rolls up the hour again, with a higher sum.
//!
//! Reads are local reads of the primary, which return every acknowledged write. What they return may not be
//! durable yet; but a majority has the rollup only when it has everything that the primary wrote before.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem;
use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use bson::{DateTime, Document, RawDocument, doc};

use super::super::by_device::within;
use super::super::command::documents;
use super::super::decode::{DecodeError, integer};
use super::super::layout::Derivation;
use super::super::rollups::{HourRollup, RollupCollection};
use super::Buckets;
use super::read::{hour_stats, of_device};
use crate::model::{Hour, SeriesFilter};
use crate::store::metric_names::MetricNames;
use crate::store::{StoreError, WriteError};

/// The documents of one batch.
const BATCH: u32 = 1_000;

/// The most buckets of one query.
const BUCKETS_MAX: usize = 250;

/// The rollups of some buckets, from the parts that were read so far.
type Derived = HashMap<(Arc<str>, Hour), HourRollup>;

#[async_trait]
impl Derivation for Buckets {
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

    /// Reads the hour in the order of `createdAt`, which all parts of a bucket share.
    async fn roll_up_hour(&self, hour: Hour, rollups: &RollupCollection) -> Result<u64, WriteError> {
        let of_hour = doc! { "createdAt": within(&(hour..Hour(hour.0 + 1))) };
        let find = self.documents.find(of_hour).sort(doc! { "createdAt": 1 }).batch_size(BATCH);
        let mut batches = self.commands.batches(find.projection(rollup_fields())).await?;
        let mut names = MetricNames::new(&SeriesFilter::ALL);
        let (mut done, mut created_at, mut same) = (0, None, Derived::new());
        while let Some(batch) = batches.next().await? {
            let mut complete = Vec::new();
            for document in documents(&batch)? {
                let document = document?;
                let created = document.get_datetime("createdAt").map_err(DecodeError::from)?;
                if created_at.replace(created) != Some(created) {
                    complete.extend(mem::take(&mut same).into_values());
                }
                if let Err(error) = add(&mut same, document, &mut names) {
                    self.commands.skip(document, &error);
                }
            }
            done += rollups.bring_up_to_date(hour, complete).await?;
        }
        Ok(done + rollups.bring_up_to_date(hour, same.into_values().collect()).await?)
    }

    /// Derives buckets, many with one query.
    async fn derive(&self, buckets: &[(Arc<str>, Hour)]) -> Result<Vec<HourRollup>, StoreError> {
        let of = |(device, hour): &(Arc<str>, Hour)| of_device(device, &(*hour..Hour(hour.0 + 1)));
        let filters =
            buckets.chunks(BUCKETS_MAX).map(|buckets| doc! { "$or": buckets.iter().map(of).collect::<Vec<_>>() });
        let (mut derived, mut names) = (Derived::new(), MetricNames::new(&SeriesFilter::ALL));
        for filter in filters {
            let find = self.find(filter).projection(rollup_fields()).batch_size(BATCH);
            let add = |document: &RawDocument| {
                add(&mut derived, document, &mut names)?;
                Ok(ControlFlow::Continue(()))
            };
            self.commands.each_document(find, add).await?;
        }
        Ok(derived.into_values().collect())
    }
}

/// The fields of a bucket's document that its rollup is derived from.
fn rollup_fields() -> Document {
    doc! {
        "deviceId": 1, "bucket": 1, "schemaVersion": 1, "createdAt": 1, "rev": 1, "firstTs": 1, "lastTs": 1, "stats": 1,
    }
}

/// Adds one part of a bucket.
fn add(derived: &mut Derived, document: &RawDocument, names: &mut MetricNames) -> Result<(), DecodeError> {
    let device: Arc<str> = document.get_str("deviceId")?.into();
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
