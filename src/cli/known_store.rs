//! The record of the store in the data folder, `store.json`: the store of the last start, and its writes.
//!
//! ```json
//! {"store":"sqlite","id":"0f3a…","writes":1234}
//! ```
//!
//! A start writes the file once the log is there, and before it accepts readings. So a data folder with the
//! file has been in use, and a missing log is a lost one. The count is read from the store before it is
//! saved, so the file never counts a write that the store lacks.

use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tidegauge::config::Config;
use tidegauge::disk::replace_file;
use tidegauge::store::{History, sqlite};

use super::counted;

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct KnownStore {
    /// The name of the store, such as `sqlite`.
    pub(super) store: String,
    /// The ID of the store and its number of writes; `None` if the store has none.
    #[serde(flatten)]
    pub(super) history: Option<History>,
}

impl KnownStore {
    /// Reads the file; `None` if there is none. One that is not whole is an error.
    pub(super) fn load(file: &Path) -> std::io::Result<Option<Self>> {
        match std::fs::read(file) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Why the store of a configuration is not this one; `None` if it may be. Blocks on the disk.
    ///
    /// An SQLite file that is missing or cannot be read is no reason: opening it fails with a reason.
    pub(super) fn objection(&self, config: &Config) -> Option<String> {
        let now = config.store_kind();
        if self.store != now.as_str() {
            let (before, now) = (&self.store, now.as_str());
            return Some(format!("the service has used the store {before}, and this configuration has {now}"));
        }
        let (file, before) = (config.sqlite_file(), self.history.as_ref()?);
        let found = sqlite::backup::history(&file).ok()?;
        let file = file.display();
        if found.id != before.id {
            return Some(format!("{file} is not the SQLite file that the service has used"));
        }
        let missing = before.writes.checked_sub(found.writes).filter(|missing| *missing > 0)?;
        Some(format!(
            "{file} is an older copy of the SQLite file that the service has used: it lacks {}",
            counted(missing, "write")
        ))
    }

    /// Replaces the file. When this returns, it survives a crash.
    pub(super) fn save(&self, file: &Path) -> std::io::Result<()> {
        replace_file(file, &serde_json::to_vec(self)?)
    }
}
