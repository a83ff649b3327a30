//! The scan of a segment: which bytes of it are good records.

use std::ops::Range;
use std::path::Path;

use super::Damage;
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
    /// The length of the file, or of the part of it that counts.
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
    /// The number of good records behind the checkpoint.
    pub(super) records: u64,
    pub(super) readings: u64,
    /// The furthest position that a good record claims to be durable.
    pub(super) claimed: Position,
    /// The offsets of bytes that are no good record.
    pub(super) gaps: Vec<Range<u64>>,
    /// The records of deletions behind the checkpoint, with their positions.
    pub(super) deletions: Vec<(Position, DeletionRecord)>,
}

impl Scan {
    /// Whether there is a good record that is no filler.
    pub(super) const fn has_records(&self) -> bool {
        self.records > 0
    }

    /// Scans a segment from the offset `start` on. Counts the records from the position `stored` on.
    pub(super) fn of(segment: &OpenSegment<'_>, start: u64, stored: Position) -> Result<Self, LogError> {
        let mut scan = Self::default();
        scan.gaps = for_each_record(segment, start, |position, header, payload| {
            if position >= stored {
                scan.records += u64::from(!header.is_filler());
                if header.kind == Kind::Deletion {
                    let offset = position.0 - segment.base.0 + Header::BYTES as u64;
                    let damaged = |detail| LogError::Damaged { path: segment.path.to_owned(), offset, detail };
                    scan.deletions.push((position, DeletionRecord::of(payload).map_err(damaged)?));
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
    let mut window = Window::new(segment.file, segment.bytes);
    let (mut at, mut gaps) = (start, Vec::new());
    while at < segment.bytes {
        let position = segment.position(at);
        if let Some((header, payload)) = window.record(at, position).map_err(unreadable)? {
            take(position, header, payload)?;
            at += header.record_bytes() as u64;
        } else {
            let next = next_record(segment, &mut window, at).map_err(unreadable)?;
            gaps.push(at..next);
            at = next;
        }
    }
    Ok(gaps)
}

/// The offset of the next good record behind a bad one; without one, the end of the segment.
fn next_record(segment: &OpenSegment<'_>, window: &mut Window<'_>, bad: u64) -> std::io::Result<u64> {
    const STEP: usize = ALIGNMENT;
    let mut at = (bad + Header::BYTES as u64).next_multiple_of(STEP as u64); // no record is shorter
    loop {
        let bytes = window.bytes(at, Header::BYTES)?;
        if bytes.len() < Header::BYTES {
            return Ok(segment.bytes);
        }
        // Each magic begins with this letter. Most of a large gap has none, such as a hole of a sparse file.
        let skipped = memchr::memchr(b'T', bytes).unwrap_or(bytes.len()).next_multiple_of(STEP);
        at += skipped as u64;
        if window.record(at, segment.position(at))?.is_some() {
            return Ok(at);
        }
        if skipped == 0 {
            at += STEP as u64;
        }
    }
}
