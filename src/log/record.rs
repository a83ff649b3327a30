//! Records: batches, deletions and metadata of operators in a segment.

use super::{MAX_PAYLOAD_BYTES, Position};

/// Records start at multiples of this many bytes, so that a search for the next one tries few offsets.
pub(super) const ALIGNMENT: usize = Position::ALIGNMENT as usize;

/// The kinds of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A [`super::Batch`] of readings, or filler.
    Readings,
    /// A [`super::DeletionRecord`].
    Deletion,
    /// A [`super::MetadataRecord`].
    Metadata,
}

impl Kind {
    /// The first bytes of a record of this kind.
    const fn magic(self) -> [u8; 4] {
        match self {
            Self::Readings => *b"TGR1",
            Self::Deletion => *b"TGD1",
            Self::Metadata => *b"TGM1",
        }
    }

    fn of(magic: &[u8]) -> Option<Self> {
        [Self::Readings, Self::Deletion, Self::Metadata].into_iter().find(|kind| kind.magic() == *magic)
    }
}

/// The header of a record.
///
/// # Grammar
/// Little-endian; the record starts at a multiple of 8 and is padded with zeros to the next.
/// ```text
/// record = magic crc:u32 len:u32 readings:u32 durable:u64 payload{len} padding
/// magic  = "TGR1"    readings
///        | "TGD1"    a deletion
///        | "TGM1"    metadata that an operator has set
/// ```
/// `crc` is the CRC-32 (IEEE) of the record's own position (u64) followed by everything from `len` to the end
/// of the payload. So a record at another position, left over from an earlier use of the disk blocks, fails
/// the check. `durable` is the durable end of the log when this record was written. It tells a torn tail from
/// damage: a bad record before the `durable` of a later record was acknowledged. A record of the kind
/// "readings" that has none is filler from a repair; readers skip it. The `crc` of the other kinds begins
/// with the magic, so that no kind of record is taken for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) crc: u32,
    pub(super) len: u32,
    pub(super) readings: u32,
    pub(super) durable: Position,
}

impl Header {
    pub(super) const BYTES: usize = 24;

    /// The offset in a record of the bytes that the checksum covers, up to the end of the payload.
    pub(super) const SUMMED_FROM: u64 = 8;

    /// Reads a header; `None` if the bytes have another magic or an impossible length.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.get(..Self::BYTES)?.try_into().ok()?;
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let durable = u64::from(u32_at(16)) | u64::from(u32_at(20)) << 32;
        let len = u32_at(8);
        let kind = Kind::of(&bytes[..4])?;
        (len as usize <= MAX_PAYLOAD_BYTES).then(|| Self {
            kind,
            crc: u32_at(4),
            len,
            readings: u32_at(12),
            durable: Position(durable),
        })
    }

    /// Whether this is the header of a good record at `position`.
    ///
    /// `crc` is the CRC-32 of `bytes` bytes of the record: from [`Self::SUMMED_FROM`] to the end of its
    /// payload.
    pub(super) fn is_of(&self, position: Position, crc: u32, bytes: u64) -> bool {
        let mut hasher = hasher(self.kind, position);
        hasher.combine(&crc32fast::Hasher::new_with_initial_len(crc, bytes));
        hasher.finalize() == self.crc
    }

    /// Whether the record only fills the place of damaged ones.
    pub(super) fn is_filler(&self) -> bool {
        self.kind == Kind::Readings && self.readings == 0
    }

    /// The number of bytes in the record, padding included.
    pub(super) fn record_bytes(&self) -> usize {
        padded(Self::BYTES + self.len as usize)
    }
}

/// The number of bytes in a record with this payload, padding included.
pub(super) fn encoded_bytes(payload: &[u8]) -> usize {
    padded(Header::BYTES + payload.len())
}

fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

/// Appends to `to` the record that the log will have at `position`.
pub(super) fn encode(
    to: &mut Vec<u8>,
    position: Position,
    durable: Position,
    kind: Kind,
    readings: u32,
    payload: &[u8],
) {
    let start = to.len();
    to.extend_from_slice(&kind.magic());
    to.extend_from_slice(&[0; 4]);
    let len = u32::try_from(payload.len()).expect("a batch has at most MAX_PAYLOAD_BYTES");
    to.extend_from_slice(&len.to_le_bytes());
    to.extend_from_slice(&readings.to_le_bytes());
    to.extend_from_slice(&durable.0.to_le_bytes());
    to.extend_from_slice(payload);
    let crc = checksum(kind, position, &to[start + 8..]);
    to[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    to.resize(start + padded(to.len() - start), 0);
}

/// The header and payload of the record at the start of `bytes`, which are at `position` in the log.
///
/// `None` if the record is cut off, its checksum is wrong, or it claims a durable end beyond its own
/// position.
pub(super) fn decode(bytes: &[u8], position: Position) -> Option<(Header, &[u8])> {
    let header = Header::decode(bytes).filter(|header| header.durable <= position)?;
    bytes.get(..header.record_bytes())?;
    let end = Header::BYTES + header.len as usize;
    (checksum(header.kind, position, &bytes[8..end]) == header.crc).then(|| (header, &bytes[Header::BYTES..end]))
}

fn checksum(kind: Kind, position: Position, bytes: &[u8]) -> u32 {
    let mut hasher = hasher(kind, position);
    hasher.update(bytes);
    hasher.finalize()
}

/// Starts the checksum of a record with its position.
///
/// The magic is in front of the position, except for records of readings.
fn hasher(kind: Kind, position: Position) -> crc32fast::Hasher {
    let mut hasher = crc32fast::Hasher::new();
    if kind != Kind::Readings {
        hasher.update(&kind.magic());
    }
    hasher.update(&position.0.to_le_bytes());
    hasher
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back_only_at_its_own_position() {
        let mut bytes = Vec::new();
        encode(&mut bytes, Position(64), Position(40), Kind::Readings, 3, b"hello");
        assert_eq!(bytes.len(), encoded_bytes(b"hello"));
        assert_eq!(bytes.len() % ALIGNMENT, 0);
        let (header, payload) = decode(&bytes, Position(64)).expect("whole");
        assert_eq!((header.readings, header.durable, payload), (3, Position(40), &b"hello"[..]));
        assert!(decode(&bytes, Position(72)).is_none());
        bytes.clear();
        encode(&mut bytes, Position(64), Position(72), Kind::Readings, 3, b"hello");
        assert!(decode(&bytes, Position(64)).is_none(), "it claims a durable end beyond its position");
    }

    #[test]
    fn a_record_with_any_bit_flipped_or_byte_missing_is_none() {
        let mut bytes = Vec::new();
        for kind in [Kind::Metadata, Kind::Deletion, Kind::Readings] {
            bytes.clear();
            encode(&mut bytes, Position(64), Position(40), kind, 3, b"hello");
            let payload_end = Header::BYTES + 5;
            for bit in 0..payload_end * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(decode(&bytes, Position(64)).is_none(), "bit {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
        let mut other = bytes.clone();
        for magic in [b"TGD1", b"TGM1"] {
            other[..4].copy_from_slice(magic);
            assert!(decode(&other, Position(64)).is_none(), "readings are no record of another kind");
        }
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len], Position(64)).is_none(), "{len} bytes");
        }
        bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Header::decode(&bytes), None, "a length beyond that of any payload");
    }

    #[test]
    fn the_format_of_version_1_stays_readable() {
        let golden = [
            0x54, 0x47, 0x52, 0x31, 0xd1, 0xfc, 0x7f, 0x32, 2, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0x68, 0x69,
            0, 0, 0, 0, 0, 0,
        ];
        let mut bytes = Vec::new();
        encode(&mut bytes, Position(32), Position(8), Kind::Readings, 1, b"hi");
        assert_eq!(bytes, golden);
    }
}
