//! The watcher: a task that beats, looks for announcements, and closes them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::common::once_per_change::OncePerChange;
use crate::flush::Pipeline;
use crate::flush::deleter::{MAX_WAITING, append, audit};
use crate::flush::deletions::Stage;
use crate::flush::store_state::note_look;
use crate::log::{AppendError, BegunDeletion, DeletionRecord};
use crate::pending::Pending;
use crate::store::{Announced, Instance, Instances, StoreError};

/// The time between two looks.
///
/// An instance that is alone looks with each beat. That suffices, because a second instance writes its note
/// before it announces a deletion, and then waits for this one.
const INTERVAL: Duration = Duration::from_secs(1);

/// The time between two looks if the last deletion was seen within [`BUSY_FOR`]: more may follow.
const BUSY_INTERVAL: Duration = Duration::from_millis(100);

const BUSY_FOR: Duration = Duration::from_secs(10);

/// The time between two beats.
const BEAT_INTERVAL: Duration = Duration::from_secs(2);

/// How long after a beat an instance may begin a write, if looks take no time.
const VALID: Duration = Duration::from_secs(8);

/// The longest look that makes the next lease longer. Others wait that much longer for a dead instance.
const SLOWEST_LOOK: Duration = Duration::from_secs(60);

/// Clients of deletions do not wait for an instance without a beat for this long.
const SILENT: Duration = Duration::from_secs(5);

/// How often a deletion is appended to a log whose disk is full.
///
/// A group of deletions alone may use the reserve. The groups of the first append and of the second one may
/// have readings that were in the queue before.
const APPENDS: u32 = 3;

/// Runs until it is aborted. Returns at once if the store is not shared.
pub(in crate::flush) async fn run(pipeline: Arc<Pipeline>) {
    let (Some(instances), Some(own)) = (pipeline.store.instances(), pipeline.peers.id().cloned()) else { return };
    let now = Instant::now();
    // A new instance may have readings from before a deletion too, if it was restored from a backup.
    let began_empty = pipeline.recovered == 0 && pipeline.deletions.waiting() == 0 && pipeline.dead_letters.is_empty();
    let mut watcher = Watcher {
        pipeline: &pipeline,
        instances,
        own,
        must_pass: began_empty,
        next_beat: now,
        short_until: now + instances.longest_command(), // an earlier process may have a beat under way
        valid_until: now,
        last_took: Duration::ZERO,
        is_too_slow: OncePerChange::default(),
        seen: HashMap::new(),
        busy_until: now,
        is_alone: false,
        unreadable: BTreeSet::new(),
    };
    loop {
        let is_draining = pipeline.drain_begins.is_cancelled();
        let begin = Instant::now();
        let looked = watcher.look().await;
        watcher.last_took = begin.elapsed();
        let failed = looked.err().filter(|_| !pipeline.peers.has_lease()); // a lease outlasts some failures
        note_look(&pipeline, failed.as_ref());
        if is_draining && !pipeline.peers.has_lease() {
            pipeline.note_given_up(pipeline.options.max_in_flight); // without a lease nothing is written
        }
        let idle = if watcher.is_alone { BEAT_INTERVAL } else { INTERVAL };
        let wait = if Instant::now() < watcher.busy_until { BUSY_INTERVAL } else { idle };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = pipeline.deletions.executed.notified() => {}
            () = pipeline.drain_begins.cancelled(), if !is_draining => {}
        }
    }
}

/// The task that beats, looks for announcements, and closes them.
struct Watcher<'a> {
    pipeline: &'a Pipeline,
    instances: &'a dyn Instances,
    own: Arc<str>,
    /// Whether the store is still to note that this instance has missed no earlier deletion, because it began
    /// with nothing.
    must_pass: bool,
    next_beat: Instant,
    /// Until when a beat without an answer may take effect, and put a short lease into the note again.
    short_until: Instant,
    /// Until when a write may begin, by the last beat.
    valid_until: Instant,
    /// How long the last look took.
    last_took: Duration,
    /// Whether the last lease was over before it began.
    is_too_slow: OncePerChange,
    /// The newest number of beats of each instance, and when that number was first seen.
    seen: HashMap<Arc<str>, (i64, Instant)>,
    busy_until: Instant,
    /// Whether the last look found no other instance.
    is_alone: bool,
    /// The unreadable announcements that were logged.
    unreadable: BTreeSet<String>,
}

impl Watcher<'_> {
    async fn look(&mut self) -> Result<(), StoreError> {
        let begin = Instant::now();
        self.is_alone = false; // unless the look says so
        if begin >= self.next_beat {
            // The lease lasts until the next beat is answered, also if looks stay as slow as the last one.
            let slowness = if begin < self.short_until { Duration::ZERO } else { self.last_took.min(SLOWEST_LOOK) };
            let valid = VALID + 2 * slowness;
            self.pipeline.peers.end_lease_by(begin + valid); // others may see the beat before its answer is here
            let beat = self.instances.beat(&self.own, valid).await;
            if beat.as_ref().is_err_and(|error| error.cause.may_still_happen()) {
                self.short_until = Instant::now() + self.instances.longest_command();
            }
            if beat? {
                tracing::info!(instance = %self.own, "the instances that share the store know this one by this name");
            }
            if self.must_pass {
                self.instances.pass_closed(&self.own, self.pipeline.started.elapsed()).await?;
                self.must_pass = false;
            }
            (self.valid_until, self.next_beat) = (begin + valid, begin + BEAT_INTERVAL);
        }
        let notes = self.instances.look(&self.own).await?;
        self.note_beats(&notes.instances);
        self.is_alone = notes.instances.iter().all(|instance| instance.id == self.own);
        let (mut open, mut takes_part) = (BTreeSet::new(), true);
        for announced in &notes.deletions {
            let Ok(id) = u64::from_str_radix(&announced.id, 16) else { continue };
            self.busy_until = begin + BUSY_FOR;
            takes_part &= self.take_part(id, announced).await?;
            if !self.close(id, announced, &notes.instances).await? {
                open.insert(id);
            }
        }
        let running = notes.instances.iter().filter(|instance| self.runs(instance)).count();
        self.pipeline.metrics.instances.set(running as f64);
        self.pipeline.metrics.deletions_waiting.set(open.len() as f64);
        if self.settle(&open).await? || open.len() < notes.deletions.len() {
            let all: Vec<&str> = notes.instances.iter().map(|instance| &*instance.id).collect();
            self.instances.remove_closed(&all).await?;
        }
        let peers = &self.pipeline.peers;
        if (takes_part || peers.has_lease()) && peers.begin_lease(self.valid_until) {
            self.pipeline.due.notify_one();
        }
        if Instant::now() < self.valid_until {
            self.is_too_slow.ends();
        } else if self.is_too_slow.begins() {
            let seconds = begin.elapsed().as_secs_f64();
            tracing::warn!(
                seconds,
                "the store was so slow with the notes of the instances that the lease was over before it began; \
                 nothing is stored until a lease lasts longer"
            );
        }
        Ok(())
    }

    fn note_beats(&mut self, instances: &[Instance]) {
        let now = Instant::now();
        self.seen.retain(|id, _| instances.iter().any(|instance| instance.id == *id));
        for Instance { id, beats, .. } in instances {
            let seen = self.seen.entry(Arc::clone(id)).or_insert((*beats, now));
            if seen.0 != *beats {
                *seen = (*beats, now);
            }
        }
    }

    /// Returns how long ago the last beat of an instance was seen.
    fn silence(&self, Instance { id, .. }: &Instance) -> Duration {
        self.seen.get(id).filter(|_| *id != self.own).map_or(Duration::ZERO, |(_, at)| at.elapsed())
    }

    /// Whether an instance runs: its last beat was seen within its lease.
    fn runs(&self, instance: &Instance) -> bool {
        self.silence(instance) < instance.lease
    }

    /// Appends an announced deletion to the log, unless the log has it, and notes it in the store once it is
    /// executed here. Returns false if the next look has to try again.
    async fn take_part(&mut self, id: u64, announced: &Announced) -> Result<bool, StoreError> {
        let removed = match self.pipeline.deletions.note_announced(id) {
            _ if announced.is_executed_by(&self.own) => return Ok(true),
            Some(Stage::Logged) => {
                self.tell_if_missed(id);
                return Ok(true); // the deleter is about to execute it
            }
            Some(Stage::Executed { readings } | Stage::Announced { readings, .. }) => readings,
            None if *announced.from == *self.own => 0, // the log was cut behind it
            None => {
                let Some(begun) = self.begun(id, announced) else { return Ok(true) };
                return Ok(self.append(&begun).await);
            }
        };
        self.instances.note_executed(&announced.id, &self.own, removed).await?;
        Ok(true)
    }

    /// Reads a deletion of another instance. Logs an error, once, if it cannot be read.
    fn begun(&mut self, id: u64, announced: &Announced) -> Option<BegunDeletion> {
        let error = match serde_json::from_str::<BegunDeletion>(&announced.record) {
            Ok(begun) if begun.id == id => {
                return Some(BegunDeletion { from: Some((*announced.from).into()), ..begun });
            }
            Ok(begun) => format!("its record has another number, {}", begun.id),
            Err(error) => error.to_string(),
        };
        if self.unreadable.insert(announced.id.clone()) {
            tracing::error!(id, error, "a deletion of another instance is not readable");
        }
        None
    }

    /// Appends a deletion of another instance to the log.
    ///
    /// Returns false if too many wait to be executed, or the log does not take it. The next look tries again,
    /// and a new lease waits for that. It does not wait if not even the reserve of the disk is free, because
    /// only writes make room in the log. If the deletion is closed already, what is written meanwhile stays.
    ///
    /// Without a lease and while pending is full, the feeder reaches none of those that wait in the log. So
    /// none is too many then.
    async fn append(&self, begun: &BegunDeletion) -> bool {
        let pipeline = self.pipeline;
        let may_become_fewer = || pipeline.peers.has_lease() || !pipeline.with_pending(Pending::is_full);
        if pipeline.deletions.waiting() >= MAX_WAITING && may_become_fewer() {
            return false;
        }
        pipeline.deletions.add(begun, Stage::Logged);
        let record = DeletionRecord::Begun(begun.clone());
        let mut appended = append(&pipeline.log, &record).await;
        for _ in 1..APPENDS {
            if appended == Err(AppendError::DiskFull) {
                appended = append(&pipeline.log, &record).await;
            }
        }
        if let Err(error) = appended {
            tracing::debug!(%error, "the log does not take a deletion of another instance");
            pipeline.deletions.forget(begun.id);
            return error == AppendError::DiskFull;
        }
        self.tell_if_missed(begun.id);
        audit(begun, None);
        let (letters, deletion) = (pipeline.dead_letters.clone(), Arc::clone(&begun.deletion));
        tokio::spawn(async move { letters.delete_followed(&deletion).await }); // no beat waits for a long file
        pipeline.log.read_up_to(pipeline.log.usage().readable);
        true
    }

    /// Tells the feeder of a deletion that this instance may have missed, because it has no lease.
    ///
    /// Others may have closed the deletion. So this instance stores no reading before it any more.
    fn tell_if_missed(&self, id: u64) {
        if !self.pipeline.peers.has_lease() {
            self.pipeline.deletions.tell_feeder(id, false);
        }
    }

    /// Closes a deletion that all running instances have executed.
    ///
    /// The instance that announced it does so, or any other one if that instance is taken for dead. Returns
    /// whether this call has closed it.
    async fn close(&self, id: u64, announced: &Announced, instances: &[Instance]) -> Result<bool, StoreError> {
        let is_left = |instance: &&Instance| !announced.is_executed_by(&instance.id);
        let left = instances.iter().filter(is_left);
        let (running, absent): (Vec<&Instance>, Vec<&Instance>) = left.partition(|instance| self.runs(instance));
        let names = |of: &[&Instance]| of.iter().map(|instance| Arc::clone(&instance.id)).collect::<Vec<_>>();
        let is_own = *announced.from == *self.own;
        let are_silent = !running.is_empty() && running.iter().all(|instance| self.silence(instance) > SILENT);
        self.pipeline.deletions.note_waiting(id, names(&running), are_silent);
        let other_closes = |instance: &Instance| *instance.id == *announced.from && self.runs(instance);
        if announced.is_closed || !running.is_empty() || !is_own && instances.iter().any(other_closes) {
            return Ok(false);
        }
        let absent = names(&absent);
        let readings = announced.executed.iter().map(|(_, readings)| readings).sum();
        // Before the store is asked: if its answer is lost, the next look may find the deletion no more.
        self.pipeline.deletions.note_closing(id, readings, absent.clone());
        if !self.instances.close(announced).await? {
            return Ok(false); // another instance has joined it meanwhile
        }
        if !absent.is_empty() {
            let absent = absent.join(", ");
            tracing::warn!(id, absent, "instances that do not run will delete what they have when they start again");
        }
        Ok(true)
    }

    /// Answers and forgets the deletions that are executed here and not open any more.
    ///
    /// Returns whether there were some.
    async fn settle(&self, open: &BTreeSet<u64>) -> Result<bool, StoreError> {
        let settled = self.pipeline.deletions.settled(open);
        let has_settled = !settled.is_empty();
        for (id, device, outcome) in settled {
            // Another instance may have made the entry of the device narrower after this one has written it.
            let checked = self.instances.check_entry(&device).await;
            checked.map_err(|error| StoreError::new(error.cause, error.detail))?;
            self.pipeline.deletions.answer(id, outcome);
        }
        Ok(has_settled)
    }
}
