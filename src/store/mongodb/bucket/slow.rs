//! Writes one bucket that the fast path does not suit: its readings are late, resent or racing, or the
//! document is full.
//!
//! The slow path reads the parts of the bucket that matter, [`plan`]s the merge, and writes back each part
//! that changed, on the condition that its `rev` is still the one that was read. If another writer was
//! quicker, it starts over.
//!
//! Parts are read with read concern "majority". Their contents are therefore durable, and a write that
//! changes nothing is done. A standalone server applies "majority" to writes that are not in its journal yet;
//! there the last part is written back even if nothing changed, because a journaled write makes all writes
//! before it durable.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bson::doc;
use mongodb::options::ReadConcern;
use tokio::sync::SemaphorePermit;

use super::super::collection::Deployment;
use super::super::command::id_of;
use super::super::decode::DecodeError;
use super::super::encode::Encoder;
use super::super::names;
use super::super::statements::Verb;
use super::Buckets;
use super::document::Part;
use super::fast::{Job, insert_document};
use super::packed::PART_MAX;
use super::plan::{Change, is_consistent, plan};
use super::read::of_device;
use crate::codec::VALUES_MAX;
use crate::common::backoff::Backoff;
use crate::common::joined::joined;
use crate::config::BucketLayout;
use crate::model::{BucketWrite, Hour};
use crate::store::{Cause, StoreError, Written};

/// How often a bucket is tried before its write fails as contended.
const ATTEMPTS: u32 = 10;

/// The shortest wait between two attempts. The write of another writer can be read once a majority has it,
/// which takes some milliseconds.
const FIRST_WAIT: Duration = Duration::from_millis(4);

/// The longest wait between two attempts to change a bucket.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// The most values that are merged on the thread of the caller, in some hundred microseconds. A merge of more
/// runs on a blocking thread, so that other requests go on meanwhile.
const VALUES_PER_TURN: usize = 4_096;

/// The most values of an hour that is read at the same time as other hours.
///
/// Larger hours are read one at a time.
const VALUES_AT_ONCE: usize = if cfg!(test) { 1 << 13 } else { 1 << 20 };

/// The most values of an hour that is merged. Tests use a smaller limit.
const HOUR_VALUES_MAX: usize = if cfg!(test) { 1 << 19 } else { VALUES_MAX };

impl Buckets {
    pub(super) async fn write_slowly(&self, job: &Job<'_>, deployment: Deployment) -> Result<Written, StoreError> {
        let mut stored_keys = HashSet::new();
        let mut attempts = Attempts::new();
        loop {
            let (parts, from, _permit) = self.read_relevant_parts(job).await?;
            let is_whole = attempts.is_whole(&parts, from);
            if is_whole && is_consistent(&parts) && self.change(job, parts, deployment, &mut stored_keys).await? {
                let stored = job.write.count_stored(|sample| stored_keys.contains(&sample.key()));
                return Ok(Written { stored, duplicate: job.write.accepted - stored });
            }
            attempts.wait().await?;
        }
    }

    /// The parts that a job may change, the number of the first of them, and the permit for a large hour.
    ///
    /// These are all parts of the bucket. Or, if all readings of the job are later than the `last` of the
    /// last part that this instance knows, only that part and the parts after it.
    async fn read_relevant_parts(
        &self,
        job: &Job<'_>,
    ) -> Result<(Vec<Part>, i32, Option<SemaphorePermit<'_>>), StoreError> {
        let BucketWrite { device, hour, .. } = &**job.write;
        let known = match self.layout {
            BucketLayout::Readable => 0,
            BucketLayout::Packed => self.known.last_part(device, *hour).unwrap_or(0),
        };
        let known = known.max(self.overflowing.last_part(device, *hour));
        if known > 0
            && let Some(parts) = self.read_parts(device, *hour, known, VALUES_AT_ONCE).await?
            && parts.first().is_some_and(|part| part.number == known && part.last < job.span.0)
        {
            return Ok((parts, known, None));
        }
        let (parts, permit) = self.read_all_parts(device, *hour).await?;
        Ok((parts, 0, permit))
    }

    /// All parts of a bucket, and the permit for a large hour.
    pub(super) async fn read_all_parts(
        &self,
        device: &str,
        hour: Hour,
    ) -> Result<(Vec<Part>, Option<SemaphorePermit<'_>>), StoreError> {
        if let Some(parts) = self.read_parts(device, hour, 0, VALUES_AT_ONCE).await? {
            return Ok((parts, None));
        }
        let permit = self.large_hours.acquire().await.expect("the semaphore is never closed");
        match self.read_parts(device, hour, 0, HOUR_VALUES_MAX).await? {
            Some(parts) => Ok((parts, Some(permit))),
            None => Err(DecodeError(format!("its hour has more than {HOUR_VALUES_MAX} values")).into()),
        }
    }

    /// The parts of a bucket from number `from` on, ascending; `None` if they have more than `max_values`.
    async fn read_parts(
        &self,
        device: &str,
        hour: Hour,
        from: i32,
        max_values: usize,
    ) -> Result<Option<Vec<Part>>, StoreError> {
        let mut filter = of_device(device, &(hour..Hour(hour.0 + 1)));
        filter.insert("part", doc! { "$gte": from });
        let find = self.find(filter).read_concern(ReadConcern::majority());
        let mut parts: Result<Vec<Part>, DecodeError> = Ok(Vec::new());
        let mut values = 0;
        self.commands
            .each_document(find, |document| {
                if !document.get_str("_id").is_ok_and(|id| names::device_of(id) == Some(device)) {
                    return Err(DecodeError("its _id is not one that tidegauge writes".into()));
                }
                // A part of this bucket must not be skipped: its readings would not count as stored, and be
                // written again.
                match (Part::decode(document, hour), &mut parts) {
                    (Ok(part), Ok(parts)) => {
                        values += part.contents.samples().len();
                        parts.push(part);
                        if values > max_values {
                            return Ok(ControlFlow::Break(()));
                        }
                    }
                    (Err(error), _) => parts = Err(DecodeError(format!("{}: {}", id_of(document), error.0))),
                    (Ok(_), Err(_)) => {}
                }
                Ok(ControlFlow::Continue(()))
            })
            .await?;
        let mut parts = parts?;
        if values > max_values {
            return Ok(None);
        }
        parts.sort_by_key(|part| part.number);
        Ok(Some(parts))
    }

    /// Makes the changes of a job one after the other, and returns whether all were made. Adds the keys of
    /// stored values to `stored_keys`, because the next attempt finds those values stored.
    async fn change(
        &self,
        job: &Job<'_>,
        parts: Vec<Part>,
        deployment: Deployment,
        stored_keys: &mut HashSet<(u32, u32)>,
    ) -> Result<bool, StoreError> {
        self.slow_writes.increment(1);
        let values = parts.iter().map(|part| part.contents.samples().len()).sum::<usize>();
        let (capacity, layout) = (self.capacity, self.layout);
        let (write, metadata) = (Arc::clone(job.write), job.metadata.clone());
        let merge = move || {
            let mut changes = plan(&parts, &write, metadata.as_ref(), capacity, layout);
            let after = parts.iter().chain(changes.iter().map(|change| &change.part));
            let last = after.max_by_key(|part| part.number).map(|part| (part.number, part.last));
            if changes.is_empty() && deployment == Deployment::Standalone {
                changes.extend(parts.last().map(unchanged));
            }
            (changes, last)
        };
        let is_long = values + job.write.contents.samples().len() > VALUES_PER_TURN;
        let (changes, last) = if is_long {
            let merged = joined(tokio::task::spawn_blocking(merge)).await;
            merged.ok_or_else(|| StoreError::new(Cause::Stopping, "the runtime is stopping"))?
        } else {
            merge()
        };
        for change in changes {
            if !self.make(&job.write.device, job.write.hour, &change).await? {
                return Ok(false);
            }
            stored_keys.extend(change.new_keys);
        }
        let (BucketWrite { device, hour, .. }, Some((number, last))) = (&**job.write, last) else { return Ok(true) };
        match self.layout {
            BucketLayout::Readable => self.overflowing.note(device, *hour, number),
            BucketLayout::Packed => {
                self.known.note(device, *hour, number, last);
                if number >= PART_MAX {
                    self.overflowing.note(device, *hour, number);
                }
            }
        }
        Ok(true)
    }

    /// Makes one change, and returns whether it was still possible.
    pub(super) async fn make(&self, device: &str, hour: Hour, change: &Change) -> Result<bool, StoreError> {
        let Change { part, guard, .. } = change;
        let verb = if guard.is_some() { Verb::UpdateMatching } else { Verb::Insert };
        let encode = |statement: &mut Encoder| match guard {
            None => insert_document(statement, device, hour, part.number, &part.body()),
            Some(rev) => {
                statement.document("q", |filter| {
                    filter.string("_id", &names::document_id(device, hour, part.number));
                    filter.string("deviceId", device);
                    filter.int64("rev", *rev);
                });
                statement.document("u", |update| part.body().encode_update(update, hour));
            }
        };
        Ok(self.commands.write_one(verb, &self.collection, encode).await? == 1)
    }
}

/// The attempts to change a bucket.
#[derive(Debug)]
pub(super) struct Attempts {
    made: u32,
    backoff: Backoff,
    /// The numbers of the parts that the last attempt found.
    seen: Vec<i32>,
}

impl Attempts {
    pub(super) fn new() -> Self {
        Self { made: 0, backoff: Backoff::new(FIRST_WAIT..=MAX_WAIT), seen: Vec::new() }
    }

    /// Whether all parts from number `from` on were read. A part that two reads in succession lack is not on
    /// its way: it has expired, or a person has removed it.
    pub(super) fn is_whole(&mut self, parts: &[Part], from: i32) -> bool {
        let numbers: Vec<i32> = parts.iter().map(|part| part.number).collect();
        let is_whole = numbers.iter().copied().eq((from..).take(numbers.len())) || numbers == self.seen;
        self.seen = numbers;
        is_whole
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    /// After too many attempts.
    pub(super) async fn wait(&mut self) -> Result<(), StoreError> {
        self.made += 1;
        if self.made >= ATTEMPTS {
            let detail = format!("other writers of the bucket were quicker {ATTEMPTS} times");
            return Err(StoreError::new(Cause::Contention, detail));
        }
        tokio::time::sleep(self.backoff.next_wait()).await;
        Ok(())
    }
}

/// A change that writes a part back as it is.
pub(super) fn unchanged(part: &Part) -> Change {
    Change { part: Part { rev: part.rev + 1, ..part.clone() }, guard: Some(part.rev), new_keys: Vec::new() }
}
