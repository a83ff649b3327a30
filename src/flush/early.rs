//! Whether memory or the log keeps buckets from waiting for `flush.max_age`.
//!
//! Then the store gets more and smaller writes than the configuration promises. A log line says so when it
//! has lasted for a while, with the size that would do, and another one when it has ended. Short shortages
//! are normal: after an outage of the store, or during an import.

use std::time::Duration;

use tokio::time::Instant;

use super::Pipeline;
use crate::common::once_per_change::OncePerChange;

/// How long a shortage lasts before it is logged, and how long it is over before that is logged.
const LASTING: Duration = Duration::from_secs(120);

/// The shortages, for the log lines.
#[derive(Debug, Default)]
pub(super) struct Early {
    memory: Shortage,
    log: Shortage,
}

#[derive(Debug, Default)]
struct Shortage {
    lasting: OncePerChange,
    /// When the shortage began, and when buckets were last written early.
    span: Option<(Instant, Instant)>,
}

/// A change that is to be logged.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    Begins,
    Ends,
}

impl Early {
    /// Notes whether buckets were taken just now because memory or the log ran short.
    pub(super) fn note(&mut self, pipeline: &Pipeline, memory: bool, log: bool) {
        let (now, max_age) = (Instant::now(), pipeline.options.limits.max_age);
        let is_away = (memory || log) && pipeline.store_state.away().is_some(); // then it is no matter of size
        match self.memory.note(memory && !is_away, now) {
            Some(Change::Begins) => {
                let (seconds, used_bytes) = waiting(pipeline, |state| state.pending.bytes());
                let max_bytes = pipeline.options.limits.max_bytes;
                tracing::warn!(
                    max_bytes,
                    oldest_seconds = seconds.round(),
                    needed_bytes = needed(used_bytes, seconds, max_age).max(max_bytes),
                    "the memory of pending (pending.max_bytes) is too small for the load: buckets are written before \
                     flush.max_age, which costs the store more writes"
                );
            }
            Some(Change::Ends) => tracing::info!("the memory of pending is enough for flush.max_age again"),
            None => {}
        }
        match self.log.note(log && !is_away, now) {
            Some(Change::Begins) => {
                let usage = pipeline.log.usage();
                let (seconds, used_bytes) = waiting(pipeline, |state| {
                    usage.readable.0.saturating_sub(state.pending.cut_position(state.inserted).0)
                });
                tracing::warn!(
                    limit_bytes = usage.limit_bytes,
                    bytes_per_second = (used_bytes as f64 / seconds).round(),
                    oldest_seconds = seconds.round(),
                    needed_bytes = needed(used_bytes, seconds, max_age).max(usage.limit_bytes),
                    "the log (log.max_bytes, or its disk) is too small for the load: buckets are written before \
                     flush.max_age, which costs the store more writes"
                );
            }
            Some(Change::Ends) => tracing::info!("the log is large enough for flush.max_age again"),
            None => {}
        }
    }
}

impl Shortage {
    fn note(&mut self, is_short: bool, now: Instant) -> Option<Change> {
        if is_short {
            let since = match self.span {
                Some((since, last)) if now - last < LASTING => since,
                _ => now,
            };
            self.span = Some((since, now));
            return (now - since >= LASTING && self.lasting.begins()).then_some(Change::Begins);
        }
        let is_over = self.span.is_none_or(|(_, last)| now - last >= LASTING);
        (is_over && self.lasting.ends()).then_some(Change::Ends)
    }
}

/// Returns for how many seconds the oldest reading has waited, and what `used` returns.
fn waiting(pipeline: &Pipeline, used: impl FnOnce(&super::State) -> u64) -> (f64, u64) {
    let state = pipeline.lock();
    let since_ms = state.pending.oldest_ms().unwrap_or_default();
    let waited_ms = pipeline.now_ms().saturating_sub(since_ms).max(1);
    (waited_ms as f64 / 1e3, used(&state))
}

/// Estimates the size with which readings may wait for `max_age`, if `used_bytes` hold those of `seconds`.
///
/// Buckets are written early while more than three quarters are in use.
fn needed(used_bytes: u64, seconds: f64, max_age: Duration) -> u64 {
    (used_bytes as f64 / seconds * max_age.as_secs_f64() / 0.75) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_logged_once_when_it_lasts_and_once_when_it_is_over() {
        let (mut shortage, start) = (Shortage::default(), Instant::now());
        let mut changes = Vec::new();
        let mut note = |second, is_short| {
            let change = shortage.note(is_short, start + Duration::from_secs(second));
            changes.extend(change.map(|change| (second, change)));
        };
        for second in 0..100 {
            note(second, second % 3 == 0); // too short to be logged
        }
        for second in 300..1_000 {
            note(second, second % 50 == 0);
        }
        for second in 1_000..2_000 {
            note(second, false);
        }
        assert_eq!(changes, [(450, Change::Begins), (1_070, Change::Ends)]);
    }

    #[test]
    fn the_size_that_would_do_is_that_of_the_load() {
        assert_eq!(needed(3_000, 10.0, Duration::from_secs(100)), 40_000);
    }
}
