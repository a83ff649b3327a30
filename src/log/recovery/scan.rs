//! The scan of a segment in memory: which bytes of it are good records.

use std::path::Path;

use super::Damage;
use crate::log::Position;
use crate::log::record::{self, ALIGNMENT, Kind};

/// A segment in memory.
#[derive(Clone, Copy)]
pub(super) struct LoadedSegment<'a> {
    pub(super) path: &'a Path,
    pub(super) base: Position,
    pub(super) bytes: &'a [u8],
    /// The position of the next segment; `None` for the newest.
    pub(super) next: Option<Position>,
}

impl LoadedSegment<'_> {
    pub(super) fn position(&self, offset: usize) -> Position {
        Position(self.base.0 + offset as u64)
    }

    pub(super) fn damage(&self, offset: usize, end: usize, detail: &str) -> Damage {
        let (offset, bytes) = (offset as u64, (end - offset) as u64);
        Damage {
            path: self.path.to_owned(),
            base: self.base,
            offset,
            bytes,
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
    pub(super) gaps: Vec<std::ops::Range<usize>>,
    /// The offsets of the payloads of these deletions.
    pub(super) deletions: Vec<std::ops::Range<usize>>,
}

impl Scan {
    /// Scans a segment from the offset `start` on. Counts the records from the position `stored` on.
    pub(super) fn of(segment: &LoadedSegment<'_>, start: usize, stored: Position) -> Self {
        let mut scan = Self::default();
        let mut at = start;
        while at < segment.bytes.len() {
            if let Some((header, payload)) = record::decode(&segment.bytes[at..], segment.position(at)) {
                if segment.position(at) >= stored {
                    scan.records += u64::from(!header.is_filler());
                    if header.kind == Kind::Deletion {
                        let start = at + record::Header::BYTES;
                        scan.deletions.push(start..start + payload.len());
                    }
                    scan.readings += u64::from(header.readings);
                }
                scan.claimed = scan.claimed.max(header.durable);
                at += header.record_bytes();
            } else {
                let next = next_record(segment, at).unwrap_or(segment.bytes.len());
                scan.gaps.push(at..next);
                at = next;
            }
        }
        scan
    }
}

/// An offset into a segment. One that this machine cannot address is beyond the end of any segment.
pub(super) fn offset(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The offset of the next good record behind a bad one.
fn next_record(segment: &LoadedSegment<'_>, bad: usize) -> Option<usize> {
    let first = bad + record::Header::BYTES; // no record is shorter
    (first.next_multiple_of(ALIGNMENT)..segment.bytes.len())
        .step_by(ALIGNMENT)
        .find(|&at| record::decode(&segment.bytes[at..], segment.position(at)).is_some())
}
