//! From the log to the store.
//!
//! ```text
//! log ──feeder──> pending ──scheduler──> store ──> cut the log
//!        thread    (locked)    tasks
//! ```
//! The **feeder** reads the log in order into pending, and stands still while pending is full. The
//! **scheduler** takes what is due and has a bounded number of writes under way; each write is tried until
//! the store takes it or refuses it for good. The **cutter** tells the log, about once a second, up to where
//! all is stored, and has it save that and its durable end. The **roller** has the store roll up each hour
//! some minutes after its end, where the store keeps rollups of their own; later writes to such an hour roll
//! it up again before they are over.
//!
//! Promises:
//! - A reading leaves pending only when the store has acknowledged it, or the dead-letter file holds it
//!   durably.
//! - The rollup of an hour speaks of every reading of it that has left pending.
//! - The log is never cut in front of a reading that is still pending.
//! - Each change of the store's state is logged once, not at each retry.
//! - Of a bucket that is refused for good, only the part to blame is put aside. Metadata takes no readings
//!   with it.
//! - What is refused for good, but cannot be put aside, holds up its own bucket only.
//! - Ages and waits go by a clock that only goes forward: when the clock of the world jumps, they do not
//!   notice. It is tokio's, so that tests can turn it by hand. Only the roller asks for the date, to know
//!   which hours have ended.

use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::common::clock::Clock;
use crate::log::{Log, LogError, Position, Recovery};
use crate::model::Hour;
use crate::pending::{Limits, Pending};
use crate::store::Store;
use crate::telemetry::Metrics;

#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
mod cutter;
mod dead_letters;
mod feeder;
mod late;
mod locked;
mod mark;
mod narrow;
mod roller;
mod scheduler;
mod store_state;
mod write;

pub use dead_letters::DeadLetters;
use store_state::StoreState;

use mark::Mark;
use narrow::RefusedMetadata;

/// What the flush obeys.
#[derive(Debug, Clone)]
pub struct Options {
    /// When buckets are due, and how much may be pending.
    pub limits: Limits,
    /// How many writes may be under way at once.
    pub max_in_flight: usize,
    /// How many buckets one write carries.
    pub max_buckets_per_write: usize,
    /// How large a write gets, in bytes of the readings in memory; one bucket may exceed it.
    pub max_write_bytes: u64,
    /// How long after its end an hour is rolled up, where the store has rollups of their own.
    pub rollup_delay: Duration,
    /// The file that says up to where hours are rolled up.
    pub rollup_mark: PathBuf,
    /// The wait before the first retry, and the longest.
    pub retry: std::ops::RangeInclusive<Duration>,
    /// The wall clock, by which hours end.
    pub clock: Clock,
}

/// Pending as its users share it: fed by the feeder, emptied by the scheduler, read by queries.
pub struct Pipeline {
    options: Options,
    state: Mutex<State>,
    log: Arc<Log>,
    store: Arc<dyn Store>,
    dead_letters: DeadLetters,
    metrics: Arc<Metrics>,
    started: Instant,
    /// How many readings the log held when it was opened.
    recovered: u64,
    /// How far the log has been fed into pending.
    fed: watch::Sender<Position>,
    /// There is something to take.
    due: Notify,
    /// Something was completed: there is room in pending, and maybe nothing left.
    completed: Notify,
    /// Why the feeder had to stop, once it had to.
    failure: watch::Sender<Option<String>>,
    store_state: StoreState,
    refused_metadata: RefusedMetadata,
    /// One cut of the log at a time.
    cutting: Mutex<()>,
    /// Cancelled when draining begins: whatever waits for a retry is tried at once.
    drain_begins: CancellationToken,
    /// The newest hour that is closed: a number of [`Hour`].
    closed: AtomicI32,
}

/// What the lock guards.
struct State {
    pending: Pending,
    fed: Position,
    /// Readings fed so far, those included that the log held when it was opened.
    fed_readings: u64,
    /// Since when the feeder has been standing still because pending is full.
    stalled_since: Option<Instant>,
    /// It is said that pending is full, and not yet that it has room: that takes more than the next write, or
    /// a store that is just fast enough would have it said for each.
    is_full_logged: bool,
    /// Take everything, due or not.
    draining: bool,
    /// While draining: buckets that the store did not take, and how many writes in a row were such.
    given_up: usize,
    failed_in_a_row: usize,
    /// Feed no more.
    stopped: bool,
}

impl State {
    /// Whether draining has come to its end: everything that the log holds up to `readable` is stored or
    /// given up, or the store takes nothing.
    fn is_finished(&self, readable: Position, max_in_flight: usize) -> bool {
        let is_fed = self.fed >= readable || (self.given_up > 0 && self.pending.is_full());
        (is_fed && self.pending.buckets() == self.given_up) || self.failed_in_a_row >= max_in_flight
    }
}

/// Where everything stands, for metrics and health.
#[derive(Debug, Clone, Copy)]
pub struct Status {
    /// Readings accepted and not stored, those that still wait in the log included.
    pub pending_readings: u64,
    /// Memory of pending, in bytes.
    pub pending_bytes: u64,
    /// Buckets in pending.
    pub pending_buckets: usize,
    /// How long the oldest reading in pending has waited.
    pub oldest_pending: Duration,
}

impl Pipeline {
    /// Puts the parts together; `recovery` is what the opening of `log` found. Nothing runs yet: see
    /// [`Self::start`].
    pub fn new(
        options: Options,
        log: Arc<Log>,
        recovery: &Recovery,
        store: Arc<dyn Store>,
        dead_letters: DeadLetters,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let pending = Pending::new(options.limits).keeping(store.keeps());
        let closed = roller::newest_closed(options.clock.now_ms(), options.rollup_delay);
        let fed = recovery.start;
        let labels = |is_permanent| -> Vec<&'static str> {
            let causes = store.causes().iter().filter(|cause| cause.is_permanent() == is_permanent);
            causes.map(|cause| cause.as_label()).collect()
        };
        let (transient, permanent) = (labels(false), labels(true));
        metrics.flush_seconds.start_with(&[store.name()]);
        metrics.flush_retries_total.start_with(&transient);
        metrics.readings_dead_lettered_total.start_with(&permanent);
        if store.rollups().is_some() {
            metrics.rollup_retries_total.start_with(&transient);
        }
        let state = State {
            pending,
            fed,
            fed_readings: 0,
            stalled_since: None,
            is_full_logged: false,
            draining: false,
            given_up: 0,
            failed_in_a_row: 0,
            stopped: false,
        };
        Arc::new(Self {
            options,
            state: Mutex::new(state),
            log,
            store,
            dead_letters,
            metrics,
            started: Instant::now(),
            recovered: recovery.readings,
            fed: watch::Sender::new(fed),
            due: Notify::new(),
            completed: Notify::new(),
            failure: watch::Sender::new(None),
            store_state: StoreState::default(),
            refused_metadata: RefusedMetadata::default(),
            cutting: Mutex::default(),
            drain_begins: CancellationToken::new(),
            closed: AtomicI32::new(closed.0),
        })
    }

    /// Starts feeding, writing and cutting.
    ///
    /// # Errors
    /// When the feeder's thread cannot be started.
    pub fn start(self: &Arc<Self>) -> std::io::Result<Running> {
        let mark = Mark::load(&self.options.rollup_mark);
        if let Some(mark) = &mark {
            self.close(Hour(mark.next.0 - 1)); // in case the clock was set back
        }
        let feeder = feeder::spawn(Arc::clone(self))?;
        let scheduler = tokio::spawn(scheduler::run(Arc::clone(self)));
        let cutter = tokio::spawn(cutter::run(Arc::clone(self)));
        let roller = tokio::spawn(roller::run(Arc::clone(self), mark));
        let watch = tokio::spawn(store_state::watch(Arc::clone(self)));
        Ok(Running { pipeline: Arc::clone(self), feeder, scheduler, cutter, roller, watch })
    }

    /// Resolves when the log can no longer be read, with the reason.
    pub async fn failed(&self) -> String {
        let mut failure = self.failure.subscribe();
        let reason = failure.wait_for(Option::is_some).await.map(|reason| reason.clone());
        reason.ok().flatten().unwrap_or_default()
    }

    /// Waits until everything that is acked now can be seen by [`Self::with_pending`], for at most
    /// `patience`. Otherwise says for how long the log reader has been standing still.
    pub async fn catch_up(&self, patience: Duration) -> Option<Duration> {
        let acked = self.log.usage().readable;
        let mut fed = self.fed.subscribe();
        let caught_up = tokio::time::timeout(patience, fed.wait_for(|&fed| fed >= acked)).await;
        match caught_up {
            Ok(_) => None,
            Err(_) => Some(self.lock().stalled_since.map_or(patience, |since| since.elapsed())),
        }
    }

    /// Where everything stands.
    pub fn status(&self) -> Status {
        let in_log = self.recovered + self.log.usage().appended_readings;
        let state = self.lock();
        let waiting = state.pending.oldest_ms().map_or(0, |since_ms| self.now_ms().saturating_sub(since_ms));
        Status {
            pending_readings: in_log.saturating_sub(state.fed_readings) + state.pending.readings(),
            pending_bytes: state.pending.bytes(),
            pending_buckets: state.pending.buckets(),
            oldest_pending: Duration::from_millis(waiting),
        }
    }

    /// For how long the store has been away, and why, while it is: it does not answer, or does not take
    /// writes.
    pub fn store_away(&self) -> Option<(Duration, String)> {
        self.store_state.away().map(|(since, why)| (since.elapsed(), why))
    }

    /// The dead-letter file.
    pub fn dead_letters(&self) -> &DeadLetters {
        &self.dead_letters
    }

    /// The newest hour that is closed, and with it all hours before.
    fn newest_closed(&self) -> Hour {
        Hour(self.closed.load(Ordering::SeqCst))
    }

    /// Whether whoever writes to the hour has to see to its rollup.
    fn is_closed(&self, hour: Hour) -> bool {
        hour <= self.newest_closed()
    }

    /// Closes all hours up to this one.
    fn close(&self, hour: Hour) {
        self.closed.fetch_max(hour.0, Ordering::SeqCst);
    }

    /// Closes all hours that have ended long enough ago.
    fn close_past_hours(&self) {
        self.close(roller::newest_closed(self.options.clock.now_ms(), self.options.rollup_delay));
    }

    /// Milliseconds on the clock that pending goes by.
    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Cuts the log behind what is stored. A cut that comes after the end does nothing: the folder may be
    /// another's by then.
    fn cut(&self, is_last: bool) -> Result<(), LogError> {
        let _turn = self.cutting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let position = {
            let state = self.lock();
            if state.stopped && !is_last {
                return Ok(());
            }
            state.pending.cut_position(state.fed)
        };
        self.log.cut(position)
    }
}

/// The running parts of a [`Pipeline`].
pub struct Running {
    pipeline: Arc<Pipeline>,
    feeder: std::thread::JoinHandle<()>,
    scheduler: tokio::task::JoinHandle<()>,
    cutter: tokio::task::JoinHandle<()>,
    roller: tokio::task::JoinHandle<()>,
    watch: tokio::task::JoinHandle<()>,
}

impl Running {
    /// Writes everything that is pending, for at most `grace`, then stops. What the store does not take at
    /// the first try stays in the log; if the store does not answer, everything does, at once. The log must
    /// be closed. Returns how many readings stay.
    pub async fn drain(self, grace: Duration) -> u64 {
        let Self { pipeline, feeder, mut scheduler, cutter, roller, watch } = self;
        roller.abort(); // the next start goes on with it
        pipeline.lock().draining = true;
        pipeline.drain_begins.cancel();
        pipeline.due.notify_one();
        if pipeline.store_state.is_silent() || tokio::time::timeout(grace, &mut scheduler).await.is_err() {
            scheduler.abort();
        }
        cutter.abort();
        watch.abort();
        pipeline.lock().stopped = true;
        pipeline.completed.notify_waiters();
        let ending = Arc::clone(&pipeline);
        let ended = tokio::task::spawn_blocking(move || {
            let _ = feeder.join(); // while pending is full it waits for room, so it has to be told that none will come
            ending.log.wait_closed();
            ending.cut(true)
        });
        if let Ok(Err(error)) = ended.await {
            tracing::warn!(%error, "the log was not cut at the end; the next start reads more of it than needed");
        }
        pipeline.status().pending_readings
    }
}

#[cfg(test)]
mod schedule_tests;
#[cfg(test)]
mod tests;
