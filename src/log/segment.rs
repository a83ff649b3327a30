//! Segments: the files of the log.

use std::path::Path;

use super::{LogError, Position};
use crate::disk::{Folder, OpenFile};

/// The version of the format of segments, records and payloads.
const VERSION: u32 = 1;

/// `TGLOG`, followed by bytes that a transfer in text mode would change.
const MAGIC: [u8; 8] = *b"TGLOG\r\n\x1a";

/// The first bytes of each segment.
///
/// # Grammar
/// Little-endian.
/// ```text
/// segment = header record*
/// header  = magic:"TGLOG\r\n\x1a" version:u32 crc:u32 base:u64 old_until:u64
/// ```
/// `base` is the position of the segment's first byte, as in the file name. `crc` is the CRC-32 of the header
/// without `crc`. `version` is 1. A recycled file may have bytes of an earlier segment before the offset
/// `old_until`, which is 0 for other files. A file gets its name when its header is durable, and its first
/// record when its name is durable. The newest segment may have room behind its records (`spares.rs`); every
/// other segment ends where the next one begins.
pub(super) struct Header;

impl Header {
    pub(super) const BYTES: usize = 32;

    pub(super) fn encode(base: Position, old_until: u64) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&base.0.to_le_bytes());
        bytes[24..].copy_from_slice(&old_until.to_le_bytes());
        let crc = Self::checksum(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Checks the header of the segment at `path`, and returns `old_until`.
    pub(super) fn check(bytes: &[u8], base: Position, path: &Path) -> Result<u64, LogError> {
        let damaged = |detail: &str| LogError::Damaged { path: path.to_owned(), offset: 0, detail: detail.to_owned() };
        let bytes: &[u8; Self::BYTES] = bytes
            .get(..Self::BYTES)
            .and_then(|head| head.try_into().ok())
            .ok_or_else(|| damaged("the header is cut off"))?;
        if bytes[..8] != MAGIC {
            return Err(damaged("this is no log segment"));
        }
        let version = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        if version != VERSION {
            return Err(LogError::Version { path: path.to_owned(), found: version, known: VERSION });
        }
        if bytes[12..16] != Self::checksum(bytes).to_le_bytes() {
            return Err(damaged("the header's checksum is wrong"));
        }
        if bytes[16..24] != base.0.to_le_bytes() {
            return Err(damaged("the header names another position than the file"));
        }
        Ok(u64::from_le_bytes(bytes[24..].try_into().expect("eight bytes")))
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

/// The error of a log whose newest segment, which begins at `base`, was removed.
pub(super) fn removed(folder: &dyn Folder, base: Position) -> String {
    format!("{} was removed while it is in use", folder.path_of(&name(base)).display())
}

/// The positions of the segments in `folder`, ascending.
///
/// Files with other names do not count.
pub(super) fn list(folder: &dyn Folder) -> Result<Vec<Position>, LogError> {
    let names = folder.names().map_err(LogError::io("read", folder.path()))?;
    let digits = names.iter().filter_map(|name| name.strip_suffix(".log")).filter(|digits| digits.len() == 20);
    let mut bases: Vec<_> =
        digits.filter_map(|digits| digits.parse().ok()).map(Position).filter(|base| base.is_possible()).collect();
    bases.sort_unstable();
    Ok(bases)
}

/// The name of a segment while it is created.
///
/// A failed creation may leave this file; the next one empties it.
const NEW: &str = "segment.new";

/// Creates the segment that begins at `base`.
///
/// After an error, the folder has no file with its name, because a file gets its name when its header is
/// durable. The name survives a crash only after the caller has synced the folder.
pub(super) fn create(folder: &dyn Folder, base: Position) -> Result<Box<dyn OpenFile>, LogError> {
    let name = name(base);
    let created = folder.write(NEW, &Header::encode(base, 0)).and_then(|file| {
        folder.rename(NEW, &name)?;
        Ok(file)
    });
    created.map_err(LogError::io("create", &folder.path_of(&name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_with_a_flipped_bit_or_of_another_file_is_refused() {
        let path = Path::new("x.log");
        let good = Header::encode(Position(96), 640);
        assert_eq!(Header::check(&good, Position(96), path).unwrap(), 640);
        assert!(Header::check(&good, Position(97), path).is_err());
        for bit in 0..good.len() * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::check(&bad, Position(96), path).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn another_version_is_named() {
        for version in [0, 2, 255] {
            let mut other = Header::encode(Position(0), 0);
            other[8] = version;
            let error = Header::check(&other, Position(0), Path::new("x.log")).expect_err("another version");
            assert_eq!(error.to_string(), format!("x.log has format version {version}, this program reads version 1"));
        }
    }
}
