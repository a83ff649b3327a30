//! Deletions: documents are emptied, and not removed.
//!
//! A command that timed out may reach the server after the deletion. So the document of an emptied part stays
//! until it expires: its `_id` is taken, its `rev` has grown, and it is marked full. A late insert, append or
//! write-back of this part does nothing. New readings get a new part, on the slow path.
//!
//! An emptied document is readable, with `readingCount: 0`, no readings, no stats and no metadata. Its
//! `firstTs` is its `lastTs`. Queries skip it. Its `rev` counts in the rollup of the hour, which is therefore
//! newer than any that was derived before.
//!
//! A document that has lost values has `deletedFrom: true`: only of such a document may a later rollup lack
//! what an earlier one has (`rollups/expired.rs`).
//!
//! `lastTs` falls to the last instant that is left in the part and in the parts before it. That is safe,
//! because the part is full: readings are never added to it. An instance that remembers the higher `lastTs`
//! inserts only readings that are later, as it would have without the deletion.
//!
//! **Whole hours**, as a rule nearly all of them, are emptied by one statement for many documents. Each part
//! of another hour is read, and written back without the selected values, as on the slow path (`slow`).
//!
//! **Hours that stay.** If a part of such an hour cannot be read, or the server refuses what would be left of
//! it, the hour keeps readings. The deletion goes on with the other hours, and its outcome names those that
//! stay.
//!
//! **Hours without an answer.** The log of an instance that was killed may have readings that it had sent to
//! the store, and that are not sent again because of the deletion. Such a command may have been the insert of
//! a part that does not exist yet. So these hours get one more part, which is empty: a *fence*.

use std::collections::{BTreeMap, BTreeSet};

use bson::{DateTime, doc};
use futures_util::stream::{self, StreamExt};

use super::super::collection::Deployment;
use super::super::decode::integer;
use super::super::layout::Queries;
use super::super::names;
use super::super::statements::Verb;
use super::Buckets;
use super::document::{Part, SCHEMA_VERSION};
use super::plan::{Change, is_consistent};
use super::read::bucket_hour;
use super::slow::{Attempts, unchanged};
use crate::config::BucketLayout;
use crate::model::{Contents, Deletion, Hour, HourOffset};
use crate::store::{Deleted, ReadingsQuery, StoreError};

/// The most documents that one statement empties.
const DOCUMENTS_PER_STATEMENT: usize = 500;

/// The documents in one batch of the search for the documents that a deletion touches.
const BATCH: u32 = 10_000;

/// How many hours are read and written back at the same time.
const MAX_CONCURRENT_HOURS: usize = 8;

/// The documents that a deletion touches.
#[derive(Debug, Default)]
struct Touched {
    /// All hours of the deletion that have a document, and the unanswered hours.
    hours: BTreeSet<Hour>,
    /// The documents that are emptied, in the order of their hours.
    whole: Vec<Whole>,
    /// The hours whose parts are read, and written back without the selected values.
    partial: BTreeSet<Hour>,
}

/// A document that is emptied, because the deletion selects all of its readings.
#[derive(Debug)]
struct Whole {
    id: String,
    hour: Hour,
    readings: u64,
    /// Bounds of its readings: an instant not after the first one, and an instant not before the last one.
    span: Option<(DateTime, DateTime)>,
}

impl Buckets {
    /// Executes a deletion; see [`crate::store::Deletions::delete`].
    pub(super) async fn delete_readings(
        &self,
        deletion: &Deletion,
        unanswered: &BTreeSet<Hour>,
        deployment: Deployment,
    ) -> Result<Deleted, StoreError> {
        let Touched { hours, whole, partial } = self.touched(deletion, unanswered).await?;
        let mut readings = 0;
        for parts in whole.chunk_by(|one, next| one.hour == next.hour) {
            readings += self.count_whole(&deletion.device, parts).await?;
        }
        for documents in whole.chunks(DOCUMENTS_PER_STATEMENT) {
            self.empty(&deletion.device, documents).await?;
        }
        let of_hours = partial.into_iter().map(|hour| {
            let is_fenced = unanswered.contains(&hour);
            async move { (hour, self.delete_of_hour(deletion, hour, is_fenced, deployment).await) }
        });
        let of_hours: Vec<_> = of_hours.collect();
        let (mut outcomes, mut kept) = (stream::iter(of_hours).buffer_unordered(MAX_CONCURRENT_HOURS), BTreeMap::new());
        while let Some((hour, outcome)) = outcomes.next().await {
            match outcome {
                Ok(of_hour) => readings += of_hour,
                Err(error) if error.is_permanent() => _ = kept.insert(hour, error),
                Err(error) => return Err(error),
            }
        }
        Ok(Deleted { readings, hours, kept })
    }

    /// Finds the documents that a deletion touches.
    ///
    /// Emptied documents are emptied again: on a standalone server, only a write makes it certain that an
    /// earlier one is durable.
    async fn touched(&self, deletion: &Deletion, unanswered: &BTreeSet<Hour>) -> Result<Touched, StoreError> {
        let is_whole = |hour| deletion.covers(hour) && deletion.series.is_all() && !unanswered.contains(&hour);
        let mut touched = Touched { partial: unanswered.clone(), hours: unanswered.clone(), ..Touched::default() };
        let find = self.of_hours(&deletion.device, &deletion.hours()).batch_size(BATCH);
        let find = find.projection(doc! { "bucket": 1, "readingCount": 1, "firstTs": 1, "lastTs": 1 });
        self.commands
            .all_documents(find, |document| {
                let id = document.get_str("_id")?;
                if names::device_of(id) != Some(&*deletion.device) {
                    return Ok(());
                }
                let hour = bucket_hour(document)?;
                touched.hours.insert(hour);
                if is_whole(hour) {
                    let readings = u64::try_from(integer(document, "readingCount").unwrap_or(0)).unwrap_or(0);
                    let span = document.get_datetime("firstTs").ok().zip(document.get_datetime("lastTs").ok());
                    touched.whole.push(Whole { id: id.to_owned(), hour, readings, span });
                } else {
                    touched.partial.insert(hour);
                }
                Ok(())
            })
            .await?;
        touched.whole.sort_by_key(|whole| whole.hour);
        Ok(touched)
    }

    /// Counts the readings of an hour. If its parts overlap in time, it reads them, because two parts may
    /// have values of the same instant.
    async fn count_whole(&self, device: &str, parts: &[Whole]) -> Result<u64, StoreError> {
        let mut parts: Vec<&Whole> = parts.iter().filter(|part| part.readings > 0).collect();
        parts.sort_by_key(|part| part.span);
        let is_before = |pair: &[&Whole]| {
            let [one, next] = [pair[0].span, pair[1].span];
            one.zip(next).is_some_and(|((_, last), (first, _))| last < first)
        };
        if parts.windows(2).all(is_before) {
            return Ok(parts.iter().map(|part| part.readings).sum());
        }
        let hours = parts[0].hour..Hour(parts[0].hour.0 + 1);
        let found = self.readings(&ReadingsQuery::all(device, &hours)).await?;
        Ok(found.hours.iter().map(|(_, contents)| contents.reading_count() as u64).sum())
    }

    /// Empties documents, all parts of whole hours.
    async fn empty(&self, device: &str, documents: &[Whole]) -> Result<(), StoreError> {
        let ids: Vec<&str> = documents.iter().map(|document| &*document.id).collect();
        let emptied = doc! {
            "schemaVersion": SCHEMA_VERSION, "rev": { "$add": ["$rev", 1_i64] }, "full": true, "deletedFrom": true,
            "readingCount": 0_i64, "firstTs": "$bucket", "lastTs": "$bucket", "stats": { "$literal": {} },
            "bytes": 0_i64, "readings": [],
        };
        let statement = doc! {
            "q": { "_id": { "$in": ids }, "deviceId": device },
            "u": [{ "$set": emptied }, { "$unset": ["metadata", "control", "data"] }],
            "multi": true,
        };
        self.commands.write_document(Verb::UpdateMatching, &self.collection, &statement).await.map(drop)
    }

    /// Removes the selected values of one hour.
    ///
    /// Returns the number of readings that had at least one of them.
    async fn delete_of_hour(
        &self,
        deletion: &Deletion,
        hour: Hour,
        is_fenced: bool,
        deployment: Deployment,
    ) -> Result<u64, StoreError> {
        let device = &*deletion.device;
        let mut removed = BTreeSet::new();
        let mut attempts = Attempts::new();
        loop {
            let (parts, _permit) = self.read_all_parts(device, hour).await?;
            if attempts.is_whole(&parts, 0) && is_consistent(&parts) {
                let mut changes = plan(&parts, hour, deletion, is_fenced);
                if changes.is_empty() && deployment == Deployment::Standalone {
                    changes.extend(parts.last().map(|part| Planned { change: unchanged(part), removed: Vec::new() }));
                }
                if self.make_all(device, hour, changes, &mut removed).await? {
                    return Ok(removed.len() as u64);
                }
            }
            attempts.wait().await?;
        }
    }

    /// Makes changes one after the other, and returns whether all were made.
    async fn make_all(
        &self,
        device: &str,
        hour: Hour,
        changes: Vec<Planned>,
        removed: &mut BTreeSet<HourOffset>,
    ) -> Result<bool, StoreError> {
        for planned in changes {
            if !self.make(device, hour, &planned.change).await? {
                return Ok(false);
            }
            removed.extend(planned.removed);
        }
        Ok(true)
    }
}

/// A change, and the instants that lose a value with it.
#[derive(Debug, PartialEq)]
struct Planned {
    change: Change,
    removed: Vec<HourOffset>,
}

/// The changes that remove the selected values from the parts of an hour, ascending. Pure.
fn plan(parts: &[Part], hour: Hour, deletion: &Deletion, is_fenced: bool) -> Vec<Planned> {
    let (mut last, mut changes) = (0, Vec::new());
    for (at, part) in parts.iter().enumerate() {
        let (selected, left) = deletion.split(hour, &part.contents);
        last = left.span().map_or(last, |(_, own)| last.max(own));
        let must_change = is_fenced && at + 1 == parts.len();
        if selected.is_empty() && last == part.last && !must_change {
            continue;
        }
        let deleted_from = part.deleted_from || !selected.is_empty();
        let mut after = Part { rev: part.rev + 1, full: true, deleted_from, last, contents: left, ..part.clone() };
        after.take_layout(part.layout);
        if after.contents.is_empty() {
            after.metadata = None;
        }
        let change = Change { part: after, guard: Some(part.rev), new_keys: Vec::new() };
        changes.push(Planned { change, removed: selected.readings().map(|reading| reading.offset).collect() });
    }
    if is_fenced {
        let number = parts.last().map_or(0, |part| part.number + 1);
        let (layout, contents) = (BucketLayout::Readable, Contents::default());
        let fence = Part { number, layout, rev: 1, full: true, deleted_from: false, last, metadata: None, contents };
        let change = Change { part: fence, guard: None, new_keys: Vec::new() };
        changes.push(Planned { change, removed: Vec::new() });
    }
    changes
}
