//! Writes one bucket that the fast path does not suit: its readings are late, resent or racing, or the
//! document is full.
//!
//! Reads the parts of the bucket that matter, lets [`plan`] merge in what is new, and writes back each part
//! that changed, on the condition that its `rev` is still the one that was read. When another writer was
//! quicker, everything starts again.
//!
//! Parts are read with read concern "majority". What they hold is therefore durable, and a write that changes
//! nothing is done. A standalone server grants "majority" to what is not in its journal yet; there the last
//! part is written back even if nothing changed, because a journaled write makes all writes before it
//! durable.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::time::Duration;

use bson::{DateTime, RawDocumentBuf, doc};
use mongodb::options::ReadConcern;
use rand::RngExt;

use super::super::collection::Deployment;
use super::super::decode::DecodeError;
use super::super::encode::Encoder;
use super::super::names;
use super::BucketStore;
use super::document::{Part, encode_constant_fields};
use super::plan::{Change, is_consistent, plan};
use super::statement::Job;
use crate::model::{BucketWrite, Hour};
use crate::store::{Cause, StoreError, WriteError, Written};

/// How often a bucket is tried before the write is handed back as contended.
const ATTEMPTS: u32 = 10;

/// The pause before the second attempt, doubled before each further one up to [`PAUSE_MAX`]; a random half is
/// taken off. What another writer did can be read once a majority has it, which takes some milliseconds.
const PAUSE: Duration = Duration::from_millis(4);

const PAUSE_MAX: Duration = Duration::from_millis(500);

impl BucketStore {
    pub(super) async fn write_slowly(&self, job: &Job<'_>) -> Result<Written, WriteError> {
        let mut stored_keys = HashSet::new();
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(pause_before(attempt)).await;
            }
            let (parts, from) = self.read_what_matters(job).await?;
            if is_consistent(&parts, from) && self.change(job, &parts, &mut stored_keys).await? {
                let stored = job.write.count_stored(|sample| stored_keys.contains(&sample.key()));
                return Ok(Written { stored, duplicate: job.write.accepted - stored });
            }
        }
        let detail = format!("other writers of the bucket were quicker {ATTEMPTS} times");
        Err(WriteError::new(Cause::Contention, detail))
    }

    /// The parts that a job may have to do with: all of them, or only the last one that is known and those
    /// behind it, if the job comes after everything that it speaks for. Returns also from which number on
    /// that is.
    async fn read_what_matters(&self, job: &Job<'_>) -> Result<(Vec<Part>, i32), StoreError> {
        let BucketWrite { device, hour, .. } = job.write;
        let known = self.overflowing.last_part(device, *hour);
        if known > 0 {
            let parts = self.read_parts(device, *hour, known).await?;
            if parts.first().is_some_and(|part| part.number == known && part.last < job.span.0) {
                return Ok((parts, known));
            }
        }
        Ok((self.read_parts(device, *hour, 0).await?, 0))
    }

    /// The parts of a bucket from this one on, ascending.
    async fn read_parts(&self, device: &str, hour: Hour, from: i32) -> Result<Vec<Part>, StoreError> {
        let bucket = DateTime::from_millis(hour.start_ms());
        let find = self
            .documents
            .find(doc! { "deviceId": device, "bucket": bucket, "part": { "$gte": from } })
            .read_concern(ReadConcern::majority());
        let ours = names::document_id(device, hour, 0);
        let mut parts: Result<Vec<Part>, DecodeError> = Ok(Vec::new());
        self.commands
            .each_document(find, |document| {
                if !document.get_str("_id").is_ok_and(|id| id.starts_with(&ours)) {
                    return Err(DecodeError("its _id is not one of tidegauge".into()));
                }
                // A part of ours must not be skipped: what it holds would be written again, to no end.
                match (Part::decode(document, hour), &mut parts) {
                    (Ok(part), Ok(parts)) => parts.push(part),
                    (Err(error), _) => parts = Err(error),
                    (Ok(_), Err(_)) => {}
                }
                Ok(ControlFlow::Continue(()))
            })
            .await?;
        let mut parts = parts?;
        parts.sort_by_key(|part| part.number);
        Ok(parts)
    }

    /// Makes the changes that the job asks for, one after the other, and says whether all were made. Those
    /// that were are noted in `stored_keys`, for the next attempt finds them made.
    async fn change(
        &self,
        job: &Job<'_>,
        parts: &[Part],
        stored_keys: &mut HashSet<(u32, u32)>,
    ) -> Result<bool, WriteError> {
        self.slow_writes.increment(1);
        let mut changes = plan(parts, job.write, job.metadata.as_ref(), self.capacity);
        let last = changes.iter().map(|change| change.part.number).chain(parts.iter().map(|part| part.number)).max();
        if changes.is_empty() && self.deployment().await? == Deployment::Standalone {
            changes.extend(parts.last().map(unchanged));
        }
        for change in changes {
            if !self.make(&job.write.device, job.write.hour, &change).await? {
                return Ok(false);
            }
            stored_keys.extend(change.new_keys);
        }
        self.overflowing.note(&job.write.device, job.write.hour, last.unwrap_or(0));
        Ok(true)
    }

    /// Makes one change, and says whether it was still possible.
    async fn make(&self, device: &str, hour: Hour, change: &Change) -> Result<bool, WriteError> {
        let command = match change.guard {
            Some(rev) => self.rewrite_command(device, hour, change, rev),
            None => self.insert_command(device, hour, change),
        };
        let reply = self.commands.send(command).await?;
        match reply.errors.first() {
            None => Ok(reply.n == 1),
            Some(refusal) if refusal.is_duplicate_key() => Ok(false),
            Some(refusal) => Err(refusal.to_error()),
        }
    }

    fn rewrite_command(&self, device: &str, hour: Hour, change: &Change, rev: i64) -> RawDocumentBuf {
        Encoder::build(|command| {
            command.string("update", &self.collection);
            self.commands.write_concern(command);
            command.array("updates", |statements| {
                statements.document(0, |statement| {
                    statement.document("q", |filter| {
                        filter.string("_id", &names::document_id(device, hour, change.part.number));
                        filter.string("deviceId", device);
                        filter.int64("rev", rev);
                    });
                    statement.document("u", |update| update.document("$set", |set| change.part.encode(set, hour)));
                });
            });
        })
    }

    fn insert_command(&self, device: &str, hour: Hour, change: &Change) -> RawDocumentBuf {
        Encoder::build(|command| {
            command.string("insert", &self.collection);
            self.commands.write_concern(command);
            command.array("documents", |documents| {
                documents.document(0, |document| {
                    document.string("_id", &names::document_id(device, hour, change.part.number));
                    document.string("deviceId", device);
                    encode_constant_fields(document, device, hour, change.part.number);
                    change.part.encode(document, hour);
                });
            });
        })
    }
}

/// Writes a part back as it is.
fn unchanged(part: &Part) -> Change {
    Change { part: Part { rev: part.rev + 1, ..part.clone() }, guard: Some(part.rev), new_keys: Vec::new() }
}

fn pause_before(attempt: u32) -> Duration {
    let pause = PAUSE.saturating_mul(1 << (attempt - 1).min(16)).min(PAUSE_MAX);
    pause.mul_f64(rand::rng().random_range(0.5..1.0))
}
