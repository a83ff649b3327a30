//! Whether the store is available: one state, from the outcomes of writes and from a probe.
//!
//! Each change is logged once. Queries use the state too, so that they do not wait for a store that is known
//! not to answer. A store that only refuses writes may answer them: a file that another program has locked,
//! or a cluster without one of its shards.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Pipeline;

/// The time between two probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// How long the answer to a probe may take. A store that hangs is away. MongoDB has a limit of its own, from
/// `mongodb.timeout`, which is shorter and has a better error.
const PROBE_TIMEOUT: Duration = Duration::from_secs(12);

/// The state of the store, shared.
#[derive(Debug, Default)]
pub(super) struct StoreState(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Why it does not accept writes.
    writes: Option<String>,
    /// Whether it has answered a probe that began after it had ceased to accept writes.
    only_refuses_writes: bool,
    /// Why it does not answer probes.
    answers: Option<String>,
    /// Since when it has been away.
    since: Option<Instant>,
}

impl Known {
    fn away(&self) -> Option<&String> {
        self.answers.as_ref().or(self.writes.as_ref())
    }
}

impl StoreState {
    /// Returns since when the store has been away, and why; `None` if it is available.
    pub(super) fn away(&self) -> Option<(Instant, String)> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Some((known.since?, known.away()?.clone()))
    }

    /// Returns since when the store has been away, and why; `None` if it may answer queries.
    pub(super) fn unanswering(&self) -> Option<(Instant, String)> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = known.writes.as_ref().filter(|_| !known.only_refuses_writes);
        Some((known.since?, known.answers.as_ref().or(refused)?.clone()))
    }

    fn refuses_writes(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).writes.is_some()
    }

    /// Returns whether the store did not answer the last probe.
    pub(super) fn is_silent(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).answers.is_some()
    }

    fn change(&self, pipeline: &Pipeline, change: impl FnOnce(&mut Known)) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut known);
        let (error, since) = (known.away().cloned(), known.since);
        if error.is_some() != since.is_some() {
            known.since = error.as_ref().map(|_| Instant::now());
        }
        pipeline.metrics.store_up.set(f64::from(u8::from(error.is_none())));
        drop(known); // a log line may take long
        match (error, since) {
            (Some(error), None) => {
                tracing::warn!(store = pipeline.store.name(), error, "the store is away; readings wait in the log");
            }
            (None, Some(since)) => {
                let seconds = since.elapsed().as_secs_f64();
                tracing::info!(store = pipeline.store.name(), seconds, "the store is back");
            }
            (None, None) | (Some(_), Some(_)) => {}
        }
    }
}

/// Records that a write failed with a transient error.
pub(super) fn note_away(pipeline: &Pipeline, error: &impl std::fmt::Display) {
    pipeline.store_state.change(pipeline, |known| _ = known.writes.get_or_insert_with(|| error.to_string()));
}

/// Records that the store answered a write.
pub(super) fn note_back(pipeline: &Pipeline) {
    let is_back = |known: &mut Known| {
        (known.writes, known.answers, known.only_refuses_writes) = (None, None, false);
    };
    pipeline.store_state.change(pipeline, is_back);
}

/// Probes the store regularly. Runs until it is aborted.
pub(super) async fn watch(pipeline: Arc<Pipeline>) {
    loop {
        let refuses_writes = pipeline.store_state.refuses_writes();
        let answers = match tokio::time::timeout(PROBE_TIMEOUT, pipeline.store.ping()).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {PROBE_TIMEOUT:?}")),
        };
        pipeline.store_state.change(&pipeline, |known| {
            known.only_refuses_writes = refuses_writes && known.writes.is_some() && answers.is_none();
            known.answers = answers;
        });
        tokio::time::sleep(PROBE_INTERVAL).await;
    }
}
