//! One write: retried until the store has accepted, or refused for good, each of its buckets.

use std::sync::Arc;

use super::Pipeline;
use super::attempts::Attempts;
use super::refused::dead_letter;
use super::scheduler::{BUCKETS_PER_TURN, Permit};
use crate::model::BucketWrite;

/// Writes buckets, until each is stored or dead-lettered, or left to the next start.
pub(super) async fn write(pipeline: &Arc<Pipeline>, writes: Vec<Arc<BucketWrite>>, permit: Permit) {
    let mut attempts = Attempts::of_write(pipeline, permit);
    let mut writes = pipeline.writer.begin(writes);
    while let Ok(Some(done)) = writes.next(&mut attempts).await {
        let (mut of_closed, others): (Vec<_>, Vec<_>) =
            done.into_iter().partition(|of| pipeline.is_closed(of.write.hour));
        for of in &mut of_closed {
            // The rollups may fail for long, and no limit counts the memory of these readings.
            of.write = of.write.without_readings().into();
        }
        complete(pipeline, &dead_letter(pipeline, others).await);
        let hours = of_closed.iter().map(|of| (Arc::clone(&of.write.device), of.write.hour)).collect();
        let mut of_rollups = attempts.hand_over();
        if pipeline.writer.roll_up(hours, &mut of_rollups).await.is_ok() {
            complete(pipeline, &dead_letter(pipeline, of_closed).await);
        }
        attempts.take_back(of_rollups);
    }
}

/// Removes buckets from pending.
pub(super) fn complete(pipeline: &Pipeline, done: &[Arc<BucketWrite>]) {
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
