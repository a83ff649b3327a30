//! The scan of a segment: which bytes of it are good records.

use std::ops::Range;
use std::path::Path;

use super::Damage;
use super::sums::Sums;
use crate::disk::OpenFile;
use crate::log::deletion_record::DeletionRecord;
use crate::log::record::{ALIGNMENT, Header, Kind};
use crate::log::window::Window;
use crate::log::{LogError, Position};

/// A segment whose file is open, or another file with bytes of the log.
#[derive(Clone, Copy)]
pub(in crate::log) struct OpenSegment<'a> {
    pub(in crate::log) path: &'a Path,
    /// The position of the first byte.
    pub(in crate::log) base: Position,
    pub(in crate::log) file: &'a dyn OpenFile,
    /// The length of the file, or of the part of the file that is scanned.
    pub(in crate::log) bytes: u64,
    /// The position of the next segment; `None` for the newest.
    pub(in crate::log) next: Option<Position>,
}

impl OpenSegment<'_> {
    pub(super) fn position(&self, offset: u64) -> Position {
        Position(self.base.0 + offset)
    }

    pub(super) fn damage(&self, offset: u64, end: u64, detail: &str) -> Damage {
        Damage {
            path: self.path.to_owned(),
            base: self.base,
            offset,
            bytes: end - offset,
            overlaps_next: false,
            detail: detail.to_owned(),
        }
    }
}

/// The records and gaps of a segment.
#[derive(Default)]
pub(super) struct Scan {
    /// The number of good records behind the checkpoint, without filler.
    pub(super) records: u64,
    pub(super) readings: u64,
    /// The furthest position that a good record claims to be durable.
    pub(super) claimed: Position,
    /// The offsets of bytes that are no good record.
    pub(super) gaps: Vec<Range<u64>>,
    /// The records of deletions behind the checkpoint, with their positions.
    pub(super) deletions: Vec<DeletionRecord>,
}

impl Scan {
    /// Whether there is a good record that is no filler.
    pub(super) const fn has_records(&self) -> bool {
        self.records > 0
    }

    /// Scans a segment from the offset `start` on.
    ///
    /// Counts the records from the position `stored` on.
    pub(super) fn of(segment: &OpenSegment<'_>, start: u64, stored: Position) -> Result<Self, LogError> {
        let mut scan = Self::default();
        scan.gaps = for_each_record(segment, start, |position, header, payload| {
            if position >= stored {
                scan.records += u64::from(!header.is_filler());
                if header.kind == Kind::Deletion {
                    let offset = position.0 - segment.base.0 + Header::BYTES as u64;
                    let damaged = |detail| LogError::Damaged { path: segment.path.to_owned(), offset, detail };
                    scan.deletions.push(DeletionRecord::of(payload).map_err(damaged)?);
                }
                scan.readings += u64::from(header.readings);
            }
            scan.claimed = scan.claimed.max(header.durable);
            Ok(())
        })?;
        Ok(scan)
    }
}

/// Calls `take` with each good record of a segment from the offset `start` on, filler included. Returns the
/// offsets of the bytes between, which are no good record.
pub(in crate::log) fn for_each_record(
    segment: &OpenSegment<'_>,
    start: u64,
    mut take: impl FnMut(Position, Header, &[u8]) -> Result<(), LogError>,
) -> Result<Vec<Range<u64>>, LogError> {
    let unreadable = |error| LogError::io("read", segment.path)(error);
    let (mut window, mut sums) = (Window::new(segment.file, segment.bytes), Sums::new(segment.file));
    let (mut at, mut gaps) = (start, Vec::new());
    while at < segment.bytes {
        let position = segment.position(at);
        if let Some((header, payload)) = window.record(at, position).map_err(unreadable)? {
            take(position, header, payload)?;
            at += header.record_bytes() as u64;
        } else {
            let next = next_record(segment, &mut window, &mut sums, at).map_err(unreadable)?;
            gaps.push(at..next);
            at = next;
        }
    }
    Ok(gaps)
}

/// The offset of the next good record behind a bad one; without one, the end of the segment.
///
/// The bytes may be those of earlier segments, or chosen by a sender: whatever lengths they claim, the work
/// is in proportion to their number.
fn next_record(
    segment: &OpenSegment<'_>,
    window: &mut Window<&dyn OpenFile>,
    sums: &mut Sums<'_>,
    bad: u64,
) -> std::io::Result<u64> {
    const STEP: usize = ALIGNMENT;
    let mut at = (bad + Header::BYTES as u64).next_multiple_of(STEP as u64); // no record is shorter
    loop {
        let bytes = window.bytes(at, Header::BYTES)?;
        if bytes.len() < Header::BYTES {
            return Ok(segment.bytes);
        }
        // Each magic begins with this letter. Most of a large gap, such as a hole of a sparse file, has none.
        let skipped = memchr::memchr(b'T', bytes).unwrap_or(bytes.len()).next_multiple_of(STEP);
        if skipped > 0 {
            at += skipped as u64;
            continue;
        }
        let position = segment.position(at);
        if let Some(header) = Header::decode(bytes).filter(|header| header.durable <= position) {
            let summed = at + Header::SUMMED_FROM..at + (Header::BYTES + header.len as usize) as u64;
            let is_whole = at + header.record_bytes() as u64 <= segment.bytes;
            if is_whole && header.is_of(position, sums.crc(summed.clone())?, summed.end - summed.start) {
                return Ok(at);
            }
        }
        at += STEP as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Result;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::disk::faulty::Disk;
    use crate::disk::{Folder, OpenMode};
    use crate::log::record;

    /// Counts the bytes that are read.
    #[derive(Debug)]
    struct Counting(Box<dyn OpenFile>, AtomicU64);

    impl OpenFile for Counting {
        fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize> {
            let read = self.0.read_at(bytes, offset)?;
            self.1.fetch_add(read as u64, Ordering::Relaxed);
            Ok(read)
        }

        fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
            self.0.write_at(bytes, offset)
        }

        fn len(&self) -> Result<u64> {
            self.0.len()
        }

        fn set_len(&self, len: u64) -> Result<()> {
            self.0.set_len(len)
        }

        fn sync(&self) -> Result<()> {
            self.0.sync()
        }

        fn is_held(&self) -> bool {
            self.0.is_held()
        }

        fn is_removed(&self) -> bool {
            self.0.is_removed()
        }
    }

    /// Headers of records that claim to reach to the end of the file, and one record behind them.
    #[test]
    fn headers_that_claim_any_length_cost_no_more_than_their_number() {
        let (base, count) = (Position(1 << 20), 4_000);
        let last = (count * Header::BYTES) as u64;
        let mut bytes = Vec::new();
        for claimed in (1..=count).rev() {
            let start = bytes.len();
            record::encode(&mut bytes, Position(8), Position(0), Kind::Readings, 1, &[]);
            let len = (claimed * Header::BYTES) as u32;
            bytes[start + 8..start + 12].copy_from_slice(&len.to_le_bytes());
        }
        record::encode(&mut bytes, Position(base.0 + last), Position(base.0), Kind::Deletion, 0, &[7; 300]);
        let disk = Disk::new(0);
        let file = disk.open("x", OpenMode::Create).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        let (file, bytes) = (Counting(file, AtomicU64::new(0)), bytes.len() as u64);
        let segment = OpenSegment { path: Path::new("x"), base, file: &file, bytes, next: None };
        let (mut window, mut sums) = (Window::new(segment.file, bytes), Sums::new(&file));
        assert_eq!(next_record(&segment, &mut window, &mut sums, 0).unwrap(), last);
        let read = file.1.into_inner();
        assert!(read < 16 * bytes, "{read} bytes read of {bytes}");
    }
}
