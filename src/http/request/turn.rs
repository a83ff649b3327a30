//! Turns for the work on large bodies: decompressing and parsing.

use std::sync::LazyLock;

use tokio::sync::Semaphore;
use tokio::task::JoinError;

use crate::http::Threads;

/// The permits to work on a large body: one for each processor.
///
/// More threads that work at once would delay the requests with small bodies.
static TURNS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(Threads::count()));

/// Runs `work` on a blocking thread when it is its turn.
///
/// The turn ends with the work, even if nothing waits for the result any more.
pub(in crate::http) async fn in_turn<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let turn = TURNS.acquire().await.expect("the semaphore is never closed");
    let work = move || {
        let result = work();
        drop(turn);
        result
    };
    tokio::task::spawn_blocking(work).await
}

/// Takes all turns, so that no work begins.
#[cfg(test)]
pub(in crate::http) async fn take_all() -> tokio::sync::SemaphorePermit<'static> {
    let count = u32::try_from(Threads::count()).expect("a number of processors");
    TURNS.acquire_many(count).await.expect("the semaphore is never closed")
}
