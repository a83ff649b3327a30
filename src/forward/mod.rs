//! Forwarding: sends everything that the log accepts to another tidegauge too.
//!
//! An example is a server at a site, which forwards to a server in a data centre.
//!
//! ```text
//! log ──follower──> batch ──POST /v1/readings──> the other server
//!       thread      NDJSON, zstd
//! ```
//!
//! A thread, the follower, reads the log in order, from a position that it saves. It makes batches of NDJSON
//! with stored IDs, and sends one batch after the other. It saves a new position only when the other server
//! has answered for each reading of the batch. So after a crash of either server a batch may be sent again.
//! The other server merges readings by identity, and stores each of them once.
//!
//! Promises:
//! - The log keeps a record until the other server has its readings durably, or has refused them for good.
//! - A reading counts as accepted or refused only if an answer in the form of this API says so. Any other
//!   answer is a failure that is retried: for example the answer of a proxy, or the answer to a wrong token.
//! - A refused reading does not delay others. It is written to a dead-letter file of its own. The same
//!   happens to a reading on which the other server fails each time (`500` in the form of this API) while it
//!   accepts other readings. If that file is full, such readings are only counted and logged, because the
//!   store has them.
//! - The compressed bodies stay within the configured bandwidth, on average.
//! - Forwarding delays neither the store nor `/readyz`. So its requests run on a thread of their own, which a
//!   server can keep busy with an endless answer, such as one `100 Continue` after the other.
//! - Changes of metadata by operators are sent too, in order with the readings.
//!
//! Deletions are not forwarded. The flush removes their readings from the dead-letter file of this room. The
//! follower does so too once it reads the deletion in the log: the readings may be refused only later.

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

pub use verdict::{probe, probe_metadata};

use delivery::Delivery;
use follower::Follower;
use progress::Progress;

/// The options of forwarding.
pub struct Options {
    /// The client of the other server. It must not follow redirects.
    pub client: Client,
    /// The size of a batch, in bytes of JSON, at which it is sent.
    pub max_batch_bytes: usize,
    /// The wall clock, which is read at the start, for the metric of the lag.
    pub clock: Clock,
}

/// The running thread that forwards, and the means to stop it.
#[derive(Debug)]
pub struct Forwarding {
    thread: std::thread::JoinHandle<()>,
    /// Cancelled at a shutdown: from then on failed requests are not retried.
    draining: CancellationToken,
    /// Cancelled at the end of the grace: from then on nothing is sent.
    stopped: CancellationToken,
}

/// Runs the follower with a tokio runtime of its own.
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
    /// Starts to forward the log from the saved position.
    ///
    /// If no position is saved, because the server forwards for the first time, it starts at `new_from`.
    /// Refused readings are written to `dead_letters`.
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
        let progress = Progress::new(Arc::clone(&log), followed, now_ms, Arc::clone(&metrics));
        let delivery = Delivery::new(client, dead_letters, metrics, [draining.clone(), stopped.clone()]);
        let follower = Follower::new(log, progress, delivery, max_batch_bytes);
        let thread = std::thread::Builder::new()
            .name("forwarder".to_owned())
            .spawn(move || run(follower))
            .map_err(|error| LogError::Io { action: "start the forwarder of", path: "the log".into(), error })?;
        Ok(Self { thread, draining, stopped })
    }

    /// Forwards the rest of the log, which must be closed, for at most `grace`.
    ///
    /// It ends at the first failed request. Readings that are not forwarded stay in the log.
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
