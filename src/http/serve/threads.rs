//! The threads that serve connections: one for each processor, each with a runtime of its own.
//!
//! A connection stays on its thread. A runtime of several threads would wake a second thread for each answer:
//! whenever a woken thread finds work, it wakes another one in case there is more. On a quiet service there
//! is none, and each of these wake-ups costs as much as a read from the socket.
//!
//! Queries may compute for a while, so they run on the main runtime, whose threads share their work.

use std::io;
use std::mem::ManuallyDrop;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio_util::task::TaskTracker;

/// The interval of a timer that each runtime always has.
///
/// A timer that ends before all others interrupts the wait for events. Without this one, the timeout for the
/// next head of a connection would do so after each request.
const TIMER_INTERVAL: Duration = Duration::from_secs(5);

/// The threads.
pub struct Threads(Vec<Thread>);

struct Thread {
    /// It is not dropped, because that would cancel tasks that still count the readings of lost clients.
    runtime: ManuallyDrop<Runtime>,
    connections: Arc<AtomicUsize>,
}

/// The place of a connection on a thread.
pub(super) struct Place(Arc<AtomicUsize>);

impl Threads {
    /// Starts the threads.
    ///
    /// # Errors
    /// If the system starts no more threads.
    pub fn start() -> io::Result<Self> {
        (0..Self::count()).map(|_| Thread::start()).collect::<io::Result<_>>().map(Self)
    }

    /// The number of threads.
    #[must_use]
    pub fn count() -> usize {
        std::thread::available_parallelism().map_or(1, NonZero::get)
    }

    /// Spawns the task of a connection on the thread with the fewest connections.
    pub(super) fn spawn<T>(&self, tasks: &TaskTracker, task: impl FnOnce(Place) -> T)
    where
        T: Future<Output = ()> + Send + 'static,
    {
        let count = |thread: &&Thread| thread.connections.load(Ordering::Relaxed);
        let thread = self.0.iter().min_by_key(count).expect("at least one thread");
        thread.connections.fetch_add(1, Ordering::Relaxed);
        tasks.spawn_on(task(Place(Arc::clone(&thread.connections))), thread.runtime.handle());
    }
}

impl Thread {
    fn start() -> io::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("http").enable_all().build()?;
        runtime.spawn(async {
            loop {
                tokio::time::sleep(TIMER_INTERVAL).await;
            }
        });
        Ok(Self { runtime: ManuallyDrop::new(runtime), connections: Arc::default() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
