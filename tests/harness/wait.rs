//! Waiting for a condition.

use std::time::{Duration, Instant};

use super::mongod::deadline::deadline;

/// How many seconds a condition may take on a busy machine.
const SECONDS: u32 = 300;
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Polls `condition` until it returns a value.
///
/// # Panics
/// If the deadline passes first; the message has `what`.
pub(crate) async fn wait_until<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let limit = deadline(SECONDS);
    let give_up_at = Instant::now() + limit;
    loop {
        if let Some(answer) = condition().await {
            return answer;
        }
        assert!(Instant::now() < give_up_at, "waited {limit:?} without success: {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
