//! Recovery: opening a log that an earlier process wrote.
//!
//! A crash leaves at most a **torn tail**: bytes behind the last sync, which were never acknowledged.
//! Recovery cuts it off. Any other unreadable bytes are **damage**, which recovery never skips.
//!
//! A **stray file** has the name of a segment, but neither a header nor a record, and the segment before it
//! goes on past its position with good records. Recovery removes it.
//!
//! The log records its own durable end: each record has the durable end at the time of its write, and the
//! checkpoint has it at each new segment and about once a second. A bad record before the furthest such claim
//! is damage; the first bad record behind it is the end of the log. Only the newest segment can have a torn
//! tail or room, because the log cuts off the room of a segment and syncs it before the next begins. So
//! recovery takes damage for a torn tail only if the damage destroys everything from some record to the end
//! of the log, and that record was acknowledged after the last checkpoint: within about a second of the
//! crash.
//!
//! A **record is good** if its checksum is right, which covers its position, its length and its claim. So
//! neither an old record in room (of another position) nor a torn header is good, and their claims do not
//! count. For bytes at the offset `e` of a segment that are no good record:
//!
//! | segment | claim beyond `e` | behind them | decision |
//! |---|---|---|---|
//! | any but the newest | - | a good record | damage, up to that record |
//! | | - | no good record | damage, up to the next segment |
//! | newest | of the checkpoint, or of a good record | a good record | damage, up to that record |
//! | | of the checkpoint | no good record | damage, up to the furthest claim |
//! | | none | good records without such a claim | torn tail: a part of a group was written |
//! | | none | the header of a record with a claim in this segment | torn tail: a record was begun |
//! | | none | bytes where the file was new, not all zero | torn tail |
//! | | none | zeros, or bytes of earlier segments | room |
//!
//! Recovery cuts off both a torn tail and room, and syncs the cut: otherwise the old bytes behind `e` could
//! be read as records once new records reach them. It reports a torn tail.
//!
//! All kept records are durable when the log is open. The process that wrote them may have died before its
//! sync, or its sync may have failed; then the page cache shows bytes that the disk does not hold. So
//! recovery writes the bytes that no claim covers once more, and syncs them.
//!
//! [`super::quarantine`] repairs damage.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use self::scan::Scan;
pub(super) use self::scan::{OpenSegment, for_each_record};
use super::checkpoint::{Checkpoint, CheckpointFile, SavedCheckpoint};
use super::deletion_record::{BegunDeletion, DeletionRecord};
use super::follower;
use super::segment::{self, Header};
use super::slots::{self, Slot};
use super::spares::is_spare;
use super::window::{Window, copy};
use super::{LogError, Position, record};
use crate::disk::{Folder, OpenFile, OpenMode, OsFolder};

mod scan;
mod sums;

/// The length of the header of a segment.
const HEADER_BYTES: u64 = Header::BYTES as u64;

/// The result of a recovery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// The position at which reading starts.
    pub start: Position,
    /// The position of the next record.
    pub end: Position,
    /// The number of readings between `start` and `end`.
    pub readings: u64,
    /// The torn tail that recovery cut off.
    pub torn: Option<Torn>,
    /// The deletions between `start` and `end`, in order.
    pub deletions: Vec<RecoveredDeletion>,
    pub(super) bases: Vec<Position>,
}

/// A deletion that recovery found in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveredDeletion {
    /// The content of its record.
    pub begun: BegunDeletion,
    /// Whether the store has executed it.
    pub is_executed: bool,
}

/// The state of a log folder, found without changing anything.
#[derive(Debug)]
pub struct Inspection {
    /// The checkpoint. The store does not need the log before its position.
    pub checkpoint: Checkpoint,
    /// The position before which the follower does not need the log; `None` without a follower.
    pub followed: Option<Position>,
    /// The segments that are needed, in order.
    pub segments: Vec<Segment>,
    /// Files that are not needed: segments that a crash kept from being removed, stray files, and spares.
    pub stale: Vec<PathBuf>,
    /// Bytes that the log recorded as durable, and that cannot be read.
    pub damage: Vec<Damage>,
    /// The torn tail, if there is one.
    pub torn: Option<Torn>,
    /// The deletions behind the checkpoint, in order.
    pub deletions: Vec<RecoveredDeletion>,
    /// The furthest position that a record or the checkpoint claims to be durable.
    claimed: Position,
}

/// A segment that the store or the follower needs.
#[derive(Debug)]
pub struct Segment {
    /// The file of the segment.
    pub path: PathBuf,
    /// The position of its first byte.
    pub base: Position,
    /// The length of the file up to the end of its records.
    pub bytes: u64,
    /// The number of good records behind the checkpoint, without filler.
    pub records: u64,
    /// The number of readings in these records.
    pub readings: u64,
}

/// Bytes that the log recorded as durable, and that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The file of the segment, which may be missing.
    pub path: PathBuf,
    /// The position of the segment's first byte.
    pub base: Position,
    /// The offset in the file at which the damage begins.
    pub offset: u64,
    /// The length of the damage: to the next good record, or to the end of the segment.
    pub bytes: u64,
    /// These bytes overlap with the next segment.
    pub(super) overlaps_next: bool,
    /// The kind of damage, for people.
    pub detail: String,
}

/// Bytes at the end of the newest segment, behind everything that the log recorded as durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torn {
    /// The file of the segment.
    pub path: PathBuf,
    /// The offset in the file at which the tail begins.
    pub offset: u64,
    /// The length of the tail.
    pub bytes: u64,
}

impl From<&Damage> for LogError {
    fn from(damage: &Damage) -> Self {
        Self::Damaged { path: damage.path.clone(), offset: damage.offset, detail: damage.detail.clone() }
    }
}

/// Prepares the log in `folder` for appends: creates missing files, cuts off a torn tail, and removes stale
/// segments.
pub(super) fn recover(folder: &dyn Folder) -> Result<(Recovery, SavedCheckpoint), LogError> {
    folder.make().map_err(LogError::io("create", folder.path()))?;
    let found = inspect_folder(folder)?;
    if let Some(damage) = found.damage.first() {
        return Err(damage.into());
    }
    let checkpoint = CheckpointFile::open(folder)?;
    for path in &found.stale {
        let name = path.file_name().and_then(|name| name.to_str()).expect("listed by name");
        folder.remove(name).map_err(LogError::io("remove", path))?;
    }
    let segments = found.segments;
    // An earlier process may have left unsynced names. From here on, a crash neither removes a kept file nor
    // brings back a removed one.
    folder.sync().map_err(LogError::io("sync", folder.path()))?;
    let mut bases: Vec<Position> = segments.iter().map(|segment| segment.base).collect();
    let end = if let Some(last) = segments.last() {
        sync_tail(folder, last, found.claimed)?;
        Position(last.base.0 + last.bytes)
    } else {
        let base = found.checkpoint.position.max(found.checkpoint.durable);
        segment::create(folder, base)?;
        folder.sync().map_err(LogError::io("sync", folder.path()))?;
        bases.push(base);
        Position(base.0 + HEADER_BYTES)
    };
    let start = found.checkpoint.position.max(bases[0]);
    let recovered = Checkpoint { position: start, durable: end };
    let saved = match checkpoint {
        Some((file, last)) => SavedCheckpoint::new(last, file),
        None => SavedCheckpoint::new(recovered, CheckpointFile::create(folder, recovered)?),
    };
    saved.advance(recovered)?; // all kept records are synced
    let recovery = Recovery {
        start,
        end,
        readings: segments.iter().map(|segment| segment.readings).sum(),
        torn: found.torn,
        deletions: found.deletions,
        bases,
    };
    Ok((recovery, saved))
}

/// Cuts off the bytes behind the records of the newest segment, and makes the records durable. The records
/// before `claimed` are durable already.
fn sync_tail(folder: &dyn Folder, newest: &Segment, claimed: Position) -> Result<(), LogError> {
    let path = &newest.path;
    let file = folder.open(&segment::name(newest.base), OpenMode::Write).map_err(LogError::io("open", path))?;
    file.set_len(newest.bytes).map_err(LogError::io("truncate", path))?;
    let from = claimed.0.saturating_sub(newest.base.0).min(newest.bytes);
    copy((&*file, path), from..newest.bytes, (&*file, path), from)?;
    file.sync().map_err(LogError::io("sync", path))
}

/// Fails if the folder has no log: neither a checkpoint nor a segment.
///
/// A caller that knows that a log was there calls this first. Otherwise recovery would create a new log in
/// the empty folder, and the loss of readings would go unnoticed.
///
/// # Errors
/// When there is no log, or the folder cannot be read.
pub fn expect_log(dir: &Path) -> Result<(), LogError> {
    let folder = OsFolder::new(dir);
    let has_log = match folder.names() {
        Ok(names) => names.iter().any(|name| name == Checkpoint::NAME) || !segment::list(&folder)?.is_empty(),
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => return Err(LogError::io("read", dir)(error)),
    };
    if has_log { Ok(()) } else { Err(LogError::Missing(dir.to_owned())) }
}

/// Reads the needed part of the log in `dir`, and reports its state.
///
/// Changes nothing.
///
/// # Errors
/// When a file cannot be read, the checkpoint is damaged, or a newer version wrote the log.
pub fn inspect(dir: &Path) -> Result<Inspection, LogError> {
    inspect_folder(&OsFolder::new(dir))
}

pub(super) fn inspect_folder(folder: &dyn Folder) -> Result<Inspection, LogError> {
    let saved = slots::load(folder)?;
    let checkpoint: Checkpoint = saved.unwrap_or_default();
    let (mut bases, mut stale) = without_strays(folder, segment::list(folder)?)?;
    if !is_boundary(folder, &bases, checkpoint.position)? {
        let detail = "its position is inside of a record";
        return Err(LogError::BadCheckpoint { path: folder.path_of(Checkpoint::NAME), detail });
    }
    let followed = match follower::load(folder)?.map(|followed| followed.position) {
        Some(position) if !is_boundary(folder, &bases, position)? => Some(Position::default()), // of another log
        followed => followed,
    };
    let needed = follower::needed_from(checkpoint.position, followed);
    let needed_from = bases.partition_point(|&base| base <= needed).saturating_sub(1);
    stale.extend(bases.drain(..needed_from).map(|base| folder.path_of(&segment::name(base))));
    let names = folder.names().map_err(LogError::io("read", folder.path()))?;
    stale.extend(names.iter().filter(|name| is_spare(name)).map(|name| folder.path_of(name)));
    let claimed = checkpoint.durable;
    let mut inspection = Inspection {
        checkpoint,
        followed,
        segments: Vec::new(),
        stale,
        damage: Vec::new(),
        torn: None,
        deletions: Vec::new(),
        claimed,
    };
    inspection.find_missing_start(folder, saved.is_some(), bases.first().copied());
    for (at, &base) in bases.iter().enumerate() {
        let (path, file, bytes) = open(folder, base)?;
        let next = bases.get(at + 1).copied();
        inspection.add_segment(&OpenSegment { path: &path, base, file: &*file, bytes, next })?;
    }
    let newest = inspection.segments.last().map(|segment| segment.base.0.saturating_add(segment.bytes));
    let end = newest.unwrap_or_default().max(checkpoint.durable.0);
    if end > Position::MAX - HEADER_BYTES {
        let detail = "its position is beyond that of any log";
        return Err(LogError::BadCheckpoint { path: folder.path_of(Checkpoint::NAME), detail });
    }
    Ok(inspection)
}

/// Returns the positions of the segments, and the paths of the stray files among `bases`.
fn without_strays(folder: &dyn Folder, bases: Vec<Position>) -> Result<(Vec<Position>, Vec<PathBuf>), LogError> {
    let (mut segments, mut strays): (Vec<Position>, _) = (Vec::new(), Vec::new());
    let mut end = Position::default();
    for base in bases {
        let (path, file, bytes) = open(folder, base)?;
        if let Some(&before) = segments.last()
            && end > base
            && !has_segment(&path, base, &*file, bytes)?
            && goes_on_past(folder, before, base)?
        {
            strays.push(path);
            continue;
        }
        segments.push(base);
        end = Position(base.0.saturating_add(bytes));
    }
    Ok((segments, strays))
}

/// Whether a record may end at `position`, which is then in no good record.
///
/// Behind damage, where the records are unknown, a record may end at any position.
pub(super) fn is_boundary(folder: &dyn Folder, bases: &[Position], position: Position) -> Result<bool, LogError> {
    let Some(&base) = bases.iter().rev().find(|&&base| base <= position) else { return Ok(true) };
    let (path, file, bytes) = open(folder, base)?;
    let mut window = Window::new(&*file, bytes);
    let mut at = HEADER_BYTES;
    while base.0 + at < position.0 {
        let found = window.record(at, Position(base.0 + at)).map_err(LogError::io("read", &path))?;
        let Some((header, _)) = found else { return Ok(true) };
        at += header.record_bytes() as u64;
    }
    Ok(at == HEADER_BYTES || base.0 + at == position.0)
}

/// Whether a file has a good header or a good record of the segment at `base`.
fn has_segment(path: &Path, base: Position, file: &dyn OpenFile, bytes: u64) -> Result<bool, LogError> {
    let mut header = [0; Header::BYTES];
    let have = file.fill(&mut header, 0).map_err(LogError::io("read", path))?;
    match Header::check(&header[..have], base, path) {
        Ok(_) | Err(LogError::Version { .. }) => Ok(true),
        Err(_) => Ok(Scan::of(&OpenSegment { path, base, file, bytes, next: None }, 0, base)?.has_records()),
    }
}

/// Whether the segment at `base` has a good record at or behind `position`.
fn goes_on_past(folder: &dyn Folder, base: Position, position: Position) -> Result<bool, LogError> {
    let (path, file, bytes) = open(folder, base)?;
    let segment = OpenSegment { path: &path, base, file: &*file, bytes, next: None };
    Ok(Scan::of(&segment, position.0 - base.0, position)?.has_records())
}

/// Opens the segment at `base`, and returns its path, the file and its length.
fn open(folder: &dyn Folder, base: Position) -> Result<(PathBuf, Box<dyn OpenFile>, u64), LogError> {
    let name = segment::name(base);
    let path = folder.path_of(&name);
    let file = folder.open(&name, OpenMode::Hold).map_err(LogError::io("open", &path))?;
    let bytes = file.len().map_err(LogError::io("read", &path))?;
    Ok((path, file, bytes))
}

impl Inspection {
    /// Adds damage if the log does not reach back to the checkpoint.
    fn find_missing_start(&mut self, folder: &dyn Folder, had_checkpoint: bool, first: Option<Position>) {
        let Checkpoint { position, durable } = self.checkpoint;
        let missing = match first {
            Some(first) if had_checkpoint && first > position => first.0 - position.0,
            // In a log that was cut to its end, two power cuts may leave no segment: one while the next
            // segment was created, and one during the following start.
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
            overlaps_next: false,
            detail,
        });
    }

    fn add_segment(&mut self, segment: &OpenSegment<'_>) -> Result<(), LogError> {
        let mut header = [0; Header::BYTES];
        let have = segment.file.fill(&mut header, 0).map_err(LogError::io("read", segment.path))?;
        let old_until = match Header::check(&header[..have], segment.base, segment.path) {
            Ok(old_until) => old_until,
            Err(LogError::Damaged { detail, .. }) => {
                self.damage.push(segment.damage(0, HEADER_BYTES, &detail));
                0
            }
            Err(error) => return Err(error),
        };
        let segment = &self.without_overlap(segment);
        let stored = self.checkpoint.position;
        let needed = follower::needed_from(stored, self.followed);
        let start = needed.0.saturating_sub(segment.base.0).max(HEADER_BYTES);
        let mut scan = Scan::of(segment, start, stored)?;
        self.claimed = self.claimed.max(scan.claimed);
        let end = self.sort_gaps(segment, start, &scan);
        if let Some(tail) = scan.gaps.iter().find(|gap| gap.start == end) {
            if tail.end < segment.bytes {
                scan = Scan::of(&OpenSegment { bytes: end, ..*segment }, start, stored)?;
            }
            if is_torn(segment, end, old_until).map_err(LogError::io("read", segment.path))? {
                let (path, bytes) = (segment.path.to_owned(), segment.bytes - end);
                self.torn = Some(Torn { path, offset: end, bytes });
            }
        }
        self.add_deletions(scan.deletions);
        self.segments.push(Segment {
            path: segment.path.to_owned(),
            base: segment.base,
            bytes: end,
            records: scan.records,
            readings: scan.readings,
        });
        Ok(())
    }

    fn add_deletions(&mut self, records: Vec<DeletionRecord>) {
        for record in records {
            match record {
                DeletionRecord::Begun(begun) => {
                    self.deletions.push(RecoveredDeletion { begun, is_executed: false });
                }
                DeletionRecord::Executed { id } => {
                    let begun = self.deletions.iter_mut().rev().find(|found| found.begun.id == id);
                    if let Some(found) = begun {
                        found.is_executed = true;
                    }
                }
            }
        }
    }

    /// The segment up to the start of the next one.
    ///
    /// The bytes beyond are damage: it is unknown which of the two segments is right.
    fn without_overlap<'a>(&mut self, segment: &OpenSegment<'a>) -> OpenSegment<'a> {
        let len = segment.bytes;
        let room = segment.next.map_or(len, |next| next.0 - segment.base.0);
        let end = room.clamp(HEADER_BYTES.min(len), len);
        if end < len {
            let damage = segment.damage(end, len, "the next segment begins before here");
            self.damage.push(Damage { overlaps_next: true, ..damage });
        }
        OpenSegment { bytes: end, ..*segment }
    }

    /// Finds the damage among the gaps of a segment, and returns the end of the records.
    fn sort_gaps(&mut self, segment: &OpenSegment<'_>, start: u64, scan: &Scan) -> u64 {
        let claimed = segment.next.unwrap_or(self.claimed);
        let len = segment.bytes;
        let reach = claimed.0.saturating_sub(segment.base.0);
        for gap in &scan.gaps {
            if gap.start >= reach {
                return gap.start;
            }
            // Without a good record behind the gap, the damage goes on to the durable end, which may be
            // beyond the end of the file.
            let end = if gap.end == len { reach } else { gap.end };
            self.damage.push(segment.damage(gap.start, end, "no whole record here"));
        }
        if scan.gaps.last().is_some_and(|gap| gap.end == len) {
            return reach;
        }
        if reach > len {
            // In two parts, so that after a repair a record of filler ends where reading starts.
            let start = start.clamp(len, reach);
            for part in [len..start, start..reach].into_iter().filter(|part| !part.is_empty()) {
                self.damage.push(segment.damage(part.start, part.end, "the segment ends here, but was longer"));
            }
        }
        len
    }
}

/// Whether the bytes behind the records of the newest segment are the beginning of a write: the header of a
/// record of this segment, or a byte that is not zero where the file had no bytes of an earlier segment.
fn is_torn(segment: &OpenSegment<'_>, end: u64, old_until: u64) -> std::io::Result<bool> {
    let mut window = Window::new(segment.file, segment.bytes);
    let of_segment = segment.base..=segment.position(end);
    if record::Header::decode(window.bytes(end, record::Header::BYTES)?)
        .is_some_and(|header| of_segment.contains(&header.durable))
    {
        return Ok(true);
    }
    let mut at = end.max(old_until);
    while at < segment.bytes {
        let piece = window.bytes(at, 1)?;
        if piece.is_empty() || piece.iter().any(|&byte| byte != 0) {
            return Ok(!piece.is_empty());
        }
        at += piece.len() as u64;
    }
    Ok(false)
}

/// The offset at which the records of a segment end.
///
/// Another process may be writing the segment. Reading starts at the offset `known`, at which a record begins
/// or the records end.
pub(super) fn end_of_records(segment: &OpenSegment<'_>, known: u64) -> Result<u64, LogError> {
    let known = known.max(HEADER_BYTES);
    let mut end = known.min(segment.bytes);
    for_each_record(segment, known, |position, header, _| {
        end = position.0 - segment.base.0 + header.record_bytes() as u64;
        Ok(())
    })?;
    Ok(end)
}

/// The positions of the log in `dir`, from its first segment to its last record; `None` without a log.
/// Another process may use the log meanwhile.
///
/// # Errors
/// When a file cannot be read.
pub fn extent(dir: &Path) -> Result<Option<std::ops::Range<Position>>, LogError> {
    let folder = OsFolder::new(dir);
    let bases = segment::list(&folder)?;
    let (Some(&first), Some(&base)) = (bases.first(), bases.last()) else { return Ok(None) };
    let durable = match slots::load::<Checkpoint>(&folder) {
        Err(LogError::BadCheckpoint { .. }) => Position::default(),
        loaded => loaded?.unwrap_or_default().durable,
    };
    let (path, file, bytes) = open(&folder, base)?;
    let newest = OpenSegment { path: &path, base, file: &*file, bytes, next: None };
    let end = end_of_records(&newest, durable.0.saturating_sub(base.0))?;
    Ok(Some(first..Position(base.0 + end)))
}
