//! The scheduler: takes the buckets that are due, with a bounded number of writes in flight.
//!
//! It wakes when the oldest bucket is due, and takes with it all buckets that become old within
//! `flush.gather`. So there are few write commands, whatever the number of requests, and no bucket waits
//! longer than `flush.max_age`. Other tasks wake it only for what cannot wait: a full bucket, lack of memory,
//! the first reading after an idle time, the end of the service.
//!
//! The buckets of ended hours wait for turns (`pending::taking`). Once in `flush.gather` the scheduler grants
//! as many turns as one write may have buckets (`flush.max_buckets_per_write`). If many buckets are open, it
//! grants more, so that all are written within [`super::SPREAD`] or little more.
//!
//! A write that the store has not taken does not keep others waiting while the store answers: see [`Permit`].

use std::sync::Arc;
use std::time::Duration;

use strum::IntoEnumIterator;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::early::Early;
use super::state::State;
use super::{Pipeline, write};
use crate::log::Position;
use crate::pending::{Due, Pending, Reason, Take, TakenBucket};

/// How many buckets are taken or completed before the lock is released to others.
pub(super) const BUCKETS_PER_TURN: usize = 64;

/// The longest sleep: how late the scheduler notices that the log runs short, or that an hour has ended.
pub(super) const MAX_SLEEP: Duration = Duration::from_millis(500);

/// The longest sleep while nothing is pending.
///
/// The feeder wakes the scheduler when that changes.
const IDLE_SLEEP: Duration = Duration::from_secs(10);

/// Runs until [`super::Running::drain`] was called and each bucket is written, or left to the next start.
pub(super) async fn run(pipeline: Arc<Pipeline>) {
    let mut scheduler = Scheduler::new(Arc::clone(&pipeline));
    let mut writes = JoinSet::new();
    while let Some((batch, permit)) = scheduler.next_batch().await {
        let pipeline = Arc::clone(&pipeline);
        writes.spawn(async move {
            // On a blocking thread, because sorting large buckets takes milliseconds.
            let to_writes = move || batch.iter().map(|taken| Arc::new(taken.to_write())).collect();
            let Ok(writes) = tokio::task::spawn_blocking(to_writes).await else { return }; // the runtime is ending
            write::write(&pipeline, writes, permit).await;
            pipeline.lock().writes -= 1;
            pipeline.completed.notify_waiters();
        });
        while writes.try_join_next().is_some() {}
    }
}

/// The permit to send a write.
///
/// At most `flush.max_in_flight` tasks have one, at most half of them for a write that is sent again.
///
/// A task that waits before it sends its write or its rollups again gives the permit back. So a cluster that
/// has lost a shard still takes the buckets of the other shards. If the store is silent, the task keeps the
/// permit, so that further buckets stay open and grow.
pub(super) struct Permit {
    permits: Permits,
    held: Option<(OwnedSemaphorePermit, Option<OwnedSemaphorePermit>)>,
}

#[derive(Clone)]
struct Permits {
    writes: Arc<Semaphore>,
    retries: Arc<Semaphore>,
}

impl Permits {
    fn new(max_in_flight: usize) -> Self {
        let retries = Arc::new(Semaphore::new(max_in_flight.div_ceil(2)));
        Self { writes: Arc::new(Semaphore::new(max_in_flight)), retries }
    }

    async fn first(&self) -> Permit {
        Permit { permits: self.clone(), held: Some((acquire(&self.writes).await, None)) }
    }
}

impl Permit {
    /// Gives the permit back for a while.
    pub(super) fn give_back(&mut self) {
        self.held = None;
    }

    /// Waits until this task has a permit again.
    pub(super) async fn take_again(&mut self) {
        if self.held.is_none() {
            let retry = acquire(&self.permits.retries).await;
            self.held = Some((acquire(&self.permits.writes).await, Some(retry)));
        }
    }
}

async fn acquire(semaphore: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    Arc::clone(semaphore).acquire_owned().await.expect("never closed")
}

struct Scheduler {
    pipeline: Arc<Pipeline>,
    permits: Permits,
    /// Buckets that become due by their age until this time are taken already, so that they share write
    /// commands with the bucket that is due now.
    horizon_ms: u64,
    /// The turns of buckets of ended hours that are left in this window.
    turns: usize,
    /// When the next window begins.
    next_turns: Instant,
    early: Early,
}

impl Scheduler {
    fn new(pipeline: Arc<Pipeline>) -> Self {
        let permits = Permits::new(pipeline.options.max_in_flight);
        Self { pipeline, permits, horizon_ms: 0, turns: 0, next_turns: Instant::now(), early: Early::default() }
    }

    /// Waits until buckets are due and takes them. `None` once draining has ended.
    async fn next_batch(&mut self) -> Option<(Vec<TakenBucket>, Permit)> {
        loop {
            let pipeline = Arc::clone(&self.pipeline);
            let permit = self.permits.first().await;
            let completed = pipeline.completed.notified();
            let (batch, finished) = self.take();
            self.note(&batch);
            if !batch.is_empty() {
                pipeline.lock().writes += 1;
                return Some((batch, permit));
            }
            if finished {
                return None;
            }
            drop(permit);
            tokio::select! {
                () = pipeline.due.notified() => {}
                () = completed => {}
                () = tokio::time::sleep(self.sleep_for()) => {}
            }
        }
    }

    fn take(&mut self) -> (Vec<TakenBucket>, bool) {
        let pipeline = Arc::clone(&self.pipeline);
        let options = &pipeline.options;
        let (mut batch, mut bytes) = (Vec::new(), 0);
        loop {
            let log = pipeline.log.usage();
            let mut state = pipeline.lock();
            if self.may_not_write() {
                let has_buckets = state.pending.buckets() > 0;
                return (batch, self.has_drained(&mut state, log.readable, has_buckets));
            }
            let which = if state.draining {
                Take::All(Reason::Drain)
            } else if (log.is_full || log.is_disk_full)
                && state.metadata.cut_position(state.pending.cut_position(state.inserted)) < log.held_to
            {
                // A full log accepts no more readings, so waiting would not make the write larger. While only
                // forwarding can make space, writes at once would be many and small, and free nothing.
                Take::All(Reason::Log)
            } else {
                self.open_windows(&state.pending);
                Take::Due(Due { log_before: log.short_before, ..self.due() })
            };
            let room = (options.max_buckets_per_write - batch.len()).min(BUCKETS_PER_TURN);
            let was_full = state.pending.is_full();
            let taken = state.pending.take(which, room);
            let has_room = was_full && !state.pending.is_full(); // a crowded bucket was taken
            let finished = self.has_drained(&mut state, log.readable, !(taken.is_empty() && batch.is_empty()));
            drop(state);
            if has_room {
                pipeline.completed.notify_waiters(); // the feeder waits for it
            }
            if taken.is_empty() {
                return (batch, finished);
            }
            self.turns = self.turns.saturating_sub(count(&taken, Reason::Hour));
            bytes += taken.iter().map(bytes_of).sum::<u64>();
            batch.extend(taken);
            if batch.len() >= options.max_buckets_per_write || bytes >= options.max_write_bytes {
                return (batch, false);
            }
        }
    }

    /// Whether nothing may be stored: there is no lease, or pending may have what a missed deletion removes.
    fn may_not_write(&self) -> bool {
        !self.pipeline.peers.has_lease() || self.pipeline.deletions.has_missed()
    }

    /// Returns whether a drain has ended: tasks fail again and again, or nothing is left to do.
    ///
    /// `has_more` says whether there are buckets to take.
    fn has_drained(&self, state: &mut State, readable: Position, has_more: bool) -> bool {
        let keeps_failing = state.given_up_in_a_row >= self.pipeline.options.max_in_flight;
        let is_idle = !has_more && state.writes == 0;
        state.draining && (keeps_failing || is_idle && state.is_at_rest(readable))
    }

    /// Opens a window if a bucket is due by its age. Grants turns to the buckets of ended hours if the time
    /// of the last turns is over.
    fn open_windows(&mut self, pending: &Pending) {
        let (now, now_ms) = (Instant::now(), self.pipeline.now_ms());
        if pending.due_at_ms().is_some_and(|due_ms| due_ms <= now_ms) {
            self.horizon_ms = now_ms + self.pipeline.gather().as_millis() as u64;
        }
        if now >= self.next_turns {
            let (gather, spread) = (self.pipeline.gather(), self.pipeline.spread());
            let share = (pending.buckets() as f64 * gather.as_secs_f64() / spread.as_secs_f64()).ceil();
            self.turns = self.pipeline.options.max_buckets_per_write.max(share as usize);
            self.next_turns = now + gather;
        }
    }

    fn due(&self) -> Due {
        Due {
            now_ms: self.pipeline.now_ms(),
            wall_ms: self.pipeline.options.clock.now_ms(),
            horizon_ms: self.horizon_ms,
            turns: self.turns,
            spread_ms: self.pipeline.spread().as_millis() as u64,
            log_before: Position::default(),
        }
    }

    fn sleep_for(&self) -> Duration {
        let due = self.due();
        let mut state = self.pipeline.lock();
        state.scheduler_is_idle = state.pending.buckets() == 0;
        if state.scheduler_is_idle {
            return IDLE_SLEEP;
        }
        if self.may_not_write() {
            return MAX_SLEEP; // the watcher and the feeder notify when that changes
        }
        let (due_at_ms, waits_for_turn) = (state.pending.due_at_ms(), state.pending.waits_for_turn(&due));
        drop(state);
        let until_due = due_at_ms.map_or(self.pipeline.options.limits.max_age, |due_ms| {
            Duration::from_millis(due_ms.saturating_sub(due.now_ms))
        });
        let until_turn = if waits_for_turn { self.next_turns - Instant::now() } else { MAX_SLEEP };
        until_due.min(until_turn).min(MAX_SLEEP)
    }

    /// Records why buckets were taken, and whether memory or the log was too small to let them wait.
    fn note(&mut self, batch: &[TakenBucket]) {
        for reason in Reason::iter() {
            let buckets = count(batch, reason);
            if buckets > 0 {
                self.pipeline.metrics.flush_buckets_total.with(reason.into()).increment(buckets as u64);
            }
        }
        let (memory, log) = (count(batch, Reason::Memory) > 0, count(batch, Reason::Log) > 0);
        self.early.note(&self.pipeline, memory, log);
    }
}

fn count(taken: &[TakenBucket], reason: Reason) -> usize {
    taken.iter().filter(|taken| taken.reason() == reason).count()
}

/// Estimates the bytes of a bucket in a write command.
fn bytes_of(taken: &TakenBucket) -> u64 {
    300 + taken.values() as u64 * 32
}
