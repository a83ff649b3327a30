//! The data folder: its files, and the lock for one process at a time.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use tidegauge::disk::make_folder;
use tidegauge::log::LogError;

/// The data folder of `server.data_dir`, locked until this is dropped.
#[derive(Debug)]
pub(super) struct DataDir {
    path: PathBuf,
    /// The lock lasts as long as this file is open, so it ends with the process in every case.
    _lock: File,
}

impl DataDir {
    /// Locks the folder, and creates it if necessary. Fails while another process has locked it.
    pub(super) fn lock(path: &Path) -> anyhow::Result<Self> {
        make_folder(path).with_context(|| format!("create the data folder {}", path.display()))?;
        let file = path.join("lock");
        let lock = File::options().write(true).create(true).truncate(false).open(&file);
        let lock = lock.with_context(|| format!("open {}", file.display()))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => bail!("another tidegauge uses this data folder: {}", path.display()),
            Err(TryLockError::Error(error)) => Err(anyhow!(error).context(format!("lock {}", file.display()))),
        }
    }

    /// The folder of the log.
    pub(super) fn log_dir(&self) -> PathBuf {
        log_dir(&self.path)
    }

    /// The dead-letter file.
    pub(super) fn dead_letters(&self) -> PathBuf {
        dead_letters(&self.path)
    }

    /// The dead-letter file of forwarding.
    pub(super) fn forward_dead_letters(&self) -> PathBuf {
        forward_dead_letters(&self.path)
    }

    /// The file that says which hours are rolled up. Without it all hours are rolled up again.
    pub(super) fn rollup_progress(&self) -> PathBuf {
        self.path.join("rollups.json")
    }

    /// The file that says which hours are closed. Without it the clock says so.
    pub(super) fn closed_hours(&self) -> PathBuf {
        self.path.join("closed-hours")
    }

    /// The file that has the name of this instance for those that share its store.
    pub(super) fn instance(&self) -> PathBuf {
        self.path.join("instance")
    }

    /// The file that names the store of the last start.
    pub(super) fn known_store(&self) -> PathBuf {
        self.path.join("store.json")
    }

    /// The folder for damaged bytes that were set aside.
    pub(super) fn quarantine_dir(&self) -> PathBuf {
        quarantine_dir(&self.path)
    }
}

/// The folder of the log in a data folder that is not locked.
pub(super) fn log_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("log")
}

/// The dead-letter file in a data folder that is not locked.
pub(super) fn dead_letters(data_dir: &Path) -> PathBuf {
    data_dir.join("dead-letters.ndjson")
}

/// The folder for damaged bytes in a data folder that is not locked.
pub(super) fn quarantine_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("quarantine")
}

/// The dead-letter file of forwarding in a data folder that is not locked.
pub(super) fn forward_dead_letters(data_dir: &Path) -> PathBuf {
    data_dir.join("forward-dead-letters.ndjson")
}

/// Adds the way to repair it to the error of a log.
pub(super) fn explain(error: LogError) -> anyhow::Error {
    match error {
        LogError::Damaged { .. } | LogError::BadCheckpoint { .. } => anyhow!(
            "{error}; `tidegauge check --log` reports all damage, and with --quarantine sets it aside so that the \
             rest can be used"
        ),
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
        drop(data_dir);
        DataDir::lock(&path).unwrap();
    }

    #[test]
    fn a_data_folder_that_cannot_be_created_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let refused = DataDir::lock(&file.path().join("data")).unwrap_err().to_string();
        assert!(refused.contains("create the data folder") && refused.contains("/data"), "{refused}");
    }
}
