//! Durable changes to files: the one seam between this program and the file system.
//!
//! Code that changes files names them within one `Folder`. `OsFolder` is a folder of the operating system.
//! Tests use `faulty::Disk`, a disk in memory that loses unsynced changes and fails on demand.

use std::fmt::Debug;
use std::fs::{DirBuilder, File};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use nix::errno::Errno;

#[cfg(any(test, fuzzing))]
#[cfg_attr(not(test), expect(dead_code, reason = "fuzzing needs a disk in memory, not its faults"))]
pub(crate) mod faulty;

/// A folder, and the files in it.
///
/// What is done to names (making, renaming, removing files) survives a crash only when [`Self::sync`] came
/// after it; until then any part of it may be undone, in any order.
pub(crate) trait Folder: Debug + Send + Sync {
    /// Where it is, for messages.
    fn path(&self) -> &Path;

    /// Makes the folder where it is missing. When this returns, it survives a crash.
    fn make(&self) -> Result<()>;

    /// The names of the files in it, in no order.
    fn names(&self) -> Result<Vec<String>>;

    /// Opens a file.
    fn open(&self, name: &str, how: How) -> Result<Box<dyn OpenFile>>;

    /// Renames a file, in the place of another if need be: whoever looks sees the one or the other.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> Result<()>;

    /// Makes what was done to names survive a crash.
    fn sync(&self) -> Result<()>;

    /// The space of its file system.
    fn space(&self) -> Result<Space>;

    /// Where a file of this name is, for messages.
    fn path_of(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
}

/// The space of a file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// What unprivileged processes may still write.
    pub free: u64,
    /// The size of the file system.
    pub total: u64,
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// To read it. It must be there.
    Read,
    /// To read and write it. It must be there.
    Write,
    /// To write it, as it is or made empty when it is not there.
    Mend,
    /// To write it from the beginning: whatever is there is gone.
    Replace,
}

/// An open file.
///
/// What is done to it survives a crash only when [`Self::sync`] came after it; until then any part of it may
/// be undone, in any order.
pub(crate) trait OpenFile: Debug + Send + Sync {
    /// Reads some bytes; none only at the end of the file.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize>;

    /// Writes some bytes, at least one or it is an error.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize>;

    /// Its length in bytes.
    fn len(&self) -> Result<u64>;

    /// Cuts it off.
    fn set_len(&self, len: u64) -> Result<()>;

    /// Makes its bytes and its length survive a crash. After an error it is not known what does.
    fn sync(&self) -> Result<()>;
}

impl dyn OpenFile + '_ {
    /// Writes all the bytes, or fails having written some of them.
    pub(crate) fn write_all_at(&self, mut bytes: &[u8], mut offset: u64) -> Result<()> {
        while !bytes.is_empty() {
            match self.write_at(bytes, offset) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = &bytes[written..];
                    offset += written as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Fills `bytes` from `offset` on, as far as the file goes, and says how far that was.
    pub(crate) fn fill(&self, bytes: &mut [u8], offset: u64) -> Result<usize> {
        let mut have = 0;
        while have < bytes.len() {
            match self.read_at(&mut bytes[have..], offset + have as u64) {
                Ok(0) => break,
                Ok(count) => have += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(have)
    }

    /// Puts all that stands from `offset` on into `bytes`.
    pub(crate) fn read_from(&self, offset: u64, bytes: &mut Vec<u8>) -> Result<()> {
        let wanted = self.len()?.saturating_sub(offset);
        bytes.resize(usize::try_from(wanted).map_err(|_| Error::from(ErrorKind::FileTooLarge))?, 0);
        let have = self.fill(bytes, offset)?;
        bytes.truncate(have);
        Ok(())
    }
}

impl dyn Folder + '_ {
    /// Creates or replaces a file. When this returns, the new contents survive a crash; before, the old
    /// contents do.
    pub(crate) fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let new = format!("{name}.new");
        let file = self.open(&new, How::Replace)?;
        file.write_all_at(bytes, 0)?;
        file.sync()?;
        self.rename(&new, name)?;
        self.sync()
    }
}

/// A folder of the operating system.
///
/// Once it is in use, it can be synced, and one file in it be opened, while the process has no file
/// descriptors left.
#[derive(Debug)]
pub(crate) struct OsFolder {
    path: PathBuf,
    /// The folder itself, open since the first sync.
    handle: OnceLock<File>,
    /// Held open so that it can be closed when the process has no file descriptors left.
    spare: Mutex<Option<File>>,
}

impl OsFolder {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), handle: OnceLock::new(), spare: Mutex::default() }
    }

    /// The folder of the file at `path`, and the file's name in it.
    pub(crate) fn of_file(path: &Path) -> Result<(Self, &str)> {
        let name = path.file_name().and_then(|name| name.to_str()).ok_or(ErrorKind::InvalidFilename)?;
        Ok((Self::new(path.parent().unwrap_or(Path::new(""))), name))
    }
}

impl Folder for OsFolder {
    fn path(&self) -> &Path {
        &self.path
    }

    fn make(&self) -> Result<()> {
        make_folder(&self.path)
    }

    fn names(&self) -> Result<Vec<String>> {
        let names = std::fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        names.filter_map(Result::transpose).collect()
    }

    fn open(&self, name: &str, how: How) -> Result<Box<dyn OpenFile>> {
        let mut options = File::options();
        options.read(true);
        match how {
            How::Read => &mut options,
            How::Write => options.write(true),
            How::Mend => options.write(true).create(true),
            How::Replace => options.write(true).create(true).truncate(true),
        };
        let path = self.path_of(name);
        let opened = match options.open(&path) {
            Err(error) if is_out_of_files(&error) => {
                drop(self.spare.lock().unwrap_or_else(PoisonError::into_inner).take());
                options.open(&path)
            }
            opened => opened,
        };
        Ok(Box::new(opened?))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        std::fs::rename(self.path_of(from), self.path_of(to))
    }

    fn remove(&self, name: &str) -> Result<()> {
        std::fs::remove_file(self.path_of(name))
    }

    fn sync(&self) -> Result<()> {
        if let Some(handle) = self.handle.get() {
            return handle.sync_all();
        }
        let handle = open_folder(&self.path)?;
        handle.sync_all()?;
        let _ = self.handle.set(handle); // unless another thread was faster
        Ok(())
    }

    fn space(&self) -> Result<Space> {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.is_none() {
            *spare = File::open("/dev/null").ok(); // if this fails, the next call tries again
        }
        space(&self.path)
    }
}

impl OpenFile for File {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize> {
        FileExt::read_at(self, bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        FileExt::write_at(self, bytes, offset)
    }

    fn len(&self) -> Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        Self::set_len(self, len)
    }

    fn sync(&self) -> Result<()> {
        self.sync_data()
    }
}

/// Makes a folder and those above it, where they are missing, for nobody else to look into. When this
/// returns, they survive a crash.
///
/// # Errors
/// When the operating system refuses it.
pub fn make_folder(path: &Path) -> Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    let above = path.parent().unwrap_or(Path::new(""));
    make_folder(above)?;
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists || !path.is_dir() => Err(error),
        _ => sync_folder(above),
    }
}

fn sync_folder(path: &Path) -> Result<()> {
    open_folder(path)?.sync_all()
}

fn open_folder(path: &Path) -> Result<File> {
    File::open(or_current(path))
}

/// The space of the file system that holds `path`.
///
/// # Errors
/// When there is nothing at `path`, or the operating system does not say.
pub fn space(path: &Path) -> Result<Space> {
    let found = nix::sys::statvfs::statvfs(or_current(path))?;
    #[expect(clippy::useless_conversion, reason = "these types are smaller on 32-bit systems")]
    let [block, free, total] =
        [u64::from(found.fragment_size()), u64::from(found.blocks_available()), u64::from(found.blocks())];
    Ok(Space { free: free.saturating_mul(block), total: total.saturating_mul(block) })
}

/// Whether the process, or the whole system, has no file descriptors left.
pub(crate) fn is_out_of_files(error: &Error) -> bool {
    error.raw_os_error().is_some_and(|code| matches!(Errno::from_raw(code), Errno::EMFILE | Errno::ENFILE))
}

/// An empty path names the current folder.
fn or_current(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_folder_of_the_system_does_what_the_log_asks_of_it() {
        let place = tempfile::tempdir().unwrap();
        let folder = OsFolder::new(&place.path().join("a/b"));
        folder.make().unwrap();
        folder.make().unwrap();
        let mode = std::fs::metadata(place.path().join("a")).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "nobody else looks into it");
        assert_eq!(folder.open("x", How::Read).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(folder.open("x", How::Write).unwrap_err().kind(), ErrorKind::NotFound);
        let file = folder.open("x", How::Mend).unwrap();
        file.write_all_at(b"hello", 2).unwrap();
        file.set_len(6).unwrap();
        file.sync().unwrap();
        let mut bytes = Vec::new();
        folder.open("x", How::Mend).unwrap().read_from(1, &mut bytes).unwrap();
        assert_eq!(bytes, b"\0hell");
        assert_eq!(folder.open("x", How::Replace).unwrap().len().unwrap(), 0);
        folder.rename("x", "y").unwrap();
        folder.sync().unwrap();
        assert_eq!(folder.names().unwrap(), ["y"]);
        folder.remove("y").unwrap();
        assert!(folder.names().unwrap().is_empty());
    }

    #[test]
    fn the_space_of_a_file_system_is_what_it_says() {
        let Space { free, total } = OsFolder::new(Path::new("")).space().unwrap();
        assert!(free > 0 && free <= total, "{free} of {total}");
        space(Path::new("/not/there")).unwrap_err();
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        make_folder(file.path()).unwrap_err();
        make_folder(&file.path().join("below")).unwrap_err();
    }
}
