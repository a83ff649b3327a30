//! The checkpoint: from where the log is still needed.

use std::io::ErrorKind;
use std::path::Path;

use super::folder::{Folder, How};
use super::{LogError, Position};

/// The name of the file.
const NAME: &str = "checkpoint";

/// The name of a checkpoint that is being written.
const NEW_NAME: &str = "checkpoint.new";

const MAGIC: [u8; 4] = *b"TGCP";
const VERSION: u32 = 1;
const BYTES: usize = 28;

/// The file `checkpoint` in the log's directory, replaced whole.
///
/// # Grammar
/// Little-endian: `magic:"TGCP" version:u32 position:u64 durable:u64 crc:u32`, where `crc` is the CRC-32 of what stands
/// before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Everything before this position is stored; reading starts here.
    pub position: Position,
    /// The log was durable up to here at least: a bad record before it is damage, not a torn tail.
    pub durable: Position,
}

impl Checkpoint {
    /// Reads the checkpoint in `folder`, if there is one.
    pub(super) fn load(folder: &dyn Folder) -> Result<Option<Self>, LogError> {
        let path = folder.path_of(NAME);
        let file = match folder.open(NAME, How::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(LogError::io("open", &path)(error)),
        };
        let mut bytes = Vec::new();
        file.read_from(0, &mut bytes).map_err(LogError::io("read", &path))?;
        Self::decode(&bytes, &path).map(Some)
    }

    fn decode(bytes: &[u8], path: &Path) -> Result<Self, LogError> {
        let damaged = |detail| LogError::BadCheckpoint { path: path.to_owned(), detail };
        let bytes: &[u8; BYTES] = bytes.try_into().map_err(|_| damaged("a checkpoint has 28 bytes"))?;
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if bytes[..4] != MAGIC || u32_at(24) != crc32fast::hash(&bytes[..24]) {
            return Err(damaged("the checksum is wrong"));
        }
        match u32_at(4) {
            VERSION => {
                let found = Self { position: Position(u64_at(8)), durable: Position(u64_at(16)) };
                let is_possible = found.position.is_possible() && found.durable.is_possible();
                let is_right = is_possible && found.position <= found.durable;
                if is_right { Ok(found) } else { Err(damaged("its positions are impossible")) }
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

    /// Replaces the checkpoint in `folder`. When this returns, the new one survives a crash; before, the old one does.
    pub(super) fn save(self, folder: &dyn Folder) -> Result<(), LogError> {
        let new = folder.path_of(NEW_NAME);
        let file = folder.open(NEW_NAME, How::Replace).map_err(LogError::io("create", &new))?;
        file.write_all_at(&self.encode(), 0).map_err(LogError::io("write", &new))?;
        file.sync().map_err(LogError::io("sync", &new))?;
        folder.rename(NEW_NAME, NAME).map_err(LogError::io("rename", &new))?;
        folder.sync().map_err(LogError::io("sync", folder.path()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::folder::OsFolder;
    use super::*;

    #[test]
    fn a_checkpoint_is_read_back_and_a_damaged_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = OsFolder::new(dir.path());
        assert_eq!(Checkpoint::load(&folder).unwrap(), None);
        let checkpoint = Checkpoint { position: Position(72), durable: Position(96) };
        checkpoint.save(&folder).unwrap();
        assert_eq!(Checkpoint::load(&folder).unwrap(), Some(checkpoint));
        for bit in 0..BYTES * 8 {
            let mut bytes = checkpoint.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Checkpoint::decode(&bytes, dir.path()).is_err(), "bit {bit}");
        }
        for (position, durable) in [(104, 96), (77, 96), (72, 99), (72, 1 << 63)] {
            let impossible = Checkpoint { position: Position(position), durable: Position(durable) }.encode();
            assert!(Checkpoint::decode(&impossible, dir.path()).is_err(), "{position} {durable}");
        }
    }
}
