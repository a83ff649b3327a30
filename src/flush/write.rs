//! One write: retried until the store has accepted, or refused for good, each of its buckets.

use std::sync::Arc;

use tokio::time::Instant;

use super::Pipeline;
use super::attempts::Attempts;
use super::late;
use super::narrow::narrow;
use super::scheduler::{BUCKETS_PER_TURN, Permit};
use crate::model::{BucketWrite, Contents};
use crate::store::{StoreError, Written};

/// Writes buckets. Returns when each is stored or dead-lettered, or left to the next start.
pub(super) async fn write(pipeline: &Arc<Pipeline>, mut writes: Vec<Arc<BucketWrite>>, mut permit: Permit) {
    let mut attempts = Attempts::new(pipeline);
    loop {
        let outcomes = attempt(pipeline, &writes).await;
        let is_available = is_available(&outcomes);
        let Settled { done, refused, again } = settle(pipeline, writes, outcomes);
        if is_available {
            attempts.succeed();
            finish(pipeline, done).await;
            finish(pipeline, narrow(pipeline, refused).await).await;
        }
        let Some((_, error)) = again.first() else { return };
        if !is_available {
            attempts.fail(error);
        }
        pipeline.metrics.flush_retries_total.with(error.cause.as_label()).increment(1);
        if !pipeline.store_state.is_silent() {
            permit.give_back();
        }
        if attempts.next().await.is_err() {
            return;
        }
        permit.take_again().await;
        writes = again.into_iter().map(|(write, _)| write).collect();
    }
}

/// Completes stored buckets, those of closed hours after their hours are rolled up.
///
/// The check for closed hours must follow the write: see [`super::roller`].
async fn finish(pipeline: &Pipeline, done: Vec<Arc<BucketWrite>>) {
    let (late, prompt): (Vec<_>, Vec<_>) = done.into_iter().partition(|write| pipeline.is_closed(write.hour));
    complete(pipeline, &prompt);
    let hours = late.iter().map(|write| (Arc::clone(&write.device), write.hour)).collect();
    if late::roll_up(pipeline, hours).await.is_ok() {
        complete(pipeline, &late);
    }
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

/// The buckets of a write, by outcome.
#[derive(Default)]
struct Settled {
    /// The store has them.
    done: Vec<Arc<BucketWrite>>,
    /// The store refused them for good, with the reason.
    refused: Vec<(Arc<BucketWrite>, StoreError)>,
    /// To be written again, with the reason.
    again: Vec<(Arc<BucketWrite>, StoreError)>,
}

pub(super) type Outcome = Result<Written, StoreError>;

fn settle(pipeline: &Pipeline, writes: Vec<Arc<BucketWrite>>, outcomes: Vec<Outcome>) -> Settled {
    let mut settled = Settled::default();
    for (write, outcome) in writes.into_iter().zip(outcomes) {
        match outcome {
            Ok(written) => {
                debug_assert_eq!(written.stored + written.duplicate, write.accepted, "each reading is one of both");
                count_written(pipeline, written);
                settled.done.push(write);
            }
            Err(error) if error.is_permanent() => settled.refused.push((write, error)),
            Err(error) => settled.again.push((write, error)),
        }
    }
    settled
}

/// Whether the store accepted or refused at least one bucket.
pub(super) fn is_available(outcomes: &[Outcome]) -> bool {
    outcomes.iter().any(|outcome| outcome.as_ref().err().is_none_or(StoreError::is_permanent))
}

/// Counts the readings of a bucket that the store has accepted.
pub(super) fn count_written(pipeline: &Pipeline, written: Written) {
    pipeline.metrics.readings_stored_total.increment(written.stored.into());
    pipeline.metrics.readings_duplicate_total.increment(written.duplicate.into());
    pipeline.metrics.flush_readings_per_bucket.record(f64::from(written.stored + written.duplicate));
}

/// Readings for the dead-letter file.
pub(super) struct Letter {
    /// The bucket of these readings, as it was written first.
    pub(super) bucket: Arc<BucketWrite>,
    /// The refused readings.
    pub(super) refused: Arc<BucketWrite>,
    /// The stored values that they were to replace.
    pub(super) replaced: Arc<Contents>,
    /// Why the store refuses them.
    pub(super) error: StoreError,
}

/// Writes a letter to the dead-letter file, and returns its bucket.
///
/// If the file is full, returns `None` and retries in the background; the bucket stays pending meanwhile.
pub(super) async fn dead_letter(pipeline: &Arc<Pipeline>, letter: Letter) -> Option<Arc<BucketWrite>> {
    match append(pipeline, &letter).await {
        Ok(()) => Some(letter.bucket),
        Err(error) => {
            tracing::error!(%error, "cannot dead-letter refused readings; they stay pending");
            tokio::spawn(retry(Arc::clone(pipeline), letter));
            None
        }
    }
}

async fn append(pipeline: &Pipeline, Letter { refused, replaced, error, .. }: &Letter) -> std::io::Result<()> {
    let reason = error.cause.as_label();
    pipeline.dead_letters.append(refused, replaced, reason, &error.detail).await?;
    pipeline.metrics.readings_dead_lettered_total.with(reason).increment(refused.accepted.into());
    Ok(())
}

/// Writes a letter once the dead-letter file or its disk has space again.
///
/// The bucket meanwhile does not count as a write in flight to the store, and a stop does not wait for it.
async fn retry(pipeline: Arc<Pipeline>, letter: Letter) {
    let mut attempts = Attempts::new(&pipeline);
    while append(&pipeline, &letter).await.is_err() {
        if attempts.next().await.is_err() {
            return;
        }
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
    pipeline.lock().note_done();
    pipeline.completed.notify_waiters();
    pipeline.note_room();
}
