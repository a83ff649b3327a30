//! Writes many buckets: one statement each, many to a command, and the rest on the slow path.
//!
//! In the readable layout, a flush that is probably the first of its bucket is inserted. If the document
//! exists already, the flush is appended to it. In the packed layout, a flush is inserted as the next part of
//! its bucket, if it is later than the parts that this instance knows. Of the buckets that turn out to exist
//! and that it does not know, as after a start, it reads which parts they have, many at once.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use bson::{RawDocument, doc};
use futures_util::stream::{FuturesUnordered, StreamExt};
use mongodb::options::ReadConcern;

use super::super::collection::Deployment;
use super::super::decode::expect_version;
use super::super::encode::Encoder;
use super::super::statements::{self, Verb};
use super::super::{metadata, names};
use super::Buckets;
use super::capacity::Size;
use super::document::SCHEMA_VERSION;
use super::missing_hours::RANGES_MAX;
use super::packed::is_dense;
use super::read::{bucket_hour, of_device};
use super::statement::{Job, append, insert};
use crate::config::BucketLayout;
use crate::model::{BucketWrite, Contents, Hour, HourOffset};
use crate::store::{StoreError, Written};

/// How many buckets of one call take the slow path at the same time.
const MAX_CONCURRENT_SLOW_WRITES: usize = 8;

/// The parts of one batch of those that are looked up.
const PARTS_BATCH: u32 = 10_000;

pub(super) type Outcome = Result<Written, StoreError>;

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
        let is_first = |job: &Job<'_>| self.recent.is_first(&job.write.device, job.write.hour);
        let (inserts, mut appends): (Vec<_>, Vec<_>) = jobs.into_iter().partition(is_first);
        let insert = |statement: &mut Encoder, job: &Job<'_>| insert(statement, job, BucketLayout::Readable);
        appends.extend(self.write_fast(Verb::Insert, inserts, insert, outcomes).await?);
        for job in &mut appends {
            job.part = self.overflowing.last_part(&job.write.device, job.write.hour);
        }
        let append = |statement: &mut Encoder, job: &Job<'_>| append(statement, job, self.capacity);
        slow.extend(self.write_fast(Verb::Update, appends, append, outcomes).await?);
        Ok(slow)
    }

    /// Inserts each job as the next part of its bucket. Returns the jobs for the slow path.
    async fn insert_fast<'w>(&self, jobs: Vec<Job<'w>>, outcomes: &mut Outcomes) -> Result<Vec<Job<'w>>, StoreError> {
        let (mut inserts, mut slow) = (Vec::with_capacity(jobs.len()), Vec::new());
        for mut job in jobs {
            match self.next_part(&job).filter(|_| is_dense(&job.write.contents)) {
                Some(part) => {
                    job.part = part;
                    inserts.push(job);
                }
                None => slow.push(job),
            }
        }
        let insert = |statement: &mut Encoder, job: &Job<'_>| insert(statement, job, BucketLayout::Packed);
        let unmet = self.write_fast(Verb::Insert, inserts, insert, outcomes).await?;
        let (mut unknown, known): (Vec<_>, Vec<_>) = unmet.into_iter().partition(|job| job.part == 0);
        slow.extend(known);
        self.learn_last_parts(&unknown).await?;
        slow.extend(unknown.extract_if(.., |job| match self.next_part(job) {
            Some(part) => {
                job.part = part;
                part == 0
            }
            None => true,
        }));
        slow.extend(self.write_fast(Verb::Insert, unknown, insert, outcomes).await?);
        Ok(slow)
    }

    /// The part as which a job can be inserted, by the parts that this instance knows.
    fn next_part(&self, job: &Job<'_>) -> Option<i32> {
        self.known.next_part(&job.write.device, job.write.hour, job.span.0)
    }

    /// Learns the last parts of the buckets of some jobs.
    ///
    /// It reads what a majority of the members has: a part that could still be rolled back would leave a gap
    /// before the one that is inserted next. Only a packed part counts, because the `lastTs` of a readable
    /// one may rise.
    async fn learn_last_parts(&self, jobs: &[Job<'_>]) -> Result<(), StoreError> {
        let fields = doc! { "bucket": 1, "part": 1, "schemaVersion": 1, "lastTs": 1, "control.count": 1 };
        for some in jobs.chunks(RANGES_MAX) {
            let of = |job: &Job<'_>| of_device(&job.write.device, &(job.write.hour..Hour(job.write.hour.0 + 1)));
            let find = self.find(doc! { "$or": some.iter().map(of).collect::<Vec<_>>() });
            let find = find.read_concern(ReadConcern::majority()).projection(fields.clone()).batch_size(PARTS_BATCH);
            let mut last_parts: HashMap<(Arc<str>, Hour), (i32, Option<HourOffset>)> = HashMap::new();
            let visit = |document: &RawDocument| {
                expect_version(document, SCHEMA_VERSION)?;
                let (hour, part) = (bucket_hour(document)?, document.get_i32("part")?);
                let device = names::device_of(document.get_str("_id")?).unwrap_or_default();
                let is_packed = document.get("control")?.is_some();
                let last_ms = document.get_datetime("lastTs")?.timestamp_millis();
                let last = (is_packed && Hour::of(last_ms) == hour).then_some(Hour::offset_of(last_ms));
                let of_bucket = last_parts.entry((device.into(), hour)).or_insert((part, last));
                if part > of_bucket.0 {
                    *of_bucket = (part, last);
                }
                Ok(ControlFlow::Continue(()))
            };
            self.commands.each_document(find, visit).await?;
            for ((device, hour), (part, last)) in last_parts {
                if let Some(last) = last {
                    self.known.note(&device, hour, part, last);
                }
            }
        }
        Ok(())
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

/// The largest value whose sum is within the range of a double, however many values there are.
const HUGE: f64 = 1e290;

/// Whether an `$inc` might make a sum infinite, which it would stay.
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
