//! Derives the [`rollups`](super::super::rollups) of hours from the parts of their buckets.
//!
//! Buckets are read by ranges of `_id`s, which have all parts of the hours of a device that follow one
//! another. So reading costs one seek for each day of a device, and needs no other index.
//!
//! The `rev` of a rollup is the sum of the `rev`s of the bucket's parts, each of which only grows. The store
//! reads parts one after the other while others write, so a sum may combine parts that never existed at the
//! same time. But then a part has been written since: its writer rolls up the hour again, with a higher sum.
//!
//! Reads are local reads of the primary, which return every acknowledged write. What they return may not be
//! durable yet; but a majority has the rollup only when it has everything that the primary wrote before.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use async_trait::async_trait;
use bson::{DateTime, Document, RawDocument, doc};

use super::super::by_device::of_devices;
use super::super::collection::CREATED_AT;
use super::super::decode::{DecodeError, integer};
use super::super::layout::Derivation;
use super::super::names;
use super::super::rollups::HourRollup;
use super::Buckets;
use super::document::is_deleted_from;
use super::read::{RANGES_MAX, hour_stats};
use crate::model::{Hour, SeriesFilter};
use crate::store::StoreError;
use crate::store::metric_names::MetricNames;

/// The most documents in one reply to a query that derives rollups.
const BATCH: u32 = 1_000;

/// The rollups of some buckets, from the parts that were read so far.
type Derived = HashMap<(Arc<str>, Hour), HourRollup>;

/// Hours of a device that follow one another.
#[derive(Debug, PartialEq)]
struct Run {
    device: Arc<str>,
    hours: Range<Hour>,
}

#[async_trait]
impl Derivation for Buckets {
    const HOURS_PER_STEP: usize = 10_000;

    async fn next_hour(&self, from: Hour) -> Result<Option<Hour>, StoreError> {
        let from = DateTime::from_millis(from.start_ms());
        let find = self.documents.find(doc! { CREATED_AT: { "$gte": from } }).sort(doc! { CREATED_AT: 1 }).limit(1);
        let mut hour = None;
        self.commands
            .each_document(find.projection(doc! { "_id": 0, CREATED_AT: 1 }), |document| {
                hour = Some(Hour::of(document.get_datetime(CREATED_AT)?.timestamp_millis()));
                Ok(ControlFlow::Break(()))
            })
            .await?;
        Ok(hour)
    }

    async fn derive(&self, buckets: &[(Arc<str>, Hour)]) -> Result<Vec<HourRollup>, StoreError> {
        let (mut derived, mut names) = (Derived::with_capacity(buckets.len()), MetricNames::new(&SeriesFilter::ALL));
        for runs in runs_of(buckets).chunks(RANGES_MAX) {
            self.derive_runs(runs, &mut names, &mut derived).await?;
        }
        Ok(derived.into_values().collect())
    }
}

impl Buckets {
    /// Adds the parts of the buckets of some runs.
    ///
    /// The range of one device may have all buckets of another one: the range of `d` in the last hour of
    /// 2026-04-01 has those of `d/2026-04-02`. If both devices are in `runs`, the server returns these hours
    /// too. They are left out, because another query may read them as well.
    async fn derive_runs(
        &self,
        runs: &[Run],
        names: &mut MetricNames,
        derived: &mut Derived,
    ) -> Result<(), StoreError> {
        let mut asked: HashMap<&str, Vec<&Run>> = HashMap::new();
        for run in runs {
            asked.entry(&run.device).or_default().push(run);
        }
        let devices: Vec<&str> = asked.keys().copied().collect();
        let ranges: Vec<Document> =
            runs.iter().map(|run| doc! { "_id": names::ids_of_hours(&run.device, &run.hours) }).collect();
        let find = self.find(doc! { "$or": ranges, "deviceId": of_devices(&devices) });
        let visit = |document: &RawDocument| {
            let device = document.get_str("deviceId")?;
            let runs = asked.get(device).ok_or_else(|| DecodeError("its device was not asked for".into()))?;
            let part = part_of(Arc::clone(&runs[0].device), document, names)?;
            if runs.iter().any(|run| run.hours.contains(&part.stats.hour)) {
                add(derived, part);
            }
            Ok(())
        };
        self.commands.all_documents(find.projection(rollup_fields()).batch_size(BATCH), visit).await
    }
}

/// Joins the buckets of a device that follow one another.
fn runs_of(buckets: &[(Arc<str>, Hour)]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (device, hour) in buckets {
        let next = Hour(hour.0.saturating_add(1));
        match runs.last_mut() {
            Some(run) if run.device == *device && run.hours.end == *hour => run.hours.end = next,
            _ => runs.push(Run { device: Arc::clone(device), hours: *hour..next }),
        }
    }
    runs
}

/// The fields of a bucket's document that its rollup is derived from.
fn rollup_fields() -> Document {
    doc! {
        "deviceId": 1, "bucket": 1, "schemaVersion": 1, "rev": 1, "deletedFrom": 1, "firstTs": 1, "lastTs": 1,
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

/// The rollup of one part.
fn part_of(device: Arc<str>, document: &RawDocument, names: &mut MetricNames) -> Result<HourRollup, DecodeError> {
    Ok(HourRollup {
        device,
        rev: integer(document, "rev")?,
        first_ts_ms: document.get_datetime("firstTs")?.timestamp_millis(),
        stats: hour_stats(document, names)?,
        may_lack_deleted: is_deleted_from(document)?,
    })
}
