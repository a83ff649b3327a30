//! From the log to the store.
//!
//! ```text
//! log ──feeder──> pending ──scheduler──> store ──> cut the log
//!        thread    (locked)    tasks
//! ```
//! - The **feeder** reads the log in order into pending, many records at once, and stops while pending is
//!   full.
//! - The **scheduler** takes the buckets that are due, with a bounded number of writes in flight. A write is
//!   retried until the store accepts it or refuses it for good.
//! - The **deleter** has the store execute deletions, each after the writes that precede it in the log and
//!   before those that follow ([`crate::pending`]).
//! - The **saver** has the store take the metadata that operators set (`metadata.rs`).
//! - The **watcher** looks for the deletions of other instances that share the store, so that each instance
//!   executes the deletions of all (`instances.rs`).
//! - The **cutter** cuts the log behind the stored readings about once a second, and has the log save its
//!   durable end.
//! - The **roller** has the store roll up each day some minutes after its end, if the store keeps rollups of
//!   their own. A later write to an hour of such a day rolls the hour up again before the write is complete.
//!
//! Promises:
//! - A reading leaves pending only when the store has acknowledged it, the dead-letter file holds it durably,
//!   or a deletion that follows it in the log removes it.
//! - A deletion that was acknowledged removes all readings that were acknowledged before, wherever they are,
//!   and none that were acknowledged after it.
//! - The rollup of an hour, if there is one, includes every stored reading of the hour that has left pending.
//!   Once its day is rolled up, each hour with stored readings has a rollup.
//! - The log is never cut past a reading that is still pending, or metadata that the store has not taken.
//! - Each change of the store's state is logged once, not at each retry.
//! - If the store refuses a bucket for good, only the refused readings are dead-lettered. Refused metadata
//!   takes no readings with it.
//! - If the dead-letter file is full, only the refused buckets wait for it, with up to four million values of
//!   a device and hour. Beyond, all readings wait.
//! - Ages and waits are measured by a monotonic clock, so a jump of the wall clock does not change them. It
//!   is tokio's clock, which tests can set. The wall clock says only which hours and days have ended.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use strum::IntoEnumIterator;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::common::clock::Clock;
use crate::log::{Log, Position, Recovery};
use crate::model::Hour;
use crate::pending::{Limits, Pending, Reason};
use crate::store::Store;
use crate::telemetry::Metrics;

mod attempts;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
mod bisection;
mod closed_hours;
mod cutter;
mod dead_letters;
mod deleter;
mod deletions;
mod early;
mod feeder;
mod hour_text;
mod instances;
mod metadata;
mod refused;
mod replay;
mod roller;
mod rollup_progress;
mod scheduler;
mod state;
mod stop;
mod store_state;
mod write;
mod writer;

pub use bisection::BucketOutcome;
pub use dead_letters::{
    DeadLetters, Letter, MAX_LINE_BYTES, NumberedLine, NumberedLines, READINGS_PER_LINE, divide_readings,
};
pub use deleter::DeletionError;
pub use deletions::DeletionOutcome;
pub use metadata::ChangeError;
pub use roller::Closing;
pub use stop::{Drained, Running};
pub use writer::{Retry, Writer, Writes};

use closed_hours::ClosedHours;
use deletions::Deletions;
use instances::Peers;
use refused::WaitingLetters;
use rollup_progress::RollupProgress;
use state::State;
use store_state::StoreState;

/// The longest time over which the buckets of an ended hour are written.
///
/// It is long enough that millions of devices are no burst for the store. [`Pipeline::spread`] is the time in
/// use. A bucket that has had no turn after twice the time in use is written without one.
const SPREAD: Duration = Duration::from_secs(300);

/// The options of a [`Pipeline`].
#[derive(Debug, Clone)]
pub struct Options {
    /// When buckets are due, and how much memory pending may take.
    pub limits: Limits,
    /// Buckets that become due within this time share write commands.
    ///
    /// At most a tenth of `limits.max_age` counts.
    pub gather: Duration,
    /// The most writes in flight.
    pub max_in_flight: usize,
    /// The most buckets in one write.
    pub max_buckets_per_write: usize,
    /// The largest write, in bytes of the readings in memory.
    ///
    /// A single bucket may exceed it.
    pub max_write_bytes: u64,
    /// Which hours are rolled up together, if the store keeps rollups of their own.
    pub closing: Closing,
    /// The time from the end of hours until they are rolled up.
    pub rollup_delay: Duration,
    /// The file that says which hours are rolled up.
    pub rollup_progress: PathBuf,
    /// The file that says which hours are closed.
    pub closed_hours: PathBuf,
    /// The file that has the name of this instance, if the store is shared.
    pub instance: PathBuf,
    /// The waits before retries: the first one to the longest.
    pub retry: std::ops::RangeInclusive<Duration>,
    /// The wall clock, by which days end.
    pub clock: Clock,
}

/// The state that the tasks between the log and the store share with the queries.
pub struct Pipeline {
    options: Options,
    state: Mutex<State>,
    log: Arc<Log>,
    store: Arc<dyn Store>,
    dead_letters: DeadLetters,
    waiting_letters: WaitingLetters,
    metrics: Arc<Metrics>,
    started: Instant,
    /// The number of readings behind the checkpoint when the log was opened.
    recovered: u64,
    /// Announces [`State::inserted`] to waiting queries, once for many records.
    announced: watch::Sender<Position>,
    /// Notifies the scheduler that a bucket may be due earlier than it expects.
    due: Notify,
    /// Notifies all tasks that a bucket has left pending, that a crowded bucket was taken, or that a task has
    /// ended.
    completed: Notify,
    /// Why the feeder failed, once it has.
    failure: watch::Sender<Option<String>>,
    store_state: StoreState,
    writer: Writer,
    /// Held during a cut of the log.
    cutting: Mutex<()>,
    /// Cancelled when the service begins to stop.
    ///
    /// The service then completes the requests in progress, before draining begins.
    stop_begins: CancellationToken,
    /// Cancelled when draining begins: waiting writes are tried again at once, each for the last time.
    drain_begins: CancellationToken,
    closed: ClosedHours,
    deletions: Deletions,
    /// Held while the metadata of a device is changed.
    metadata_turn: tokio::sync::Mutex<()>,
    /// Notifies the saver of a new change of metadata.
    metadata_added: Notify,
    peers: Peers,
}

/// The state of pending, for metrics and health.
#[derive(Debug, Clone, Copy)]
pub struct Status {
    /// Readings that are accepted and not stored, including those that wait in the log.
    pub pending_readings: u64,
    /// Memory of pending, in bytes.
    pub pending_bytes: u64,
    /// Buckets in pending.
    pub pending_buckets: usize,
    /// How long the oldest reading in pending has waited.
    pub oldest_pending: Duration,
}

impl Pipeline {
    /// Creates a pipeline, whose tasks [`Self::start`] starts.
    ///
    /// `recovery` is the result of opening `log`.
    ///
    /// # Errors
    /// When the name of this instance cannot be read.
    pub fn new(
        options: Options,
        log: Arc<Log>,
        recovery: &Recovery,
        store: Arc<dyn Store>,
        dead_letters: DeadLetters,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<Arc<Self>> {
        let mut pending = Pending::new(options.limits).keeping(store.keeps()).replaying_until(recovery.end);
        pending.note_wall_clock(options.clock.now_ms());
        let closed = ClosedHours::load(store.rollups().is_some().then(|| options.closed_hours.clone()));
        let instance = store.instances().is_some().then_some(&*options.instance);
        let peers = Peers::load(instance)?;
        let labels = |is_permanent| -> Vec<&'static str> {
            let causes = store.causes().iter().filter(|cause| cause.is_permanent() == is_permanent);
            causes.map(|cause| cause.as_label()).collect()
        };
        let (transient, permanent) = (labels(false), labels(true));
        metrics.flush_seconds.start_with(&[store.name()]);
        metrics.flush_retries_total.start_with(&transient);
        metrics.flush_buckets_total.start_with(&Reason::iter().map(Reason::into).collect::<Vec<&str>>());
        metrics.flush_max_age_seconds.set(options.limits.max_age.as_secs_f64());
        metrics.readings_dead_lettered_total.start_with(&permanent);
        if store.rollups().is_some() {
            metrics.rollup_retries_total.start_with(&transient);
        }
        Ok(Arc::new(Self {
            options,
            state: Mutex::new(State::new(pending, recovery.start)),
            log,
            writer: Writer::new(Arc::clone(&store), Arc::clone(&metrics)),
            store,
            dead_letters,
            waiting_letters: WaitingLetters::default(),
            metrics,
            started: Instant::now(),
            recovered: recovery.readings,
            announced: watch::Sender::new(recovery.start),
            due: Notify::new(),
            completed: Notify::new(),
            failure: watch::Sender::new(None),
            store_state: StoreState::default(),
            cutting: Mutex::default(),
            stop_begins: CancellationToken::new(),
            drain_begins: CancellationToken::new(),
            closed,
            deletions: Deletions::load(&recovery.deletions),
            metadata_turn: tokio::sync::Mutex::default(),
            metadata_added: Notify::new(),
            peers,
        }))
    }

    /// Starts the feeder's thread and all tasks.
    ///
    /// The tasks are the scheduler, the deleter, the saver, the watcher, the cutter, the roller, and the task
    /// that pings the store.
    ///
    /// # Errors
    /// If the feeder's thread cannot be started.
    pub fn start(self: &Arc<Self>) -> std::io::Result<Running> {
        let progress = RollupProgress::load(&self.options.rollup_progress);
        // The file of the closed hours may be lost. The progress of the roller then says which hours may have
        // a rollup.
        let rolled_up = progress.as_ref().map_or(Hour(i32::MIN), |progress| Hour(progress.end().0 - 1));
        self.closed.close(self.newest_past_hour().max(rolled_up));
        let feeder = feeder::spawn(Arc::clone(self))?;
        let scheduler = tokio::spawn(scheduler::run(Arc::clone(self)));
        let roller = tokio::spawn(roller::run(Arc::clone(self), progress));
        let others = [
            tokio::spawn(deleter::run(Arc::clone(self))),
            tokio::spawn(metadata::run(Arc::clone(self))),
            tokio::spawn(instances::run(Arc::clone(self))),
            tokio::spawn(cutter::run(Arc::clone(self))),
            tokio::spawn(store_state::watch(Arc::clone(self))),
        ];
        Ok(Running { pipeline: Arc::clone(self), feeder, scheduler, roller, others })
    }

    /// Waits until the feeder fails to read the log, and returns the reason.
    pub async fn failed(&self) -> String {
        let mut failure = self.failure.subscribe();
        let reason = failure.wait_for(Option::is_some).await.map(|reason| reason.clone());
        reason.ok().flatten().unwrap_or_default()
    }

    /// Waits until all readings that are acknowledged now are in pending, for at most `timeout`.
    ///
    /// Returns `None` once they are. After the timeout, returns for how long the feeder has waited for room
    /// in pending, or `timeout` if the feeder does not wait for room.
    pub async fn catch_up(&self, timeout: Duration) -> Option<Duration> {
        let acknowledged = self.log.usage().readable;
        let mut announced = self.announced.subscribe();
        if *announced.borrow_and_update() >= acknowledged {
            return None;
        }
        self.log.read_up_to(acknowledged);
        match tokio::time::timeout(timeout, announced.wait_for(|&inserted| inserted >= acknowledged)).await {
            Ok(_) => None,
            Err(_) => Some(self.lock().stalled_since.map_or(timeout, |since| since.elapsed())),
        }
    }

    /// Waits at most a second until the instances that share the store know this one.
    pub async fn first_look(&self) {
        self.peers.first_look().await;
    }

    /// Logs once that pending has room again, when half of it is free and nothing waits in the log for it.
    fn note_room(&self) {
        let mut state = self.lock();
        let has_ended = state.stalled_since.is_none() && state.pending.is_half_free() && state.full.ends();
        drop(state);
        if has_ended {
            tracing::info!("pending has room again; readings no longer wait in the log");
        }
    }

    /// Returns the state of pending.
    pub fn status(&self) -> Status {
        let in_log = self.recovered + self.log.usage().appended_readings;
        let state = self.lock();
        let waiting = state.pending.oldest_ms().map_or(0, |since_ms| self.now_ms().saturating_sub(since_ms));
        Status {
            pending_readings: in_log.saturating_sub(state.inserted_readings) + state.pending.readings(),
            pending_bytes: state.pending.bytes(),
            pending_buckets: state.pending.buckets(),
            oldest_pending: Duration::from_millis(waiting),
        }
    }

    /// Returns for how long the store has been away, and why; `None` if it is available.
    ///
    /// A store is away if it does not answer pings or does not accept writes.
    pub fn store_away(&self) -> Option<(Duration, String)> {
        self.store_state.away().map(|(since, why)| (since.elapsed(), why))
    }

    /// Waits until the store does not answer pings.
    ///
    /// Returns for how long it has been away, and why.
    pub async fn store_silent(&self) -> (Duration, String) {
        let (since, why) = self.store_state.silent().await;
        (since.elapsed(), why)
    }

    /// Notes that the service is about to stop.
    ///
    /// From now on it does not wait long for a store that is away.
    pub fn begin_stop(&self) {
        self.stop_begins.cancel();
    }

    /// Notes that this many tasks are left to the next start, because all of their attempts have failed.
    fn note_given_up(&self, tasks: usize) {
        self.lock().given_up_in_a_row += tasks;
        self.completed.notify_waiters();
    }

    /// The dead-letter file.
    pub fn dead_letters(&self) -> &DeadLetters {
        &self.dead_letters
    }

    /// Returns the newest closed hour. All hours before it are closed too.
    fn newest_closed(&self) -> Hour {
        self.closed.newest()
    }

    /// Returns whether a write to the hour must roll it up again.
    fn is_closed(&self, hour: Hour) -> bool {
        hour <= self.newest_closed()
    }

    /// Returns the time within which due buckets share write commands.
    fn gather(&self) -> Duration {
        self.options.gather.min(self.options.limits.max_age / 10)
    }

    /// Returns the time over which the buckets of an hour are written after its end.
    ///
    /// It is [`SPREAD`], but at most a third of `flush.max_age`.
    fn spread(&self) -> Duration {
        SPREAD.min(self.options.limits.max_age / 3)
    }

    /// Returns the newest hour that has ended long enough ago to be closed.
    fn newest_past_hour(&self) -> Hour {
        self.options.closing.newest_closed(self.options.clock.now_ms(), self.options.rollup_delay)
    }

    /// Closes all hours that have ended long enough ago. May write a file, once a day.
    fn close_past_hours(&self) {
        self.closed.close(self.newest_past_hour());
        self.closed.warn_if_ahead(self.options.clock.now_ms());
    }

    /// Returns the time for pending: milliseconds since the start, by the monotonic clock.
    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

#[cfg(test)]
mod schedule_tests;
#[cfg(test)]
mod tests;
