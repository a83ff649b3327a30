//! Segments: the files of the log.

use std::path::Path;

use super::{LogError, Position};
use crate::disk::{Folder, OpenFile};

/// The version of a segment that may have records of deletions. A program that does not know them refuses
/// the segment, and does not take them for damage.
pub(super) const WITH_DELETIONS: u32 = 2;

/// The version of all other segments, so that older programs read them.
pub(super) const WITHOUT_DELETIONS: u32 = 1;

/// `TGLOG`, followed by bytes that a transfer in text mode would change.
const MAGIC: [u8; 8] = *b"TGLOG\r\n\x1a";

/// The first bytes of each segment.
///
/// # Grammar
/// Little-endian.
/// ```text
/// segment = header record*
/// header  = magic:"TGLOG\r\n\x1a" version:u32 crc:u32 base:u64 reserved:u64
/// ```
/// `base` is the position of the segment's first byte, as in the file name. `crc` is the CRC-32 of the header
/// without `crc`. `version` is 2 if the segment may have records of deletions, else 1, which older programs
/// read as well. The log syncs the header, then the folder, before it writes the first record.
pub(super) struct Header;

impl Header {
    pub(super) const BYTES: usize = 32;

    pub(super) fn encode(base: Position, version: u32) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        bytes[16..24].copy_from_slice(&base.0.to_le_bytes());
        let crc = Self::checksum(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Checks the header of the segment at `path`.
    pub(super) fn check(bytes: &[u8], base: Position, path: &Path) -> Result<(), LogError> {
        let damaged = |detail: &str| LogError::Damaged { path: path.to_owned(), offset: 0, detail: detail.to_owned() };
        let bytes: &[u8; Self::BYTES] = bytes
            .get(..Self::BYTES)
            .and_then(|head| head.try_into().ok())
            .ok_or_else(|| damaged("the header is cut off"))?;
        if bytes[..8] != MAGIC {
            return Err(damaged("this is no log segment"));
        }
        let version = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        if version > WITH_DELETIONS {
            return Err(LogError::Version { path: path.to_owned(), found: version, known: WITH_DELETIONS });
        }
        if bytes[12..16] != Self::checksum(bytes).to_le_bytes() {
            return Err(damaged("the header's checksum is wrong"));
        }
        if bytes[16..24] != base.0.to_le_bytes() {
            return Err(damaged("the header names another position than the file"));
        }
        Ok(())
    }

    fn checksum(bytes: &[u8; Self::BYTES]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&bytes[..12]);
        hasher.update(&bytes[16..]);
        hasher.finalize()
    }
}

/// The name of the file of the segment that begins at `base`.
pub(super) fn name(base: Position) -> String {
    format!("{:020}.log", base.0)
}

/// The positions of the segments in `folder`, ascending. Files with other names do not count.
pub(super) fn list(folder: &dyn Folder) -> Result<Vec<Position>, LogError> {
    let names = folder.names().map_err(LogError::io("read", folder.path()))?;
    let digits = names.iter().filter_map(|name| name.strip_suffix(".log")).filter(|digits| digits.len() == 20);
    let mut bases: Vec<_> =
        digits.filter_map(|digits| digits.parse().ok()).map(Position).filter(|base| base.is_possible()).collect();
    bases.sort_unstable();
    Ok(bases)
}

/// Creates the segment that begins at `base`. When this returns, the file and its name survive a crash.
pub(super) fn create(folder: &dyn Folder, base: Position, version: u32) -> Result<Box<dyn OpenFile>, LogError> {
    let name = name(base);
    // The file may exist: a full disk can leave it without a header.
    folder.create(&name, &Header::encode(base, version)).map_err(LogError::io("create", &folder.path_of(&name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_with_a_flipped_bit_or_of_another_file_is_refused() {
        let path = Path::new("x.log");
        let good = Header::encode(Position(96), WITHOUT_DELETIONS);
        assert!(Header::check(&good, Position(96), path).is_ok());
        assert!(Header::check(&good, Position(97), path).is_err());
        for bit in 0..good.len() * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::check(&bad, Position(96), path).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_newer_version_is_named() {
        let mut newer = Header::encode(Position(0), WITH_DELETIONS);
        assert!(Header::check(&newer, Position(0), Path::new("x.log")).is_ok());
        newer[8] = 3;
        let error = Header::check(&newer, Position(0), Path::new("x.log")).expect_err("newer");
        assert_eq!(error.to_string(), "x.log has format version 3, this program reads version 2");
    }
}
