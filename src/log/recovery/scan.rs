//! The scan of a segment: which bytes of it are good records.

use std::ops::Range;
use std::path::Path;

use super::Damage;
use crate::disk::OpenFile;
use crate::log::deletion_record::DeletionRecord;
use crate::log::record::{ALIGNMENT, Header, Kind};
use crate::log::window::Window;
use crate::log::{LogError, Position};

/// A segment whose file is open.
#[derive(Clone, Copy)]
pub(super) struct OpenSegment<'a> {
    pub(super) path: &'a Path,
    pub(super) base: Position,
    pub(super) file: &'a dyn OpenFile,
    /// The length of the file, or of the part of it that counts.
    pub(super) bytes: u64,
    /// The position of the next segment; `None` for the newest.
    pub(super) next: Option<Position>,
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
    /// Scans a segment from the offset `start` on. Counts the records from the position `stored` on.
    pub(super) fn of(segment: &OpenSegment<'_>, start: u64, stored: Position) -> Result<Self, LogError> {
        let unreadable = |error| LogError::io("read", segment.path)(error);
        let mut scan = Self::default();
        let mut window = Window::new(segment.file, segment.bytes);
        let mut at = start;
        while at < segment.bytes {
            let position = segment.position(at);
            let Some((header, payload)) = window.record(at, position).map_err(unreadable)? else {
                let next = next_record(segment, &mut window, at).map_err(unreadable)?;
                scan.gaps.push(at..next);
                at = next;
                continue;
            };
            if position >= stored {
                scan.records += u64::from(!header.is_filler());
                if header.kind == Kind::Deletion {
                    let offset = at + Header::BYTES as u64;
                    let damaged = |detail| LogError::Damaged { path: segment.path.to_owned(), offset, detail };
                    scan.deletions.push((position, DeletionRecord::of(payload).map_err(damaged)?));
                }
                scan.readings += u64::from(header.readings);
            }
            scan.claimed = scan.claimed.max(header.durable);
            at += header.record_bytes() as u64;
        }
        Ok(scan)
    }
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
