//! The threads that serve connections: one per processor, each with a runtime.
//!
//! A connection stays on its thread. In a runtime of several threads, a thread that wakes for a request wakes
//! a second thread, in case there is more work. On a quiet service there is none, and each wake-up costs as
//! much as a read from the socket.
//!
//! A query may compute for a while. So queries run on the main runtime, whose threads share the work.

use std::io;
use std::mem::ManuallyDrop;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio_util::task::TaskTracker;

/// The interval of a timer that runs on each runtime at all times.
///
/// A new timer that ends before all others interrupts the runtime's wait for events. After each request,
/// hyper starts a timer for the next head (`http.header_timeout`, by default 75 s). A timer with this short
/// interval ends before it, so the wait is not interrupted.
const TIMER_INTERVAL: Duration = Duration::from_secs(5);

/// The threads that serve connections.
pub struct Threads(Vec<Thread>);

struct Thread {
    /// Never dropped: its tasks still count readings of clients that have left.
    runtime: ManuallyDrop<Runtime>,
    connections: Arc<AtomicUsize>,
}

/// Counts a connection among those of its thread, until this is dropped.
pub(super) struct Place(Arc<AtomicUsize>);

impl Threads {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub fn start() -> io::Result<Self> {
        (0..Self::count()).map(|_| Thread::start()).collect::<io::Result<_>>().map(Self)
    }

    /// The number of threads: that of the processors.
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
