//! Changes to files that survive a crash.
//!
//! Code that changes files addresses them by their names in a `Folder`. `OsFolder` is a folder of the
//! operating system. Tests use `faulty::Disk` in its place: a disk in memory that loses unsynced changes at a
//! power cut, and fails on demand.

use std::fmt::Debug;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

use crate::common::regular_file::open_regular_with;

#[cfg(any(test, fuzzing))]
#[cfg_attr(not(test), expect(dead_code, reason = "fuzzing needs a disk in memory, not its faults"))]
pub(crate) mod faulty;

/// A folder, and the files in it.
///
/// Changes to names (creating, renaming and removing files) survive a crash only after [`Self::sync`]. Until
/// then a crash may undo any of them, in any order.
pub(crate) trait Folder: Debug + Send + Sync {
    /// The path of the folder, for messages.
    fn path(&self) -> &Path;

    /// Creates the folder if it is missing, so that it survives a crash.
    fn make(&self) -> Result<()>;

    /// The names in the folder, in any order. Names that are not UTF-8 are left out.
    fn names(&self) -> Result<Vec<String>>;

    /// Opens a regular file. A folder, FIFO or device is an error.
    fn open(&self, name: &str, mode: OpenMode) -> Result<Box<dyn OpenFile>>;

    /// Renames a file, and replaces a file named `to`.
    ///
    /// At any time, other processes find either the old or the new file under the name `to`.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> Result<()>;

    /// Makes the changes to names so far survive a crash.
    fn sync(&self) -> Result<()>;

    /// The space of the folder's file system.
    fn space(&self) -> Result<Space>;

    /// Reserves a file descriptor, unless one is reserved already.
    ///
    /// If the process has no file descriptors left, the next [`Self::open`] uses the reserved one.
    fn reserve_descriptor(&self) {}

    /// The path of a file in the folder, for messages.
    fn path_of(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
}

/// The space of a file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// The bytes that unprivileged processes may still write.
    pub free: u64,
    /// The size of the file system.
    pub total: u64,
}

/// How [`Folder::open`] opens a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenMode {
    /// Opens an existing file for reading.
    Read,
    /// Opens an existing file for reading, and holds it until it is closed.
    ///
    /// While a file is held, [`OpenFile::is_held`] is true, also in other processes, and the file is not
    /// recycled. If the file loses its name before it is held, it counts as missing.
    Hold,
    /// Opens an existing file for reading and writing.
    Write,
    /// Opens a file for reading and writing, and creates it if it does not exist.
    Create,
    /// Opens a file for reading and writing, creates it if needed, and empties it.
    Truncate,
}

/// An open file.
///
/// Changes to its bytes and length survive a crash only after [`Self::sync`]. Until then a crash may undo any
/// of them, in any order, wholly or in part.
pub(crate) trait OpenFile: Debug + Send + Sync {
    /// Reads one byte or more, and returns how many. 0 means the end of the file.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize>;

    /// Writes at least one byte, and returns how many.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize>;

    /// The length of the file in bytes.
    fn len(&self) -> Result<u64>;

    /// Truncates the file to `len` bytes, or extends it with zeros.
    fn set_len(&self, len: u64) -> Result<()>;

    /// Makes the file's bytes and length survive a crash.
    ///
    /// After an error, it is unknown which changes survive.
    fn sync(&self) -> Result<()>;

    /// Whether the file is open with [`OpenMode::Hold`], in any process.
    ///
    /// Also true on a file system without locks, where the answer is unknown.
    fn is_held(&self) -> bool;

    /// Whether the file has lost its last name: its bytes are lost when it is closed.
    fn is_removed(&self) -> bool;
}

impl dyn OpenFile + '_ {
    /// Writes all bytes. After an error, some of them may be written.
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

    /// Reads from `offset` until `bytes` is full or the file ends.
    ///
    /// Returns the number of bytes read.
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
}

impl dyn Folder + '_ {
    /// Creates or replaces a file, as [`replace_file`] does.
    pub(crate) fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let new = format!("{name}.new");
        self.write(&new, bytes)?;
        self.rename(&new, name)?;
        self.sync()
    }

    /// Creates or overwrites a file and syncs its contents. Does not sync its name.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<Box<dyn OpenFile>> {
        let file = self.open(name, OpenMode::Truncate)?;
        file.write_all_at(bytes, 0)?;
        file.sync()?;
        Ok(file)
    }
}

/// A folder of the operating system.
///
/// Two things are possible even if the process has no file descriptors left: to sync a folder that was synced
/// before, and to open one file after [`Folder::reserve_descriptor`].
#[derive(Debug)]
pub(crate) struct OsFolder {
    path: PathBuf,
    /// The open folder, kept from its first sync on.
    handle: OnceLock<File>,
    /// An open file that only reserves its descriptor for [`Folder::open`].
    reserved: Mutex<Option<File>>,
}

impl OsFolder {
    /// The folder at `path`, which need not exist yet.
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), handle: OnceLock::new(), reserved: Mutex::default() }
    }

    /// The folder that contains the file at `path`, and the name of the file.
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

    fn open(&self, name: &str, mode: OpenMode) -> Result<Box<dyn OpenFile>> {
        let mut options = File::options();
        options.read(true);
        match mode {
            OpenMode::Read | OpenMode::Hold => &mut options,
            OpenMode::Write => options.write(true),
            OpenMode::Create => options.write(true).create(true),
            OpenMode::Truncate => options.write(true).create(true).truncate(true),
        };
        let path = self.path_of(name);
        let open = if mode == OpenMode::Hold { open_and_hold } else { open_regular_with };
        let opened = match open(&path, &mut options) {
            Err(error) if is_out_of_files(&error) => {
                drop(self.reserved.lock().unwrap_or_else(PoisonError::into_inner).take());
                open(&path, &mut options)
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
        let _ = self.handle.set(handle); // fails if another thread has set it
        Ok(())
    }

    fn space(&self) -> Result<Space> {
        space(&self.path)
    }

    fn reserve_descriptor(&self) {
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        if reserved.is_none() {
            *reserved = File::open("/dev/null").ok(); // if this fails, the next call tries again
        }
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

    fn is_held(&self) -> bool {
        let is_free = self.try_lock().is_ok() && self.unlock().is_ok();
        !is_free
    }

    fn is_removed(&self) -> bool {
        self.metadata().is_ok_and(|found| found.nlink() == 0)
    }
}

/// Opens a file as [`OpenMode::Hold`] does: with a shared lock.
fn open_and_hold(path: &Path, options: &mut OpenOptions) -> Result<File> {
    loop {
        let file = open_regular_with(path, options)?;
        // The lock fails if another process recycles the file: then the file has lost its name, which the
        // comparison below notices. It also fails if the file system has no locks: then no file is recycled.
        let _ = file.try_lock_shared();
        let (held, named) = (file.metadata()?, path.metadata()?);
        if (held.dev(), held.ino()) == (named.dev(), named.ino()) {
            return Ok(file);
        }
    }
}

/// Creates or replaces the file at `path`.
///
/// When this returns, the new contents survive a crash. After a crash before that, the file has the old or
/// the new contents, never a mixture.
///
/// # Errors
/// When the file cannot be written, or its folder cannot be synced.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let (folder, name) = OsFolder::of_file(path)?;
    (&folder as &dyn Folder).replace(name, bytes)
}

/// Creates a folder and its parents if they are missing.
///
/// Other users cannot read a created folder. When this returns, the folders survive a crash.
///
/// # Errors
/// When the operating system fails to create or sync a folder.
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

/// Checks that this process may write the file at `path`, or the files of the folder there. Changes nothing.
///
/// # Errors
/// When it may not, the disk is read-only, or nothing is there. The error names the path.
pub fn expect_writable(path: &Path) -> Result<()> {
    let path = or_current(path);
    let rights = if path.is_dir() { AccessFlags::W_OK | AccessFlags::X_OK } else { AccessFlags::W_OK };
    access(path, rights).map_err(Error::from).map_err(named(path))
}

/// Checks that this process may write files in the folder at `path`, which [`make_folder`] may create before.
/// Changes nothing.
///
/// # Errors
/// When it may not, as [`expect_writable`], or there is a file in the place of a folder.
pub fn expect_writable_folder(path: &Path) -> Result<()> {
    let mut above = path.ancestors().map(or_current);
    let there = above.find(|folder| !matches!(folder.try_exists(), Ok(false))).unwrap_or(path);
    expect_writable(there)?;
    if there.is_dir() { Ok(()) } else { Err(named(there)(ErrorKind::NotADirectory.into())) }
}

/// Adds a path to an error.
pub(crate) fn named(path: &Path) -> impl FnOnce(Error) -> Error {
    move |error| Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Makes the names of the files in the folder at `path` survive a crash.
///
/// # Errors
/// When the operating system fails to open or sync the folder.
pub fn sync_folder(path: &Path) -> Result<()> {
    open_folder(path)?.sync_all()
}

fn open_folder(path: &Path) -> Result<File> {
    File::open(or_current(path))
}

/// The space of the file system that holds `path`.
///
/// # Errors
/// When nothing exists at `path`, or the operating system does not report its space.
pub fn space(path: &Path) -> Result<Space> {
    Ok(space_and_block(path)?.0)
}

/// The space of the file system that holds `path`, and the size of its blocks in bytes.
pub(crate) fn space_and_block(path: &Path) -> Result<(Space, u64)> {
    let found = nix::sys::statvfs::statvfs(or_current(path))?;
    #[expect(clippy::useless_conversion, reason = "these types are smaller on 32-bit systems")]
    let [block, free, total] =
        [u64::from(found.fragment_size()), u64::from(found.blocks_available()), u64::from(found.blocks())];
    Ok((Space { free: free.saturating_mul(block), total: total.saturating_mul(block) }, block))
}

/// Whether an error says that a file cannot grow: the disk is full, or a quota or another limit is reached.
pub(crate) fn is_disk_full(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

/// Whether an error says that no file descriptor is left.
///
/// The limit may be that of the process, or that of the whole system.
pub(crate) fn is_out_of_files(error: &Error) -> bool {
    error.raw_os_error().is_some_and(|code| matches!(Errno::from_raw(code), Errno::EMFILE | Errno::ENFILE))
}

/// The path itself, or `.` if it is empty.
fn or_current(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_folder_of_the_system_creates_renames_and_removes_files() {
        let place = tempfile::tempdir().unwrap();
        let folder = OsFolder::new(&place.path().join("a/b"));
        folder.make().unwrap();
        folder.make().unwrap();
        let mode = std::fs::metadata(place.path().join("a")).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "other users cannot read it");
        assert_eq!(folder.open("x", OpenMode::Read).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(folder.open("x", OpenMode::Write).unwrap_err().kind(), ErrorKind::NotFound);
        let file = folder.open("x", OpenMode::Create).unwrap();
        file.write_all_at(b"hello", 2).unwrap();
        file.set_len(6).unwrap();
        file.sync().unwrap();
        let mut bytes = [0; 9];
        assert_eq!(folder.open("x", OpenMode::Create).unwrap().fill(&mut bytes, 1).unwrap(), 5);
        assert_eq!(bytes[..5], *b"\0hell");
        assert_eq!(folder.open("x", OpenMode::Truncate).unwrap().len().unwrap(), 0);
        folder.rename("x", "y").unwrap();
        folder.sync().unwrap();
        assert_eq!(folder.names().unwrap(), ["y"]);
        (&folder as &dyn Folder).write("y", b"new").unwrap();
        replace_file(&folder.path_of("y"), b"newer").unwrap();
        assert_eq!(
            (std::fs::read(folder.path_of("y")).unwrap(), folder.names().unwrap().len()),
            (b"newer".to_vec(), 1)
        );
        folder.remove("y").unwrap();
        assert!(folder.names().unwrap().is_empty());
    }

    #[test]
    fn a_file_that_a_reader_holds_is_known_to_be_and_one_without_a_name_is_not_there() {
        let place = tempfile::tempdir().unwrap();
        let (folder, other) = (OsFolder::new(place.path()), OsFolder::new(place.path()));
        folder.open("x", OpenMode::Create).unwrap();
        let writer = folder.open("x", OpenMode::Write).unwrap();
        assert!(!writer.is_held());
        let readers = [OpenMode::Read, OpenMode::Hold, OpenMode::Hold].map(|mode| other.open("x", mode).unwrap());
        folder.rename("x", "y").unwrap();
        let [_read, first, second] = readers;
        for reader in [first, second] {
            assert!(writer.is_held());
            drop(reader);
        }
        assert!(!writer.is_held());
        assert_eq!(other.open("x", OpenMode::Hold).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn the_space_of_a_file_system_is_reported() {
        assert!(space_and_block(Path::new("")).unwrap().1 > 0);
        let Space { free, total } = OsFolder::new(Path::new("")).space().unwrap();
        assert!(free > 0 && free <= total, "{free} of {total}");
        space(Path::new("/not/there")).unwrap_err();
    }

    #[test]
    fn a_folder_that_is_there_or_can_be_created_is_writable() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        std::fs::write(at("file"), "").unwrap();
        expect_writable(&at("file")).unwrap();
        assert_eq!(expect_writable(&at("none")).unwrap_err().kind(), ErrorKind::NotFound);
        for folder in [at(""), at("none/below"), PathBuf::new()] {
            expect_writable_folder(&folder).unwrap();
        }
        assert!(!at("none").exists());
        for folder in [at("file"), at("file/below")] {
            assert_eq!(expect_writable_folder(&folder).unwrap_err().kind(), ErrorKind::NotADirectory);
        }
    }

    #[test]
    fn a_folder_that_cannot_be_created_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        make_folder(file.path()).unwrap_err();
        make_folder(&file.path().join("below")).unwrap_err();
    }
}
