//! The way out of damage: what is damaged is set aside, and what stands behind it is read again.
//!
//! The damaged bytes are copied to a file and replaced with filler of the same size, so that positions stay
//! as they are; bytes that overlap with the next segment are cut off. What was in them is lost, by decision
//! of a person.

use std::path::{Path, PathBuf};

use super::recovery::Damage;
use super::segment::{self, Header};
use super::{LogError, Position, checkpoint, record};
use crate::disk::{Folder, OpenFile, OpenMode, OsFolder};

/// Copies the damaged bytes of `damage` to `aside` and puts filler in their place, so that the log opens
/// again without them. Returns the file with the copy, if there was anything to copy.
///
/// # Errors
/// When a file cannot be read or written. Nothing is replaced before the copy is durable.
pub fn set_aside(damage: &Damage, aside: &Path) -> Result<Option<PathBuf>, LogError> {
    let folder = OsFolder::new(damage.path.parent().unwrap_or(Path::new("")));
    set_aside_in(&folder, damage, &OsFolder::new(aside))
}

/// Copies a checkpoint that cannot be read to `aside` and repairs it: a slot that can be read is kept; if
/// there is none, the file is removed, and the whole log is read again. Returns the file with the copy, if
/// there was anything to copy.
///
/// # Errors
/// When a file cannot be read or written.
pub fn mend_checkpoint(log: &Path, aside: &Path) -> Result<Option<PathBuf>, LogError> {
    mend_checkpoint_in(&OsFolder::new(log), &OsFolder::new(aside))
}

pub(super) fn mend_checkpoint_in(folder: &dyn Folder, aside: &dyn Folder) -> Result<Option<PathBuf>, LogError> {
    let copy = copy_aside(&checkpoint::bytes(folder)?, "checkpoint", aside)?;
    checkpoint::mend(folder)?;
    Ok(copy)
}

pub(super) fn set_aside_in(
    folder: &dyn Folder,
    damage: &Damage,
    aside: &dyn Folder,
) -> Result<Option<PathBuf>, LogError> {
    let file =
        folder.open(&segment::name(damage.base), OpenMode::Create).map_err(LogError::io("open", &damage.path))?;
    let mut bytes = Vec::new();
    file.read_from(damage.offset, &mut bytes).map_err(LogError::io("read", &damage.path))?;
    bytes.truncate(damage.bytes as usize);
    let copy = copy_aside(&bytes, &format!("{:020}", damage.base.0 + damage.offset), aside)?;
    if damage.overhangs {
        file.set_len(damage.offset).map_err(LogError::io("truncate", &damage.path))?;
    } else {
        fill(&*file, damage)?;
    }
    file.sync().map_err(LogError::io("sync", &damage.path))?;
    folder.sync().map_err(LogError::io("sync", folder.path()))?;
    Ok(copy)
}

/// Puts a header where one is damaged, and filler in the place of records.
fn fill(file: &dyn OpenFile, damage: &Damage) -> Result<(), LogError> {
    let end = damage.offset + damage.bytes;
    if file.len().map_err(LogError::io("read", &damage.path))? < end {
        file.set_len(end).map_err(LogError::io("extend", &damage.path))?;
    }
    let mut start = damage.offset;
    if start < Header::BYTES as u64 {
        file.write_all_at(&Header::encode(damage.base), 0).map_err(LogError::io("write", &damage.path))?;
        start = Header::BYTES as u64;
    }
    while let Some(payload) = filler_payload(end.saturating_sub(start)) {
        let mut filler = Vec::new();
        record::encode(&mut filler, Position(damage.base.0 + start), Position(0), 0, &vec![0; payload]);
        file.write_all_at(&filler, start).map_err(LogError::io("write", &damage.path))?;
        start += filler.len() as u64;
    }
    Ok(())
}

/// How long the payload of the next filler record is, when so many bytes are to be filled. None when a record
/// does not fit.
fn filler_payload(bytes: u64) -> Option<usize> {
    const MAX_RECORD_BYTES: u64 = 8 << 20; // in memory; a missing segment is much larger
    let record = if bytes < 2 * MAX_RECORD_BYTES { bytes } else { MAX_RECORD_BYTES };
    (record as usize).checked_sub(record::Header::BYTES)
}

fn copy_aside(bytes: &[u8], from: &str, aside: &dyn Folder) -> Result<Option<PathBuf>, LogError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    aside.make().map_err(LogError::io("create", aside.path()))?;
    let name = format!("{from}-{}.bytes", bytes.len());
    let copy = aside.path_of(&name);
    aside.create(&name, bytes).map_err(LogError::io("create", &copy))?;
    Ok(Some(copy))
}
