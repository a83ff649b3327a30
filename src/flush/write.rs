//! One write: tried until the store has taken, or refused for good, each of its buckets.

use std::sync::Arc;

use tokio::time::Instant;

use super::Flush;
use super::backoff::Backoff;
use super::late;
use super::store_state::{note_away, note_back};
use crate::model::BucketWrite;
use crate::store::{WriteError, Written};

/// Returns when each bucket is stored or dead-lettered.
pub(super) async fn write(flush: &Arc<Flush>, mut writes: Vec<Arc<BucketWrite>>) {
    let mut backoff = Backoff::new(flush.options.retry.clone());
    loop {
        let outcomes = attempt(flush, &writes).await;
        let Settled { done, again, is_there } = settle(flush, writes, outcomes).await;
        let is_away = !is_there;
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
    /// The store took or refused something.
    is_there: bool,
}

type Outcome = Result<Written, WriteError>;

async fn settle(flush: &Arc<Flush>, writes: Vec<Arc<BucketWrite>>, outcomes: Vec<Outcome>) -> Settled {
    let (mut settled, mut refused) = (Settled::default(), Refused::default());
    settled.is_there = outcomes.iter().any(|outcome| !matches!(outcome, Err(WriteError::Transient { .. })));
    for (write, outcome) in writes.into_iter().zip(outcomes) {
        match outcome {
            Ok(written) => {
                debug_assert_eq!(written.stored + written.duplicate, write.accepted, "each reading is one of both");
                flush.metrics.readings_stored_total.increment(written.stored.into());
                flush.metrics.readings_duplicate_total.increment(written.duplicate.into());
                flush.metrics.flush_readings_per_bucket.record(f64::from(write.accepted));
                settled.done.push(write);
            }
            Err(WriteError::Permanent { reason, detail }) => {
                refused.note(&write, reason, &detail);
                match dead_letter(flush, &write, reason, &detail).await {
                    Ok(()) => settled.done.push(write),
                    Err(error) => {
                        tracing::error!(%error, "refused readings cannot be put aside; they stay pending");
                        tokio::spawn(keep_trying(Arc::clone(flush), write, reason, detail));
                    }
                }
            }
            Err(error @ WriteError::Transient { .. }) => settled.again.push((write, error)),
        }
    }
    refused.tell();
    settled
}

/// The longest detail of a refusal in a log line, in characters; the dead-letter file has all of it.
const SHOWN_MAX_CHARS: usize = 200;

/// The buckets of one write that the store refuses for good.
#[derive(Default)]
struct Refused {
    buckets: usize,
    /// The first of them: its device, its hour, the reason and what the store said.
    example: Option<(Arc<str>, String, &'static str, String)>,
}

impl Refused {
    fn note(&mut self, write: &BucketWrite, reason: &'static str, detail: &str) {
        self.buckets += 1;
        self.example.get_or_insert_with(|| {
            let hour = jiff::Timestamp::from_millisecond(write.hour.start_ms());
            let detail = detail.chars().take(SHOWN_MAX_CHARS).collect();
            (
                Arc::clone(&write.device),
                hour.map_or_else(|_| write.hour.0.to_string(), |hour| hour.to_string()),
                reason,
                detail,
            )
        });
    }

    /// One line for the whole write.
    fn tell(self) {
        let Some((device, hour, reason, detail)) = self.example else { return };
        let device = &*device;
        tracing::error!(
            buckets = self.buckets,
            device,
            hour,
            reason,
            detail,
            "the store refuses buckets for good, this one among them; see tidegauge dead-letters"
        );
    }
}

async fn dead_letter(
    flush: &Flush,
    write: &Arc<BucketWrite>,
    reason: &'static str,
    detail: &str,
) -> std::io::Result<()> {
    flush.dead_letters.append(write, reason, detail).await?;
    flush.metrics.readings_dead_lettered_total.with(reason).increment(write.accepted.into());
    Ok(())
}

/// Puts a refused bucket aside as soon as that can be done: the file is full, or its disk. Meanwhile the bucket is pending,
/// and takes no place among the writes to the store.
async fn keep_trying(flush: Arc<Flush>, write: Arc<BucketWrite>, reason: &'static str, detail: String) {
    let mut backoff = Backoff::new(flush.options.retry.clone());
    while dead_letter(&flush, &write, reason, &detail).await.is_err() {
        tokio::time::sleep(backoff.next()).await;
    }
    complete(&flush, &[write]);
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
