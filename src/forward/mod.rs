//! Forwarding: everything that the log accepts goes to another server too, such as from a site to a centre.
//!
//! ```text
//! log ──follower──> batch ──POST /v1/readings──> the other server
//!       thread      NDJSON, zstd
//! ```
//! A thread reads the log in order from a durable position of its own, in batches of NDJSON under the stored
//! IDs. It sends one batch after the other, and passes a batch only when the other server has answered for
//! each of its readings. So a batch may be sent again after a crash of either side; the other server merges
//! readings by identity, and has each of them once.
//!
//! Promises:
//! - The log keeps a record until the other server has it durably, or has refused it for good.
//! - A reading counts as accepted or refused only if an answer in the form of this API says so. Any other
//!   answer, such as that of a proxy, of a wrong URL or to a wrong token, is a failure that is retried.
//! - A reading that the other server refuses for good, or on which it fails each time (`500` in the form of
//!   this API) while it takes others, goes to a dead-letter file of its own, and holds up no other. If that
//!   file is full, the reading is only counted and logged: the store has it.
//! - The compressed bodies stay within the configured bandwidth, on average.
//! - Nothing here delays the store, or what `/readyz` says. So the requests have a thread of their own: an
//!   endless answer, such as one `100 Continue` after the other, can keep it busy.
//! - What operators set in the metadata of devices is sent too, in its place between the readings.
//!
//! Deletions are not forwarded. They remove dead letters of this room, once the thread reaches them.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

use crate::client::{Client, Trouble};
use crate::common::clock::Clock;
use crate::flush::DeadLetters;
use crate::log::{Followed, Log, LogError, Position};
use crate::telemetry::Metrics;

mod batch;
mod delivery;
mod follower;
mod progress;
mod requests;
#[cfg(test)]
mod tests;
mod verdict;

pub use verdict::probe;

use delivery::Delivery;
use follower::Follower;
use progress::Progress;

/// The options of forwarding.
pub struct Options {
    /// The other server. Its client follows no redirects.
    pub client: Client,
    /// The size of a batch as JSON, from which on it is sent.
    pub max_batch_bytes: usize,
    /// The wall clock.
    pub clock: Clock,
}

/// The thread that forwards, and the way to stop it.
#[derive(Debug)]
pub struct Forwarding {
    thread: std::thread::JoinHandle<()>,
    /// Cancelled when failed requests are no longer retried.
    draining: CancellationToken,
    /// Cancelled when nothing more is sent.
    stopped: CancellationToken,
}

/// Runs the follower on a runtime of its own.
fn run(follower: Follower) {
    match Builder::new_multi_thread().worker_threads(1).thread_name("forward").enable_all().build() {
        Ok(runtime) => {
            follower.run(runtime.handle());
            runtime.shutdown_background(); // the thread may be busy
        }
        Err(error) => tracing::error!(%error, "the log is not forwarded before a restart: there is no thread for it"),
    }
}

impl Forwarding {
    /// Starts to forward the log, from where the last process has stopped. The first one begins with
    /// `new_from`. Refused readings go to `dead_letters`.
    ///
    /// # Errors
    /// When the position cannot be saved, or the thread cannot be started.
    pub fn start(
        options: Options,
        log: Arc<Log>,
        new_from: Position,
        dead_letters: DeadLetters,
        metrics: Arc<Metrics>,
    ) -> Result<Self, LogError> {
        let Options { client, max_batch_bytes, clock } = options;
        let now_ms = u64::try_from(clock.now_ms()).unwrap_or_default();
        let followed = log.follow(Followed { position: new_from, as_of_ms: now_ms })?;
        metrics.forward_errors_total.start_with(&Trouble::REASONS);
        metrics.forward_refused_total.start_with(&verdict::refusal_reasons());
        let (draining, stopped) = (CancellationToken::new(), CancellationToken::new());
        let progress = Progress::new(Arc::clone(&log), followed, clock, Arc::clone(&metrics));
        let delivery = Delivery::new(client, dead_letters, metrics, [draining.clone(), stopped.clone()]);
        let follower = Follower::new(log, progress, delivery, max_batch_bytes);
        let thread = std::thread::Builder::new()
            .name("forwarder".to_owned())
            .spawn(move || run(follower))
            .map_err(|error| LogError::Io { action: "start the forwarder of", path: "the log".into(), error })?;
        Ok(Self { thread, draining, stopped })
    }

    /// Sends what is left in the log, which must be closed, for at most `grace`. The first failed request
    /// ends it: the rest stays in the log.
    pub async fn drain(self, grace: Duration) {
        let Self { thread, draining, stopped } = self;
        draining.cancel();
        let mut ended = tokio::task::spawn_blocking(|| drop(thread.join()));
        if tokio::time::timeout(grace, &mut ended).await.is_err() {
            stopped.cancel();
            let _ = ended.await;
        }
    }
}
