//! Writes many buckets: one statement each, many to a command, and the slow path for those it does not suit.

use futures_util::stream::{self, StreamExt};

use super::MongodbStore;
use super::command::Reply;
use super::errors::is_out_of_reach;
use super::metadata;
use super::statement::{Job, append_command};
use crate::model::BucketWrite;
use crate::store::{WriteError, Written};

/// How many buckets of one call are on the slow path at the same time.
const SLOW_AT_ONCE: usize = 8;

pub(super) type Outcome = Result<Written, WriteError>;

/// The outcomes of one call, filled in as they become known.
struct Outcomes(Vec<Option<Outcome>>);

impl Outcomes {
    fn set(&mut self, job: &Job<'_>, outcome: Outcome) {
        self.0[job.at] = Some(outcome);
    }
}

impl MongodbStore {
    /// Writes buckets; see [`crate::store::Store::write`].
    pub(super) async fn write_buckets(&self, writes: &[BucketWrite]) -> Vec<Outcome> {
        let mut outcomes = Outcomes(vec![None; writes.len()]);
        let mut jobs = Vec::with_capacity(writes.len());
        for (at, write) in writes.iter().enumerate() {
            match job_of(at, write) {
                Ok(job) => jobs.push(job),
                Err(known) => outcomes.0[at] = Some(known),
            }
        }
        let (appends, mut slow): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| job.readings <= self.capacity);
        match self.append_all(&appends, &mut outcomes).await {
            Ok(unsuitable) => {
                slow.extend(appends.into_iter().filter(|job| unsuitable.binary_search(&job.at).is_ok()));
                self.write_all_slowly(&slow, &mut outcomes).await;
            }
            // The server is out of reach: what has no outcome yet would only wait for the same error.
            Err(error) => {
                for outcome in outcomes.0.iter_mut().filter(|outcome| outcome.is_none()) {
                    *outcome = Some(Err(error.clone()));
                }
            }
        }
        outcomes.0.into_iter().map(|outcome| outcome.expect("each write was prepared, and each job was sent")).collect()
    }

    /// The fast path. Returns which writes (their places in the call, ascending) it does not suit.
    async fn append_all(&self, jobs: &[Job<'_>], outcomes: &mut Outcomes) -> Result<Vec<usize>, WriteError> {
        let mut unsuitable = Vec::new();
        let mut waiting = vec![jobs];
        while let Some(jobs) = waiting.pop().filter(|jobs| !jobs.is_empty()) {
            let concern = |command: &mut _| self.commands.write_concern(command);
            let (command, taken) = append_command(&self.collection, concern, jobs, self.capacity);
            let (sent, rest) = jobs.split_at(taken);
            if !rest.is_empty() {
                waiting.push(rest);
            }
            match self.commands.send(command).await {
                Ok(reply) => settle(&reply, sent, outcomes, &mut unsuitable),
                Err(WriteError::Permanent { .. }) if sent.len() > 1 => {
                    let (first, second) = sent.split_at(sent.len() / 2); // to find the one that is to blame
                    waiting.extend([second, first]);
                }
                Err(error) if is_out_of_reach(&error) => return Err(error),
                Err(error) => {
                    for job in sent {
                        outcomes.set(job, Err(error.clone()));
                    }
                }
            }
        }
        unsuitable.sort_unstable();
        Ok(unsuitable)
    }

    async fn write_all_slowly(&self, jobs: &[Job<'_>], outcomes: &mut Outcomes) {
        let writing: Vec<_> = jobs.iter().map(|job| async move { (job, self.write_slowly(job).await) }).collect();
        let mut done = stream::iter(writing).buffer_unordered(SLOW_AT_ONCE);
        while let Some((job, outcome)) = done.next().await {
            outcomes.set(job, outcome);
        }
    }
}

/// Makes the job of a write, unless its outcome is known without asking the server.
pub(super) fn job_of(at: usize, write: &BucketWrite) -> Result<Job<'_>, Outcome> {
    let Some(span) = write.contents.span() else {
        return Err(Ok(Written { stored: 0, duplicate: write.accepted }));
    };
    let metadata = write.metadata.as_deref().map(metadata::parse).transpose().map_err(Err)?;
    Ok(Job { at, write, metadata, readings: write.contents.reading_count(), span })
}

/// Turns the reply to a command into the outcomes of its statements. Every statement that was not refused has matched or
/// inserted its document, for they are upserts.
fn settle(reply: &Reply, sent: &[Job<'_>], outcomes: &mut Outcomes, unsuitable: &mut Vec<usize>) {
    for job in sent {
        let stored = job.write.count_stored(|_| true);
        outcomes.set(job, Ok(Written { stored, duplicate: job.write.accepted - stored }));
    }
    for refusal in &reply.refusals {
        let job = &sent[refusal.statement];
        if refusal.is_duplicate_key() {
            unsuitable.push(job.at);
        } else {
            outcomes.set(job, Err(refusal.to_error()));
        }
    }
}
