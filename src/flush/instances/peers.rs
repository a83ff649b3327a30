//! The state of an instance among the others: its name and its lease.

use std::io::{Error, ErrorKind};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::common::small_file::read_small_regular_text;
use crate::disk::replace_file;
use crate::log::Position;

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
}

#[derive(Debug, Default)]
struct State {
    /// Until when this instance may begin a write.
    lease_ends: Option<Instant>,
    /// The position in the log behind the deletions that this instance had missed when its lease began.
    missed_until: Position,
}

impl Peers {
    /// Reads the name of this instance from a file, or makes one if there is none.
    ///
    /// `None`: the store is not shared.
    ///
    /// # Errors
    /// When the file cannot be read. A new name would not do: deletions would wait for the old name.
    pub(in crate::flush) fn load(file: Option<&Path>) -> Result<Self, Error> {
        let has_looked = watch::Sender::new(file.is_none());
        Ok(Self { id: file.map(name_in).transpose()?, state: Mutex::default(), has_looked })
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

    /// The name of this instance; `None` if the store is not shared.
    pub(super) const fn id(&self) -> Option<&Arc<str>> {
        self.id.as_ref()
    }

    /// Notes that the log has a deletion of another instance, which ends at `until`.
    ///
    /// If this instance has no lease, it had missed the deletion: writes wait until pending has it.
    pub(super) fn note_appended(&self, until: Position) {
        let mut state = self.lock();
        if !state.has_lease() {
            state.missed_until = until;
        }
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
            let error = Peers::load(Some(unreadable)).unwrap_err().to_string();
            assert!(error.starts_with("the name of this instance cannot be read from /"), "{error}");
        }
        assert_eq!(std::fs::read(&file).unwrap(), b"\xff", "the file is as it was");
    }
}
