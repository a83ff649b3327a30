//! The checkpoint: the position from which the log is needed, and the log's durable end.
//!
//! The log saves its durable end at each new segment, about once a second while it moves, and at a clean
//! stop. The saved end is never beyond the synced records. So recovery tells damage (before this end) from a
//! torn tail (behind it), even if it cannot read the records there.

use std::sync::{Mutex, PoisonError};

use super::slots::{Slot, SlotFile};
use super::{LogError, Position};

/// The content of the file `checkpoint`, which has two slots (`slots.rs`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Checkpoint {
    /// All readings before this position are stored. Reading starts here.
    pub position: Position,
    /// The durable end of the log, or an earlier position: a bad record before it is damage, not a torn tail.
    pub durable: Position,
}

/// The file `checkpoint`, for writing.
pub(super) type CheckpointFile = SlotFile<Checkpoint>;

/// The checkpoint of an open log. Its positions only grow.
#[derive(Debug)]
pub(super) struct SavedCheckpoint(Mutex<(Checkpoint, CheckpointFile)>);

impl SavedCheckpoint {
    /// Starts with `last`, the checkpoint in `file`.
    pub(super) const fn new(last: Checkpoint, file: CheckpointFile) -> Self {
        Self(Mutex::new((last, file)))
    }

    /// Saves each position of `to` that is beyond the saved one.
    ///
    /// If neither position is beyond the saved one, it writes nothing. Returns the saved checkpoint, which
    /// survives a crash.
    pub(super) fn advance(&self, to: Checkpoint) -> Result<Checkpoint, LogError> {
        let mut saved = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, file) = &mut *saved;
        let next = Checkpoint { position: to.position.max(last.position), durable: to.durable.max(last.durable) };
        if next != *last {
            file.save(next)?;
            *last = next;
        }
        Ok(next)
    }
}

impl Slot for Checkpoint {
    const NAME: &'static str = "checkpoint";
    const MAGIC: [u8; 4] = *b"TGCP";

    fn to_numbers(self) -> [u64; 2] {
        [self.position.0, self.durable.0]
    }

    fn of_numbers([position, durable]: [u64; 2]) -> Option<Self> {
        let found = Self { position: Position(position), durable: Position(durable) };
        let is_possible = found.position.is_possible() && found.durable.is_possible();
        (is_possible && found.position <= found.durable).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::super::slots;
    use super::*;
    use crate::disk::OsFolder;

    fn at(position: u64, durable: u64) -> Checkpoint {
        Checkpoint { position: Position(position), durable: Position(durable) }
    }

    #[test]
    fn saved_positions_only_grow_and_equal_ones_are_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let folder = OsFolder::new(dir.path());
        let saved = SavedCheckpoint::new(at(0, 0), CheckpointFile::create(&folder, at(0, 0)).unwrap());
        for (to, expected) in [(at(0, 48), at(0, 48)), (at(24, 24), at(24, 48)), (at(0, 72), at(24, 72))] {
            assert_eq!(saved.advance(to).unwrap(), expected);
            assert_eq!(slots::load(&folder).unwrap(), Some(expected));
        }
        let before = std::fs::read(dir.path().join(Checkpoint::NAME)).unwrap();
        saved.advance(at(24, 72)).unwrap();
        assert_eq!(std::fs::read(dir.path().join(Checkpoint::NAME)).unwrap(), before);
    }
}
