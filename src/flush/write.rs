//! One write: tried until the store has taken, or refused for good, each of its buckets.

use std::sync::Arc;

use tokio::time::Instant;

use super::Pipeline;
use super::late;
use super::narrow::{Refused, narrow};
use super::scheduler::BUCKETS_PER_TURN;
use super::store_state::{note_away, note_back};
use crate::common::backoff::Backoff;
use crate::model::BucketWrite;
use crate::store::{WriteError, Written};

/// Returns when each bucket is stored or dead-lettered.
pub(super) async fn write(pipeline: &Arc<Pipeline>, mut writes: Vec<Arc<BucketWrite>>) {
    let mut backoff = Backoff::new(pipeline.options.retry.clone());
    loop {
        let outcomes = attempt(pipeline, &writes).await;
        let Settled { done, refused, again, is_there } = settle(pipeline, writes, outcomes);
        let is_away = !is_there;
        if !is_away {
            note_back(pipeline);
            finish(pipeline, done).await;
            finish(pipeline, narrow(pipeline, refused).await).await;
            backoff.reset();
        }
        let Some((_, error)) = again.first() else { return };
        if is_away {
            note_away(pipeline, error);
            if give_up(pipeline, again.len()) {
                return;
            }
        }
        pipeline.metrics.flush_retries_total.with(error.cause.as_label()).increment(1);
        tokio::select! {
            () = tokio::time::sleep(backoff.next_wait()) => {}
            () = pipeline.drain_begins.cancelled() => {}
        }
        writes = again.into_iter().map(|(write, _)| write).collect();
    }
}

/// While draining, leaves the buckets of a write that the store did not take to the next start. False when
/// not draining.
fn give_up(pipeline: &Pipeline, buckets: usize) -> bool {
    let mut state = pipeline.lock();
    if state.draining {
        state.given_up += buckets;
        state.failed_in_a_row += 1;
        drop(state);
        pipeline.completed.notify_waiters();
        return true;
    }
    false
}

/// Lets pending forget what is done, once the rollups speak of it. Only after the store has the readings is
/// it known of which hours that has to be seen to: those that are closed by then.
async fn finish(pipeline: &Pipeline, done: Vec<Arc<BucketWrite>>) {
    let (late, prompt): (Vec<_>, Vec<_>) = done.into_iter().partition(|write| pipeline.is_closed(write.hour));
    complete(pipeline, &prompt);
    late::roll_up(pipeline, &late).await;
    complete(pipeline, &late);
}

pub(super) async fn attempt(pipeline: &Pipeline, writes: &[Arc<BucketWrite>]) -> Vec<Outcome> {
    let start = Instant::now();
    pipeline.metrics.flush_in_flight.increment(1.0);
    let outcomes = pipeline.store.write(writes).await;
    pipeline.metrics.flush_in_flight.decrement(1.0);
    pipeline.metrics.flush_seconds.with(pipeline.store.name()).record(start.elapsed().as_secs_f64());
    debug_assert_eq!(outcomes.len(), writes.len(), "an outcome for each write");
    outcomes
}

/// The buckets of a write by what is to be done with them.
#[derive(Default)]
struct Settled {
    /// Stored.
    done: Vec<Arc<BucketWrite>>,
    /// Refused for good.
    refused: Vec<Refused>,
    /// To be written again, and why.
    again: Vec<(Arc<BucketWrite>, WriteError)>,
    /// The store took or refused something.
    is_there: bool,
}

type Outcome = Result<Written, WriteError>;

fn settle(pipeline: &Pipeline, writes: Vec<Arc<BucketWrite>>, outcomes: Vec<Outcome>) -> Settled {
    let is_there = outcomes.iter().any(|outcome| outcome.as_ref().err().is_none_or(WriteError::is_permanent));
    let mut settled = Settled { is_there, ..Settled::default() };
    for (write, outcome) in writes.into_iter().zip(outcomes) {
        match outcome {
            Ok(written) => {
                debug_assert_eq!(written.stored + written.duplicate, write.accepted, "each reading is one of both");
                count_written(pipeline, written);
                settled.done.push(write);
            }
            Err(error) if error.is_permanent() => settled.refused.push(Refused { write, error }),
            Err(error) => settled.again.push((write, error)),
        }
    }
    settled
}

/// Counts the readings of a bucket that the store has taken.
pub(super) fn count_written(pipeline: &Pipeline, written: Written) {
    pipeline.metrics.readings_stored_total.increment(written.stored.into());
    pipeline.metrics.readings_duplicate_total.increment(written.duplicate.into());
    pipeline.metrics.flush_readings_per_bucket.record(f64::from(written.stored + written.duplicate));
}

/// Readings for the dead-letter file.
pub(super) struct Letter {
    /// The bucket that they came with.
    pub(super) bucket: Arc<BucketWrite>,
    /// The readings.
    pub(super) refused: Arc<BucketWrite>,
    /// Why the store refuses them.
    pub(super) error: WriteError,
}

/// Writes a letter into the dead-letter file. Returns the bucket when that is done; otherwise it stays
/// pending until there is room.
pub(super) async fn put_aside(pipeline: &Arc<Pipeline>, letter: Letter) -> Option<Arc<BucketWrite>> {
    match dead_letter(pipeline, &letter).await {
        Ok(()) => Some(letter.bucket),
        Err(error) => {
            tracing::error!(%error, "refused readings cannot be put aside; they stay pending");
            tokio::spawn(keep_trying(Arc::clone(pipeline), letter));
            None
        }
    }
}

async fn dead_letter(pipeline: &Pipeline, Letter { refused, error, .. }: &Letter) -> std::io::Result<()> {
    let reason = error.cause.as_label();
    pipeline.dead_letters.append(refused, reason, &error.detail).await?;
    pipeline.metrics.readings_dead_lettered_total.with(reason).increment(refused.accepted.into());
    Ok(())
}

/// Puts refused readings aside as soon as that can be done: the file is full, or its disk. Meanwhile their
/// bucket is pending, and takes no place among the writes to the store.
async fn keep_trying(pipeline: Arc<Pipeline>, letter: Letter) {
    let mut backoff = Backoff::new(pipeline.options.retry.clone());
    while dead_letter(&pipeline, &letter).await.is_err() {
        tokio::time::sleep(backoff.next_wait()).await;
    }
    complete(&pipeline, &[letter.bucket]);
}

fn complete(pipeline: &Pipeline, done: &[Arc<BucketWrite>]) {
    if done.is_empty() {
        return;
    }
    for turn in done.chunks(BUCKETS_PER_TURN) {
        let mut state = pipeline.lock();
        let held: Vec<_> = turn.iter().map(|write| state.pending.complete(write)).collect();
        drop(state);
        drop(held);
    }
    pipeline.lock().failed_in_a_row = 0;
    pipeline.completed.notify_waiters();
}
