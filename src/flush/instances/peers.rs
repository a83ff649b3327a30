//! The state of an instance among the others: its name, its lease, the deletions that it shares with them.

use std::collections::{BTreeSet, HashMap};
use std::io::{Error, ErrorKind};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::common::small_file::read_small_regular_text;
use crate::disk::replace_file;
use crate::flush::DeletionOutcome;
use crate::log::{BegunDeletion, Position, RecoveredDeletion};

/// How long a start waits for the first look.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// The state that the watcher shares with the deleter, the scheduler and the feeder.
#[derive(Debug)]
pub(in crate::flush) struct Peers {
    /// The name of this instance; `None` if the store is not shared.
    id: Option<Arc<str>>,
    state: Mutex<State>,
    /// Whether the first look was successful.
    has_looked: watch::Sender<bool>,
    /// Notifies the watcher that this instance has executed a deletion.
    executed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Until when this instance may begin a write.
    lease_ends: Option<Instant>,
    /// The position in the log behind the deletions that this instance had missed when its lease began.
    missed_until: Position,
    /// The deletions in the log of this instance that are or may be announced, by number.
    logged: HashMap<u64, Logged>,
}

/// A deletion in the log of this instance.
#[derive(Debug)]
struct Logged {
    device: Arc<str>,
    /// How many readings it has removed here, once it is executed and the log says so.
    removed: Option<u64>,
    /// Whether its announcement was seen.
    is_announced: bool,
    /// The instances that run and have not executed it.
    waits_for: Vec<Arc<str>>,
    /// The outcome, once this instance has closed it.
    outcome: Option<DeletionOutcome>,
}

/// The progress of a deletion in this instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// The log has the deletion.
    Logged,
    /// The deletion is executed, and has removed this many readings.
    Executed(u64),
}

impl Logged {
    fn new(begun: &BegunDeletion, removed: Option<u64>) -> Self {
        let device = Arc::clone(&begun.deletion.device);
        Self { device, removed, is_announced: false, waits_for: Vec::new(), outcome: None }
    }
}

impl Peers {
    /// Reads the name of this instance from a file, or makes one if there is none. `None`: the store is not
    /// shared.
    ///
    /// # Errors
    /// When the file cannot be read. Under a new name, deletions would wait for the instance that it was.
    pub(in crate::flush) fn load(file: Option<&Path>, recovered: &[RecoveredDeletion]) -> Result<Self, Error> {
        let logged = recovered.iter().map(|RecoveredDeletion { begun, is_executed, .. }| {
            (begun.id, Logged::new(begun, is_executed.then_some(0)))
        });
        let state = State { logged: logged.collect(), ..State::default() };
        let has_looked = watch::Sender::new(file.is_none());
        let id = file.map(name_in).transpose()?;
        Ok(Self { id, state: Mutex::new(state), has_looked, executed: Notify::new() })
    }

    /// Whether a write may begin: this instance has a lease, and pending has the deletions that it had
    /// missed, because the log is inserted up to `inserted`. If pending is full, the log is not inserted any
    /// further before a write, so the lease is enough.
    pub(in crate::flush) fn may_write(&self, inserted: Position, is_full: bool) -> bool {
        if self.id.is_none() {
            return true;
        }
        let state = self.lock();
        state.has_lease() && (is_full || inserted >= state.missed_until)
    }

    /// Waits for the first look, but not for long.
    pub(in crate::flush) async fn first_look(&self) {
        let mut has_looked = self.has_looked.subscribe();
        let _ = tokio::time::timeout(FIRST_LOOK, has_looked.wait_for(|has_looked| *has_looked)).await;
    }

    /// Notes that a deletion is executed here, and that the log says so.
    pub(in crate::flush) fn note_executed(&self, id: u64, readings: u64) {
        if let Some(logged) = self.lock().logged.get_mut(&id) {
            logged.removed = Some(readings);
        }
        self.executed.notify_one();
    }

    /// The instances that run and have not executed a deletion of this one.
    pub(in crate::flush) fn waits_for(&self, id: u64) -> Vec<Arc<str>> {
        self.lock().logged.get(&id).map(|logged| logged.waits_for.clone()).unwrap_or_default()
    }

    /// The name of this instance; `None` if the store is not shared.
    pub(super) const fn id(&self) -> Option<&Arc<str>> {
        self.id.as_ref()
    }

    /// Notes a deletion in the log of this instance.
    pub(super) fn note_logged(&self, begun: &BegunDeletion) {
        self.lock().logged.entry(begun.id).or_insert_with(|| Logged::new(begun, None));
    }

    /// Notes that a deletion is announced. Returns how far it is here; `None`: the log does not have it.
    pub(super) fn note_announced(&self, id: u64) -> Option<Progress> {
        let mut state = self.lock();
        let logged = state.logged.get_mut(&id)?;
        logged.is_announced = true;
        Some(logged.removed.map_or(Progress::Logged, Progress::Executed))
    }

    /// Notes which instances run and have not executed a deletion.
    pub(super) fn note_waiting(&self, id: u64, waits_for: Vec<Arc<str>>) {
        if let Some(logged) = self.lock().logged.get_mut(&id) {
            logged.waits_for = waits_for;
        }
    }

    /// Notes the outcome of a deletion that this instance has closed.
    pub(super) fn note_closed(&self, id: u64, outcome: DeletionOutcome) {
        if let Some(logged) = self.lock().logged.get_mut(&id) {
            logged.outcome = Some(outcome);
        }
    }

    /// Notes that the log has a deletion of another instance, which ends at `until`. Without a lease, this
    /// instance had missed it.
    pub(super) fn note_appended(&self, until: Position) {
        let mut state = self.lock();
        if !state.has_lease() {
            state.missed_until = until;
        }
    }

    /// Returns the deletions that were announced, are executed here, and are not open any more, with their
    /// devices.
    pub(super) fn settled(&self, open: &BTreeSet<u64>) -> Vec<(u64, Arc<str>)> {
        let state = self.lock();
        let settled = state
            .logged
            .iter()
            .filter(|(id, logged)| logged.is_announced && logged.removed.is_some() && !open.contains(id));
        settled.map(|(id, logged)| (*id, Arc::clone(&logged.device))).collect()
    }

    /// Forgets a deletion, and returns its outcome. If another instance has closed the deletion, the outcome
    /// has what this one knows.
    pub(super) fn forget(&self, id: u64) -> Option<DeletionOutcome> {
        let Logged { removed, outcome, .. } = self.lock().logged.remove(&id)?;
        let readings = removed.unwrap_or(0);
        Some(outcome.unwrap_or(DeletionOutcome::Executed { readings, absent: Vec::new() }))
    }

    /// Whether this instance has a lease.
    pub(super) fn has_lease(&self) -> bool {
        self.id.is_none() || self.lock().has_lease()
    }

    /// Begins or prolongs the lease. Returns whether there was none.
    pub(super) fn begin_lease(&self, ends: Instant) -> bool {
        let mut state = self.lock();
        let is_new = !state.has_lease();
        state.lease_ends = Some(ends);
        drop(state);
        if is_new {
            self.has_looked.send_replace(true);
        }
        is_new
    }

    /// Resolves when this instance has executed a deletion, perhaps before this call.
    pub(super) async fn executed(&self) {
        self.executed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn has_lease(&self) -> bool {
        self.lease_ends.is_some_and(|ends| Instant::now() < ends)
    }
}

/// Returns the name of this instance, which is in its data folder.
fn name_in(file: &Path) -> Result<Arc<str>, Error> {
    let known = match read_small_regular_text(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => {
            let why = format!("the name of this instance cannot be read from {}: {error}", file.display());
            return Err(Error::new(error.kind(), why));
        }
        Ok(known) => known,
    };
    if !known.trim_end().is_empty() {
        return Ok(known.trim_end().into());
    }
    let new = format!("{:016x}", rand::random::<u64>());
    if let Err(error) = replace_file(file, format!("{new}\n").as_bytes()) {
        let file = file.display();
        tracing::warn!(%file, %error, "cannot save the name of this instance; the next start is another one to others");
    }
    Ok(new.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_keeps_its_name_and_gets_no_other_one_because_of_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("instance");
        let name = name_in(&file).unwrap();
        assert_eq!((name.len(), name_in(&file).unwrap()), (16, name));
        std::fs::write(&file, b"\xff").unwrap();
        for unreadable in [&*file, folder.path()] {
            let error = Peers::load(Some(unreadable), &[]).unwrap_err().to_string();
            assert!(error.starts_with("the name of this instance cannot be read from /"), "{error}");
        }
        assert_eq!(std::fs::read(&file).unwrap(), b"\xff", "the file is as it was");
    }
}
