//! One write: tried until the store has taken, or refused for good, each of its buckets.

use std::sync::Arc;
use tokio::time::Instant;

use super::Flush;
use super::backoff::Backoff;
use super::late;
use crate::model::BucketWrite;
use crate::store::{WriteError, Written};

/// Whether the store takes writes, so that each change is logged once.
#[derive(Debug, Default)]
pub(super) struct StoreState {
    away: Option<(Instant, String)>,
}

impl StoreState {
    pub(super) fn away(&self) -> Option<String> {
        self.away.as_ref().map(|(_, why)| why.clone())
    }
}

/// Returns when each bucket is stored or dead-lettered.
pub(super) async fn write(flush: &Flush, mut writes: Vec<Arc<BucketWrite>>) {
    let mut backoff = Backoff::new(flush.options.retry.clone());
    loop {
        let outcomes = attempt(flush, &writes).await;
        let Settled { done, again } = settle(flush, writes, outcomes).await;
        let is_away = done.is_empty();
        if !is_away {
            note_back(flush);
            finish(flush, done).await;
            backoff.reset();
        }
        let Some((_, error)) = again.first() else { return };
        if is_away {
            note_away(flush, error);
        }
        for (_, error) in &again {
            flush.metrics.flush_retries_total.with(error.reason()).increment(1);
        }
        tokio::time::sleep(backoff.next()).await;
        writes = again.into_iter().map(|(write, _)| write).collect();
    }
}

/// Lets pending forget what is done, once the rollups speak of it. Only after the store has the readings is it known of
/// which hours that has to be seen to: those that are closed by then.
async fn finish(flush: &Flush, done: Vec<Arc<BucketWrite>>) {
    let (late, prompt): (Vec<_>, Vec<_>) = done.into_iter().partition(|write| flush.is_closed(write.hour));
    complete(flush, &prompt);
    late::roll_up(flush, &late).await;
    complete(flush, &late);
}

async fn attempt(flush: &Flush, writes: &[Arc<BucketWrite>]) -> Vec<Outcome> {
    let start = Instant::now();
    flush.metrics.flush_in_flight.increment(1.0);
    let outcomes = flush.store.write(writes).await;
    flush.metrics.flush_in_flight.decrement(1.0);
    flush.metrics.flush_seconds.with(flush.store.name()).record(start.elapsed().as_secs_f64());
    debug_assert_eq!(outcomes.len(), writes.len(), "an outcome for each write");
    outcomes
}

/// The buckets of a write by what is to be done with them.
#[derive(Default)]
struct Settled {
    /// Stored, or dead-lettered.
    done: Vec<Arc<BucketWrite>>,
    /// To be written again, and why.
    again: Vec<(Arc<BucketWrite>, WriteError)>,
}

type Outcome = Result<Written, WriteError>;

async fn settle(flush: &Flush, writes: Vec<Arc<BucketWrite>>, outcomes: Vec<Outcome>) -> Settled {
    let (mut settled, mut refused) = (Settled::default(), 0);
    for (write, outcome) in writes.into_iter().zip(outcomes) {
        match outcome {
            Ok(written) => {
                debug_assert_eq!(written.stored + written.duplicate, write.accepted, "each reading is one of both");
                flush.metrics.readings_stored_total.increment(written.stored.into());
                flush.metrics.readings_duplicate_total.increment(written.duplicate.into());
                flush.metrics.flush_readings_per_bucket.record(f64::from(write.accepted));
                settled.done.push(write);
            }
            Err(WriteError::Permanent { reason, detail }) => match dead_letter(flush, &write, reason, &detail).await {
                Ok(()) => {
                    refused += 1;
                    settled.done.push(write);
                }
                Err(error) => settled.again.push((write, error)),
            },
            Err(error @ WriteError::Transient { .. }) => settled.again.push((write, error)),
        }
    }
    if refused > 0 {
        tracing::error!(buckets = refused, "the store refuses buckets for good; they are in the dead-letter file");
    }
    settled
}

async fn dead_letter(
    flush: &Flush,
    write: &Arc<BucketWrite>,
    reason: &'static str,
    detail: &str,
) -> Result<(), WriteError> {
    let appended = flush.dead_letters.append(write, reason, detail).await;
    appended.map_err(|error| WriteError::Transient { reason: "dead_letters", detail: error.to_string() })?;
    flush.metrics.readings_dead_lettered_total.with(reason).increment(write.accepted.into());
    Ok(())
}

fn complete(flush: &Flush, done: &[Arc<BucketWrite>]) {
    if done.is_empty() {
        return;
    }
    let mut state = flush.lock();
    for write in done {
        state.pending.complete(write);
    }
    drop(state);
    flush.completed.notify_waiters();
}

pub(super) fn note_away(flush: &Flush, error: &WriteError) {
    let mut state = flush.store_state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if state.away.is_none() {
        state.away = Some((Instant::now(), error.to_string()));
        flush.metrics.store_up.set(0.0);
        tracing::warn!(store = flush.store.name(), %error, "the store does not take writes; readings wait in the log");
    }
}

pub(super) fn note_back(flush: &Flush) {
    let mut state = flush.store_state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some((since, _)) = state.away.take() {
        let seconds = since.elapsed().as_secs_f64();
        tracing::info!(store = flush.store.name(), seconds, "the store takes writes again");
    }
    flush.metrics.store_up.set(1.0);
}
