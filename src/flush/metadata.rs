//! Metadata that operators set: from the log to the store.
//!
//! A change goes through the log, like a reading: it is durable when it is acknowledged. The feeder adds it
//! to the changes that wait for the store, which queries see too. The saver has the store merge these. The
//! log is not cut behind a change that the store has not taken. A merge may be repeated, so a replay needs
//! nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::MutexGuard;

use super::Pipeline;
use super::attempts::{Attempts, GaveUp};
use super::writer::Retry;
use crate::log::{AppendError, MetadataRecord, Position};
use crate::model::OperatorMetadata;

/// The most devices whose changes wait for the store.
const MAX_WAITING: usize = 1_000;

/// The most devices in one write to the store.
const DEVICES_PER_WRITE: usize = 100;

/// A change of metadata was not accepted.
///
/// It has no effect, except after [`AppendError::Poisoned`]: then the outcome is unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// Too many changes wait for the store.
    #[error("changes in the metadata of {MAX_WAITING} devices wait for the store")]
    TooMany,
    /// The log does not take the change.
    #[error("{0}")]
    Log(#[from] AppendError),
}

/// The changes that the store has not taken.
#[derive(Debug, Default)]
pub(super) struct WaitingMetadata {
    waiting: BTreeMap<Arc<str>, Waiting>,
    in_flight: BTreeMap<Arc<str>, Waiting>,
    /// Whether the last attempt to store changes has failed, and another one follows.
    is_failing: bool,
    /// Whether the changes in flight are left to the next start.
    gave_up: bool,
}

/// The changes of one device.
#[derive(Debug, Clone)]
struct Waiting {
    /// The position of the first change in the log.
    position: Position,
    change: OperatorMetadata,
}

impl WaitingMetadata {
    /// Whether no more devices may be added.
    pub(super) fn is_full(&self) -> bool {
        !self.has_room(1)
    }

    /// Whether this many more devices may be added.
    fn has_room(&self, devices: usize) -> bool {
        self.waiting.len() + self.in_flight.len() + devices <= MAX_WAITING
    }

    /// Whether nothing is left to do before the service ends.
    pub(super) fn is_done(&self) -> bool {
        self.gave_up || self.waiting.is_empty() && self.in_flight.is_empty()
    }

    /// Adds a change.
    pub(super) fn add(&mut self, device: Arc<str>, change: OperatorMetadata, position: Position) {
        let new = || Waiting { position, change: OperatorMetadata::default() };
        self.waiting.entry(device).or_insert_with(new).change.merge(change);
    }

    /// The position up to which the log may be cut.
    ///
    /// It is the position of the first waiting change; without a change, it is `inserted`.
    pub(super) fn cut_position(&self, inserted: Position) -> Position {
        self.waiting.values().chain(self.in_flight.values()).map(|of| of.position).fold(inserted, Position::min)
    }

    /// Returns the changes in flight.
    ///
    /// If there are none, it first moves the next waiting ones there.
    fn take(&mut self) -> Vec<(Arc<str>, OperatorMetadata)> {
        if self.in_flight.is_empty() {
            self.in_flight = std::iter::from_fn(|| self.waiting.pop_first()).take(DEVICES_PER_WRITE).collect();
        }
        self.in_flight.iter().map(|(device, waiting)| (Arc::clone(device), waiting.change.clone())).collect()
    }

    /// Whether the store is about to get a change of one of these devices.
    fn has_any(&self, devices: &[Arc<str>]) -> bool {
        let has = |device: &Arc<str>| self.waiting.contains_key(device) || self.in_flight.contains_key(device);
        !self.gave_up && devices.iter().any(has)
    }

    fn of(&self, device: &str) -> Option<OperatorMetadata> {
        let mut found = [&self.in_flight, &self.waiting].into_iter().filter_map(|of| of.get(device));
        let mut all = found.next()?.change.clone();
        found.for_each(|waiting| all.merge(waiting.change.clone()));
        Some(all)
    }
}

impl Pipeline {
    /// Waits for the turn to change metadata.
    ///
    /// No other change begins before the turn is dropped, because each change depends on those before it.
    pub async fn metadata_turn(&self) -> MutexGuard<'_, ()> {
        self.metadata_turn.lock().await
    }

    /// Appends changes of metadata to the log, and waits until they are durable.
    ///
    /// The caller has the [turn](Self::metadata_turn) and has [caught up](Self::catch_up) in it. So all
    /// earlier changes are counted here, and the feeder need not wait for room.
    ///
    /// # Errors
    /// When a change is not accepted: the first such error. Other changes, before and after it, may be
    /// accepted nevertheless.
    pub async fn change_metadata(&self, records: Vec<MetadataRecord>) -> Result<(), ChangeError> {
        if !self.lock().metadata.has_room(records.len()) {
            return Err(ChangeError::TooMany);
        }
        let acks: Vec<_> = records.iter().map(|record| self.log.append(record.to_batch())).collect();
        let mut accepted = Ok(());
        for (ack, MetadataRecord { device, by, change }) in acks.into_iter().zip(records) {
            let durable = match ack {
                Ok(mut ack) => ack.durable().await,
                Err(error) => Err(error),
            };
            if let Err(error) = durable {
                accepted = accepted.and(Err(ChangeError::from(error)));
                continue;
            }
            let change = serde_json::to_string(&change).unwrap_or_default();
            tracing::info!(target: "audit", %by, device = &*device, change, "set metadata of a device");
        }
        accepted
    }

    /// Waits until all instances that share the store see the acknowledged changes of these devices, because
    /// the store has taken them. Waits at most `max_wait`, and not at all while the store does not answer or
    /// the last attempt to store metadata has failed.
    ///
    /// A change that follows at another instance is then made to the result of these, and is the later one
    /// whatever the clocks of both say.
    pub async fn metadata_seen(&self, devices: &[Arc<str>], max_wait: Duration) {
        if self.store.instances().is_none() || self.store_state.is_silent() || self.lock().metadata.is_failing {
            return;
        }
        let seen = async {
            self.catch_up(max_wait).await;
            loop {
                let completed = self.completed.notified();
                if !self.lock().metadata.has_any(devices) {
                    return;
                }
                completed.await;
            }
        };
        _ = tokio::time::timeout(max_wait, seen).await; // they are durable, and the saver goes on
    }

    /// Returns the changes of these devices that the store may not have taken.
    pub fn waiting_metadata(&self, devices: &[Arc<str>]) -> Vec<(Arc<str>, OperatorMetadata)> {
        let state = self.lock();
        if state.metadata.waiting.is_empty() && state.metadata.in_flight.is_empty() {
            return Vec::new();
        }
        let of = |device: &Arc<str>| Some((Arc::clone(device), state.metadata.of(device)?));
        devices.iter().filter_map(of).collect()
    }

    /// Returns the changes that the store may not have taken, of the devices whose ID starts with `prefix`
    /// and is greater than `after`.
    pub fn list_waiting_metadata(&self, prefix: &str, after: Option<&str>) -> Vec<(Arc<str>, OperatorMetadata)> {
        let state = self.lock();
        let devices = state.metadata.waiting.keys().chain(state.metadata.in_flight.keys());
        let is_listed = |device: &&Arc<str>| device.starts_with(prefix) && after.is_none_or(|after| ***device > *after);
        let devices: Vec<Arc<str>> = devices.filter(is_listed).cloned().collect();
        drop(state);
        self.waiting_metadata(&devices)
    }
}

/// Runs until it is aborted.
///
/// Once it has left changes to the next start, it does nothing more.
pub(super) async fn run(pipeline: Arc<Pipeline>) {
    loop {
        let added = pipeline.metadata_added.notified();
        let changes = pipeline.lock().metadata.take();
        if changes.is_empty() {
            added.await;
            continue;
        }
        let is_saved = save(&pipeline, &changes).await.is_ok();
        note_saved(&pipeline, is_saved);
        if !is_saved {
            return std::future::pending().await;
        }
    }
}

/// Notes that the store has taken the changes in flight, or that they are left to the next start.
fn note_saved(pipeline: &Pipeline, is_saved: bool) {
    let mut state = pipeline.lock();
    if is_saved {
        state.metadata.in_flight.clear();
        state.note_done();
    } else {
        state.metadata.gave_up = true;
    }
    drop(state);
    pipeline.completed.notify_waiters();
    pipeline.due.notify_one();
}

/// Has the store merge changes, and repeats it until the store does.
async fn save(pipeline: &Pipeline, changes: &[(Arc<str>, OperatorMetadata)]) -> Result<(), GaveUp> {
    let mut attempts = Attempts::new(pipeline);
    let mut left = vec![changes];
    while let Some(some) = left.pop() {
        let merged = pipeline.store.operator_metadata().merge_metadata(some).await;
        pipeline.lock().metadata.is_failing = merged.as_ref().is_err_and(|error| !error.is_permanent());
        match merged {
            Ok(()) => attempts.succeed(),
            Err(error) if error.is_permanent() && some.len() > 1 => {
                attempts.succeed();
                left.extend(some.chunks(some.len().div_ceil(2)));
            }
            Err(error) if error.is_permanent() => {
                attempts.succeed();
                pipeline.metrics.metadata_refused_total.increment(some.len() as u64);
                for (device, change) in some {
                    let change = serde_json::to_string(change).unwrap_or_default();
                    let device = &**device;
                    tracing::error!(device, change, %error, "the store refuses metadata that an operator has set");
                }
            }
            Err(error) => {
                left.push(some);
                attempts.retry(&error).await?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_log_is_kept_from_the_first_change_that_the_store_has_not_taken() {
        let set = |key: &str| {
            let object = [(key.to_owned(), json!(1))].into_iter().collect();
            OperatorMetadata::default().patched(object, 7)
        };
        let mut changes = WaitingMetadata::default();
        assert!(changes.is_done() && changes.cut_position(Position(80)) == Position(80));
        changes.add("b".into(), set("x"), Position(16));
        changes.add("a".into(), set("x"), Position(24));
        assert_eq!(changes.cut_position(Position(80)), Position(16));
        let taken = changes.take();
        assert_eq!(taken.iter().map(|(device, _)| &**device).collect::<Vec<_>>(), ["a", "b"]);
        changes.add("b".into(), set("y"), Position(40));
        assert_eq!(changes.take(), taken, "one write at a time");
        assert_eq!(changes.cut_position(Position(80)), Position(16));
        let mut both = set("x");
        both.merge(set("y"));
        assert_eq!((changes.of("b"), changes.of("a"), changes.of("c")), (Some(both), Some(set("x")), None));
        let has = |changes: &WaitingMetadata, device: &str| changes.has_any(&[Arc::from("c"), Arc::from(device)]);
        assert_eq!([has(&changes, "a"), has(&changes, "b"), has(&changes, "c")], [true, true, false]);
        changes.in_flight.clear();
        assert_eq!([has(&changes, "a"), has(&changes, "b")], [false, true]);
        assert!(!changes.is_done() && changes.cut_position(Position(80)) == Position(40));
    }
}
