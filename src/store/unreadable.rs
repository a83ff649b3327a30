//! Stored documents and rows that queries skip, because this program cannot read them.

use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::telemetry::Counter;

/// The shortest time between two log lines.
const INTERVAL: Duration = Duration::from_secs(60);

/// Counts the documents or rows that queries skip, and logs at most one a minute.
///
/// Another program wrote them, an operator changed them, or a disk damaged them. Queries still read the rest.
#[derive(Debug, Clone)]
pub struct UnreadableDocuments {
    skipped: Counter,
    logged_at: Arc<Mutex<Option<Instant>>>,
}

impl UnreadableDocuments {
    /// Counts with `skipped`.
    #[must_use]
    pub fn new(skipped: Counter) -> Self {
        Self { skipped, logged_at: Arc::default() }
    }

    /// Counts a document or row, and logs `which`, at most once a minute.
    pub(super) fn skip(&self, which: impl FnOnce() -> String, error: &impl Display) {
        self.skipped.increment(1);
        let mut logged_at = self.logged_at.lock().unwrap_or_else(PoisonError::into_inner);
        if logged_at.is_none_or(|at| at.elapsed() >= INTERVAL) {
            *logged_at = Some(Instant::now());
            drop(logged_at);
            let which = which();
            tracing::warn!(which, %error, "a read skipped something in the store that tidegauge cannot read");
        }
    }
}

/// Counts without a metric.
impl Default for UnreadableDocuments {
    fn default() -> Self {
        Self::new(Counter::noop())
    }
}
