//! Files of two slots: a small state on disk that is overwritten in place, and survives a crash.
//!
//! The two slots are written in turn: one of them is whole at any time, and a write takes no space on the
//! disk. So a log that has filled its disk can still write its checkpoint, be cut, and free space.

use std::io::ErrorKind;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use super::LogError;
use crate::disk::{Folder, OpenFile, OpenMode};

const VERSION: u32 = 1;
const BYTES: usize = 28;

/// The offset of the second slot, in another block than the first.
const SECOND: usize = 4096;

/// The length of a file of two slots.
const FILE_BYTES: usize = SECOND + BYTES;

/// A state of two numbers. The higher of two states is the newer one.
///
/// # Grammar
/// Little-endian: `magic:4 version:u32 first:u64 second:u64 crc:u32`, where `crc` is the CRC-32 of the bytes
/// before it. The first slot is at byte 0 of the file, the second at byte 4096.
pub(super) trait Slot: Copy + Ord {
    /// The name of the file with this state.
    const NAME: &'static str;
    /// The first bytes of a slot.
    const MAGIC: [u8; 4];

    /// The state as the two numbers of a slot.
    fn to_numbers(self) -> [u64; 2];

    /// The state with these numbers; `None` if they are impossible.
    fn of_numbers(numbers: [u64; 2]) -> Option<Self>;
}

/// The open file of a state, for writing.
#[derive(Debug)]
pub(super) struct SlotFile<S> {
    path: PathBuf,
    file: Box<dyn OpenFile>,
    /// The slot of the next write: 0 or 1.
    next: usize,
    state: PhantomData<S>,
}

impl<S: Slot> SlotFile<S> {
    /// Opens the file in `folder`, if it exists, and returns it with its state.
    ///
    /// When this returns, the state survives a crash. Until then, callers remove nothing that an older state
    /// needs.
    pub(super) fn open(folder: &dyn Folder) -> Result<Option<(Self, S)>, LogError> {
        let Some((slot, found)) = read(folder)? else { return Ok(None) };
        // The process that wrote this slot may have been killed before the sync. So the slot is synced before
        // the other one, which may be the only durable one, is overwritten.
        let mut file = Self::at(folder, slot)?;
        file.save(found)?;
        Ok(Some((file, found)))
    }

    /// Creates or replaces the file, with the same state in both slots.
    pub(super) fn create(folder: &dyn Folder, state: S) -> Result<Self, LogError> {
        let mut bytes = [0; FILE_BYTES];
        bytes[..BYTES].copy_from_slice(&encode(state));
        bytes[SECOND..].copy_from_slice(&encode(state));
        folder.replace(S::NAME, &bytes).map_err(LogError::io("create", &folder.path_of(S::NAME)))?;
        Self::at(folder, 0)
    }

    fn at(folder: &dyn Folder, next: usize) -> Result<Self, LogError> {
        let path = folder.path_of(S::NAME);
        let file = folder.open(S::NAME, OpenMode::Write).map_err(LogError::io("open", &path))?;
        Ok(Self { path, file, next, state: PhantomData })
    }

    /// Overwrites the older slot.
    ///
    /// When this returns, the new state survives a crash; before, the state in the other slot does.
    pub(super) fn save(&mut self, state: S) -> Result<(), LogError> {
        let offset = (self.next * SECOND) as u64;
        self.file.write_all_at(&encode(state), offset).map_err(LogError::io("write", &self.path))?;
        self.file.sync().map_err(LogError::io("sync", &self.path))?;
        self.next = 1 - self.next;
        Ok(())
    }
}

/// Reads the state in `folder`, if there is one.
pub(super) fn load<S: Slot>(folder: &dyn Folder) -> Result<Option<S>, LogError> {
    Ok(read(folder)?.map(|(_, found)| found))
}

/// Repairs an unreadable file: keeps the readable slot, or removes the file if it has none.
pub(super) fn repair<S: Slot>(folder: &dyn Folder) -> Result<(), LogError> {
    let path = folder.path_of(S::NAME);
    let bytes = bytes::<S>(folder)?; // of any length
    let slots = [0, SECOND].into_iter().filter_map(|at| bytes.get(at..at + BYTES));
    match slots.filter_map(|slot| decode::<S>(slot, &path).ok()).max() {
        Some(newest) => SlotFile::create(folder, newest).map(drop),
        None => remove::<S>(folder),
    }
}

/// Removes the file. When this returns, the removal survives a crash.
pub(super) fn remove<S: Slot>(folder: &dyn Folder) -> Result<(), LogError> {
    folder.remove(S::NAME).map_err(LogError::io("remove", &folder.path_of(S::NAME)))?;
    folder.sync().map_err(LogError::io("sync", folder.path()))
}

/// Reads the newest state, and its slot: 0 or 1.
fn read<S: Slot>(folder: &dyn Folder) -> Result<Option<(usize, S)>, LogError> {
    let bytes = match bytes::<S>(folder) {
        Ok(bytes) => bytes,
        Err(LogError::Io { error, .. }) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    last_of(&bytes, &folder.path_of(S::NAME)).map(Some)
}

/// The bytes of the file, but at most one more than it should have: enough to notice a longer file.
fn bytes<S: Slot>(folder: &dyn Folder) -> Result<Vec<u8>, LogError> {
    let path = folder.path_of(S::NAME);
    let file = folder.open(S::NAME, OpenMode::Read).map_err(LogError::io("open", &path))?;
    let mut bytes = vec![0; FILE_BYTES + 1];
    let have = file.fill(&mut bytes, 0).map_err(LogError::io("read", &path))?;
    bytes.truncate(have);
    Ok(bytes)
}

/// The newest state of a file, and its slot: 0 or 1.
fn last_of<S: Slot>(bytes: &[u8], path: &Path) -> Result<(usize, S), LogError> {
    if bytes.len() != FILE_BYTES {
        return Err(bad(path, "it is not 4124 bytes long"));
    }
    match [decode(&bytes[..BYTES], path), decode(&bytes[SECOND..], path)] {
        [Err(newer @ LogError::Version { .. }), _] | [_, Err(newer @ LogError::Version { .. })] => Err(newer),
        [Ok(first), Ok(second)] if first < second => Ok((1, second)),
        [Ok(first), _] => Ok((0, first)),
        [Err(_), second] => second.map(|second| (1, second)),
    }
}

fn decode<S: Slot>(bytes: &[u8], path: &Path) -> Result<S, LogError> {
    let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
    if bytes[..4] != S::MAGIC || u32_at(24) != crc32fast::hash(&bytes[..24]) {
        return Err(bad(path, "the checksum is wrong"));
    }
    match u32_at(4) {
        VERSION => S::of_numbers([u64_at(8), u64_at(16)]).ok_or_else(|| bad(path, "its positions are impossible")),
        found => Err(LogError::Version { path: path.to_owned(), found, known: VERSION }),
    }
}

fn encode<S: Slot>(state: S) -> [u8; BYTES] {
    let [first, second] = state.to_numbers();
    let mut bytes = [0; BYTES];
    bytes[..4].copy_from_slice(&S::MAGIC);
    bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
    bytes[8..16].copy_from_slice(&first.to_le_bytes());
    bytes[16..24].copy_from_slice(&second.to_le_bytes());
    let crc = crc32fast::hash(&bytes[..24]);
    bytes[24..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

pub(super) fn bad(path: &Path, detail: &'static str) -> LogError {
    LogError::BadCheckpoint { path: path.to_owned(), detail }
}

#[cfg(test)]
mod tests {
    use super::super::Position;
    use super::super::checkpoint::{Checkpoint, CheckpointFile};
    use super::*;
    use crate::disk::OsFolder;

    const NAME: &str = Checkpoint::NAME;

    fn at(position: u64, durable: u64) -> Checkpoint {
        Checkpoint { position: Position(position), durable: Position(durable) }
    }

    #[test]
    fn the_last_checkpoint_is_read_back_after_a_reopening() {
        let dir = tempfile::tempdir().unwrap();
        let folder = OsFolder::new(dir.path());
        assert_eq!(load::<Checkpoint>(&folder).unwrap(), None);
        let mut file = CheckpointFile::create(&folder, at(0, 0)).unwrap();
        assert_eq!(load::<Checkpoint>(&folder).unwrap(), Some(at(0, 0)));
        for step in 1..10 {
            let checkpoint = at(step * 24, 240 + step / 3 * 24);
            file.save(checkpoint).unwrap();
            assert_eq!(load::<Checkpoint>(&folder).unwrap(), Some(checkpoint));
            if step % 4 == 0 {
                file = CheckpointFile::open(&folder).unwrap().unwrap().0;
                assert_eq!(load::<Checkpoint>(&folder).unwrap(), Some(checkpoint));
            }
        }
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
            assert_eq!(load::<Checkpoint>(&folder).unwrap(), Some(before));
            std::fs::remove_file(dir.path().join(NAME)).unwrap();
        }
    }

    #[test]
    fn bytes_that_are_no_checkpoint_are_refused() {
        let path = Path::new("checkpoint");
        let file_of = |slot: [u8; BYTES]| {
            let mut bytes = [0; FILE_BYTES];
            bytes[..BYTES].copy_from_slice(&slot);
            bytes[SECOND..].copy_from_slice(&slot);
            bytes
        };
        let good = encode(at(72, 96));
        assert!(last_of::<Checkpoint>(&file_of(good), path).is_ok());
        for bit in 0..BYTES * 8 {
            let mut slot = good;
            slot[bit / 8] ^= 1 << (bit % 8);
            assert!(last_of::<Checkpoint>(&file_of(slot), path).is_err(), "bit {bit}");
        }
        for (position, durable) in [(104, 96), (77, 96), (72, 99), (72, 1 << 63)] {
            let slot = encode(at(position, durable));
            assert!(last_of::<Checkpoint>(&file_of(slot), path).is_err(), "{position} {durable}");
        }
        for len in [0, BYTES, FILE_BYTES - 1, FILE_BYTES + 1] {
            let mut bytes = file_of(good).to_vec();
            bytes.resize(len, 0);
            assert!(last_of::<Checkpoint>(&bytes, path).is_err(), "{len} bytes");
        }
        let mut newer = file_of(good);
        newer[SECOND + 4] = 2;
        let crc = crc32fast::hash(&newer[SECOND..SECOND + 24]);
        newer[SECOND + 24..].copy_from_slice(&crc.to_le_bytes());
        assert!(matches!(last_of::<Checkpoint>(&newer, path), Err(LogError::Version { found: 2, .. })));
    }
}
