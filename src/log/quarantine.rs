//! Quarantine: sets damaged bytes aside, so that the log behind them can be read again.
//!
//! It copies the damaged bytes to a file and replaces them with filler of the same size, so that positions do
//! not change. It cuts off bytes that overlap with the next segment. The readings in the damaged bytes are
//! lost, by decision of an operator.
//!
//! A copy can have good records: bytes that overlap with the next segment, or records that an operator has
//! mended in the copy. Each record proves its position with its checksum, and the name of the copy says where
//! its bytes were. [`put_back`] appends these records to the log again. Their values then count as accepted
//! last.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::batch::Batch;
use super::checkpoint::Checkpoint;
use super::committer::{Appender, WriteFailure};
use super::record::Kind;
use super::recovery::{self, Damage, OpenSegment};
use super::segment::{self, Header};
use super::slots::{self, Slot};
use super::spares::Spares;
use super::window::{Named, copy};
use super::{LogError, Position, record};
use crate::common::regular_file::open_regular;
use crate::disk::{Folder, OpenFile, OpenMode, OsFolder};

/// Copies the bytes of `damage` to `aside` and replaces them with filler, so that the log opens again.
/// Returns the file with the copy; `None` if no bytes were there.
///
/// # Errors
/// When a file cannot be read or written. The copy is durable before any byte is replaced.
pub fn set_aside(damage: &Damage, aside: &Path) -> Result<Option<PathBuf>, LogError> {
    let folder = OsFolder::new(damage.path.parent().unwrap_or(Path::new("")));
    set_aside_in(&folder, damage, &OsFolder::new(aside))
}

/// Copies a bad checkpoint to `aside` and repairs it: keeps a good slot, or removes the file if it has none.
/// Without the file, the whole log is read again. Returns the file with the copy; `None` if the checkpoint
/// was empty.
///
/// # Errors
/// When a file cannot be read or written.
pub fn repair_checkpoint(log: &Path, aside: &Path) -> Result<Option<PathBuf>, LogError> {
    repair_checkpoint_in(&OsFolder::new(log), &OsFolder::new(aside))
}

/// Creates an empty log in the folder `log`, in place of one that is lost.
///
/// # Errors
/// When a file cannot be written, or the folder has a damaged log.
pub fn begin_anew(log: &Path) -> Result<(), LogError> {
    recovery::recover(&OsFolder::new(log)).map(drop)
}

/// The records of one quarantined file that [`put_back`] found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PutBack {
    /// The number of records that were appended to the log again.
    ///
    /// They are records of readings and of metadata.
    pub records: u64,
    /// The number of readings in these records.
    pub readings: u64,
    /// The number of records of deletions.
    ///
    /// They stay aside: at the end of the log they would remove later readings.
    pub deletions: u64,
}

/// Appends the good records of a copy that [`set_aside`] made to a log.
///
/// The log is in the folder `log`, which no other process uses. When this returns, the records survive a
/// crash. Does nothing if the name of `copy` is not `position-length.bytes`, such as for the copy of a
/// checkpoint.
///
/// # Errors
/// When a file cannot be read or written, or the log does not open. Putting back again later is safe: a
/// reading is stored once.
pub fn put_back(log: &Path, copy: &Path) -> Result<PutBack, LogError> {
    let mut found = PutBack::default();
    let Some(base) = position_of(copy) else { return Ok(found) };
    let folder: Arc<dyn Folder> = Arc::new(OsFolder::new(log));
    let file = open_regular(copy).map_err(LogError::io("open", copy))?;
    let bytes = OpenFile::len(&file).map_err(LogError::io("read", copy))?;
    let (recovery, saved) = recovery::recover(&*folder)?;
    let failed = |failure: WriteFailure| LogError::io("append to", log)(std::io::Error::other(failure.to_string()));
    let spares = Arc::new(Spares::new(Arc::clone(&folder), u64::MAX, 0)); // no spares
    let mut appender = Appender::resume(folder, Arc::new(saved), spares, u64::MAX, &recovery)?;
    let copied = OpenSegment { path: copy, base, file: &file, bytes, next: None };
    recovery::for_each_record(&copied, 0, |_, header, payload| {
        if header.kind == Kind::Deletion {
            found.deletions += 1;
        } else if !header.is_filler() {
            let batch = Batch::of_record(header.kind, payload.to_vec(), header.readings);
            appender.write([&batch].into_iter()).map_err(failed)?;
            found.records += 1;
            found.readings += u64::from(header.readings);
        }
        Ok(())
    })?;
    appender.sync().map_err(failed)?;
    Ok(found)
}

/// The suffix of the name of a copy.
const SUFFIX: &str = ".bytes";

/// The position of the first byte of a copy, by its name: `position-length.bytes`.
fn position_of(copy: &Path) -> Option<Position> {
    let name = copy.file_name()?.to_str()?.strip_suffix(SUFFIX)?;
    let position = Position(name.split_once('-')?.0.parse().ok()?);
    position.is_possible().then_some(position)
}

pub(super) fn repair_checkpoint_in(folder: &dyn Folder, aside: &dyn Folder) -> Result<Option<PathBuf>, LogError> {
    let path = folder.path_of(Checkpoint::NAME);
    let file = folder.open(Checkpoint::NAME, OpenMode::Read).map_err(LogError::io("open", &path))?;
    let bytes = file.len().map_err(LogError::io("read", &path))?;
    let copy = copy_aside((&*file, &path), 0..bytes, Checkpoint::NAME, aside)?;
    slots::repair::<Checkpoint>(folder)?;
    if let Err(LogError::BadCheckpoint { .. }) = recovery::inspect_folder(folder) {
        slots::remove::<Checkpoint>(folder)?;
    }
    Ok(copy)
}

pub(super) fn set_aside_in(
    folder: &dyn Folder,
    damage: &Damage,
    aside: &dyn Folder,
) -> Result<Option<PathBuf>, LogError> {
    let file =
        folder.open(&segment::name(damage.base), OpenMode::Create).map_err(LogError::io("open", &damage.path))?;
    let len = file.len().map_err(LogError::io("read", &damage.path))?;
    let end = (damage.offset + damage.bytes).min(len);
    let name = format!("{:020}", damage.base.0 + damage.offset);
    let copy = copy_aside((&*file, &damage.path), damage.offset..end, &name, aside)?;
    if damage.overlaps_next {
        file.set_len(damage.offset).map_err(LogError::io("truncate", &damage.path))?;
    } else {
        fill(&*file, damage)?;
    }
    file.sync().map_err(LogError::io("sync", &damage.path))?;
    folder.sync().map_err(LogError::io("sync", folder.path()))?;
    Ok(copy)
}

/// Writes a header in place of a damaged one, and filler in place of damaged records.
fn fill(file: &dyn OpenFile, damage: &Damage) -> Result<(), LogError> {
    let end = damage.offset + damage.bytes;
    if file.len().map_err(LogError::io("read", &damage.path))? < end {
        file.set_len(end).map_err(LogError::io("extend", &damage.path))?;
    }
    let mut start = damage.offset;
    if start < Header::BYTES as u64 {
        file.write_all_at(&Header::encode(damage.base, 0), 0).map_err(LogError::io("write", &damage.path))?;
        start = Header::BYTES as u64;
    }
    while let Some(payload) = filler_payload(end.saturating_sub(start)) {
        let mut filler = Vec::new();
        record::encode(&mut filler, Position(damage.base.0 + start), Position(0), Kind::Readings, 0, &vec![0; payload]);
        file.write_all_at(&filler, start).map_err(LogError::io("write", &damage.path))?;
        start += filler.len() as u64;
    }
    Ok(())
}

/// The payload length of the next filler record when `bytes` remain; `None` when no record fits.
fn filler_payload(bytes: u64) -> Option<usize> {
    const MAX_RECORD_BYTES: u64 = 8 << 20; // a record is built in memory; a missing segment is much larger
    let record = if bytes < 2 * MAX_RECORD_BYTES { bytes } else { MAX_RECORD_BYTES };
    (record as usize).checked_sub(record::Header::BYTES)
}

/// Copies bytes to a new file, whose name begins with `name`.
///
/// When this returns, the new file survives a crash. Returns its path; `None` if `bytes` is empty.
fn copy_aside(from: Named<'_>, bytes: Range<u64>, name: &str, aside: &dyn Folder) -> Result<Option<PathBuf>, LogError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    aside.make().map_err(LogError::io("create", aside.path()))?;
    let name = format!("{name}-{}{SUFFIX}", bytes.end - bytes.start);
    let path = aside.path_of(&name);
    let file = aside.open(&name, OpenMode::Truncate).map_err(LogError::io("create", &path))?;
    copy(from, bytes, (&*file, &path), 0)?;
    file.sync().and_then(|()| aside.sync()).map_err(LogError::io("sync", &path))?;
    Ok(Some(path))
}
