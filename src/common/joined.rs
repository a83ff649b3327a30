//! The result of a task that runs beside its caller.

use tokio::task::JoinError;

/// Waits for a task, such as one on a blocking thread. `None`: the runtime is stopping. The caller panics if
/// the task panics.
pub async fn joined<T>(task: impl Future<Output = Result<T, JoinError>>) -> Option<T> {
    match task.await {
        Ok(done) => Some(done),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => None,
        },
    }
}
