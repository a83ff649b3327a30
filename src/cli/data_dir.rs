//! The data folder: its files, and the lock for one process at a time.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use tidegauge::common::regular_file::{open_regular, open_regular_with};
use tidegauge::disk::{self, make_folder, replace_file, sync_folder};
use tidegauge::log::{LogError, recovery};
use tidegauge::store::sqlite;

use super::Usage;

/// The file whose lock says that a process uses the folder.
const LOCK: &str = "lock";

/// The demand on the place of the data folder.
const PLACE: &str = "server.data_dir must be a folder that this user may write";

/// How often a lock is tried, and the wait between attempts.
///
/// [`is_in_use`] holds the lock for some microseconds.
const LOCK_ATTEMPTS: usize = 10;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(20);

/// The file that marks a data folder whose restore has not ended.
const RESTORING: &str = "restoring";

/// The second half of the error about a missing log: what it means, and what to do.
pub(super) const MISSING: &str = "and store.json beside it says that it had some: acknowledged readings that no \
     store has yet are missing. If its volume is not mounted, or the folder was moved, put it back; otherwise \
     `tidegauge check --log --quarantine` begins a new log without these readings";

/// The data folder of `server.data_dir`, locked until this is dropped.
#[derive(Debug)]
pub(super) struct DataDir {
    path: PathBuf,
    /// The open file holds the lock, so the lock ends with the process in every case.
    ///
    /// `None`: the disk is read-only, and the folder has no such file.
    _lock: Option<File>,
}

impl DataDir {
    /// Locks the folder, and creates it if necessary.
    ///
    /// Fails while another process has locked it, and if a restore into it was interrupted.
    pub(super) fn lock(path: &Path) -> anyhow::Result<Self> {
        make_folder(path).with_context(|| format!("create the data folder {} ({PLACE})", path.display()))?;
        let file = path.join(LOCK);
        let lock = open_regular_with(&file, File::options().write(true).create(true).truncate(false));
        Self::hold(path, Some(lock.with_context(|| format!("open {} ({PLACE})", file.display()))?))
    }

    /// Locks the folder for a command that changes nothing in it.
    ///
    /// On a read-only disk, where no service writes, a missing lock file is no error.
    pub(super) fn lock_to_read(path: &Path) -> anyhow::Result<Self> {
        let locked = Self::lock(path);
        let kind = locked.as_ref().err().and_then(|error| Some(error.downcast_ref::<std::io::Error>()?.kind()));
        if kind != Some(ErrorKind::ReadOnlyFilesystem) {
            return locked;
        }
        let file = path.join(LOCK);
        match open_regular(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => Self::hold(path, None),
            lock => Self::hold(path, Some(lock.with_context(|| format!("open {}", file.display()))?)),
        }
    }

    /// Locks the open file `lock` of the folder at `path`.
    fn hold(path: &Path, lock: Option<File>) -> anyhow::Result<Self> {
        match lock.as_ref().map_or(Ok(()), lock_soon) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!("another tidegauge uses this data folder: {}", path.display()),
            Err(TryLockError::Error(error)) => {
                return Err(anyhow!(error).context(format!("lock {}", path.join(LOCK).display())));
            }
        }
        let marker = path.join(RESTORING);
        if marker.try_exists().with_context(|| format!("look for {}", marker.display()))? {
            bail!("a restore into the data folder {} did not end: empty the folder, and restore again", path.display());
        }
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// Refuses a folder that has other files than the lock, and the `lost+found` of a new volume.
    pub(super) fn expect_empty(&self) -> anyhow::Result<()> {
        let entries = std::fs::read_dir(&self.path).with_context(|| format!("read {}", self.path.display()))?;
        for entry in entries {
            let name = entry.with_context(|| format!("read {}", self.path.display()))?.file_name();
            if name != LOCK && name != "lost+found" {
                let (folder, name) = (self.path.display(), Path::new(&name).display());
                return Err(
                    Usage(format!("the data folder {folder} is not empty, it has {name}: name another one")).into()
                );
            }
        }
        Ok(())
    }

    /// Marks the folder as incomplete until [`Self::end_restore`].
    pub(super) fn begin_restore(&self) -> anyhow::Result<()> {
        let marker = self.path.join(RESTORING);
        replace_file(&marker, b"").with_context(|| format!("create {}", marker.display()))
    }

    /// Ends a restore: removes the marker.
    ///
    /// When this returns, the folder stays complete after a crash.
    pub(super) fn end_restore(&self) -> anyhow::Result<()> {
        let marker = self.path.join(RESTORING);
        let removed = std::fs::remove_file(&marker).and_then(|()| sync_folder(&self.path));
        removed.with_context(|| format!("remove {}", marker.display()))
    }

    /// The path of the folder.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file that says which hours are rolled up.
    ///
    /// Without the file, all hours are rolled up again.
    pub(super) fn rollup_progress(&self) -> PathBuf {
        self.path.join("rollups.json")
    }

    /// The file that says which hours are closed. Without the file, the clock decides.
    pub(super) fn closed_hours(&self) -> PathBuf {
        self.path.join("closed-hours")
    }

    /// The file with the name of this instance among those that share its store.
    pub(super) fn instance(&self) -> PathBuf {
        self.path.join("instance")
    }
}

/// Refuses a data folder that does not exist, or that this user may not see.
pub(super) fn expect_folder(data_dir: &Path) -> anyhow::Result<()> {
    let folder = data_dir.display();
    let is_there = data_dir.try_exists().with_context(|| format!("look for the data folder {folder}"))?;
    if is_there && data_dir.is_dir() {
        return Ok(());
    }
    Err(Usage(format!("there is no data folder {folder}; name it with --data-dir or --config")).into())
}

/// Checks that this process could lock a data folder and write its log. Changes nothing.
///
/// A missing folder, which [`DataDir::lock`] creates, is no error. The error names the file or folder.
pub(super) fn expect_writable(data_dir: &Path) -> std::io::Result<()> {
    disk::expect_writable_folder(data_dir)?;
    disk::expect_writable_folder(&log_dir(data_dir))?;
    let lock = data_dir.join(LOCK);
    if lock.try_exists()? { disk::expect_writable(&lock) } else { Ok(()) }
}

/// Locks a file.
///
/// It tries for a moment, because [`is_in_use`] of another process may hold the lock.
fn lock_soon(lock: &File) -> Result<(), TryLockError> {
    for _ in 1..LOCK_ATTEMPTS {
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(BETWEEN_ATTEMPTS),
            done => return done,
        }
    }
    lock.try_lock()
}

/// Locks the SQLite file of a service until the returned file is dropped.
///
/// Services with different data folders could name the same file, and the deletions of one would leave the
/// pending readings of the other. The lock is on a file beside it: SQLite would lose its own locks when
/// another descriptor of its file is closed.
pub(super) fn lock_sqlite(file: &Path) -> anyhow::Result<File> {
    let path = sqlite::lock_of(file);
    let lock = open_regular_with(&path, File::options().write(true).create(true).truncate(false));
    let needs = "this user has to be able to write this file and its folder, which has to exist";
    let lock = lock.with_context(|| format!("open {} ({needs})", path.display()))?;
    match lock_soon(&lock) {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => {
            bail!("another tidegauge uses this SQLite file: {}; set another sqlite.file", file.display())
        }
        Err(TryLockError::Error(error)) => Err(anyhow!(error).context(format!("lock {}", path.display()))),
    }
}

/// Whether a process has locked a data folder.
///
/// A process sees such a lock (`flock`) only when it tries to lock the file itself. So this function holds
/// the lock for a moment if no other process does. A service that starts in that moment tries again.
pub(super) fn is_in_use(data_dir: &Path) -> bool {
    let lock = open_regular(&data_dir.join(LOCK));
    lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// The folder of the log in a data folder.
pub(super) fn log_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("log")
}

/// The file that records the store of the last start, in a data folder.
pub(super) fn known_store(data_dir: &Path) -> PathBuf {
    data_dir.join("store.json")
}

/// Refuses a data folder that was in use and whose log is gone.
///
/// The log may have had the only copy of acknowledged readings. The folder was in use if it has the record of
/// the store.
pub(super) fn expect_log(data_dir: &Path) -> Result<(), LogError> {
    let file = known_store(data_dir);
    let was_used = file.try_exists().map_err(|error| LogError::Io { action: "read", path: file, error })?;
    if was_used { recovery::expect_log(&log_dir(data_dir)) } else { Ok(()) }
}

/// The file with the dead letters of the store, in a data folder.
pub(super) fn dead_letters(data_dir: &Path) -> PathBuf {
    data_dir.join("dead-letters.ndjson")
}

/// The folder for damaged bytes of the log, in a data folder.
///
/// `check --log --quarantine` writes it.
pub(super) fn quarantine_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("quarantine")
}

/// The file with the dead letters of forwarding, in a data folder.
pub(super) fn forward_dead_letters(data_dir: &Path) -> PathBuf {
    data_dir.join("forward-dead-letters.ndjson")
}

/// Adds to an error of the log how to repair the log.
pub(super) fn explain(error: LogError) -> anyhow::Error {
    match error {
        LogError::Damaged { .. } | LogError::BadCheckpoint { .. } => anyhow!(
            "{error}; `tidegauge check --log` reports all damage, and with --quarantine sets it aside so that the \
             rest can be used"
        ),
        LogError::Missing(_) => anyhow!("{error}, {MISSING}"),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_folder_is_created_and_has_one_user_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        let data_dir = DataDir::lock(&path).unwrap();
        let refused = DataDir::lock(&path).unwrap_err().to_string();
        assert_eq!(refused, format!("another tidegauge uses this data folder: {}", path.display()));
        assert!(is_in_use(&path));
        drop(data_dir);
        assert!(!is_in_use(&path));
        DataDir::lock(&path).unwrap();
    }

    #[test]
    fn a_start_is_not_refused_because_a_process_looks_whether_the_folder_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        drop(DataDir::lock(folder.path()).unwrap());
        let look = File::open(folder.path().join(LOCK)).unwrap();
        look.lock_shared().unwrap();
        let start = std::thread::spawn(move || DataDir::lock(folder.path()).map(drop));
        std::thread::sleep(BETWEEN_ATTEMPTS);
        drop(look);
        start.join().unwrap().unwrap();
    }

    #[test]
    fn an_sqlite_file_has_one_service_at_a_time_whatever_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for is_there in [false, true] {
            if is_there {
                std::fs::write(&file, "").unwrap();
            }
            let _lock = lock_sqlite(&link).unwrap();
            for path in [&file, &link] {
                let refused = lock_sqlite(path).unwrap_err().to_string();
                assert!(refused.starts_with("another tidegauge uses this SQLite file: "), "{refused}");
            }
        }
        lock_sqlite(&link).unwrap();
    }

    #[test]
    fn the_lock_of_an_sqlite_file_that_cannot_be_opened_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let lock = folder.path().join("file-lock");
        std::fs::create_dir(&lock).unwrap();
        let refused = lock_sqlite(&folder.path().join("file")).unwrap_err().to_string();
        let needs = "this user has to be able to write this file and its folder, which has to exist";
        assert_eq!(refused, format!("open {} ({needs})", lock.display()));
    }

    #[test]
    fn a_data_folder_that_cannot_be_created_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let refused = DataDir::lock(&file.path().join("data")).unwrap_err().to_string();
        assert!(refused.contains("create the data folder") && refused.contains("/data (server.data_dir "), "{refused}");
    }
}
