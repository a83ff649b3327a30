//! The saved position of the follower, and the metrics of its lag behind the log.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::common::once_per_change::OncePerChange;
use crate::log::{Followed, Log, Position};
use crate::telemetry::Metrics;

/// How often the metrics of the lag are updated while the follower waits.
const TICK: Duration = Duration::from_secs(1);

/// The most ends of the log that are remembered.
const MAX_ENDS: usize = 1_024;

/// The position of the follower, and the metrics of its lag.
pub(super) struct Progress {
    log: Arc<Log>,
    followed: Followed,
    ends: Ends,
    started: Instant,
    /// The time of `started`, in Unix milliseconds.
    started_ms: u64,
    metrics: Arc<Metrics>,
    next_tick: Instant,
    failing: OncePerChange,
}

impl Progress {
    /// Starts at the saved position `followed`. `now_ms` is the time in Unix milliseconds.
    ///
    /// If the saved time is 0, because the file was damaged, or in the future, because the clock was ahead or
    /// is behind, the lag in seconds is counted from now. Later times do not depend on the clock, which may
    /// be set meanwhile. If the clock is behind when the first process starts, and something still waits when
    /// the second one starts with the right clock, the lag is years until that is forwarded.
    pub(super) fn new(log: Arc<Log>, mut followed: Followed, now_ms: u64, metrics: Arc<Metrics>) -> Self {
        let (started, started_ms) = (Instant::now(), now_ms.max(followed.as_of_ms));
        if followed.as_of_ms == 0 {
            followed.as_of_ms = started_ms;
        }
        let (ends, failing) = (Ends::new(followed), OncePerChange::default());
        let mut progress = Self { log, followed, ends, started, started_ms, metrics, next_tick: started, failing };
        progress.show();
        progress
    }

    /// The position before which all readings are forwarded.
    pub(super) const fn position(&self) -> Position {
        self.followed.position
    }

    /// Notes that all readings before `position` are forwarded. Does not save it.
    pub(super) fn pass(&mut self, position: Position) {
        self.followed.position = position;
    }

    /// Notes that the log ends at `end` now, or did so until a moment ago.
    pub(super) fn note_end(&mut self, end: Position) {
        self.ends.note(Followed { position: end, as_of_ms: self.now_ms() });
        self.show();
    }

    /// Waits until the next tick, and notes where the log ends then.
    pub(super) async fn tick(&mut self) {
        tokio::time::sleep_until(self.next_tick).await;
        self.next_tick = Instant::now() + TICK;
        self.note_end(self.log.usage().readable);
    }

    /// Saves the position, so that the log can remove the records before it.
    pub(super) fn save(&mut self) {
        self.show();
        match self.log.save_followed(self.followed) {
            Ok(()) => _ = self.failing.ends(),
            Err(error) if self.failing.begins() => {
                tracing::warn!(%error, "cannot save what is forwarded; the log grows until it can be saved");
            }
            Err(_) => {}
        }
    }

    fn show(&mut self) {
        let end = self.log.usage().readable;
        self.followed.as_of_ms = self.ends.as_of_ms(self.followed.position);
        let behind_bytes = end.0.saturating_sub(self.followed.position.0);
        let (lag_bytes, lag_seconds) = (&self.metrics.forward_lag_bytes, &self.metrics.forward_lag_seconds);
        // With this order, a scrape in between never shows bytes that have waited for 0 seconds.
        if behind_bytes == 0 {
            lag_bytes.set(0.0);
            lag_seconds.set(0.0);
        } else {
            let behind_ms = self.now_ms().saturating_sub(self.followed.as_of_ms).max(1);
            lag_seconds.set(behind_ms as f64 / 1e3);
            lag_bytes.set(behind_bytes as f64);
        }
    }

    fn now_ms(&self) -> u64 {
        self.started_ms.saturating_add(self.started.elapsed().as_millis() as u64)
    }
}

/// Former ends of the log, each with the last time at which the log ended there.
///
/// They tell how old the first record is that is not forwarded. If there are too many ends, every second one
/// is forgotten, and new ends are noted less often.
#[derive(Debug)]
struct Ends {
    ends: VecDeque<Followed>,
    /// The shortest time between two noted ends, in milliseconds.
    interval_ms: u64,
}

impl Ends {
    fn new(first: Followed) -> Self {
        Self { ends: VecDeque::from([first]), interval_ms: 0 }
    }

    fn note(&mut self, end: Followed) {
        match self.ends.back_mut() {
            Some(last) if last.position == end.position => last.as_of_ms = last.as_of_ms.max(end.as_of_ms),
            Some(last) if last.position > end.position => {}
            Some(last) if end.as_of_ms < last.as_of_ms.saturating_add(self.interval_ms) => {}
            _ => self.ends.push_back(end),
        }
        if self.ends.len() > MAX_ENDS {
            let mut at = 0..;
            self.ends.retain(|_| at.next().is_some_and(|at: usize| at.is_multiple_of(2)));
            self.interval_ms = end.as_of_ms.saturating_sub(self.ends[0].as_of_ms) / self.ends.len() as u64;
        }
    }

    /// The last time at which the log ended at `position` or before.
    ///
    /// Forgets all earlier ends.
    fn as_of_ms(&mut self, position: Position) -> u64 {
        while self.ends.get(1).is_some_and(|next| next.position <= position) {
            self.ends.pop_front();
        }
        if self.ends.len() == 1 {
            self.interval_ms = 0;
        }
        self.ends.front().map_or(0, |end| end.as_of_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(position: u64, as_of_ms: u64) -> Followed {
        Followed { position: Position(position), as_of_ms }
    }

    #[test]
    fn a_position_is_as_old_as_the_last_end_of_the_log_before_it() {
        let mut ends = Ends::new(at(0, 10));
        ends.note(at(0, 50)); // nothing was appended until then
        ends.note(at(80, 60));
        ends.note(at(160, 70));
        ends.note(at(160, 75));
        for (position, as_of_ms) in [(0, 50), (79, 50), (80, 60), (159, 60), (160, 75), (800, 75)] {
            assert_eq!(ends.as_of_ms(Position(position)), as_of_ms, "{position}");
        }
    }

    #[test]
    fn days_of_ends_take_little_memory_and_stay_about_right() {
        const SECONDS: u64 = 3 * 86_400;
        let mut ends = Ends::new(at(0, 0));
        (1..=SECONDS).for_each(|second| ends.note(at(second * 8, second * 1_000)));
        assert!(ends.ends.len() <= MAX_ENDS);
        for second in (0..SECONDS).step_by(10_007) {
            let found = ends.as_of_ms(Position(second * 8)) / 1_000;
            assert!(found <= second && second - found <= SECONDS / 250, "{found} for {second}");
        }
    }
}
