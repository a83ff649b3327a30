//! Exponential backoff with jitter: the waits between retries.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The waits between the attempts at one operation.
///
/// Each wait is twice as long as the wait before, up to the end of the range, and is then [`jittered`].
#[derive(Debug)]
pub struct Backoff {
    range: RangeInclusive<Duration>,
    next: Duration,
}

/// The waits for a server or store that does not answer: 100 ms to 10 s.
impl Default for Backoff {
    fn default() -> Self {
        Self::new(Duration::from_millis(100)..=Duration::from_secs(10))
    }
}

impl Backoff {
    /// Starts with the shortest wait of `range`.
    pub fn new(range: RangeInclusive<Duration>) -> Self {
        Self { next: *range.start(), range }
    }

    /// Starts again with the shortest wait, after an attempt that succeeded.
    pub fn reset(&mut self) {
        self.next = *self.range.start();
    }

    /// Returns the wait before the next attempt.
    pub fn next_wait(&mut self) -> Duration {
        let wait = jittered(self.next);
        self.next = self.next.saturating_mul(2).min(*self.range.end());
        wait
    }

    /// Returns the wait before the next attempt at a server that may ask for a wait.
    ///
    /// If the server `asked` for a wait, the result is this wait, lengthened at random by up to a tenth.
    pub fn next_wait_or(&mut self, asked: Option<Duration>) -> Duration {
        let own = self.next_wait();
        asked.map_or(own, |asked| asked.mul_f64(rand::random_range(1.0..1.1)))
    }
}

/// Shortens `wait` at random by up to a half.
///
/// Without this, clients that failed at the same time would retry at the same time.
pub fn jittered(wait: Duration) -> Duration {
    wait.mul_f64(rand::random_range(0.5..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_end_of_the_range() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(100)..=ms(500));
        for round in 0..2 {
            for longest in [100, 200, 400, 500, 500] {
                let wait = backoff.next_wait();
                assert!((ms(longest) / 2..=ms(longest)).contains(&wait), "{wait:?} of {longest} ms, round {round}");
            }
            backoff.reset();
        }
    }

    #[test]
    fn a_wait_that_is_asked_for_is_never_shorter() {
        let mut backoff = Backoff::new(Duration::from_millis(100)..=Duration::from_secs(10));
        let asked = Duration::from_secs(60);
        for _ in 0..100 {
            assert!((asked..asked * 11 / 10).contains(&backoff.next_wait_or(Some(asked))));
        }
    }
}
