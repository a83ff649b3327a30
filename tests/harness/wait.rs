//! Waiting for a condition.

use std::fmt::Display;
use std::time::{Duration, Instant};

use super::mongod::deadline::deadline;

/// How many seconds a condition may take on a busy machine.
const SECONDS: u32 = 300;
/// The first and the longest time between two attempts. Each is a quarter longer than the one before.
const INTERVALS: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(200)];

/// Polls `condition` until it returns a value.
///
/// # Panics
/// If the deadline passes first; the message has `what`.
pub(crate) async fn wait_until<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    wait_for(what, async || condition().await.ok_or("it is not so")).await
}

/// Repeats an attempt until it succeeds.
///
/// # Panics
/// If the deadline passes first; the message has `what` and the last error.
pub(crate) async fn wait_for<T, E: Display>(what: &str, mut attempt: impl AsyncFnMut() -> Result<T, E>) -> T {
    let limit = deadline(SECONDS);
    let give_up_at = Instant::now() + limit;
    let [mut interval, longest] = INTERVALS;
    loop {
        match attempt().await {
            Ok(answer) => return answer,
            Err(why) => assert!(Instant::now() < give_up_at, "waited {limit:?} without success: {what}: {why}"),
        }
        tokio::time::sleep(interval).await;
        interval = longest.min(interval * 5 / 4);
    }
}
