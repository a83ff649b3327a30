//! Log lines for operators: memory or the log is too small, so buckets do not wait for `flush.max_age`.
//!
//! In such a shortage the store gets more and smaller writes than the configuration promises. A line is
//! logged when a shortage has lasted for a while, with the size that would be enough, and another line when
//! it has ended. Short shortages are normal: after an outage of the store, or during an import.

use std::time::Duration;

use tokio::time::Instant;

use super::Pipeline;
use crate::common::once_per_change::OncePerChange;
use crate::config::Bytes;

/// A shortage is logged after it has lasted for this time, and its end after it has been over for this time.
const LASTING: Duration = Duration::from_secs(120);

/// The longest time that a reading waits: its hour, and then until the turn of its bucket. So a longer
/// `flush.max_age` needs no more space.
const LONGEST_WAIT: Duration = Duration::from_secs(3_600 + 660);

/// The log lines about a shortage.
struct Lines {
    begins: &'static str,
    ends: &'static str,
}

const OF_MEMORY: Lines = Lines {
    begins: "the memory of pending is too small for the load: buckets are written before flush.max_age, which costs \
             the store more writes; raise pending.max_bytes to what is needed, or lower flush.max_age",
    ends: "the memory of pending is enough for flush.max_age again",
};

const OF_LOG: Lines = Lines {
    begins: "the log is too small for the load: buckets are written before flush.max_age, which costs the store more \
             writes; raise log.max_bytes to what is needed (or free space on its disk), or lower flush.max_age",
    ends: "the log is large enough for flush.max_age again",
};

/// The shortages of memory and of the log, for the log lines about them.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Begins,
    Ends,
}

impl Early {
    /// Notes whether buckets were taken just now because memory or the log ran short.
    pub(super) fn note(&mut self, pipeline: &Pipeline, memory: bool, log: bool) {
        let (now, max_age) = (Instant::now(), pipeline.options.limits.max_age);
        let is_away = (memory || log) && pipeline.store_state.away().is_some(); // then a larger size would not help
        report(self.memory.note(memory && !is_away, now), &OF_MEMORY, max_age, || {
            let (seconds, used) = waiting(pipeline, |state| {
                let fixed_bytes = state.pending.fixed_bytes();
                Used { fixed_bytes, growing_bytes: state.pending.bytes().saturating_sub(fixed_bytes) }
            });
            (pipeline.options.limits.max_bytes, seconds, used)
        });
        report(self.log.note(log && !is_away, now), &OF_LOG, max_age, || {
            let usage = pipeline.log.usage();
            let (seconds, used) = waiting(pipeline, |state| {
                let cut = state.pending.cut_position(state.inserted);
                Used { fixed_bytes: 0, growing_bytes: usage.readable.0.saturating_sub(cut.0) }
            });
            (usage.limit_bytes, seconds, used)
        });
    }
}

/// Logs a change, if there is one.
///
/// `measure` returns the limit, for how many seconds the oldest reading has waited, and the space in use.
fn report(change: Option<Change>, lines: &Lines, max_age: Duration, measure: impl FnOnce() -> (u64, f64, Used)) {
    match change {
        Some(Change::Begins) => {
            let (limit, seconds, used) = measure();
            tracing::warn!(
                limit = %as_configured(limit),
                needed = %as_configured(used.needed(seconds, max_age).max(limit)),
                oldest_seconds = seconds.round(),
                bytes_per_second = (used.growing_bytes as f64 / seconds).round(),
                "{}", lines.begins
            );
        }
        Some(Change::Ends) => tracing::info!("{}", lines.ends),
        None => {}
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
fn waiting(pipeline: &Pipeline, used: impl FnOnce(&super::State) -> Used) -> (f64, Used) {
    let state = pipeline.lock();
    let since_ms = state.pending.oldest_ms().unwrap_or_default();
    let waited_ms = pipeline.now_ms().saturating_sub(since_ms).max(1);
    (waited_ms as f64 / 1e3, used(&state))
}

/// The space in use.
#[derive(Debug, Clone, Copy)]
struct Used {
    /// The bytes for devices and hours, whatever the number of their readings.
    fixed_bytes: u64,
    /// The bytes for readings.
    growing_bytes: u64,
}

impl Used {
    /// Estimates the size with which readings can wait for `max_age`.
    ///
    /// The space in use holds the readings of the last `seconds`.
    ///
    /// Buckets are written early while more than three quarters are in use.
    fn needed(self, seconds: f64, max_age: Duration) -> u64 {
        let longer = (max_age.min(LONGEST_WAIT).as_secs_f64() / seconds).max(1.0);
        ((self.fixed_bytes as f64 + self.growing_bytes as f64 * longer) / 0.75) as u64
    }
}

/// A size as an operator writes it: rounded up to whole KiB, MiB or GiB with two digits or more.
fn as_configured(bytes: u64) -> Bytes {
    let units = [1_u64 << 30, 1 << 20, 1 << 10];
    let unit = units.into_iter().find(|unit| bytes >= 10 * unit).unwrap_or(1);
    Bytes(bytes.div_ceil(unit).saturating_mul(unit))
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
        let used = |fixed_bytes, growing_bytes| Used { fixed_bytes, growing_bytes };
        assert_eq!(used(0, 3_000).needed(10.0, Duration::from_secs(100)), 40_000);
        // A thousand devices with 200 readings a second of 16 bytes, after three seconds and after a minute.
        let max_age = Duration::from_secs(900);
        assert_eq!(used(200_000, 9_600).needed(3.0, max_age), (200_000 + 2_880_000) * 4 / 3);
        assert_eq!(used(200_000, 192_000).needed(60.0, max_age), (200_000 + 2_880_000) * 4 / 3);
        // Nothing waits for much longer than an hour, and readings that have waited need their space.
        let needed = |seconds| used(0, 3_000).needed(1.0, Duration::from_secs(seconds));
        assert_eq!((needed(86_400), needed(0)), (needed(4_260), 4_000));
    }

    #[test]
    fn sizes_are_shown_as_an_operator_writes_them() {
        for (bytes, shown) in [
            (0, "0B"),
            (10_239, "10239B"),
            (10_240, "10KiB"),
            (78_571_428, "75MiB"),
            (64 << 20, "64MiB"),
            ((64 << 20) + 1, "65MiB"),
            (8 << 30, "8GiB"),
            ((8 << 30) + 1, "8193MiB"),
            (11_000_000_000, "11GiB"),
        ] {
            let configured = as_configured(bytes);
            assert_eq!(configured.to_string(), shown);
            assert!(configured.0 >= bytes && shown.parse() == Ok(configured));
        }
    }
}
