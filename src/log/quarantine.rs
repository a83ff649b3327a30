//! The way out of damage: what is damaged is set aside, and what stands behind it is read again.
//!
//! The damaged bytes are copied to a file and replaced with filler of the same size, so that positions stay as they are;
//! bytes that overlap with the next segment are cut off. What was in them is lost, by decision of a person.

use std::path::{Path, PathBuf};

use super::recovery::Damage;
use super::segment::{self, Header};
use super::{LogError, Position, record};
use crate::disk::{Folder, How, OpenFile, OsFolder};

/// Copies the damaged bytes of `damage` to `aside` and puts filler in their place, so that the log opens again without
/// them. Returns the file with the copy, if there was anything to copy.
///
/// # Errors
/// When a file cannot be read or written. Nothing is replaced before the copy is durable.
pub fn set_aside(damage: &Damage, aside: &Path) -> Result<Option<PathBuf>, LogError> {
    let folder = OsFolder::new(damage.path.parent().unwrap_or(Path::new("")));
    set_aside_in(&folder, damage, &OsFolder::new(aside))
}

pub(super) fn set_aside_in(
    folder: &dyn Folder,
    damage: &Damage,
    aside: &dyn Folder,
) -> Result<Option<PathBuf>, LogError> {
    let file = folder.open(&segment::name(damage.base), How::Mend).map_err(LogError::io("open", &damage.path))?;
    let mut bytes = Vec::new();
    file.read_from(damage.offset, &mut bytes).map_err(LogError::io("read", &damage.path))?;
    bytes.truncate(damage.bytes as usize);
    let copy = copy_aside(&bytes, Position(damage.base.0 + damage.offset), aside)?;
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
    let len = end.saturating_sub(start) as usize;
    if let Some(payload) = len.checked_sub(record::Header::BYTES) {
        let mut filler = Vec::with_capacity(len);
        record::encode(&mut filler, Position(damage.base.0 + start), Position(0), 0, &vec![0; payload]);
        file.write_all_at(&filler, start).map_err(LogError::io("write", &damage.path))?;
    }
    Ok(())
}

fn copy_aside(bytes: &[u8], from: Position, aside: &dyn Folder) -> Result<Option<PathBuf>, LogError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    aside.make().map_err(LogError::io("create", aside.path()))?;
    let name = format!("{:020}-{}.bytes", from.0, bytes.len());
    let copy = aside.path_of(&name);
    let file = aside.open(&name, How::Replace).map_err(LogError::io("create", &copy))?;
    file.write_all_at(bytes, 0).map_err(LogError::io("write", &copy))?;
    file.sync().map_err(LogError::io("sync", &copy))?;
    aside.sync().map_err(LogError::io("sync", aside.path()))?;
    Ok(Some(copy))
}
