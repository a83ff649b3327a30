//! The attempts at one task of the store, until the store has done it or the service stops.

use std::ops::ControlFlow;

use super::Pipeline;
use super::store_state::{note_failing, note_working};
use crate::common::backoff::Backoff;
use crate::store::StoreError;

/// The attempts at one task. After an attempt that fails as a whole, the store counts as away.
///
/// If an attempt that begins after the drain has begun fails, no other one follows.
pub(super) struct Attempts<'a> {
    pipeline: &'a Pipeline,
    backoff: Backoff,
    /// Whether the drain had begun when the current attempt began.
    is_last: bool,
    /// Whether the last attempt has failed as a whole.
    is_failing: bool,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(pipeline: &'a Pipeline) -> Self {
        let (backoff, is_last) = (Backoff::new(pipeline.options.retry.clone()), pipeline.drain_begins.is_cancelled());
        Self { pipeline, backoff, is_last, is_failing: false }
    }

    /// Notes that the store has done at least a part of the task in the current attempt.
    pub(super) fn succeed(&mut self) {
        self.backoff.reset();
        if std::mem::take(&mut self.is_failing) {
            note_working(self.pipeline);
        }
    }

    /// Notes that the current attempt has failed as a whole.
    pub(super) fn fail(&mut self, error: &StoreError) {
        if !std::mem::replace(&mut self.is_failing, true) {
            note_failing(self.pipeline, error);
        }
    }

    /// Waits, then begins the next attempt. Breaks if none follows: the rest of the task is left to the next
    /// start.
    pub(super) async fn next(&mut self) -> ControlFlow<()> {
        if self.is_last && self.is_failing {
            self.pipeline.note_given_up(1);
            return ControlFlow::Break(());
        }
        tokio::select! {
            () = tokio::time::sleep(self.backoff.next_wait()) => {}
            () = self.pipeline.drain_begins.cancelled(), if !self.is_last => {}
        }
        self.is_last = self.pipeline.drain_begins.is_cancelled();
        ControlFlow::Continue(())
    }

    /// Notes and counts that the current attempt has failed as a whole, then goes on as [`Self::next`].
    pub(super) async fn retry(&mut self, error: &StoreError) -> ControlFlow<()> {
        self.fail(error);
        self.pipeline.metrics.flush_retries_total.with(error.cause.as_label()).increment(1);
        self.next().await
    }
}
