//! The state of an instance among the others: its name and its lease.

use std::io::{Error, ErrorKind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::common::small_file::read_small_regular_text;
use crate::disk::replace_file;

/// How long a start waits for the first look.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// The state that the watcher shares with the deleter, the scheduler and the feeder.
#[derive(Debug)]
pub(in crate::flush) struct Peers {
    /// The name of this instance; `None` if the store is not shared.
    id: Option<Arc<str>>,
    /// Until when this instance may begin a write.
    lease_ends: Mutex<Option<Instant>>,
    /// Whether the first look was successful.
    has_looked: watch::Sender<bool>,
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
        Ok(Self { id: file.map(name_in).transpose()?, lease_ends: Mutex::default(), has_looked })
    }

    /// Whether this instance has a lease. It needs none if the store is not shared.
    pub(in crate::flush) fn has_lease(&self) -> bool {
        let ends = *self.lease_ends.lock().unwrap_or_else(PoisonError::into_inner);
        self.id.is_none() || ends.is_some_and(|ends| Instant::now() < ends)
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

    /// Ends the lease at `latest`, if it is longer.
    pub(super) fn end_lease_by(&self, latest: Instant) {
        let mut ends = self.lease_ends.lock().unwrap_or_else(PoisonError::into_inner);
        *ends = ends.map(|ends| ends.min(latest));
    }

    /// Begins or prolongs the lease. Returns whether there was none.
    pub(super) fn begin_lease(&self, ends: Instant) -> bool {
        let is_new = !self.has_lease();
        *self.lease_ends.lock().unwrap_or_else(PoisonError::into_inner) = Some(ends);
        if is_new {
            self.has_looked.send_replace(true);
        }
        is_new
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
