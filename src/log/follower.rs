//! The follower: a second reader of the log, with a durable position of its own.
//!
//! The log keeps the records that the follower has not passed, even if they are stored. The position is in
//! the file `follower`, which has two slots (`slots.rs`). Without that file there is no follower. A new one
//! begins with the oldest record that the log still has.
//!
//! The saved position is never beyond the synced records: after a power cut, other records may take the place
//! of unsynced ones. The follower begins again with the oldest record if the file is damaged, or seems to be
//! of another log: its position is beyond the end of this log, or inside a record.

use std::path::Path;
use std::sync::{MutexGuard, PoisonError};

use super::handle::Log;
use super::recovery::{self, Recovery};
use super::segment::{self, Header};
use super::slots::{self, Slot, SlotFile};
use super::{LogError, Position};
use crate::disk::{Folder, OsFolder};

/// How far the follower has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Followed {
    /// The follower needs no record before this position.
    pub position: Position,
    /// A time at or before the append of the record at `position`, in Unix milliseconds.
    pub as_of_ms: u64,
}

impl Slot for Followed {
    const NAME: &'static str = "follower";
    const MAGIC: [u8; 4] = *b"TGFW";

    fn to_numbers(self) -> [u64; 2] {
        [self.position.0, self.as_of_ms]
    }

    fn of_numbers([position, as_of_ms]: [u64; 2]) -> Option<Self> {
        let position = Position(position);
        position.is_possible().then_some(Self { position, as_of_ms })
    }
}

/// The saved state of the follower and its file, if there is a follower.
pub(super) type SavedFollower = Option<(Followed, SlotFile<Followed>)>;

/// Reads the saved position of the follower; `None` without a follower.
///
/// If the file is damaged, the position is 0.
pub(super) fn load(folder: &dyn Folder) -> Result<Option<Followed>, LogError> {
    match slots::load(folder) {
        Err(LogError::BadCheckpoint { .. }) => Ok(Some(Followed { position: Position::default(), as_of_ms: 0 })),
        loaded => loaded,
    }
}

/// The records that the follower has not passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unread {
    /// The number of bytes that these records take in the log.
    pub bytes: u64,
    /// A time at or before the append of the first of these records, in Unix milliseconds.
    pub as_of_ms: u64,
}

/// The records of the log in `dir` that its follower has not passed; `None` without a follower. Another
/// process may use the log meanwhile.
///
/// # Errors
/// When a file cannot be read.
pub fn unread(dir: &Path) -> Result<Option<Unread>, LogError> {
    let folder = OsFolder::new(dir);
    let Some(followed) = load(&folder)? else { return Ok(None) };
    let Some(extent) = recovery::extent(dir)? else { return Ok(None) };
    let newest = *segment::list(&folder)?.last().unwrap_or(&extent.start);
    // A new segment has a header, which is no record.
    let from =
        if followed.position == newest { newest.0.saturating_add(Header::BYTES as u64) } else { followed.position.0 };
    let bytes = extent.end.0.saturating_sub(from.max(extent.start.0));
    Ok(Some(Unread { bytes, as_of_ms: followed.as_of_ms }))
}

/// Gives the log in `dir` a follower that has read nothing, unless it has one already.
///
/// From its next opening on, the log keeps its records for this follower.
///
/// # Errors
/// When the file cannot be read or created.
pub fn add_follower(dir: &Path) -> Result<(), LogError> {
    let folder = OsFolder::new(dir);
    if dir.exists() && load(&folder)?.is_none() {
        SlotFile::create(&folder, Followed { position: Position::default(), as_of_ms: 0 })?;
    }
    Ok(())
}

/// The position from which the store or the follower needs the log.
pub(super) fn needed_from(stored: Position, followed: Option<Position>) -> Position {
    followed.map_or(stored, |followed| followed.min(stored))
}

/// Opens the file `follower`, if it exists.
///
/// If the file is damaged or of another log, the follower begins again with the oldest record. Logs a warning
/// then, and if the log no longer has records that the follower has not read: a program that does not know
/// followers may have cut them off.
pub(super) fn resume(folder: &dyn Folder, recovery: &Recovery) -> Result<SavedFollower, LogError> {
    let first = recovery.bases[0];
    let opened = match SlotFile::<Followed>::open(folder) {
        Ok(Some((_, saved))) if saved.position > recovery.end => {
            Err(slots::bad(&folder.path_of(Followed::NAME), "its position is beyond the end of the log"))
        }
        Ok(Some((_, saved))) if !recovery::is_boundary(folder, &recovery.bases, saved.position)? => {
            Err(slots::bad(&folder.path_of(Followed::NAME), "its position is in the middle of a record"))
        }
        opened => opened,
    };
    let (saved, file) = match opened {
        Ok(None) => return Ok(None),
        Ok(Some((file, saved))) => (saved, file),
        Err(error @ LogError::BadCheckpoint { .. }) => {
            tracing::warn!(%error, "the log is forwarded from its oldest record on");
            let oldest = Followed { position: first, as_of_ms: 0 };
            (oldest, SlotFile::create(folder, oldest)?)
        }
        Err(error) => return Err(error),
    };
    // A follower that `add_follower` has just made has position 0 and time 0. It has read nothing, and the
    // bytes before `first` were never for it: nothing is missing.
    if saved.position < first && saved.as_of_ms > 0 {
        let bytes = first.0 - saved.position.0;
        tracing::warn!(bytes, "the log no longer has these bytes, which were not forwarded");
    }
    Ok(Some((Followed { position: saved.position.max(first), ..saved }, file)))
}

impl Log {
    /// Returns how far the follower has read.
    ///
    /// Without a follower, creates one that begins at `new`.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn follow(&self, new: Followed) -> Result<Followed, LogError> {
        let mut follower = self.lock_follower();
        if let Some((saved, _)) = &*follower {
            return Ok(*saved);
        }
        *follower = Some((new, SlotFile::create(&*self.folder, new)?));
        self.shared.lock().held = Some(new.position);
        Ok(new)
    }

    /// Saves how far the follower has read, but at most the durable end of the log.
    ///
    /// The next cut may remove the records before the saved position. Does nothing if it has not moved.
    ///
    /// # Errors
    /// When the file cannot be written. Saving again later is safe.
    pub fn save_followed(&self, to: Followed) -> Result<(), LogError> {
        let mut follower = self.lock_follower();
        let Some((saved, file)) = &mut *follower else { return Ok(()) };
        let durable = self.shared.lock().durable;
        let to = Followed { position: to.position.min(durable), ..to };
        if to.position > saved.position {
            file.save(to)?;
            *saved = to;
            self.shared.lock().held = Some(to.position);
        }
        Ok(())
    }

    /// Ends the follower, so that the log is cut without it.
    ///
    /// Returns the number of bytes that it has not read; `None` if there is no follower.
    ///
    /// # Errors
    /// When the file cannot be removed.
    pub fn end_follower(&self) -> Result<Option<u64>, LogError> {
        let mut follower = self.lock_follower();
        let Some((saved, _)) = &*follower else { return Ok(None) };
        slots::remove::<Followed>(&*self.folder)?;
        let unread = self.usage().readable.0.saturating_sub(saved.position.0);
        *follower = None;
        self.shared.lock().held = None;
        Ok(Some(unread))
    }

    fn lock_follower(&self) -> MutexGuard<'_, SavedFollower> {
        self.follower.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::crash_tests::{batch, open_log};
    use super::super::tests::{append, folder, open, read_all};
    use super::super::{Batch, Sync};
    use super::*;
    use std::time::Duration;

    fn at(position: Position) -> Followed {
        Followed { position, as_of_ms: 7 }
    }

    fn bases(dir: &Path) -> Vec<Position> {
        segment::list(&OsFolder::new(dir)).unwrap()
    }

    /// A log of some segments with a follower at its start, and its batches.
    fn followed_log(dir: &Path) -> (Log, Recovery, Vec<Batch>) {
        let (log, recovery) = open(dir);
        log.follow(at(recovery.start)).unwrap();
        let batches: Vec<_> = (0..10).map(|id| batch(id, 2)).collect();
        for batch in &batches {
            append(&log, batch.clone()).unwrap();
        }
        (log, recovery, batches)
    }

    #[test]
    fn the_log_is_cut_only_behind_the_follower_and_the_stored_readings() {
        let dir = tempfile::tempdir().unwrap();
        let (log, recovery, batches) = followed_log(dir.path());
        let all = bases(dir.path());
        assert!(all.len() >= 4, "{all:?}");
        let end = log.usage().readable;
        log.cut(end).unwrap();
        assert_eq!(bases(dir.path()), all, "the follower has read nothing");
        assert_eq!(log.usage().held_to, all[1]);
        log.save_followed(at(all[2])).unwrap();
        assert_eq!(log.usage().held_to, all[3]);
        log.cut(end).unwrap();
        assert_eq!(bases(dir.path()), all[2..]);
        drop(log);

        let unread_bytes = || unread(dir.path()).unwrap().map(|unread| unread.bytes);
        assert_eq!(unread_bytes(), Some(end.0 - all[2].0));

        // The store begins at its own position, and the follower at its own.
        let (log, again) = open(dir.path());
        assert_eq!((again.start, again.readings), (end, 0));
        let followed = log.follow(at(recovery.start)).unwrap();
        assert_eq!(followed, at(all[2]));
        let left = read_all(&log, followed.position);
        assert!(left.len() > 2 && batches.iter().rev().zip(left.iter().rev()).all(|(a, b)| a.payload() == b));
        log.save_followed(at(end)).unwrap();
        assert_eq!(log.usage().held_to, Position(u64::MAX));
        log.cut(end).unwrap();
        assert_eq!((bases(dir.path()).len(), unread_bytes()), (1, Some(0)));
    }

    #[test]
    fn the_log_is_not_cut_beyond_what_is_stored_if_the_follower_is_ahead() {
        let dir = tempfile::tempdir().unwrap();
        let (log, recovery, _) = followed_log(dir.path());
        let all = bases(dir.path());
        log.save_followed(at(log.usage().readable)).unwrap();
        log.cut(recovery.start).unwrap();
        assert_eq!(bases(dir.path()), all);
    }

    #[test]
    fn without_a_follower_the_log_is_cut_at_once_and_the_bytes_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let (log, recovery, _) = followed_log(dir.path());
        let end = log.usage().readable;
        log.cut(end).unwrap();
        drop(log);
        let (log, _) = open(dir.path());
        assert_eq!(log.end_follower().unwrap(), Some(end.0 - recovery.start.0));
        assert_eq!(log.end_follower().unwrap(), None);
        log.cut(end).unwrap();
        assert_eq!(bases(dir.path()).len(), 1);
        assert!(!dir.path().join(Followed::NAME).exists());
    }

    #[test]
    fn damage_that_only_the_follower_needs_refuses_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let (log, ..) = followed_log(dir.path());
        let first = bases(dir.path())[0];
        log.cut(log.usage().readable).unwrap();
        drop(log);
        let path = dir.path().join(segment::name(first));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[70] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let refused = super::super::recovery::recover(&*folder(dir.path())).map(drop);
        assert!(matches!(refused, Err(LogError::Damaged { .. })), "{refused:?}");
    }

    #[test]
    fn a_file_that_is_unreadable_or_of_another_log_means_the_oldest_record() {
        let dir = tempfile::tempdir().unwrap();
        let (log, recovery, batches) = followed_log(dir.path());
        let log_end = log.usage().readable;
        log.save_followed(at(log_end)).unwrap();
        drop(log);
        let begins_again = || {
            let (log, _) = open(dir.path());
            let followed = log.follow(at(log.usage().readable)).unwrap();
            assert_eq!((followed.position, followed.as_of_ms), (bases(dir.path())[0], 0));
            assert_eq!(read_all(&log, followed.position).len(), batches.len());
            assert!(followed.position <= recovery.start);
        };
        std::fs::write(dir.path().join(Followed::NAME), b"damaged").unwrap();
        begins_again();
        let first = bases(dir.path())[0];
        let inside = Position(first.0 + (Header::BYTES + 8) as u64);
        for of_another_log in [Position(1 << 40), inside, Position(log_end.0 - 8)] {
            SlotFile::create(&OsFolder::new(dir.path()), at(of_another_log)).unwrap();
            begins_again();
        }
    }

    #[test]
    fn a_new_follower_begins_with_the_oldest_record_although_the_store_needs_none() {
        let dir = tempfile::tempdir().unwrap();
        add_follower(&dir.path().join("missing")).unwrap();
        let (log, _, batches) = followed_log(dir.path());
        let all = bases(dir.path());
        log.cut(log.usage().readable).unwrap();
        drop(log);
        std::fs::remove_file(dir.path().join(Followed::NAME)).unwrap();
        for _ in 0..2 {
            add_follower(dir.path()).unwrap();
            let (log, recovery) = open(dir.path());
            assert_eq!((recovery.readings, bases(dir.path())), (0, all.clone()));
            let followed = log.follow(at(recovery.start)).unwrap();
            assert_eq!(read_all(&log, followed.position).len(), batches.len());
        }
    }

    #[test]
    fn the_saved_position_is_never_beyond_the_synced_records() {
        let (log, mut committer, recovery) = open_log(Sync::Every(Duration::from_secs(3_600)), Duration::ZERO);
        log.follow(at(recovery.start)).unwrap();
        let ack = log.append(batch(0, 1)).unwrap();
        let group = committer.next_group().unwrap();
        committer.commit(group);
        ack.wait().unwrap();
        log.save_followed(at(log.usage().readable)).unwrap();
        assert_eq!(log.follow(at(Position(0))).unwrap(), at(recovery.end), "the record was not synced");
    }
}
