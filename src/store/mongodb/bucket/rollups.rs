//! Rolls buckets up: what the [`rollups`](super::super::rollups) of an hour are derived from.
//!
//! The `rev` of a rollup is the sum of those of the bucket's parts, each of which only grows. Parts are read
//! one after the other while others write, so that a sum may be of parts that were never there at the same
//! time; but then a part has been written since, whose writer rolls up the hour again, and comes to a higher
//! sum.
//!
//! Reads are local ones of the primary, which show every write that was acknowledged. What they show may not
//! be durable yet; but a majority has the rollup only when it has everything that the primary wrote before.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use bson::{DateTime, Document, RawDocument, doc};

use super::super::by_device::{of_devices, within};
use super::super::command::documents;
use super::super::decode::{DecodeError, integer};
use super::super::rollups::HourRollup;
use super::BucketStore;
use super::read::hour_stats;
use crate::model::Hour;
use crate::store::metric_names::MetricNames;
use crate::store::{Rollups, StoreError, WriteError};

/// Documents asked for at once.
const BATCH: u32 = 1_000;

/// What is known of the hours of some devices.
type Derived = HashMap<(Arc<str>, Hour), HourRollup>;

#[async_trait]
impl Rollups for BucketStore {
    async fn identity(&self) -> Result<String, StoreError> {
        self.deployment().await?;
        if !self.schema_state.is_unchanged().await? {
            self.deployment().await?;
        }
        let buckets = self.schema_state.uuid_of(&[&self.collection]).await?;
        let rollups = self.schema_state.uuid_of(&[self.rollups.name()]).await?;
        Ok(format!("mongodb buckets {buckets} rollups {rollups}"))
    }

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

    /// Walks through the hour in the order of `createdAt`, which all parts of a bucket share.
    async fn roll_up_hour(&self, hour: Hour) -> Result<u64, WriteError> {
        self.deployment().await?;
        let of_hour = doc! { "createdAt": within(&(hour..Hour(hour.0 + 1))) };
        let find = self.documents.find(of_hour).sort(doc! { "createdAt": 1 }).batch_size(BATCH);
        let mut batches = self.commands.batches(find.projection(rollup_fields())).await?;
        let mut names = MetricNames::new(&[]);
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
            done += self.bring_up_to_date(hour, complete).await?;
        }
        Ok(done + self.bring_up_to_date(hour, same.into_values().collect()).await?)
    }

    async fn roll_up(&self, buckets: &[(Arc<str>, Hour)]) -> Vec<Result<(), WriteError>> {
        match self.derive(buckets).await {
            Err(error) => vec![Err(error.into()); buckets.len()],
            Ok(derived) => self.put_derived(buckets, derived).await,
        }
    }
}

impl BucketStore {
    /// Derives buckets, with few queries: one for each device or one for each hour, whatever is less.
    async fn derive(&self, buckets: &[(Arc<str>, Hour)]) -> Result<Derived, StoreError> {
        self.deployment().await?;
        let mut by_device: BTreeMap<&str, Vec<DateTime>> = BTreeMap::new();
        let mut by_hour: BTreeMap<Hour, Vec<&str>> = BTreeMap::new();
        for (device, hour) in buckets {
            by_device.entry(device).or_default().push(DateTime::from_millis(hour.start_ms()));
            by_hour.entry(*hour).or_default().push(device);
        }
        let filters: Vec<Document> = if by_device.len() <= by_hour.len() {
            let of = |(device, hours): (&str, Vec<DateTime>)| doc! { "deviceId": device, "bucket": { "$in": hours } };
            by_device.into_iter().map(of).collect()
        } else {
            let of = |(hour, devices): (Hour, Vec<&str>)| {
                doc! { "deviceId": of_devices(&devices), "bucket": DateTime::from_millis(hour.start_ms()) }
            };
            by_hour.into_iter().map(of).collect()
        };
        let (mut derived, mut names) = (Derived::new(), MetricNames::new(&[]));
        for filter in filters {
            let find = self.documents.find(filter).projection(rollup_fields()).batch_size(BATCH);
            let add = |document: &RawDocument| {
                add(&mut derived, document, &mut names)?;
                Ok(ControlFlow::Continue(()))
            };
            self.commands.each_document(find, add).await?;
        }
        Ok(derived)
    }

    /// Writes what was derived of these buckets. Of one that has no readings (any more) nothing was, and
    /// nothing changes.
    async fn put_derived(&self, buckets: &[(Arc<str>, Hour)], mut derived: Derived) -> Vec<Result<(), WriteError>> {
        let mut outcomes = vec![Ok(()); buckets.len()];
        let (mut places, mut rollups) = (Vec::new(), Vec::new());
        for (at, bucket) in buckets.iter().enumerate() {
            if let Some(rollup) = derived.remove(bucket) {
                places.push(at);
                rollups.push(rollup);
            }
        }
        for (at, outcome) in places.into_iter().zip(self.rollups.put_all(&rollups).await) {
            outcomes[at] = outcome;
        }
        outcomes
    }

    /// Writes those of the rollups of an hour that are not stored yet, and returns how many those were.
    async fn bring_up_to_date(&self, hour: Hour, rollups: Vec<HourRollup>) -> Result<u64, WriteError> {
        let outdated = self.rollups.outdated(hour, rollups).await?;
        let mut done = 0;
        for (rollup, outcome) in outdated.iter().zip(self.rollups.put_all(&outdated).await) {
            match outcome {
                Ok(()) => done += 1,
                Err(error) if error.is_permanent() => leave_out(&rollup.device, hour, &error),
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

/// The fields of a bucket's document that its rollup follows from.
fn rollup_fields() -> Document {
    doc! {
        "deviceId": 1, "bucket": 1, "schemaVersion": 1, "createdAt": 1, "rev": 1, "firstTs": 1, "lastTs": 1, "stats": 1,
    }
}

/// Takes in one part of a bucket.
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

/// Its stats are still answered from the bucket.
fn leave_out(device: &str, hour: Hour, error: &WriteError) {
    tracing::warn!(device, hour_ms = hour.start_ms(), %error, "a bucket cannot be rolled up");
}
