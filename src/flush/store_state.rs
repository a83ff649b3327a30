//! Whether the store is available: one state, from the outcomes of attempts and from pings.
//!
//! Each change is logged once. What a part of the service may conclude depends on what the store was asked:
//!
//! - The store is **away** while it does not answer pings, while a task repeats an attempt that has failed as
//!   a whole ([`super::attempts`]), or while an instance without a lease cannot look for deletions, so that
//!   it attempts no write ([`super::instances`]).
//! - The store is **silent** while it does not answer pings. Only then do queries not ask it. A store that
//!   only refuses writes may answer them: a file that another program has locked, or a cluster without one of
//!   its shards.
//!
//! A failed attempt causes a ping at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::stop::STORE_WAIT;
use super::{Pipeline, stop};
use crate::store::StoreError;

/// The time between two pings.
const PING_INTERVAL: Duration = Duration::from_secs(2);

/// How long the answer to a ping may take.
///
/// MongoDB has a limit of its own, from `mongodb.timeout`, which is shorter and has a better error.
const PING_TIMEOUT: Duration = Duration::from_secs(12);

/// Whether the store is available, as all tasks see it.
#[derive(Debug, Default)]
pub(super) struct StoreState {
    known: watch::Sender<Known>,
    /// Notifies the task that pings the store: another task has begun or ceased to fail.
    attempted: Notify,
}

#[derive(Debug, Default)]
struct Known {
    /// The number of tasks whose last attempt has failed as a whole.
    failing: usize,
    /// Why the first of these attempts failed.
    failure: Option<String>,
    /// Why the last ping had no answer.
    silence: Option<String>,
    /// Why the last look for deletions failed, if nothing is stored until one succeeds.
    blindness: Option<String>,
    /// Since when the store has been away.
    since: Option<Instant>,
}

impl Known {
    fn away(&self) -> Option<&String> {
        self.silence.as_ref().or(self.failure.as_ref()).or(self.blindness.as_ref())
    }
}

impl StoreState {
    /// Returns since when the store has been away, and why; `None` if it is available.
    pub(super) fn away(&self) -> Option<(Instant, String)> {
        let known = self.known.borrow();
        Some((known.since?, known.away()?.clone()))
    }

    /// Returns whether the store does not answer pings.
    pub(super) fn is_silent(&self) -> bool {
        self.known.borrow().silence.is_some()
    }

    /// Waits until the store is silent. Returns since when it has been away, and why.
    pub(super) async fn silent(&self) -> (Instant, String) {
        let mut known = self.known.subscribe();
        let silent = known.wait_for(|known| known.silence.is_some()).await;
        let silent = silent.ok().and_then(|known| Some((known.since?, known.silence.clone()?)));
        match silent {
            Some(silent) => silent,
            None => std::future::pending().await, // the service has ended
        }
    }

    fn change(&self, pipeline: &Pipeline, change: impl FnOnce(&mut Known)) {
        let mut turn = None;
        self.known.send_modify(|known| {
            change(known);
            let (error, since) = (known.away().cloned(), known.since);
            if error.is_some() != since.is_some() {
                known.since = error.as_ref().map(|_| Instant::now());
            }
            pipeline.metrics.store_up.set(f64::from(u8::from(error.is_none())));
            turn = Some((error, since));
        });
        match turn {
            Some((Some(error), None)) => {
                tracing::warn!(store = pipeline.store.name(), error, "the store is away; readings wait in the log");
            }
            Some((None, Some(since))) => {
                let seconds = since.elapsed().as_secs_f64();
                tracing::info!(store = pipeline.store.name(), seconds, "the store is back");
            }
            _ => {}
        }
    }
}

/// Records that a task has begun to fail.
pub(super) fn note_failing(pipeline: &Pipeline, error: &StoreError) {
    pipeline.store_state.change(pipeline, |known| {
        known.failing += 1;
        known.failure.get_or_insert_with(|| error.with_cause());
    });
    pipeline.store_state.attempted.notify_one();
}

/// Records that a task that was failing has ceased to fail.
pub(super) fn note_working(pipeline: &Pipeline) {
    pipeline.store_state.change(pipeline, |known| {
        known.failing -= 1;
        if known.failing == 0 {
            known.failure = None;
        }
    });
    pipeline.store_state.attempted.notify_one();
}

/// Records the outcome of a look for deletions: an error, if nothing is stored because of it.
pub(super) fn note_look(pipeline: &Pipeline, failed: Option<&StoreError>) {
    pipeline.store_state.change(pipeline, |known| known.blindness = failed.map(StoreError::with_cause));
}

/// Pings the store regularly. Runs until it is aborted.
pub(super) async fn watch(pipeline: Arc<Pipeline>) {
    loop {
        let silence = tokio::select! {
            answer = pipeline.store.ping() => answer.err().map(|error| error.to_string()),
            () = tokio::time::sleep(PING_TIMEOUT) => Some(format!("no answer within {PING_TIMEOUT:?}")),
            () = stop::has_waited(&pipeline) => Some(format!("no answer within {STORE_WAIT:?}")),
        };
        pipeline.store_state.change(&pipeline, |known| known.silence = silence);
        tokio::select! {
            () = tokio::time::sleep(PING_INTERVAL) => {}
            () = pipeline.store_state.attempted.notified() => {}
            () = pipeline.stop_begins.cancelled() => tokio::time::sleep(STORE_WAIT / 10).await,
        }
    }
}
