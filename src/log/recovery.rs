//! Opening a log that some process left behind.
//!
//! A crash leaves at most a **torn tail**: bytes behind the last sync, which nobody was promised. It is cut off.
//! Anything else that does not read back is **damage** to what was promised, and is never passed over.
//!
//! What tells them apart is what the log itself claims: each record says up to where the log was durable when it was
//! written, and the checkpoint says it too. A bad place before the furthest such claim is damage; the first bad place
//! behind it is the torn tail. Only the newest segment can have one, because a segment is synced before the next begins.
//!
//! The way out of damage is [`super::quarantine`].

use std::fs::File;
use std::path::{Path, PathBuf};

use super::checkpoint::{self, Checkpoint};
use super::record::{self, ALIGNMENT};
use super::segment::{self, Header};
use super::{LogError, Position};

/// What recovery found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// Where reading starts.
    pub start: Position,
    /// Where the next record goes.
    pub end: Position,
    /// How many readings stand between the two.
    pub readings: u64,
    /// How many bytes of a torn tail were cut off.
    pub torn_bytes: u64,
    pub(super) bases: Vec<Position>,
}

/// What is in a log directory, as found without changing anything.
#[derive(Debug)]
pub struct Inspection {
    /// From where the log is needed.
    pub checkpoint: Checkpoint,
    /// The segments that are needed, in order.
    pub segments: Vec<Segment>,
    /// Segments from before the checkpoint, which a crash kept from being removed.
    pub stale: Vec<PathBuf>,
    /// What was promised and does not read back.
    pub damage: Vec<Damage>,
    /// The torn tail.
    pub torn: Option<Torn>,
}

/// A segment that is needed.
#[derive(Debug)]
pub struct Segment {
    /// The file.
    pub path: PathBuf,
    /// The position of its first byte.
    pub base: Position,
    /// Its length.
    pub bytes: u64,
    /// Good records behind the checkpoint.
    pub records: u64,
    /// The readings in them.
    pub readings: u64,
}

/// Bytes that were promised and do not read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The segment, which may be missing.
    pub path: PathBuf,
    /// Where the segment begins.
    pub base: Position,
    /// Where in the file the damage begins.
    pub offset: u64,
    /// How far it reaches: to the next good record, or to the end of the segment.
    pub bytes: u64,
    /// What is wrong.
    pub detail: String,
}

/// Bytes at the end of the newest segment that nobody was promised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torn {
    /// The segment.
    pub path: PathBuf,
    /// Where in the file the tail begins. 0: the whole segment, cut off while it was made.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
}

impl From<&Damage> for LogError {
    fn from(damage: &Damage) -> Self {
        Self::Damaged { path: damage.path.clone(), offset: damage.offset, detail: damage.detail.clone() }
    }
}

/// Opens the log in `dir` for going on: makes what is missing, cuts off a torn tail, removes stale segments.
pub(super) fn recover(dir: &Path) -> Result<Recovery, LogError> {
    std::fs::create_dir_all(dir).map_err(LogError::io("create", dir))?;
    let found = inspect(dir)?;
    if let Some(damage) = found.damage.first() {
        return Err(damage.into());
    }
    for path in &found.stale {
        std::fs::remove_file(path).map_err(LogError::io("remove", path))?;
    }
    let mut segments = found.segments;
    if let Some(torn) = &found.torn {
        cut_off(torn)?;
        let last = segments.last_mut().expect("a tail has a segment");
        last.bytes = torn.offset;
        if torn.offset == 0 {
            segments.pop();
        }
    }
    let mut bases: Vec<Position> = segments.iter().map(|segment| segment.base).collect();
    let end = if let Some(last) = segments.last() {
        Position(last.base.0 + last.bytes)
    } else {
        let base = found.checkpoint.position.max(found.checkpoint.durable);
        segment::create(dir, base)?;
        bases.push(base);
        Position(base.0 + Header::BYTES as u64)
    };
    Ok(Recovery {
        start: found.checkpoint.position.max(bases[0]),
        end,
        readings: segments.iter().map(|segment| segment.readings).sum(),
        torn_bytes: found.torn.map_or(0, |torn| torn.bytes),
        bases,
    })
}

fn cut_off(torn: &Torn) -> Result<(), LogError> {
    if torn.offset == 0 {
        return std::fs::remove_file(&torn.path).map_err(LogError::io("remove", &torn.path));
    }
    let file = File::options().write(true).open(&torn.path).map_err(LogError::io("open", &torn.path))?;
    file.set_len(torn.offset).and_then(|()| file.sync_all()).map_err(LogError::io("truncate", &torn.path))
}

/// Reads all that is needed of the log in `dir` and says what state it is in. Changes nothing.
///
/// # Errors
/// When a file cannot be read, the checkpoint is damaged, or a newer version wrote the log.
pub fn inspect(dir: &Path) -> Result<Inspection, LogError> {
    let checkpoint = Checkpoint::load(dir)?;
    let mut bases = segment::list(dir)?;
    let needed_from = bases.partition_point(|&base| base <= checkpoint.position).saturating_sub(1);
    let stale = bases.drain(..needed_from).map(|base| segment::path(dir, base)).collect();
    let mut inspection = Inspection { checkpoint, segments: Vec::new(), stale, damage: Vec::new(), torn: None };
    inspection.find_missing_start(dir, bases.first().copied());
    for (at, &base) in bases.iter().enumerate() {
        let path = segment::path(dir, base);
        let bytes = std::fs::read(&path).map_err(LogError::io("read", &path))?;
        inspection.add_segment(&Image { path: &path, base, bytes: &bytes, next: bases.get(at + 1).copied() })?;
    }
    Ok(inspection)
}

/// A segment in memory.
#[derive(Clone, Copy)]
struct Image<'a> {
    path: &'a Path,
    base: Position,
    bytes: &'a [u8],
    /// Where the next segment begins, unless this is the newest.
    next: Option<Position>,
}

impl Image<'_> {
    fn position(&self, offset: usize) -> Position {
        Position(self.base.0 + offset as u64)
    }

    fn damage(&self, offset: usize, end: usize, detail: &str) -> Damage {
        let (offset, bytes) = (offset as u64, (end - offset) as u64);
        Damage { path: self.path.to_owned(), base: self.base, offset, bytes, detail: detail.to_owned() }
    }
}

impl Inspection {
    /// The log must reach back to the checkpoint.
    fn find_missing_start(&mut self, dir: &Path, first: Option<Position>) {
        let Checkpoint { position, durable } = self.checkpoint;
        let had_checkpoint = checkpoint::path(dir).exists();
        let missing = match first {
            Some(first) if had_checkpoint && first > position => first.0 - position.0,
            None if durable > position => durable.0 - position.0,
            _ => return,
        };
        let detail =
            format!("the log is needed from position {position} on, but no segment holds the next {missing} bytes");
        self.damage.push(Damage {
            path: segment::path(dir, position),
            base: position,
            offset: 0,
            bytes: missing,
            detail,
        });
    }

    fn add_segment(&mut self, segment: &Image<'_>) -> Result<(), LogError> {
        let newest = segment.next.is_none();
        let no_records = segment.bytes.len() <= Header::BYTES && segment.base >= self.checkpoint.durable;
        match Header::check(segment.bytes, segment.base, segment.path) {
            Ok(()) => {}
            Err(error @ LogError::Version { .. }) => return Err(error),
            // The file was being made when everything stopped; nothing was promised in it.
            Err(_) if newest && no_records => {
                self.torn = Some(Torn { path: segment.path.to_owned(), offset: 0, bytes: segment.bytes.len() as u64 });
            }
            Err(error) => self.damage.push(segment.damage(0, Header::BYTES, &error.to_string())),
        }
        let start = self.checkpoint.position.0.saturating_sub(segment.base.0).max(Header::BYTES as u64) as usize;
        let mut scan = Scan::of(segment, start);
        self.judge(segment, &scan);
        if let Some(torn) = &self.torn {
            let kept = &segment.bytes[..torn.offset as usize];
            scan = Scan::of(&Image { bytes: kept, ..*segment }, start);
        }
        self.segments.push(Segment {
            path: segment.path.to_owned(),
            base: segment.base,
            bytes: segment.bytes.len() as u64,
            records: scan.records,
            readings: scan.readings,
        });
        Ok(())
    }

    /// Sorts the bad places of a segment into damage and torn tail.
    fn judge(&mut self, segment: &Image<'_>, scan: &Scan) {
        let claimed = match segment.next {
            Some(next) => next,
            None => scan.claimed.max(self.checkpoint.durable),
        };
        let len = segment.bytes.len();
        let reach = claimed.0.saturating_sub(segment.base.0).max(len as u64) as usize;
        for gap in &scan.gaps {
            if segment.position(gap.start) < claimed {
                // A record that is cut off by the end of the file is one damage with what is missing behind it.
                let end = if gap.end == len { reach } else { gap.end };
                self.damage.push(segment.damage(gap.start, end, "no whole record here"));
            } else {
                let bytes = (len - gap.start) as u64;
                self.torn = Some(Torn { path: segment.path.to_owned(), offset: gap.start as u64, bytes });
                return;
            }
        }
        let ends_in_gap = scan.gaps.last().is_some_and(|gap| gap.end == len);
        if self.torn.is_none() && reach > len && !ends_in_gap {
            self.damage.push(segment.damage(len, reach, "the segment ends here, but was longer"));
        }
    }
}

/// A walk through a segment's records.
#[derive(Default)]
struct Scan {
    records: u64,
    readings: u64,
    /// The furthest position that a good record claims to be durable.
    claimed: Position,
    /// What is not a good record, as offsets in the file.
    gaps: Vec<std::ops::Range<usize>>,
}

impl Scan {
    fn of(segment: &Image<'_>, start: usize) -> Self {
        let mut scan = Self::default();
        let mut at = start;
        while at < segment.bytes.len() {
            if let Some((header, _)) = record::decode(&segment.bytes[at..], segment.position(at)) {
                scan.records += u64::from(header.readings > 0);
                scan.readings += u64::from(header.readings);
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

/// Where the next good record behind a bad one begins.
fn next_record(segment: &Image<'_>, bad: usize) -> Option<usize> {
    let first = bad + record::Header::BYTES; // no record is shorter
    (first.next_multiple_of(ALIGNMENT)..segment.bytes.len())
        .step_by(ALIGNMENT)
        .find(|&at| record::decode(&segment.bytes[at..], segment.position(at)).is_some())
}
