//! What reads skip: stored documents and rows that this program cannot read.

use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::telemetry::Counter;

/// How often one is logged at most.
const INTERVAL: Duration = Duration::from_secs(60);

/// Counts the documents or rows of one place that reads skip, and logs one a minute.
///
/// Somebody else wrote them into the database, changed them by hand, or a disk damaged them. They must not
/// keep anyone from reading the rest.
#[derive(Debug, Clone)]
pub struct UnreadableDocuments {
    skipped: Counter,
    told: Arc<Mutex<Option<Instant>>>,
}

impl UnreadableDocuments {
    /// Counts with this counter.
    #[must_use]
    pub fn new(skipped: Counter) -> Self {
        Self { skipped, told: Arc::default() }
    }

    /// Counts one, and logs `which` it is.
    pub(super) fn skip(&self, which: impl FnOnce() -> String, error: &impl Display) {
        self.skipped.increment(1);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|told| told.elapsed() >= INTERVAL) {
            *told = Some(Instant::now());
            drop(told);
            let which = which();
            tracing::warn!(which, %error, "a read skipped something in the store that tidegauge cannot read");
        }
    }
}

/// Counts nowhere.
impl Default for UnreadableDocuments {
    fn default() -> Self {
        Self::new(Counter::noop())
    }
}
