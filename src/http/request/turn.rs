//! Turns for the work on large bodies: decompressing and parsing.

use std::sync::LazyLock;

use tokio::sync::Semaphore;
use tokio::task::JoinError;

use crate::http::Threads;

/// The turns to decompress a body.
///
/// Decompressing is mostly short. So it does not wait for bodies that are parsed, such as those of an import.
pub(in crate::http) static DECOMPRESSING: LazyLock<Semaphore> = LazyLock::new(turns);

/// The turns to parse a large body.
pub(in crate::http) static PARSING: LazyLock<Semaphore> = LazyLock::new(turns);

/// As many turns as processors, for each of the two kinds of work.
///
/// More threads that work at once would delay the requests with small bodies.
fn turns() -> Semaphore {
    Semaphore::new(Threads::count())
}

/// Runs `work` on a blocking thread when one of `turns` is free.
///
/// The turn ends with the work, even if nothing waits for the result any more.
pub(in crate::http) async fn in_turn<T: Send + 'static>(
    turns: &'static Semaphore,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let turn = turns.acquire().await.expect("the semaphore is never closed");
    let work = move || {
        let result = work();
        drop(turn);
        result
    };
    tokio::task::spawn_blocking(work).await
}

/// Takes all of `turns`, so that none of their work begins.
#[cfg(test)]
pub(in crate::http) async fn take_all(turns: &'static Semaphore) -> tokio::sync::SemaphorePermit<'static> {
    let count = u32::try_from(Threads::count()).expect("a number of processors");
    turns.acquire_many(count).await.expect("the semaphore is never closed")
}
