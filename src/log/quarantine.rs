//! The way out of damage: what is damaged is set aside, and what stands behind it is read again.
//!
//! The damaged bytes are copied to a file and replaced with filler of the same size, so that positions stay as they are.
//! What was in them is lost, by decision of a person.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::recovery::Damage;
use super::segment::{self, Header};
use super::{LogError, Position, record};

/// Copies the damaged bytes of `damage` to `aside` and puts filler in their place, so that the log opens again without
/// them. Returns the file with the copy, if there was anything to copy.
///
/// # Errors
/// When a file cannot be read or written. Nothing is replaced before the copy is durable.
pub fn set_aside(damage: &Damage, aside: &Path) -> Result<Option<PathBuf>, LogError> {
    let copy = copy_aside(damage, aside)?;
    let file = File::options().write(true).create(true).truncate(false).open(&damage.path);
    let file = file.map_err(LogError::io("open", &damage.path))?;
    let mut start = damage.offset;
    if start < Header::BYTES as u64 {
        file.write_all_at(&Header::encode(damage.base), 0).map_err(LogError::io("write", &damage.path))?;
        start = Header::BYTES as u64;
    }
    let len = (damage.offset + damage.bytes - start) as usize;
    if let Some(payload) = len.checked_sub(record::Header::BYTES) {
        let mut filler = Vec::with_capacity(len);
        record::encode(&mut filler, Position(damage.base.0 + start), Position(0), 0, &vec![0; payload]);
        file.write_all_at(&filler, start).map_err(LogError::io("write", &damage.path))?;
    }
    file.sync_all().map_err(LogError::io("sync", &damage.path))?;
    segment::sync_dir(damage.path.parent().unwrap_or(Path::new(".")))?;
    Ok(copy)
}

fn copy_aside(damage: &Damage, aside: &Path) -> Result<Option<PathBuf>, LogError> {
    let Ok(bytes) = std::fs::read(&damage.path) else { return Ok(None) };
    let from = (damage.offset as usize).min(bytes.len());
    let to = ((damage.offset + damage.bytes) as usize).min(bytes.len());
    if from == to {
        return Ok(None);
    }
    std::fs::create_dir_all(aside).map_err(LogError::io("create", aside))?;
    let copy = aside.join(format!("{:020}-{}.bytes", damage.base.0 + damage.offset, to - from));
    std::fs::write(&copy, &bytes[from..to]).map_err(LogError::io("write", &copy))?;
    File::open(&copy).and_then(|file| file.sync_all()).map_err(LogError::io("sync", &copy))?;
    segment::sync_dir(aside)?;
    Ok(Some(copy))
}
