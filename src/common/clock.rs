//! The wall clock, and dates as text.
//!
//! [`Clock::now_ms`] is the only place that reads the wall clock of the system. The wall clock may jump, so
//! rooms measure durations with `Instant` and ask the [`Clock`] for dates alone: the window in which readings
//! are accepted, the end of hours, and the expiry of tokens, certificates and stored readings.

#[cfg(test)]
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The wall clock of the system or, in tests, one that the test sets.
#[derive(Debug, Clone)]
pub struct Clock {
    #[cfg(test)]
    set: Option<Arc<AtomicI64>>,
}

impl Clock {
    /// The wall clock of the system.
    #[must_use]
    pub const fn system() -> Self {
        Self {
            #[cfg(test)]
            set: None,
        }
    }

    /// A clock for tests that shows `now_ms` until [`Self::set`] changes it, in all of its clones.
    #[cfg(test)]
    #[must_use]
    pub fn fixed(now_ms: i64) -> Self {
        Self { set: Some(Arc::new(AtomicI64::new(now_ms))) }
    }

    /// Sets a clock for tests.
    #[cfg(test)]
    pub fn set(&self, now_ms: i64) {
        self.set.as_ref().expect("a clock for tests").store(now_ms, Ordering::SeqCst);
    }

    /// The date in Unix milliseconds, negative before 1970.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        #[cfg(test)]
        if let Some(set) = &self.set {
            return set.load(Ordering::SeqCst);
        }
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_millis() as i64,
            Err(before) => -(before.duration().as_millis() as i64),
        }
    }
}

/// An instant as RFC 3339 in UTC with milliseconds.
///
/// An instant that has no such form becomes its number. None of a reading is one: the range of jiff covers
/// all instants that admission accepts, except two days at the ends that no time zone can show.
#[must_use]
pub fn rfc3339(ts_ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ts_ms).map_or_else(|_| ts_ms.to_string(), |instant| format!("{instant:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_clones_of_a_clock_for_tests_show_what_was_set() {
        let clock = Clock::fixed(-1);
        let other = clock.clone();
        assert_eq!(other.now_ms(), -1);
        clock.set(1_776_693_610_000);
        assert_eq!(other.now_ms(), 1_776_693_610_000);
    }

    #[test]
    fn an_instant_without_a_form_becomes_its_number() {
        assert_eq!(rfc3339(1_776_693_610_000), "2026-04-20T14:00:10.000Z");
        assert_eq!(rfc3339(-62_167_219_200_000), "0000-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(i64::MIN), i64::MIN.to_string());
    }
}
