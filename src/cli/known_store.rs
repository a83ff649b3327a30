//! `store.json` in the data folder records the store of the last start, and its writes.
//!
//! ```json
//! {"version":1,"store":"sqlite","id":"0f3a…","writes":1234}
//! ```
//!
//! With MongoDB, the ID is that of the collections, and writes are not counted.
//!
//! A start writes the file after the log exists, and before it accepts readings. So a data folder with the
//! file was in use, and if its log is missing, the log was lost. The service reads the count from the store
//! and then saves it, so the file never counts a write that the store lacks.

use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tidegauge::common::small_file::read_small_regular_file;
use tidegauge::common::version::Version1;
use tidegauge::config::{Config, StoreKind};
use tidegauge::disk::replace_file;
use tidegauge::store::{History, sqlite};

use super::counted;

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct KnownStore {
    version: Version1,
    /// The name of the store, such as `sqlite`.
    pub(super) store: String,
    /// The ID of the store and its number of writes; `None` if it was not created yet.
    #[serde(flatten)]
    pub(super) history: Option<History>,
}

/// How a store differs from the one in the record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Difference {
    /// The store has another ID, or is not created yet.
    Other,
    /// The store is an older copy, which lacks this many writes.
    Older(u64),
}

impl KnownStore {
    pub(super) fn new(store: &str, history: Option<History>) -> Self {
        Self { version: Version1, store: store.to_owned(), history }
    }

    /// Reads the file; `None` if there is none. A file that is cut off is an error.
    pub(super) fn load(file: &Path) -> std::io::Result<Option<Self>> {
        match read_small_regular_file(file) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// How the store of today (`now`) differs from the recorded store of the same name.
    ///
    /// `None`: it does not differ, or no ID is recorded. `now` is `None` if the store is not created yet:
    /// then it differs from any recorded ID.
    pub(super) fn difference(&self, now: Option<&History>) -> Option<Difference> {
        let before = self.history.as_ref()?;
        let Some(now) = now.filter(|now| now.id == before.id) else { return Some(Difference::Other) };
        before.writes.checked_sub(now.writes).filter(|missing| *missing > 0).map(Difference::Older)
    }

    /// Why a configuration names another store than this record, as text.
    ///
    /// `None`: the stores may be the same. This blocks on the disk, and does not ask MongoDB.
    ///
    /// A missing or unreadable SQLite file is no objection: an attempt to open it tells the reason.
    pub(super) fn objection(&self, config: &Config) -> Option<String> {
        let now = config.store_kind();
        if self.store != now.as_str() {
            let (before, now) = (&self.store, now.as_str());
            return Some(format!("the service has used the store {before}, and this configuration has {now}"));
        }
        if now != StoreKind::Sqlite {
            return None;
        }
        let file = config.sqlite_file();
        let found = sqlite::backup::history(&file).ok()?;
        let file = file.display();
        Some(match self.difference(Some(&found))? {
            Difference::Other => format!("{file} is not the SQLite file that the service has used"),
            Difference::Older(missing) => {
                let lacks = counted(missing, "write");
                format!("{file} is an older copy of the SQLite file that the service has used: it lacks {lacks}")
            }
        })
    }

    /// Replaces the file. When this returns, it survives a crash.
    pub(super) fn save(&self, file: &Path) -> std::io::Result<()> {
        replace_file(file, &serde_json::to_vec(self)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_golden_file_is_read_and_written_and_another_version_is_refused() {
        let golden = include_str!("../../tests/golden/store-1.json");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store.json");
        let known = KnownStore::new("sqlite", Some(History { id: "0f3a6c".to_owned(), writes: 1234 }));
        known.save(&file).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), golden);
        assert_eq!(KnownStore::load(&file).unwrap(), Some(known));
        std::fs::write(&file, golden.replace("\"version\":1", "\"version\":2")).unwrap();
        let refused = KnownStore::load(&file).unwrap_err().to_string();
        assert!(refused.contains("its version is 2, and this program knows version 1 only"), "{refused}");
    }
}
