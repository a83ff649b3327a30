//! The checkpoint: the position from which the log is needed, and the log's durable end.
//!
//! The file has two slots, which are written in turn: one of them is whole at any time, and a write takes no
//! space on the disk. So a log that has filled its disk can still write its checkpoint, be cut, and free
//! space.
//!
//! The log saves its durable end at each new segment, about once a second while it moves, and at a clean
//! stop. The saved end is never beyond the synced records. So recovery can tell damage from a torn tail
//! without the bytes that may be damaged.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::{LogError, Position};
use crate::disk::{Folder, OpenFile, OpenMode};

/// The name of the file.
const NAME: &str = "checkpoint";

const MAGIC: [u8; 4] = *b"TGCP";
const VERSION: u32 = 1;
const BYTES: usize = 28;

/// The offset of the second slot, in another block than the first.
const SECOND: usize = 4096;

/// The length of the file. A file of [`BYTES`] has the first slot only.
const FILE_BYTES: usize = SECOND + BYTES;

/// The newer of the two slots in the file `checkpoint`: the one with the higher positions.
///
/// # Grammar
/// Little-endian: `magic:"TGCP" version:u32 position:u64 durable:u64 crc:u32`, where `crc` is the CRC-32 of
/// the bytes before it. The first slot is at byte 0 of the file, the second at byte 4096.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Checkpoint {
    /// All readings before this position are stored. Reading starts here.
    pub position: Position,
    /// The durable end of the log, or an earlier position: a bad record before it is damage, not a torn tail.
    pub durable: Position,
}

/// The checkpoint of an open log. Its positions only grow.
#[derive(Debug)]
pub(super) struct SavedCheckpoint(Mutex<(Checkpoint, CheckpointFile)>);

impl SavedCheckpoint {
    /// Starts with `last`, the checkpoint in `file`.
    pub(super) const fn new(last: Checkpoint, file: CheckpointFile) -> Self {
        Self(Mutex::new((last, file)))
    }

    /// Saves the positions that are beyond the saved ones, and returns the saved checkpoint. Writes nothing
    /// if none is. When this returns, the result survives a crash.
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

impl Checkpoint {
    /// Reads the checkpoint in `folder`, if there is one.
    pub(super) fn load(folder: &dyn Folder) -> Result<Option<Self>, LogError> {
        Ok(read(folder)?.map(|(_, _, found)| found))
    }

    /// The newest checkpoint of a file, and its slot: 0 or 1.
    fn last_of(bytes: &[u8], path: &Path) -> Result<(usize, Self), LogError> {
        if bytes.len() != BYTES && bytes.len() != FILE_BYTES {
            return Err(bad(path, "it is neither 28 nor 4124 bytes long"));
        }
        let mut last: Result<(usize, Self), LogError> = Err(bad(path, "it has no checkpoint"));
        for (slot, bytes) in bytes.chunks(SECOND).enumerate() {
            match (Self::decode(&bytes[..BYTES], path), &last) {
                (Err(error @ LogError::Version { .. }), _) => return Err(error),
                (Ok(found), Ok((_, other))) if found <= *other => {}
                (Err(_), Ok(_)) => {}
                (found, _) => last = found.map(|found| (slot, found)),
            }
        }
        last
    }

    /// The newest checkpoint among the slots that can be read, however long the file is.
    fn newest_readable(bytes: &[u8], path: &Path) -> Option<Self> {
        let slots = [0, SECOND].into_iter().filter_map(|at| bytes.get(at..at + BYTES));
        slots.filter_map(|slot| Self::decode(slot, path).ok()).max()
    }

    fn decode(bytes: &[u8], path: &Path) -> Result<Self, LogError> {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if bytes[..4] != MAGIC || u32_at(24) != crc32fast::hash(&bytes[..24]) {
            return Err(bad(path, "the checksum is wrong"));
        }
        match u32_at(4) {
            VERSION => {
                let found = Self { position: Position(u64_at(8)), durable: Position(u64_at(16)) };
                let is_possible = found.position.is_possible() && found.durable.is_possible();
                let is_right = is_possible && found.position <= found.durable;
                if is_right { Ok(found) } else { Err(bad(path, "its positions are impossible")) }
            }
            found => Err(LogError::Version { path: path.to_owned(), found, known: VERSION }),
        }
    }

    fn encode(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.position.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.durable.0.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..24]);
        bytes[24..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

fn bad(path: &Path, detail: &'static str) -> LogError {
    LogError::BadCheckpoint { path: path.to_owned(), detail }
}

/// The length of the file, the slot of the newest checkpoint, and the checkpoint.
fn read(folder: &dyn Folder) -> Result<Option<(usize, usize, Checkpoint)>, LogError> {
    let bytes = match bytes(folder) {
        Ok(bytes) => bytes,
        Err(LogError::Io { error, .. }) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let (slot, found) = Checkpoint::last_of(&bytes, &folder.path_of(NAME))?;
    Ok(Some((bytes.len(), slot, found)))
}

/// Repairs an unreadable file: keeps the readable slot, or removes the file if it has none. Without the file,
/// the whole log is read again.
pub(super) fn repair(folder: &dyn Folder) -> Result<(), LogError> {
    let path = folder.path_of(NAME);
    if let Some(found) = Checkpoint::newest_readable(&bytes(folder)?, &path) {
        CheckpointFile::create(folder, found)?;
        return Ok(());
    }
    folder.remove(NAME).map_err(LogError::io("remove", &path))?;
    folder.sync().map_err(LogError::io("sync", folder.path()))
}

/// All bytes of the file.
pub(super) fn bytes(folder: &dyn Folder) -> Result<Vec<u8>, LogError> {
    let path = folder.path_of(NAME);
    let file = folder.open(NAME, OpenMode::Read).map_err(LogError::io("open", &path))?;
    let mut bytes = Vec::new();
    file.read_from(0, &mut bytes).map_err(LogError::io("read", &path))?;
    Ok(bytes)
}

/// The file, for writing.
#[derive(Debug)]
pub(super) struct CheckpointFile {
    path: PathBuf,
    file: Box<dyn OpenFile>,
    /// The slot of the next write.
    next: usize,
}

impl CheckpointFile {
    /// Opens the file in `folder`, if it exists, and returns it with its checkpoint. When this returns, the
    /// checkpoint survives a crash. Before that, callers remove nothing because of it.
    pub(super) fn open(folder: &dyn Folder) -> Result<Option<(Self, Checkpoint)>, LogError> {
        let Some((bytes, slot, found)) = read(folder)? else { return Ok(None) };
        if bytes < FILE_BYTES {
            return Ok(Some((Self::create(folder, found)?, found)));
        }
        // The process that wrote this slot may have been killed before the sync, and the other slot is
        // overwritten next.
        let mut file = Self::at(folder, slot)?;
        file.save(found)?;
        Ok(Some((file, found)))
    }

    /// Creates or replaces the file, with the same checkpoint in both slots.
    pub(super) fn create(folder: &dyn Folder, checkpoint: Checkpoint) -> Result<Self, LogError> {
        let mut bytes = [0; FILE_BYTES];
        bytes[..BYTES].copy_from_slice(&checkpoint.encode());
        bytes[SECOND..].copy_from_slice(&checkpoint.encode());
        folder.replace(NAME, &bytes).map_err(LogError::io("create", &folder.path_of(NAME)))?;
        Self::at(folder, 0)
    }

    fn at(folder: &dyn Folder, next: usize) -> Result<Self, LogError> {
        let path = folder.path_of(NAME);
        let file = folder.open(NAME, OpenMode::Write).map_err(LogError::io("open", &path))?;
        Ok(Self { path, file, next })
    }

    /// Overwrites the older slot. When this returns, the new checkpoint survives a crash; before, the one in
    /// the other slot does.
    pub(super) fn save(&mut self, checkpoint: Checkpoint) -> Result<(), LogError> {
        let offset = (self.next * SECOND) as u64;
        self.file.write_all_at(&checkpoint.encode(), offset).map_err(LogError::io("write", &self.path))?;
        self.file.sync().map_err(LogError::io("sync", &self.path))?;
        self.next = 1 - self.next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::OsFolder;

    fn at(position: u64, durable: u64) -> Checkpoint {
        Checkpoint { position: Position(position), durable: Position(durable) }
    }

    #[test]
    fn the_last_checkpoint_is_read_back_after_a_reopening() {
        let dir = tempfile::tempdir().unwrap();
        let folder = OsFolder::new(dir.path());
        assert_eq!(Checkpoint::load(&folder).unwrap(), None);
        let mut file = CheckpointFile::create(&folder, at(0, 0)).unwrap();
        assert_eq!(Checkpoint::load(&folder).unwrap(), Some(at(0, 0)));
        for step in 1..10 {
            let checkpoint = at(step * 24, 240 + step / 3 * 24);
            file.save(checkpoint).unwrap();
            assert_eq!(Checkpoint::load(&folder).unwrap(), Some(checkpoint));
            if step % 4 == 0 {
                file = CheckpointFile::open(&folder).unwrap().unwrap().0;
                assert_eq!(Checkpoint::load(&folder).unwrap(), Some(checkpoint));
            }
        }
    }

    #[test]
    fn saved_positions_only_grow_and_equal_ones_are_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let folder = OsFolder::new(dir.path());
        let saved = SavedCheckpoint::new(at(0, 0), CheckpointFile::create(&folder, at(0, 0)).unwrap());
        for (to, expected) in [(at(0, 48), at(0, 48)), (at(24, 24), at(24, 48)), (at(0, 72), at(24, 72))] {
            assert_eq!(saved.advance(to).unwrap(), expected);
            assert_eq!(Checkpoint::load(&folder).unwrap(), Some(expected));
        }
        let before = std::fs::read(dir.path().join(NAME)).unwrap();
        saved.advance(at(24, 72)).unwrap();
        assert_eq!(std::fs::read(dir.path().join(NAME)).unwrap(), before);
    }

    #[test]
    fn a_torn_checkpoint_leaves_the_previous_one() {
        let dir = tempfile::tempdir().unwrap();
        let folder = OsFolder::new(dir.path());
        for last in 0..2 {
            let mut file = CheckpointFile::create(&folder, at(0, 0)).unwrap();
            for step in 0..=last {
                file.save(at(72 + step * 24, 960)).unwrap();
            }
            let torn_at = (1 - file.next) * SECOND;
            file.file.write_all_at(&[0xFF; 9], torn_at as u64 + 3).unwrap();
            let before = if last == 0 { at(0, 0) } else { at(72, 960) };
            assert_eq!(Checkpoint::load(&folder).unwrap(), Some(before));
            std::fs::remove_file(dir.path().join(NAME)).unwrap();
        }
    }

    #[test]
    fn a_file_with_one_slot_becomes_one_with_two() {
        let dir = tempfile::tempdir().unwrap();
        let folder = OsFolder::new(dir.path());
        std::fs::write(dir.path().join(NAME), at(72, 96).encode()).unwrap();
        assert_eq!(Checkpoint::load(&folder).unwrap(), Some(at(72, 96)));
        let (mut file, _) = CheckpointFile::open(&folder).unwrap().unwrap();
        assert_eq!(Checkpoint::load(&folder).unwrap(), Some(at(72, 96)));
        file.save(at(96, 96)).unwrap();
        assert_eq!(Checkpoint::load(&folder).unwrap(), Some(at(96, 96)));
    }

    #[test]
    fn bytes_that_are_no_checkpoint_are_refused() {
        let path = Path::new("checkpoint");
        let good = at(72, 96).encode();
        for bit in 0..BYTES * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Checkpoint::last_of(&bytes, path).is_err(), "bit {bit}");
        }
        for (position, durable) in [(104, 96), (77, 96), (72, 99), (72, 1 << 63)] {
            assert!(Checkpoint::last_of(&at(position, durable).encode(), path).is_err(), "{position} {durable}");
        }
        for len in [0, 27, 29, FILE_BYTES - 1, FILE_BYTES + 1] {
            let mut bytes = good.to_vec();
            bytes.resize(len, 0);
            assert!(Checkpoint::last_of(&bytes, path).is_err(), "{len} bytes");
        }
        let mut newer = [0; FILE_BYTES];
        newer[..BYTES].copy_from_slice(&good);
        newer[SECOND..].copy_from_slice(&good);
        newer[SECOND + 4] = 2;
        let crc = crc32fast::hash(&newer[SECOND..SECOND + 24]);
        newer[SECOND + 24..].copy_from_slice(&crc.to_le_bytes());
        assert!(matches!(Checkpoint::last_of(&newer, path), Err(LogError::Version { found: 2, .. })));
    }
}
