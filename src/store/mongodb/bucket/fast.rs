//! Writes many buckets: one statement each, many to a command, and the rest on the slow path.
//!
//! In the readable layout, a flush that is probably the first of its bucket is inserted. If the document
//! exists already, the flush is appended to it. In the packed layout, a flush is inserted as the next part of
//! its bucket, if it is later than the parts that this instance knows. Of the buckets that exist and that it
//! does not know, it looks up the last parts, many at once.
//!
//! An insert whose `_id` is taken costs the server nearly as much as an append. So in its first hour, when it
//! knows few of the buckets that exist, an instance looks for their `_id`s first, which costs about a
//! microsecond each.
//!
//! The filter of an append matches only if every reading of the flush is later than all readings of the
//! bucket, the document has room and is of this schema version, and it is the bucket's last part. If the
//! filter does not match, the upsert tries to insert the document. For part 0 that is a duplicate key error,
//! because the `_id` exists. Only the slow path creates other parts: an append to one of them asks for
//! another `_id` on insert, which makes every insert an error (66, immutable field), and never takes effect.
//!
//! Alternatives, by the CPU of mongod 6.0.5 relative to this append (one reading to a document of 15, 500 in
//! a command):
//! - 0.95: a pipeline with the condition in a `$cond`, and only the `_id` in its filter.
//! - 0.9: a remembered `rev` in the filter in place of the conditions beside `lastTs`.
//! - 0.5: only the `_id` in the filter, and no condition. It stores a resend twice.
//! - 0.15: the insert of a document of its own for each flush. But people would find as many documents of an
//!   hour as there were flushes, and each is one more to remove.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use bson::{RawDocument, doc};
use futures_util::stream::{FuturesUnordered, StreamExt};
use mongodb::options::ReadConcern;
use serde_json::{Map, Value};

use super::super::collection::Deployment;
use super::super::decode::{DecodeError, expect_version};
use super::super::encode::Encoder;
use super::super::statements::{self, Verb};
use super::super::stats::encode_value_at;
use super::super::{metadata, names};
use super::capacity::{Capacity, Size};
use super::document::{Body, SCHEMA_VERSION, encode_constant_fields, encode_readings};
use super::packed::{PART_MAX, is_dense};
use super::{Buckets, REMEMBERED};
use crate::config::BucketLayout;
use crate::model::{BucketWrite, Contents, Hour, HourOffset};
use crate::store::{StoreError, Written};

/// How many buckets of one call take the slow path at the same time.
const MAX_CONCURRENT_SLOW_WRITES: usize = 8;

/// The most `_id`s that one query looks for: some 150 kB, if device IDs are long.
const IDS_MAX: usize = 1_000;

pub(super) type Outcome = Result<Written, StoreError>;

/// A write with all that its statement needs.
#[derive(Debug)]
pub(super) struct Job<'a> {
    /// The index of the write among the writes of its call.
    pub(super) at: usize,
    pub(super) write: &'a Arc<BucketWrite>,
    pub(super) metadata: Option<Map<String, Value>>,
    /// The size of the write, at least one reading.
    pub(super) size: Size,
    /// The first and the last instant of the write.
    pub(super) span: (HourOffset, HourOffset),
    /// The part that the fast path writes to.
    pub(super) part: i32,
}

/// The outcomes of one call, filled in as they become known.
struct Outcomes(Vec<Option<Outcome>>);

impl Outcomes {
    fn set(&mut self, job: &Job<'_>, outcome: Outcome) {
        self.0[job.at] = Some(outcome);
    }
}

impl Buckets {
    /// Writes buckets; see [`crate::store::Store::write`].
    pub(super) async fn write_buckets(&self, writes: &[Arc<BucketWrite>], deployment: Deployment) -> Vec<Outcome> {
        let mut outcomes = Outcomes(vec![None; writes.len()]);
        let mut jobs = Vec::with_capacity(writes.len());
        for (at, write) in writes.iter().enumerate() {
            match job_of(at, write) {
                Ok(job) => jobs.push(job),
                Err(known) => outcomes.0[at] = Some(known),
            }
        }
        // When no server is reachable, the jobs without an outcome would only wait for the same error.
        let reached = self.write_jobs(jobs, deployment, &mut outcomes).await;
        let unreached = || Err(reached.clone().expect_err("else each job has an outcome"));
        outcomes.0.into_iter().map(|outcome| outcome.unwrap_or_else(unreached)).collect()
    }

    /// Sets the outcome of each job, unless no server is reachable.
    async fn write_jobs(
        &self,
        jobs: Vec<Job<'_>>,
        deployment: Deployment,
        outcomes: &mut Outcomes,
    ) -> Result<(), StoreError> {
        let (fitting, mut slow): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| self.capacity.fits(job.size));
        slow.extend(match self.layout {
            BucketLayout::Readable => self.append_fast(fitting, outcomes).await?,
            BucketLayout::Packed => self.insert_fast(fitting, outcomes).await?,
        });
        self.write_all_slowly(&slow, deployment, outcomes).await
    }

    /// Appends each job to its bucket. Returns the jobs for the slow path.
    async fn append_fast<'w>(&self, jobs: Vec<Job<'w>>, outcomes: &mut Outcomes) -> Result<Vec<Job<'w>>, StoreError> {
        let (jobs, mut slow): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| !has_huge_values(&job.write.contents));
        let (new, mut appends) = self.split_new(jobs).await?;
        let insert = |statement: &mut Encoder, job: &Job<'_>| insert(statement, job, BucketLayout::Readable);
        appends.extend(self.write_fast(Verb::Insert, new, insert, outcomes).await?);
        for job in &mut appends {
            job.part = self.overflowing.last_part(&job.write.device, job.write.hour);
        }
        let append = |statement: &mut Encoder, job: &Job<'_>| append(statement, job, self.capacity);
        slow.extend(self.write_fast(Verb::Update, appends, append, outcomes).await?);
        Ok(slow)
    }

    /// Inserts each job as the next part of its bucket. Returns the jobs for the slow path.
    async fn insert_fast<'w>(&self, jobs: Vec<Job<'w>>, outcomes: &mut Outcomes) -> Result<Vec<Job<'w>>, StoreError> {
        let (jobs, mut slow): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| is_dense(&job.write.contents));
        let is_unknown = |job: &Job<'_>| self.known.last_part(&job.write.device, job.write.hour).is_none();
        let (mut new, mut existing): (Vec<_>, Vec<_>) = jobs.into_iter().partition(is_unknown);
        if self.opened.elapsed() < REMEMBERED {
            let mut exists = self.learn_last_parts(&new).await?.into_iter();
            existing.extend(new.extract_if(.., |_| exists.next() == Some(true)));
        }
        let insert = |statement: &mut Encoder, job: &Job<'_>| insert(statement, job, BucketLayout::Packed);
        let mut inserts = new;
        slow.extend(self.add_next_parts(existing, &mut inserts));
        let (unknown, taken): (Vec<_>, Vec<_>) =
            self.write_fast(Verb::Insert, inserts, insert, outcomes).await?.into_iter().partition(|job| job.part == 0);
        slow.extend(taken);
        let mut inserts = Vec::new();
        self.learn_last_parts(&unknown).await?;
        slow.extend(self.add_next_parts(unknown, &mut inserts));
        slow.extend(self.write_fast(Verb::Insert, inserts, insert, outcomes).await?);
        Ok(slow)
    }

    /// Splits jobs into those whose bucket is probably new, and those whose bucket exists.
    async fn split_new<'w>(&self, jobs: Vec<Job<'w>>) -> Result<(Vec<Job<'w>>, Vec<Job<'w>>), StoreError> {
        let is_first = |job: &Job<'_>| self.recent.is_first(&job.write.device, job.write.hour);
        let (mut new, mut existing): (Vec<_>, Vec<_>) = jobs.into_iter().partition(is_first);
        if self.opened.elapsed() < REMEMBERED {
            let id = |job: &Job<'_>| names::document_id(&job.write.device, job.write.hour, 0);
            let mut stored = HashSet::new();
            for some in new.chunks(IDS_MAX) {
                let devices: Vec<&str> = some.iter().map(|job| &*job.write.device).collect();
                // Without the time limit of queries: a flush does not depend on `query.timeout`.
                let find = self.find_named(some.iter().map(id).collect(), &devices).projection(doc! { "_id": 1 });
                let visit = |document: &RawDocument| {
                    stored.insert(document.get_str("_id")?.to_owned());
                    Ok(ControlFlow::Continue(()))
                };
                self.commands.each_document(find, visit).await?;
            }
            existing.extend(new.extract_if(.., |job| stored.contains(&id(job))));
        }
        Ok((new, existing))
    }

    /// Adds the jobs that can be inserted as a part after those that are known, and returns the others.
    fn add_next_parts<'w>(&self, jobs: Vec<Job<'w>>, inserts: &mut Vec<Job<'w>>) -> Vec<Job<'w>> {
        let mut others = Vec::new();
        for job in jobs {
            match self.known.next_part(&job.write.device, job.write.hour, job.span.0) {
                Some(part) if part > 0 => inserts.push(Job { part, ..job }),
                _ => others.push(job),
            }
        }
        others
    }

    /// Learns the last parts of the buckets of some jobs. Returns for each job whether its bucket has parts.
    ///
    /// It looks for the first three parts by their `_id`s. If a bucket has the third one, it looks for the
    /// next four, then for eight, and so on. A range of `_id`s for each bucket would cost the server
    /// several times as much.
    ///
    /// It reads what a majority of the members has: a part that could still be rolled back would leave a gap
    /// before the one that is inserted next. Only a packed part counts, because the `lastTs` of a readable
    /// one may rise.
    async fn learn_last_parts(&self, jobs: &[Job<'_>]) -> Result<Vec<bool>, StoreError> {
        let mut last_parts = vec![None; jobs.len()];
        let (mut open, mut parts): (Vec<usize>, _) = ((0..jobs.len()).collect(), 0..3);
        open.sort_unstable_by(|a, b| jobs[*a].write.device.cmp(&jobs[*b].write.device)); // the order of the documents
        while !open.is_empty() && parts.start <= PART_MAX {
            for some in open.chunks(IDS_MAX.div_ceil(parts.len())) {
                self.find_parts(jobs, some, &parts, &mut last_parts).await?;
            }
            open.retain(|at| last_parts[*at].is_some_and(|(part, _)| part + 1 == parts.end));
            parts = parts.end..2 * parts.end + 1;
        }
        for (job, last_part) in jobs.iter().zip(&last_parts) {
            if let Some((part, Some(last))) = *last_part {
                self.known.note(&job.write.device, job.write.hour, part, last);
            }
        }
        Ok(last_parts.iter().map(Option::is_some).collect())
    }

    /// Finds the parts with the numbers `parts` of the buckets of some jobs.
    ///
    /// In `last_parts` it sets the last part of each job and, if that part is packed, its last instant.
    async fn find_parts(
        &self,
        jobs: &[Job<'_>],
        some: &[usize],
        parts: &Range<i32>,
        last_parts: &mut [Option<(i32, Option<HourOffset>)>],
    ) -> Result<(), StoreError> {
        let asked: Vec<(usize, i32)> = some.iter().flat_map(|at| parts.clone().map(|part| (*at, part))).collect();
        let id = |&(at, part): &(usize, i32)| names::document_id(&jobs[at].write.device, jobs[at].write.hour, part);
        let ids: Vec<String> = asked.iter().map(id).collect();
        let places: HashMap<&str, (usize, i32)> = ids.iter().map(String::as_str).zip(asked).collect();
        let devices: Vec<&str> = some.iter().map(|at| &*jobs[*at].write.device).collect();
        // A path such as `control.count` would make the projection several times slower.
        let find = self.find_named(ids.clone(), &devices);
        let find = find.projection(doc! { "schemaVersion": 1, "lastTs": 1, "control": 1 });
        let visit = |document: &RawDocument| {
            expect_version(document, SCHEMA_VERSION)?;
            let Some(&(at, part)) = places.get(document.get_str("_id")?) else {
                return Err(DecodeError("its _id was not asked for".into()));
            };
            let is_packed = document.get("control")?.is_some();
            let last_ms = document.get_datetime("lastTs")?.timestamp_millis();
            let last = (is_packed && Hour::of(last_ms) == jobs[at].write.hour).then_some(Hour::offset_of(last_ms));
            if last_parts[at].is_none_or(|(known, _)| part > known) {
                last_parts[at] = Some((part, last));
            }
            Ok(())
        };
        self.commands.all_documents(find.read_concern(ReadConcern::majority()), visit).await
    }

    /// Writes each job with one statement. Returns the jobs whose statement did nothing.
    async fn write_fast<'w>(
        &self,
        verb: Verb<'_>,
        jobs: Vec<Job<'w>>,
        statement: impl Fn(&mut Encoder, &Job<'w>),
        outcomes: &mut Outcomes,
    ) -> Result<Vec<Job<'w>>, StoreError> {
        let mut unmet = Vec::new();
        let settle = |job: &Job<'_>, outcome| match outcome {
            statements::Outcome::Done => {
                if self.layout == BucketLayout::Packed {
                    self.known.note(&job.write.device, job.write.hour, job.part, job.span.1);
                }
                let stored = job.write.count_stored(|_| true);
                outcomes.set(job, Ok(Written { stored, duplicate: job.write.accepted - stored }));
            }
            statements::Outcome::Unmet => unmet.push(job.at),
            statements::Outcome::Failed(error) => outcomes.set(job, Err(error)),
        };
        self.commands.write_all(verb, &self.collection, &jobs, statement, settle).await?;
        unmet.sort_unstable();
        Ok(jobs.into_iter().filter(|job| unmet.binary_search(&job.at).is_ok()).collect())
    }

    async fn write_all_slowly(
        &self,
        jobs: &[Job<'_>],
        deployment: Deployment,
        outcomes: &mut Outcomes,
    ) -> Result<(), StoreError> {
        let mut waiting = jobs.iter();
        let mut running = FuturesUnordered::new();
        loop {
            let starting = waiting.by_ref().take(MAX_CONCURRENT_SLOW_WRITES - running.len());
            running.extend(starting.map(|job| async move { (job, self.write_slowly(job, deployment).await) }));
            let Some((job, outcome)) = running.next().await else { return Ok(()) };
            match outcome {
                Err(error) if error.cause.is_unreachable() => return Err(error),
                known => outcomes.set(job, known),
            }
        }
    }
}

/// Sums of values up to this one stay within the range of a double, however many values there are.
const HUGE: f64 = 1e290;

/// Whether an `$inc` might make a sum infinite. The sum would then stay infinite.
fn has_huge_values(contents: &Contents) -> bool {
    contents.samples().iter().any(|sample| sample.value.abs() > HUGE)
}

/// Makes the job of a write, unless its outcome is known without the server.
pub(super) fn job_of(at: usize, write: &Arc<BucketWrite>) -> Result<Job<'_>, Outcome> {
    let Some(span) = write.contents.span() else {
        return Err(Ok(Written { stored: 0, duplicate: write.accepted }));
    };
    let metadata = write.metadata.as_deref().map(metadata::parse).transpose().map_err(Err)?;
    Ok(Job { at, write, metadata, size: Size::of(&write.contents), span, part: 0 })
}

/// Writes the statement that inserts a job as a part of its bucket.
pub(super) fn insert(statement: &mut Encoder, job: &Job<'_>, layout: BucketLayout) {
    let BucketWrite { device, hour, contents, .. } = &**job.write;
    let (last, metadata, size) = (job.span.1, job.metadata.as_ref(), job.size);
    let body = Body { layout, rev: 1, full: false, deleted_from: false, last, metadata, size, contents };
    insert_document(statement, device, *hour, job.part, &body);
}

/// Writes the statement that inserts a part of a bucket.
pub(super) fn insert_document(statement: &mut Encoder, device: &str, hour: Hour, part: i32, body: &Body<'_>) {
    statement.string("_id", &names::document_id(device, hour, part));
    statement.string("deviceId", device);
    encode_constant_fields(statement, device, hour, part);
    body.encode(statement, hour);
}

/// Writes the statement that appends a job to its part.
pub(super) fn append(statement: &mut Encoder, job: &Job<'_>, capacity: Capacity) {
    let (BucketWrite { device, hour, .. }, part) = (&**job.write, job.part);
    let before = capacity.largest_before(job.size);
    statement.document("q", |filter| {
        filter.string("_id", &names::document_id(device, *hour, part));
        filter.string("deviceId", device);
        filter.int32("schemaVersion", SCHEMA_VERSION);
        filter.document("lastTs", |is| is.datetime("$lt", hour.instant_ms(job.span.0)));
        filter.document("readingCount", |is| is.int64("$lte", before.readings as i64));
        // A packed document has no bytes.
        filter.document("bytes", |is| is.int64("$lte", before.bytes as i64));
        filter.document("full", |is| is.boolean("$exists", false));
    });
    statement.document("u", |update| operators(update, job, part));
    statement.boolean("upsert", true);
}

fn operators(update: &mut Encoder, job: &Job<'_>, part: i32) {
    let BucketWrite { device, hour, contents, .. } = &**job.write;
    let (first_ms, last_ms) = (hour.instant_ms(job.span.0), hour.instant_ms(job.span.1));
    let stats = contents.stats(*hour);
    let stats: Vec<(Cow<'_, str>, _)> = stats.iter().map(|(metric, fold)| (names::stored(metric), fold)).collect();

    update.document("$push", |push| {
        push.document("readings", |readings| encode_readings(readings, "$each", *hour, contents));
    });
    update.document("$inc", |inc| {
        inc.int64("rev", 1);
        inc.int64("readingCount", job.size.readings as i64);
        inc.int64("bytes", job.size.bytes as i64);
        for (metric, fold) in &stats {
            inc.int64(["stats.", metric, ".count"], fold.count as i64);
            inc.double(["stats.", metric, ".sum"], fold.sum);
        }
    });
    update.document("$min", |min| {
        for (metric, fold) in &stats {
            min.double(["stats.", metric, ".min"], fold.min);
            encode_value_at(min, ["stats.", metric, ".first"], fold.first);
        }
    });
    update.document("$max", |max| {
        for (metric, fold) in &stats {
            max.double(["stats.", metric, ".max"], fold.max);
            encode_value_at(max, ["stats.", metric, ".last"], fold.last);
        }
    });
    update.document("$set", |set| {
        set.datetime("lastTs", last_ms);
        if let Some(object) = &job.metadata {
            metadata::encode(set, "metadata", object);
        }
    });
    update.document("$setOnInsert", |set| match part {
        0 => {
            encode_constant_fields(set, device, *hour, 0);
            set.datetime("firstTs", first_ms); // an append is later than all that is stored
        }
        _ => set.string("_id", ""),
    });
}
