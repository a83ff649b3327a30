//! The scheduler: takes the buckets that are due, with a bounded number of writes in flight.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{Pipeline, write};
use crate::pending::{Take, TakenBucket};

/// How many buckets are taken or completed before the lock is released to others.
pub(super) const BUCKETS_PER_TURN: usize = 64;

/// The longest sleep, as a safeguard: a bucket opened meanwhile is due later than the oldest one.
const MAX_SLEEP: Duration = Duration::from_millis(500);

/// Runs until [`super::Running::drain`] was called and all buckets are written.
pub(super) async fn run(pipeline: Arc<Pipeline>) {
    let permits = Arc::new(Semaphore::new(pipeline.options.max_in_flight));
    let mut writes = JoinSet::new();
    loop {
        let permit = Arc::clone(&permits).acquire_owned().await.expect("never closed");
        let Some(batch) = next_batch(&pipeline).await else { break };
        let pipeline = Arc::clone(&pipeline);
        writes.spawn(async move {
            // On a blocking thread, because sorting large buckets takes milliseconds.
            let to_writes = move || batch.iter().map(|taken| Arc::new(taken.to_write())).collect();
            let Ok(writes) = tokio::task::spawn_blocking(to_writes).await else { return }; // the runtime is ending
            write::write(&pipeline, writes).await;
            drop(permit);
        });
        while writes.try_join_next().is_some() {}
    }
}

/// Waits until buckets are due and takes them. `None` once draining has ended.
async fn next_batch(pipeline: &Pipeline) -> Option<Vec<TakenBucket>> {
    loop {
        let completed = pipeline.completed.notified();
        let (batch, finished) = take(pipeline);
        if !batch.is_empty() {
            return Some(batch);
        }
        if finished {
            return None;
        }
        tokio::select! {
            () = pipeline.due.notified() => {}
            () = completed => {}
            () = tokio::time::sleep(sleep_for(pipeline)) => {}
        }
    }
}

fn take(pipeline: &Pipeline) -> (Vec<TakenBucket>, bool) {
    let options = &pipeline.options;
    let (mut batch, mut bytes) = (Vec::new(), 0);
    loop {
        let log = pipeline.log.usage();
        let mut state = pipeline.lock();
        // A full log accepts no more readings, so waiting would not make the write larger.
        let which = if state.draining || log.is_full || log.is_disk_full { Take::All } else { Take::Due };
        let room = (options.max_buckets_per_write - batch.len()).min(BUCKETS_PER_TURN);
        let taken = state.pending.take(which, pipeline.now_ms(), room);
        let finished = state.draining && state.is_finished(log.readable, options.max_in_flight);
        drop(state);
        if taken.is_empty() {
            return (batch, finished);
        }
        bytes += taken.iter().map(bytes_of).sum::<u64>();
        batch.extend(taken);
        if batch.len() >= options.max_buckets_per_write || bytes >= options.max_write_bytes {
            return (batch, false);
        }
    }
}

/// Estimates the bytes of a bucket in a write command.
fn bytes_of(taken: &TakenBucket) -> u64 {
    300 + taken.values() as u64 * 32
}

fn sleep_for(pipeline: &Pipeline) -> Duration {
    let due_at_ms = pipeline.lock().pending.due_at_ms();
    let until_due = due_at_ms.map_or(pipeline.options.limits.max_age, |due_ms| {
        Duration::from_millis(due_ms.saturating_sub(pipeline.now_ms()))
    });
    until_due.min(MAX_SLEEP)
}
