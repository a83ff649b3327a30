//! Opening a log that some process left behind.
//!
//! A crash leaves at most a **torn tail**: bytes behind the last sync, which were never acknowledged. It is
//! cut off. Anything else that does not read back is **damage**, and is never passed over.
//!
//! The log itself records up to where it is durable: each record says how far that was when the record was
//! written, and the checkpoint says it at each new segment and about once a second. A bad place before the
//! furthest such claim is damage; the first bad place behind it is the torn tail. Only the newest segment can
//! have one, because a segment is synced before the next begins. So damage passes for a torn tail only if it
//! destroys everything from some record on to the end of the log, and that record was acknowledged after the
//! last checkpoint: within about a second of the crash.
//!
//! What is kept is durable when the log is open: whoever wrote it may have died before its sync, or of its
//! sync, and then the memory of the system shows what the disk does not hold. So what no claim covers is
//! written once more and synced.
//!
//! The way out of damage is [`super::quarantine`].

use std::path::{Path, PathBuf};

use super::checkpoint::{Checkpoint, CheckpointFile, Saved};
use super::record::{self, ALIGNMENT};
use super::segment::{self, Header};
use super::{LogError, Position};
use crate::disk::{Folder, OpenMode, OsFolder};

/// What recovery found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// Where reading starts.
    pub start: Position,
    /// Where the next record goes.
    pub end: Position,
    /// How many readings stand between the two.
    pub readings: u64,
    /// The torn tail that was cut off.
    pub torn: Option<Torn>,
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
    /// What the log recorded as durable and does not read back.
    pub damage: Vec<Damage>,
    /// The torn tail.
    pub torn: Option<Torn>,
    /// The furthest position that something in the log claims to be durable.
    pub(super) claimed: Position,
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

/// Bytes that the log recorded as durable and that do not read back.
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
    /// These bytes are too many: the next segment begins before them.
    pub(super) overhangs: bool,
    /// What is wrong.
    pub detail: String,
}

/// Bytes at the end of the newest segment, behind everything that the log recorded as durable.
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

/// Opens the log in `folder` for going on: makes what is missing, cuts off a torn tail, removes stale
/// segments.
pub(super) fn recover(folder: &dyn Folder) -> Result<(Recovery, Saved), LogError> {
    folder.make().map_err(LogError::io("create", folder.path()))?;
    let found = inspect_folder(folder)?;
    if let Some(damage) = found.damage.first() {
        return Err(damage.into());
    }
    let checkpoint = CheckpointFile::open(folder)?;
    for path in found.stale.iter().chain(found.torn.iter().filter(|torn| torn.offset == 0).map(|torn| &torn.path)) {
        let name = path.file_name().and_then(|name| name.to_str()).expect("listed by name");
        folder.remove(name).map_err(LogError::io("remove", path))?;
    }
    let mut segments = found.segments;
    if let Some(torn) = &found.torn {
        segments.last_mut().expect("a tail has a segment").bytes = torn.offset;
        segments.pop_if(|last| last.bytes == 0);
    }
    // Also for the names that an earlier life left: whatever is kept or removed now must be so for good.
    folder.sync().map_err(LogError::io("sync", folder.path()))?;
    let mut bases: Vec<Position> = segments.iter().map(|segment| segment.base).collect();
    let end = if let Some(last) = segments.last() {
        settle_tail(folder, last, found.claimed)?;
        Position(last.base.0 + last.bytes)
    } else {
        let base = found.checkpoint.position.max(found.checkpoint.durable);
        segment::create(folder, base)?;
        bases.push(base);
        Position(base.0 + Header::BYTES as u64)
    };
    let start = found.checkpoint.position.max(bases[0]);
    let recovered = Checkpoint { position: start, durable: end };
    let saved = match checkpoint {
        Some((file, last)) => Saved::new(last, file),
        None => Saved::new(recovered, CheckpointFile::create(folder, recovered)?),
    };
    saved.advance(recovered)?; // all that was kept is synced by now
    let recovery = Recovery {
        start,
        end,
        readings: segments.iter().map(|segment| segment.readings).sum(),
        torn: found.torn,
        bases,
    };
    Ok((recovery, saved))
}

/// Cuts off what is torn of the newest segment, and makes durable what is kept: it is, up to `claimed`.
fn settle_tail(folder: &dyn Folder, newest: &Segment, claimed: Position) -> Result<(), LogError> {
    let path = &newest.path;
    let file = folder.open(&segment::name(newest.base), OpenMode::Write).map_err(LogError::io("open", path))?;
    file.set_len(newest.bytes).map_err(LogError::io("truncate", path))?;
    let from = claimed.0.saturating_sub(newest.base.0).min(newest.bytes);
    let mut tail = Vec::new();
    file.read_from(from, &mut tail).map_err(LogError::io("read", path))?;
    file.write_all_at(&tail, from).map_err(LogError::io("write", path))?;
    file.sync().map_err(LogError::io("sync", path))
}

/// Reads all that is needed of the log in `dir` and says what state it is in. Changes nothing.
///
/// # Errors
/// When a file cannot be read, the checkpoint is damaged, or a newer version wrote the log.
pub fn inspect(dir: &Path) -> Result<Inspection, LogError> {
    inspect_folder(&OsFolder::new(dir))
}

pub(super) fn inspect_folder(folder: &dyn Folder) -> Result<Inspection, LogError> {
    let saved = Checkpoint::load(folder)?;
    let checkpoint = saved.unwrap_or_default();
    let mut bases = segment::list(folder)?;
    let needed_from = bases.partition_point(|&base| base <= checkpoint.position).saturating_sub(1);
    let stale = bases.drain(..needed_from).map(|base| folder.path_of(&segment::name(base))).collect();
    let claimed = checkpoint.durable;
    let mut inspection =
        Inspection { checkpoint, segments: Vec::new(), stale, damage: Vec::new(), torn: None, claimed };
    inspection.find_missing_start(folder, saved.is_some(), bases.first().copied());
    let mut bytes = Vec::new();
    for (at, &base) in bases.iter().enumerate() {
        let name = segment::name(base);
        let path = folder.path_of(&name);
        let file = folder.open(&name, OpenMode::Read).map_err(LogError::io("open", &path))?;
        file.read_from(0, &mut bytes).map_err(LogError::io("read", &path))?;
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
        Damage {
            path: self.path.to_owned(),
            base: self.base,
            offset,
            bytes,
            overhangs: false,
            detail: detail.to_owned(),
        }
    }
}

impl Inspection {
    /// The log must reach back to the checkpoint.
    fn find_missing_start(&mut self, folder: &dyn Folder, had_checkpoint: bool, first: Option<Position>) {
        let Checkpoint { position, durable } = self.checkpoint;
        let missing = match first {
            Some(first) if had_checkpoint && first > position => first.0 - position.0,
            // Where all is cut, two power cuts may leave no segment: one while the next was made, one in the
            // start after it.
            None if durable > position => durable.0 - position.0,
            _ => return,
        };
        let detail =
            format!("the log is needed from position {position} on, but no segment holds the next {missing} bytes");
        self.damage.push(Damage {
            path: folder.path_of(&segment::name(position)),
            base: position,
            offset: 0,
            bytes: missing,
            overhangs: false,
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
        let segment = &self.without_overhang(segment);
        let start = self.checkpoint.position.0.saturating_sub(segment.base.0).max(Header::BYTES as u64) as usize;
        let mut scan = Scan::of(segment, start);
        self.claimed = self.claimed.max(scan.claimed);
        self.judge(segment, start, &scan);
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

    /// The segment as far as the next one lets it go. What is beyond that is damage: it cannot be told which
    /// of the two is right there.
    fn without_overhang<'a>(&mut self, segment: &Image<'a>) -> Image<'a> {
        let len = segment.bytes.len();
        let room = segment.next.map_or(len as u64, |next| next.0 - segment.base.0);
        let end = usize::try_from(room).unwrap_or(len).clamp(Header::BYTES.min(len), len);
        if end < len {
            let damage = segment.damage(end, len, "the next segment begins before here");
            self.damage.push(Damage { overhangs: true, ..damage });
        }
        Image { bytes: &segment.bytes[..end], ..*segment }
    }

    /// Sorts the bad places of a segment into damage and torn tail.
    fn judge(&mut self, segment: &Image<'_>, start: usize, scan: &Scan) {
        let claimed = match segment.next {
            Some(next) => next,
            None => self.claimed,
        };
        let len = segment.bytes.len();
        let reach = claimed.0.saturating_sub(segment.base.0).max(len as u64) as usize;
        for gap in &scan.gaps {
            if segment.position(gap.start) < claimed {
                // A record that is cut off by the end of the file is one damage with what is missing behind
                // it.
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
            // What stands before the checkpoint is not needed, but the place is: what follows is read from
            // there.
            let start = start.clamp(len, reach);
            for part in [len..start, start..reach].into_iter().filter(|part| !part.is_empty()) {
                self.damage.push(segment.damage(part.start, part.end, "the segment ends here, but was longer"));
            }
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
