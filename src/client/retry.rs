//! Retries of the requests of a command.

use std::time::Duration;

use tokio::time::Instant;

use super::Trouble;
use crate::common::backoff::Backoff;

/// Repeats a request until it succeeds or a retry cannot help.
///
/// It gives up when `retry_for` has passed since the first trouble. `on_trouble` is called before each retry.
///
/// # Errors
/// The last trouble.
pub async fn retry<T, F: Future<Output = Result<T, Trouble>>>(
    retry_for: Duration,
    on_trouble: impl Fn(&Trouble),
    mut attempt: impl FnMut() -> F,
) -> Result<T, Trouble> {
    let (mut backoff, mut give_up_at) = (Backoff::default(), None);
    loop {
        let trouble = match attempt().await {
            Err(trouble) if !trouble.is_for_good => trouble,
            ended => return ended,
        };
        let now = Instant::now();
        let left = give_up_at.get_or_insert(now + retry_for).saturating_duration_since(now);
        if left.is_zero() {
            let said = format!("{}; gave up after trying for {retry_for:?}", trouble.said());
            return Err(trouble.saying(said));
        }
        on_trouble(&trouble);
        tokio::time::sleep(backoff.next_wait_or(trouble.retry_after).min(left)).await;
    }
}
