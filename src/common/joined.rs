//! Waits for a task and passes on its result or panic.

use tokio::task::JoinError;

/// Waits for a task, such as one on a blocking thread.
///
/// `None`: the task was cancelled, because the runtime is stopping. If the task panicked, this panics too.
pub async fn joined<T>(task: impl Future<Output = Result<T, JoinError>>) -> Option<T> {
    match task.await {
        Ok(done) => Some(done),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => None,
        },
    }
}
