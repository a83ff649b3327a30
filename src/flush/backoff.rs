//! How long to wait before something is tried again.

use std::ops::RangeInclusive;
use std::time::Duration;

use rand::RngExt;

/// Waits that double from retry to retry, each shortened at random by up to a half so that retries do not
/// march in step.
pub(super) struct Backoff {
    range: RangeInclusive<Duration>,
    wait: Duration,
}

impl Backoff {
    pub(super) fn new(range: RangeInclusive<Duration>) -> Self {
        Self { wait: *range.start(), range }
    }

    pub(super) fn reset(&mut self) {
        self.wait = *self.range.start();
    }

    pub(super) fn next(&mut self) -> Duration {
        let wait = self.wait.mul_f64(rand::rng().random_range(0.5..=1.0));
        self.wait = (self.wait * 2).min(*self.range.end());
        wait
    }
}
