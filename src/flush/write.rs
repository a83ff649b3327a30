//! One write: tried until the store has taken, or refused for good, each of its buckets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt;

use super::Flush;
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

pub(super) async fn write(flush: &Flush, mut writes: Vec<Arc<BucketWrite>>) {
    let mut backoff = Backoff::new(flush.options.retry.clone());
    loop {
        let outcomes = attempt(flush, &writes).await;
        let mut left = Vec::new();
        let mut progress = false;
        for (write, outcome) in writes.into_iter().zip(outcomes) {
            match settle(flush, &write, outcome).await {
                Settled::Done => progress = true,
                Settled::Again(error) => left.push((write, error)),
            }
        }
        if left.is_empty() {
            return;
        }
        for (_, error) in &left {
            flush.metrics.flush_retries_total.with(error.reason()).increment(1);
        }
        if progress {
            backoff.reset();
        } else {
            note_away(flush, &left[0].1);
        }
        tokio::time::sleep(backoff.next()).await;
        writes = left.into_iter().map(|(write, _)| write).collect();
    }
}

async fn attempt(flush: &Flush, writes: &[Arc<BucketWrite>]) -> Vec<Result<Written, WriteError>> {
    let start = Instant::now();
    flush.metrics.flush_in_flight.increment(1.0);
    let outcomes = flush.store.write(writes).await;
    flush.metrics.flush_in_flight.decrement(1.0);
    flush.metrics.flush_seconds.with(flush.store.name()).record(start.elapsed().as_secs_f64());
    debug_assert_eq!(outcomes.len(), writes.len(), "an outcome for each write");
    outcomes
}

enum Settled {
    Done,
    Again(WriteError),
}

async fn settle(flush: &Flush, write: &Arc<BucketWrite>, outcome: Result<Written, WriteError>) -> Settled {
    match outcome {
        Ok(written) => {
            debug_assert_eq!(
                written.stored + written.duplicate,
                write.accepted,
                "each accepted reading is one of both"
            );
            note_back(flush);
            flush.metrics.readings_stored_total.increment(u64::from(written.stored));
            flush.metrics.readings_duplicate_total.increment(u64::from(written.duplicate));
            flush.metrics.flush_readings_per_bucket.record(f64::from(write.accepted));
        }
        Err(WriteError::Permanent { reason, detail }) => {
            if let Err(error) = flush.dead_letters.append(write, reason, &detail).await {
                return Settled::Again(WriteError::Transient { reason: "dead_letters", detail: error.to_string() });
            }
            tracing::error!(device = %write.device, hour = write.hour.0, reason, detail, "the store refuses a bucket for good; it is in the dead-letter file");
            flush.metrics.readings_dead_lettered_total.with(reason).increment(u64::from(write.accepted));
        }
        Err(error @ WriteError::Transient { .. }) => return Settled::Again(error),
    }
    flush.lock().pending.complete(write);
    flush.completed.notify_waiters();
    Settled::Done
}

fn note_away(flush: &Flush, error: &WriteError) {
    let mut state = flush.store_state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if state.away.is_none() {
        state.away = Some((Instant::now(), error.to_string()));
        flush.metrics.store_up.set(0.0);
        tracing::warn!(store = flush.store.name(), %error, "the store does not take writes; readings wait in the log");
    }
}

fn note_back(flush: &Flush) {
    let mut state = flush.store_state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some((since, _)) = state.away.take() {
        let seconds = since.elapsed().as_secs_f64();
        tracing::info!(store = flush.store.name(), seconds, "the store takes writes again");
    }
    flush.metrics.store_up.set(1.0);
}

/// Waits that double from retry to retry, each shortened at random by up to a half so that retries do not march in
/// step.
struct Backoff {
    range: std::ops::RangeInclusive<Duration>,
    wait: Duration,
}

impl Backoff {
    fn new(range: std::ops::RangeInclusive<Duration>) -> Self {
        Self { wait: *range.start(), range }
    }

    fn reset(&mut self) {
        self.wait = *self.range.start();
    }

    fn next(&mut self) -> Duration {
        let wait = self.wait.mul_f64(rand::rng().random_range(0.5..=1.0));
        self.wait = (self.wait * 2).min(*self.range.end());
        wait
    }
}
