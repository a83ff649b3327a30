//! The attempts at one task, until it is done or the service stops.

use super::Pipeline;
use super::scheduler::Permit;
use super::store_state::{note_failing, note_working};
use super::writer::Retry;
use crate::common::backoff::Backoff;
use crate::store::StoreError;

/// No attempt follows: the service stops, and the last attempt has failed.
///
/// The next start repeats the task.
#[derive(Debug)]
pub(super) struct GaveUp;

/// The attempts at one task: a request to the store, or a write to a file.
///
/// After an attempt that fails as a whole, the store counts as away. An attempt that begins during the drain
/// is the last one, unless the store does a part of it.
pub(super) struct Attempts<'a> {
    pipeline: &'a Pipeline,
    backoff: Backoff,
    /// Whether the current attempt is the last one: it began during the drain, and has done nothing so far.
    is_last: bool,
    /// Whether the store has done nothing in the last attempt.
    is_failing: bool,
    /// The permit of a write. Another task may have it between two attempts.
    permit: Option<Permit>,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(pipeline: &'a Pipeline) -> Self {
        let (backoff, is_last) = (Backoff::new(pipeline.options.retry.clone()), pipeline.drain_begins.is_cancelled());
        Self { pipeline, backoff, is_last, is_failing: false, permit: None }
    }

    /// The attempts at a write that has this permit.
    pub(super) fn of_write(pipeline: &'a Pipeline, permit: Permit) -> Self {
        Self { permit: Some(permit), ..Self::new(pipeline) }
    }

    /// Begins attempts at another task, which have the permit until [`Self::take_back`].
    pub(super) fn hand_over(&mut self) -> Self {
        Self { permit: self.permit.take(), ..Self::new(self.pipeline) }
    }

    /// Takes the permit back.
    pub(super) fn take_back(&mut self, other: Self) {
        self.permit = other.permit;
    }

    /// Waits, then begins the next attempt. Fails if no attempt follows.
    pub(super) async fn next(&mut self) -> Result<(), GaveUp> {
        if self.is_last {
            if self.is_failing {
                self.pipeline.note_given_up(1);
            }
            return Err(GaveUp);
        }
        if let Some(permit) = self.permit.as_mut().filter(|_| !self.pipeline.store_state.is_silent()) {
            permit.give_back();
        }
        tokio::select! {
            () = tokio::time::sleep(self.backoff.next_wait()) => {}
            () = self.pipeline.drain_begins.cancelled() => {}
        }
        if let Some(permit) = &mut self.permit {
            permit.take_again().await;
        }
        self.is_last = self.pipeline.drain_begins.is_cancelled();
        Ok(())
    }

    /// Notes and counts that the current attempt has failed as a whole, then goes on as [`Self::next`].
    pub(super) async fn retry(&mut self, error: &StoreError) -> Result<(), GaveUp> {
        self.pipeline.metrics.flush_retries_total.with(error.cause.as_label()).increment(1);
        self.wait(error, true).await
    }
}

impl Retry for Attempts<'_> {
    type GaveUp = GaveUp;

    fn succeed(&mut self) {
        self.backoff.reset();
        self.is_last = false;
        if std::mem::take(&mut self.is_failing) {
            note_working(self.pipeline);
        }
    }

    async fn wait(&mut self, error: &StoreError, is_whole: bool) -> Result<(), GaveUp> {
        if is_whole && !std::mem::replace(&mut self.is_failing, true) {
            note_failing(self.pipeline, error);
        }
        self.next().await
    }
}
