//! The deleter: a task that has the store execute deletions.
//!
//! A deletion goes through the log, like a reading: it is durable when it is acknowledged, and has a place
//! among the readings. The feeder removes the pending readings that precede the deletion, and blocks the
//! hours of the deletion. The deleter waits until no write of these hours is in flight, has the store remove
//! the stored readings, filters the dead letters, and unblocks the hours. So the store executes the writes
//! and the deletion of an hour in the order of the log.
//!
//! **After a crash** the log is replayed. Readings that precede a deletion are left out, and the deletion is
//! executed again. That may remove readings that follow it in this log, but they are replayed as well. It may
//! also remove readings that another instance has stored since, and this log does not have those. So the log
//! gets a second record when the store has executed the deletion, before its client is answered. A deletion
//! with that record is not executed again.
//!
//! While the store is away, the deletion waits for it, as the readings do. If other instances share the
//! store, they execute the deletion too, before its client is answered ([`super::instances`]). Each instance
//! leaves two lines with the target `audit`: who asked for what, and what was removed.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use super::attempts::{Attempts, GaveUp};
use super::deletions::{DeletionOutcome, Stage};
use super::refused::delete_waiting;
use super::state::DeleterState;
use super::writer::Retry;
use super::{Pipeline, instances, stop};
use crate::common::clock::rfc3339;
use crate::log::{AppendError, BegunDeletion, DeletionRecord, Log};
use crate::model::{Deletion, Hour};
use crate::pending::{DeletionStep, Erased, NextDeletion};
use crate::store::{Deleted, ReadingsQuery, StoreError};

/// The most deletions that wait for the store.
///
/// The number is limited because each new bucket is compared with all waiting deletions.
pub(super) const MAX_WAITING: usize = 1_000;

/// The most hours that one request to the store rolls up.
const HOURS_PER_ROLLUP: usize = 1_000;

/// A deletion was not accepted.
///
/// Nothing is removed, except after [`AppendError::Poisoned`]: then the outcome is unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeletionError {
    /// Too many deletions wait for the store.
    #[error("{MAX_WAITING} deletions wait for the store")]
    TooMany,
    /// The log does not take the deletion.
    #[error("{0}")]
    Log(#[from] AppendError),
}

impl Pipeline {
    /// Returns why the store cannot execute a deletion; `None` if it can.
    pub fn refusal_of(&self, deletion: &Deletion) -> Option<&'static str> {
        self.store.deletions().refusal(deletion)
    }

    /// Removes readings for `by`, the name of a token.
    ///
    /// Waits at most `max_wait` until all instances that share the store have executed the deletion.
    ///
    /// # Errors
    /// When the deletion is not accepted.
    pub async fn delete(
        &self,
        deletion: Deletion,
        by: &str,
        max_wait: Duration,
    ) -> Result<DeletionOutcome, DeletionError> {
        if self.deletions.waiting() >= MAX_WAITING {
            return Err(DeletionError::TooMany);
        }
        let id = RandomState::new().build_hasher().finish();
        let begun = BegunDeletion { id, by: by.into(), deletion: Arc::new(deletion), from: None };
        let outcome = self.deletions.add(&begun, Stage::Logged);
        if let Err(error) = append(&self.log, &DeletionRecord::Begun(begun.clone())).await {
            self.deletions.forget(id);
            return Err(error.into());
        }
        audit(&begun, None);
        self.dead_letters.delete_followed(&begun.deletion).await;
        self.log.read_up_to(self.log.usage().readable);
        tokio::select! {
            Ok(outcome) = outcome => return Ok(outcome),
            () = tokio::time::sleep(max_wait) => {}
            () = stop::has_waited(self) => {}
        }
        let waits_for = self.deletions.waits_for(id);
        if !waits_for.is_empty() {
            let waits_for = waits_for.join(", ");
            tracing::warn!(id, waits_for, "these instances run and have not executed a deletion yet");
        }
        Ok(DeletionOutcome::Accepted { waits_for })
    }
}

/// Runs until it is aborted.
///
/// Once it has left a deletion to the next start, it does nothing more.
pub(super) async fn run(pipeline: Arc<Pipeline>) {
    loop {
        let completed = pipeline.completed.notified();
        let next = {
            let mut state = pipeline.lock();
            let next = state.pending.next_deletion();
            if matches!(next, NextDeletion::Ready(_)) {
                state.deleter = DeleterState::Busy;
            }
            next
        };
        match next {
            NextDeletion::Ready(step) => {
                let executed = execute(&pipeline, step).await;
                pipeline.lock().deleter = if executed.is_ok() { DeleterState::Idle } else { DeleterState::GaveUp };
                pipeline.completed.notify_waiters();
                if executed.is_err() {
                    return std::future::pending().await;
                }
            }
            NextDeletion::Again => tokio::task::yield_now().await,
            NextDeletion::None => tokio::select! {
                () = completed => {}
                () = pipeline.deletions.reached.notified() => {}
            },
        }
    }
}

/// The outcome of a deletion that the store has executed.
struct Removed {
    /// The number of readings that have lost a value.
    readings: u64,
    /// Why stored readings stay, if some do.
    kept: Option<String>,
}

/// Executes a deletion.
async fn execute(pipeline: &Pipeline, step: DeletionStep) -> Result<(), GaveUp> {
    let DeletionStep { begun, unanswered, erased } = step;
    let mut executed = delete_stored(pipeline, &begun, &unanswered, &erased).await?;
    if let Ok(removed) = &mut executed {
        removed.readings += delete_dead_letters(pipeline, &begun.deletion).await?;
    }
    let readings = executed.as_ref().map_or(0, |removed| removed.readings);
    // The other instances must know the deletion before the log may be cut behind it.
    let is_shared = (begun.from.is_some() || executed.is_ok()) && tell_others(pipeline, &begun, readings).await?;
    let executed = executed.and_then(|removed| removed.kept.map_or(Ok(readings), Err));
    while !pipeline.lock().pending.finish_deletion() {
        tokio::task::yield_now().await;
    }
    pipeline.lock().note_done();
    pipeline.due.notify_one();
    audit(&begun, Some(&executed));
    append_executed(pipeline, begun.id).await;
    pipeline.deletions.note_executed(&begun, executed, is_shared);
    Ok(())
}

/// Has the store execute a deletion, and repeats it until the store does.
///
/// Counts the readings that have lost a stored or a pending value. The inner error is permanent: the store
/// has not executed the deletion.
async fn delete_stored(
    pipeline: &Pipeline,
    begun: &BegunDeletion,
    unanswered: &BTreeSet<Hour>,
    erased: &Erased,
) -> Result<Result<Removed, String>, GaveUp> {
    let (deletions, deletion) = (pipeline.store.deletions(), &begun.deletion);
    if let Some(why) = deletions.refusal(deletion) {
        return Ok(Err(why.to_owned()));
    }
    let mut attempts = Attempts::new(pipeline);
    let mut stored_too = None;
    loop {
        let attempt = async {
            if !instances::may_execute(pipeline, begun).await? {
                return Ok(Deleted::default()); // the deletion is closed
            }
            if stored_too.is_none() {
                stored_too = Some(count_stored(pipeline, deletion, erased).await?);
            }
            deletions.delete(deletion, unanswered).await
        };
        match attempt.await {
            Ok(Deleted { readings, hours, kept }) => {
                attempts.succeed();
                roll_up_closed(pipeline, &deletion.device, hours).await?;
                let why = |(hour, error): (&Hour, &StoreError)| {
                    format!("the hour {} keeps its readings: {}", rfc3339(hour.start_ms()), error.with_cause())
                };
                let pending = erased.values().map(|instants| instants.len() as u64).sum::<u64>();
                let readings = pending - stored_too.unwrap_or(0) + readings;
                return Ok(Ok(Removed { readings, kept: kept.first_key_value().map(why) }));
            }
            Err(error) if error.is_permanent() => {
                attempts.succeed();
                return Ok(Err(error.with_cause()));
            }
            Err(error) => attempts.retry(&error).await?,
        }
    }
}

/// Counts the readings that have lost a pending value and are about to lose a stored one.
async fn count_stored(pipeline: &Pipeline, deletion: &Deletion, erased: &Erased) -> Result<u64, StoreError> {
    let mut count = 0;
    for (hour, instants) in erased {
        let of_hour = ReadingsQuery::all(&deletion.device, &(*hour..Hour(hour.0 + 1)));
        let of_series = ReadingsQuery { series: deletion.series.clone(), ..of_hour };
        for (_, contents) in pipeline.store.readings(&of_series).await?.hours {
            let stored = contents.readings().filter(|reading| instants.binary_search(&reading.offset).is_ok());
            count += stored.count() as u64;
        }
    }
    Ok(count)
}

/// Tells the other instances of a deletion that is executed here, and repeats it until that succeeds. Returns
/// whether there are other instances.
async fn tell_others(pipeline: &Pipeline, begun: &BegunDeletion, readings: u64) -> Result<bool, GaveUp> {
    let mut attempts = Attempts::new(pipeline);
    loop {
        match instances::tell(pipeline, begun, readings).await {
            Ok(has_others) => {
                attempts.succeed();
                return Ok(has_others);
            }
            Err(error) => attempts.retry(&error).await?,
        }
    }
}

/// Rolls up the closed hours among `hours`, as after a write to them.
///
/// Otherwise the roller could write a rollup that it has derived from the readings before the deletion.
async fn roll_up_closed(pipeline: &Pipeline, device: &Arc<str>, hours: BTreeSet<Hour>) -> Result<(), GaveUp> {
    let closed: Vec<Hour> = hours.into_iter().filter(|hour| pipeline.is_closed(*hour)).collect();
    for hours in closed.chunks(HOURS_PER_ROLLUP) {
        let hours = hours.iter().map(|hour| (Arc::clone(device), *hour)).collect();
        pipeline.writer.roll_up(hours, &mut Attempts::new(pipeline)).await?;
    }
    Ok(())
}

/// Removes readings from the waiting letters and the dead-letter file, and repeats it until that succeeds.
///
/// Returns their number.
async fn delete_dead_letters(pipeline: &Pipeline, deletion: &Deletion) -> Result<u64, GaveUp> {
    let mut attempts = Attempts::new(pipeline);
    let waiting = delete_waiting(pipeline, deletion).await;
    loop {
        match pipeline.dead_letters.delete(deletion).await {
            Ok(readings) => return Ok(waiting + readings),
            Err(error) => tracing::error!(%error, "cannot remove deleted readings from the dead-letter file"),
        }
        attempts.next().await?;
    }
}

/// Appends to the log that a deletion is executed, so that a replay does not execute it again. That would
/// remove readings that another instance has stored since.
async fn append_executed(pipeline: &Pipeline, id: u64) {
    let mut attempts = Attempts::new(pipeline);
    while let Err(AppendError::DiskFull | AppendError::OutOfFiles) =
        append(&pipeline.log, &DeletionRecord::Executed { id }).await
    {
        if attempts.next().await.is_err() {
            return;
        }
    }
}

/// Appends the record of a deletion to the log, and waits until it is durable.
pub(super) async fn append(log: &Log, record: &DeletionRecord) -> Result<(), AppendError> {
    log.append(record.to_batch())?.durable().await
}

pub(super) fn audit(begun: &BegunDeletion, executed: Option<&Result<u64, String>>) {
    let BegunDeletion { id, by, deletion, from: instance } = begun;
    let device = &*deletion.device;
    let instance = instance.as_deref().unwrap_or_default();
    let [from, to] = match &deletion.range_ms {
        None => [String::new(), String::new()],
        Some(range) => [range.start, range.end].map(rfc3339),
    };
    let series = serde_json::to_string(&deletion.series).unwrap_or_default();
    match executed {
        None => tracing::info!(target: "audit", id, %by, device, from, to, series, instance, "accepted a deletion"),
        Some(Err(error)) => {
            tracing::error!(target: "audit", id, %by, device, from, to, series, error, "cannot execute a deletion");
        }
        Some(Ok(readings)) => {
            tracing::info!(target: "audit", id, %by, device, from, to, series, readings, "deleted readings");
        }
    }
}
