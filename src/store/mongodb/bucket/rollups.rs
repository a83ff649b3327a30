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
//! Stats of version 1 lack the first and the last values. A second query reads the parts that have such stats
//! with their readings, which have these values.
//!
//! Reads are local reads of the primary, which return every acknowledged write. What they return may not be
//! durable yet; but a majority has the rollup only when it has everything that the primary wrote before.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use async_trait::async_trait;
use bson::{DateTime, Document, RawDocument, RawDocumentBuf, doc};
use mongodb::action::Find;

use super::super::by_device::of_devices;
use super::super::decode::{DecodeError, integer};
use super::super::layout::Derivation;
use super::super::names;
use super::super::rollups::HourRollup;
use super::Buckets;
use super::document::{add_readings, is_full};
use super::read::hour_stats;
use crate::model::{Hour, Metric, SeriesFilter, Stats};
use crate::store::metric_names::MetricNames;
use crate::store::{HourSamples, HourStats, StoreError};

/// The documents of one batch.
const BATCH: u32 = 1_000;

/// The whole documents of one batch: those of a day.
const READINGS_BATCH: u32 = 24;

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
        let (mut continued, mut without_ends) = (Vec::new(), Vec::new());
        let mut names = MetricNames::new(&SeriesFilter::ALL);
        for buckets in buckets.chunks((IDS_PER_QUERY / parts.len()).max(1)) {
            let mut known: HashSet<&Arc<str>> = HashSet::with_capacity(buckets.len());
            known.extend(buckets.iter().map(|(device, _)| device));
            let devices: Vec<&Arc<str>> = known.iter().copied().collect();
            let ids_of = |(device, hour): &(Arc<str>, Hour)| {
                let (device, hour) = (Arc::clone(device), *hour);
                parts.clone().map(move |part| names::document_id(&device, hour, part))
            };
            let ids: Vec<String> = buckets.iter().flat_map(ids_of).collect();
            let find = self.find_parts(ids, &devices).projection(rollup_fields()).batch_size(BATCH);
            let visit = |document: &RawDocument| {
                let device = document.get_str("deviceId")?;
                let device =
                    known.get(&Arc::from(device)).ok_or_else(|| DecodeError("its device was not asked for".into()))?;
                let part = part_of(Arc::clone(device), document, &mut names)?;
                let number = integer(document, "part")?;
                if number == i64::from(parts.end - 1) && is_full(document)? {
                    continued.push((Arc::clone(device), part.stats.hour));
                }
                if has_ends(&part.stats) {
                    add(derived, part);
                } else {
                    without_ends.push((Arc::clone(device), document.get_str("_id")?.to_owned()));
                }
                Ok(ControlFlow::Continue(()))
            };
            self.commands.each_document(find, visit).await?;
            self.derive_from_readings(std::mem::take(&mut without_ends), &mut names, derived).await?;
        }
        Ok(continued)
    }

    /// Adds parts whose stats lack the first and the last values.
    async fn derive_from_readings(
        &self,
        parts: Vec<(Arc<str>, String)>,
        names: &mut MetricNames,
        derived: &mut Derived,
    ) -> Result<(), StoreError> {
        if parts.is_empty() {
            return Ok(());
        }
        let (mut devices, ids): (Vec<Arc<str>>, Vec<String>) = parts.into_iter().unzip();
        devices.dedup();
        let fields = doc! { "readings": 1 }.into_iter().chain(rollup_fields()).collect::<Document>();
        let find = self.find_parts(ids, &devices).projection(fields).batch_size(READINGS_BATCH);
        let visit = |document: &RawDocument| {
            let mut part = part_of(document.get_str("deviceId")?.into(), document, names)?;
            add_ends(&mut part.stats, document);
            add(derived, part);
            Ok(ControlFlow::Continue(()))
        };
        self.commands.each_document(find, visit).await
    }

    fn find_parts(&self, ids: Vec<String>, devices: &[impl AsRef<str>]) -> Find<'_, RawDocumentBuf> {
        self.find(doc! { "_id": { "$in": ids }, "deviceId": of_devices(devices) })
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
fn add(derived: &mut Derived, part: HourRollup) {
    match derived.entry((Arc::clone(&part.device), part.stats.hour)) {
        Entry::Vacant(place) => _ = place.insert(part),
        Entry::Occupied(mut known) => known.get_mut().add(part),
    }
}

/// Whether the stats have the first and the last value of each metric.
fn has_ends(of: &HourStats) -> bool {
    of.stats.iter().all(|(_, stats)| stats.first.is_some() && stats.last.is_some())
}

/// Adds the first and the last values from the readings of the part, if all of these can be read.
fn add_ends(to: &mut HourStats, document: &RawDocument) {
    let mut readings = HourSamples::all(to.hour);
    let of_part = document.get_array("readings").map_err(DecodeError::from);
    if of_part.and_then(|of_part| add_readings(of_part, &mut readings)).is_err() {
        return;
    }
    let fold: HashMap<Metric, Stats> = readings.finish().0.stats(to.hour).into_iter().collect();
    for (metric, stats) in &mut to.stats {
        if let Some(fold) = fold.get(metric) {
            (stats.first, stats.last) = (fold.first, fold.last);
        }
    }
}

fn part_of(device: Arc<str>, document: &RawDocument, names: &mut MetricNames) -> Result<HourRollup, DecodeError> {
    let first_ts_ms = document.get_datetime("firstTs")?.timestamp_millis();
    Ok(HourRollup { device, rev: integer(document, "rev")?, first_ts_ms, stats: hour_stats(document, names)? })
}
