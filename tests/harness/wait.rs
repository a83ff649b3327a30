//! Waiting for a condition.

use std::time::{Duration, Instant};

/// How long a condition may take to come true, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(20);

/// Asks `condition` until it has an answer.
///
/// # Panics
/// With `what`, when the deadline passes first.
pub(crate) async fn wait_until<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(answer) = condition().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited {DEADLINE:?} in vain: {what}");
        tokio::time::sleep(PAUSE).await;
    }
}
