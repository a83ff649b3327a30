//! Waits between connections to a broker: exponential backoff with full jitter.

use std::time::Duration;

/// The longest wait after a first failure. It doubles with each further failure.
const FIRST: Duration = Duration::from_secs(1);

/// The longest wait after many failures.
const LONGEST: Duration = Duration::from_secs(30);

/// The length of a connection after which the waits begin anew.
///
/// Two clients with one client ID never have such a connection, because each takes the session from the
/// other.
const GOOD: Duration = Duration::from_secs(60);

/// The state of the backoff.
#[derive(Debug)]
pub(super) struct Reconnect {
    /// The upper limit of the next wait, whose length is random.
    next: Duration,
}

impl Reconnect {
    pub(super) const fn new() -> Self {
        Self { next: FIRST }
    }

    /// The wait after a connection that has lasted for `lasted`.
    ///
    /// If another client `took` the session, the wait is long, so that the other keeps the session for a
    /// while.
    pub(super) fn wait_after(&mut self, lasted: Duration, took: bool) -> Duration {
        if lasted >= GOOD {
            self.next = FIRST;
        }
        if took {
            self.next = LONGEST;
            return LONGEST.mul_f64(rand::random_range(0.5..=1.0));
        }
        let wait = self.next.mul_f64(rand::random_range(0.0..=1.0));
        self.next = (self.next * 2).min(LONGEST);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_half_a_minute_and_begin_anew_after_a_good_connection() {
        let mut reconnect = Reconnect::new();
        let second = Duration::from_secs(1);
        for longest in [1, 2, 4, 8, 16, 30, 30] {
            assert_eq!(reconnect.next, second * longest);
            assert!(reconnect.wait_after(second, false) <= second * longest);
        }
        assert!(reconnect.wait_after(GOOD, false) <= FIRST);
        assert!(reconnect.wait_after(second, true) >= LONGEST / 2, "the other client keeps the session for a while");
        assert_eq!(reconnect.next, LONGEST);
    }
}
