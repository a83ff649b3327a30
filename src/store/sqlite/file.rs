//! The identity of the database file: checks that the open file is still at its path.
//!
//! A process with an open file keeps reading and writing it after the file was removed or replaced. When the
//! process ends, its writes are lost. So a commit counts only if the file is still at its path afterwards.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::error::SqliteError;
use crate::common::regular_file;
use crate::disk;

/// The space that the index of the write-ahead file needs: for a file of 128 MiB.
pub(super) const INDEX_BYTES: u64 = 256 << 10;

/// SQLite reserves the space of that index by writing one byte into each part of this size.
const INDEX_STEP_BYTES: u64 = 4096;

/// The most symbolic links that lead to a file one after another, as in Linux.
const MAX_LINKS: usize = 40;

/// The file to which the symbolic link at `path` leads, or `path` if there is none.
///
/// The file need not exist yet. SQLite keeps its other files beside this one, and not beside the link.
pub(super) fn target_of(path: &Path) -> PathBuf {
    let mut file = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(target) = std::fs::read_link(&file) else { break };
        file.pop();
        file.push(target);
    }
    file
}

/// The files of the database at `path`, or of that to which a link there leads.
///
/// They are the database itself, and the files that SQLite keeps beside it.
pub fn files_of(path: &Path) -> [PathBuf; 4] {
    let file = target_of(path);
    ["", "-wal", "-shm", "-journal"].map(|ending| with_ending(&file, ending))
}

/// The file beside the database at `path` that a service locks. A link leads to the same file.
pub fn lock_of(path: &Path) -> PathBuf {
    with_ending(&target_of(path), "-lock")
}

/// The path of a file beside the database at `path`, which is no link.
pub(super) fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(ending);
    path.into()
}

/// Refuses a database if one of its files is not a regular file. SQLite would open the file, and wait forever
/// if it is a FIFO.
pub(super) fn expect_regular(path: &Path) -> Result<(), SqliteError> {
    files_of(path)
        .into_iter()
        .try_for_each(|file| regular_file::expect_regular(&file).map_err(|error| SqliteError::NotRegular(file, error)))
}

/// Refuses to write to a database if its disk may have no space for the index of its write-ahead file.
///
/// SQLite maps the index into memory. If the blocks of the disk are smaller than the parts that SQLite
/// reserves, the index has holes, and the system kills a process that writes into one on a full disk.
pub(super) fn expect_index_space(path: &Path) -> Result<(), SqliteError> {
    let folder = path.parent().unwrap_or(Path::new(""));
    match disk::space_and_block(folder) {
        Ok((space, block)) if lacks_index_space(block, space.free) => {
            Err(SqliteError::NoIndexSpace { free: space.free, needed: INDEX_BYTES, block })
        }
        _ => Ok(()),
    }
}

/// The free space of the disk of the database at `path`, in bytes; `None` if it is not known.
pub(super) fn free_bytes(path: &Path) -> Option<u64> {
    disk::space(target_of(path).parent().unwrap_or(Path::new(""))).ok().map(|space| space.free)
}

const fn lacks_index_space(block_bytes: u64, free_bytes: u64) -> bool {
    block_bytes < INDEX_STEP_BYTES && free_bytes < INDEX_BYTES
}

/// A file of the database, with its device and inode.
#[derive(Debug)]
struct Opened {
    path: PathBuf,
    identity: (u64, u64),
}

/// The database file and its write-ahead file.
#[derive(Debug)]
pub(super) struct DatabaseFile(Vec<Opened>);

impl DatabaseFile {
    /// Notes the identity of a database that was just opened for writing. Both files exist while it is open.
    ///
    /// If `path` is a link, it has to lead to the same file later.
    pub(super) fn of(path: &Path) -> Result<Self, SqliteError> {
        let [_, wal, ..] = files_of(path);
        let opened = [path.to_owned(), wal].into_iter().map(|path| {
            let identity = identity_of(&path)?.ok_or_else(|| SqliteError::FileGone(path.clone()))?;
            Ok(Opened { path, identity })
        });
        opened.collect::<Result<_, SqliteError>>().map(Self)
    }

    /// Checks that both files are still at their paths.
    ///
    /// # Errors
    /// When one of the files is missing, or another file is at its path.
    pub(super) fn check(&self) -> Result<(), SqliteError> {
        self.0.iter().try_for_each(|Opened { path, identity }| match identity_of(path)? {
            Some(found) if found == *identity => Ok(()),
            Some(_) => Err(SqliteError::FileReplaced(path.clone())),
            None => Err(SqliteError::FileGone(path.clone())),
        })
    }
}

/// The device and inode of the file at a path; `None` if there is none.
fn identity_of(path: &Path) -> Result<Option<(u64, u64)>, SqliteError> {
    match std::fs::metadata(path) {
        Ok(found) => Ok(Some((found.dev(), found.ino()))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(SqliteError::FileUnknown(path.to_owned(), error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_disk_of_small_blocks_lacks_space_for_the_index_before_it_is_full() {
        let cases = [(1024, INDEX_BYTES - 1, true), (1024, INDEX_BYTES, false), (4096, 0, false), (1 << 16, 0, false)];
        for (block, free, lacks) in cases {
            assert_eq!(lacks_index_space(block, free), lacks, "{free} bytes free in blocks of {block}");
        }
    }
}
