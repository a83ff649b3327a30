//! One factor for the deadlines of all tests.

use std::time::Duration;

/// A deadline of so many seconds, multiplied by `TEST_DEADLINE_FACTOR`, if set.
///
/// With a factor below 1, a broken invariant fails sooner. With one above 1, the tests pass on a slower
/// machine.
pub(crate) fn deadline(seconds: u32) -> Duration {
    let factor = std::env::var("TEST_DEADLINE_FACTOR").map_or(1.0, |text| {
        text.parse().unwrap_or_else(|error| panic!("TEST_DEADLINE_FACTOR={text} is not a number: {error}"))
    });
    Duration::from_secs(seconds.into()).mul_f64(factor)
}
