//! The deleter: a task that has the store execute deletions.
//!
//! A deletion goes through the log, like a reading: it is durable when it is acknowledged, and has a place
//! among the readings. The feeder removes what is pending before it, and blocks the hours that it touches.
//! The deleter waits until no write of these hours is in flight, has the store remove what is stored, filters
//! the dead letters, and lets the hours go on. So the store executes the writes and the deletion of an hour
//! in the order of the log.
//!
//! **After a crash** the log is replayed. What precedes a deletion is left out, and the deletion is executed
//! again, which removes nothing else: readings that follow it are replayed as well. But another instance may
//! have stored readings since, which this log does not have. So the log gets a second record when the store
//! has executed the deletion, before its client is answered, and a deletion with that record is not executed
//! again.
//!
//! While the store is away, the deletion waits for it, as the readings do. Each one leaves two lines with the
//! target `audit`: who asked for what, and what was removed.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::Pipeline;
use super::late;
use super::store_state::{note_away, note_back};
use crate::common::backoff::Backoff;
use crate::common::clock::rfc3339;
use crate::log::{AppendError, BegunDeletion, DeletionRecord};
use crate::model::{Deletion, Hour};
use crate::pending::{DeletionStep, NextDeletion, Pending};
use crate::store::{Deleted, WriteError};

/// The outcome of a deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeletionOutcome {
    /// It is executed, and removed this many readings.
    Executed(u64),
    /// It is durable, and will be executed when the store accepts it.
    Accepted,
    /// The store cannot execute it, for this reason.
    Failed(String),
}

/// The most deletions that wait for the store: each bucket that is opened meanwhile looks at all of them.
const MAX_WAITING: usize = 1_000;

/// The hours that are rolled up at once.
const HOURS_PER_ROLLUP: usize = 1_000;

/// A deletion was not accepted. Nothing is removed, except after [`AppendError::Poisoned`]: then it is
/// unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeletionError {
    /// Too many deletions wait for the store.
    #[error("{MAX_WAITING} deletions wait for the store")]
    TooMany,
    /// The log does not take it.
    #[error("{0}")]
    Log(#[from] AppendError),
}

/// The deletions that clients wait for.
#[derive(Debug, Default)]
pub(super) struct Deleting {
    waiting: Mutex<HashMap<u64, oneshot::Sender<DeletionOutcome>>>,
    begun: Notify,
}

impl Deleting {
    /// Has the deleter look for work.
    pub(super) fn wake(&self) {
        self.begun.notify_one();
    }

    fn wait_for(&self, id: u64) -> oneshot::Receiver<DeletionOutcome> {
        let (answer, outcome) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, answer);
        outcome
    }

    fn answer(&self, id: u64, outcome: DeletionOutcome) {
        let answer = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        if let Some(answer) = answer {
            let _ = answer.send(outcome); // the client may be gone
        }
    }
}

impl Pipeline {
    /// Returns why the store cannot execute a deletion, if it cannot.
    pub fn refusal_of(&self, deletion: &Deletion) -> Option<&'static str> {
        match self.store.deletions() {
            Some(deletions) => deletions.refusal(deletion),
            None => Some("this store cannot delete readings before they expire"),
        }
    }

    /// Removes readings, for `by`. Waits at most `max_wait` until the store has executed it.
    ///
    /// # Errors
    /// When the deletion is not accepted.
    pub async fn delete(
        &self,
        deletion: Deletion,
        by: &str,
        max_wait: Duration,
    ) -> Result<DeletionOutcome, DeletionError> {
        if self.with_pending(Pending::deletions) >= MAX_WAITING {
            return Err(DeletionError::TooMany);
        }
        let id = RandomState::new().build_hasher().finish();
        let begun = BegunDeletion { id, by: by.into(), deletion: Arc::new(deletion) };
        let outcome = self.deleting.wait_for(id);
        let appended = match self.log.append(DeletionRecord::Begun(begun.clone()).to_batch()) {
            Ok(mut ack) => ack.durable().await,
            Err(error) => Err(error),
        };
        if let Err(error) = appended {
            self.deleting.answer(id, DeletionOutcome::Accepted);
            return Err(error.into());
        }
        audit(&begun, None);
        self.log.read_up_to(self.log.usage().readable);
        let outcome = timeout(max_wait, outcome).await;
        Ok(outcome.ok().and_then(Result::ok).unwrap_or(DeletionOutcome::Accepted))
    }
}

/// Runs until it is aborted.
pub(super) async fn run(pipeline: Arc<Pipeline>) {
    loop {
        let completed = pipeline.completed.notified();
        let next = pipeline.lock().pending.next_deletion();
        match next {
            NextDeletion::Ready(step) => execute(&pipeline, step).await,
            NextDeletion::Again => tokio::task::yield_now().await,
            NextDeletion::None => tokio::select! {
                () = completed => {}
                () = pipeline.deleting.begun.notified() => {}
            },
        }
    }
}

async fn execute(pipeline: &Arc<Pipeline>, DeletionStep { begun, unanswered, erased }: DeletionStep) {
    let outcome = match delete_stored(pipeline, &begun.deletion, &unanswered).await {
        Ok(stored) => {
            let dead = delete_dead_letters(pipeline, &begun.deletion).await;
            DeletionOutcome::Executed(erased + stored + dead)
        }
        Err(error) => DeletionOutcome::Failed(error),
    };
    while !pipeline.lock().pending.finish_deletion() {
        tokio::task::yield_now().await;
    }
    pipeline.completed.notify_waiters();
    pipeline.due.notify_one();
    audit(&begun, Some(&outcome));
    note_executed(pipeline, begun.id).await;
    pipeline.deleting.answer(begun.id, outcome);
}

/// Has the store execute a deletion, and repeats it until the store does. An error is permanent.
async fn delete_stored(pipeline: &Pipeline, deletion: &Deletion, unanswered: &BTreeSet<Hour>) -> Result<u64, String> {
    let Some(deletions) = pipeline.store.deletions() else {
        return Err(format!("the store {} cannot delete readings", pipeline.store.name()));
    };
    let mut backoff = Backoff::new(pipeline.options.retry.clone());
    loop {
        match deletions.delete(deletion, unanswered).await {
            Ok(Deleted { readings, hours }) => {
                note_back(pipeline);
                roll_up_closed(pipeline, &deletion.device, hours).await;
                return Ok(readings);
            }
            Err(error) if error.is_permanent() => return Err(error.to_string()),
            Err(error) => wait(pipeline, &error, &mut backoff).await,
        }
    }
}

/// Rolls up the closed hours among these, as after a late reading: the roller may be about to write a rollup
/// that it has derived before the deletion.
async fn roll_up_closed(pipeline: &Pipeline, device: &Arc<str>, hours: BTreeSet<Hour>) {
    let closed: Vec<Hour> = hours.into_iter().filter(|hour| pipeline.is_closed(*hour)).collect();
    for hours in closed.chunks(HOURS_PER_ROLLUP) {
        late::roll_up_hours(pipeline, hours.iter().map(|hour| (Arc::clone(device), *hour)).collect()).await;
    }
}

/// Waits before the next attempt. After a failure while draining none follows: the next start makes it.
async fn wait(pipeline: &Pipeline, error: &WriteError, backoff: &mut Backoff) {
    note_away(pipeline, error);
    pipeline.metrics.flush_retries_total.with(error.cause.as_label()).increment(1);
    if pipeline.lock().draining {
        pipeline.lock().failed_in_a_row += pipeline.options.max_in_flight;
        pipeline.completed.notify_waiters();
        std::future::pending::<()>().await;
    }
    tokio::select! {
        () = tokio::time::sleep(backoff.next_wait()) => {}
        () = pipeline.drain_begins.cancelled() => {}
    }
}

/// Removes readings from the dead-letter file, and repeats it until that succeeds. Returns their number.
async fn delete_dead_letters(pipeline: &Pipeline, deletion: &Deletion) -> u64 {
    let mut backoff = Backoff::new(pipeline.options.retry.clone());
    loop {
        match pipeline.dead_letters.delete(deletion).await {
            Ok(readings) => return readings,
            Err(error) => {
                tracing::error!(%error, "cannot remove deleted readings from the dead-letter file");
                tokio::time::sleep(backoff.next_wait()).await;
            }
        }
    }
}

/// Has the log say that a deletion is executed. Without that, a replay would execute it again, which is only
/// wrong if another instance stores such readings meanwhile.
async fn note_executed(pipeline: &Pipeline, id: u64) {
    let mut backoff = Backoff::new(pipeline.options.retry.clone());
    loop {
        let appended = match pipeline.log.append(DeletionRecord::Executed { id }.to_batch()) {
            Ok(mut ack) => ack.durable().await,
            Err(error) => Err(error),
        };
        match appended {
            Err(AppendError::Full(_) | AppendError::DiskFull | AppendError::OutOfFiles) => {
                tokio::time::sleep(backoff.next_wait()).await;
            }
            Ok(()) | Err(AppendError::Closed | AppendError::Poisoned(_)) => return,
        }
    }
}

fn audit(begun: &BegunDeletion, outcome: Option<&DeletionOutcome>) {
    let BegunDeletion { id, by, deletion } = begun;
    let device = &*deletion.device;
    let [from, to] = match &deletion.range_ms {
        None => [String::new(), String::new()],
        Some(range) => [range.start, range.end].map(rfc3339),
    };
    let series = serde_json::to_string(&deletion.series).unwrap_or_default();
    match outcome {
        None => tracing::info!(target: "audit", id, %by, device, from, to, series, "accepted a deletion"),
        Some(DeletionOutcome::Failed(error)) => {
            tracing::error!(target: "audit", id, %by, device, from, to, series, error, "cannot execute a deletion");
        }
        Some(DeletionOutcome::Executed(readings)) => {
            tracing::info!(target: "audit", id, %by, device, from, to, series, readings, "deleted readings");
        }
        Some(DeletionOutcome::Accepted) => {}
    }
}
