//! The file that says which hours are rolled up.
//!
//! ```json
//! {"identity":"mongodb buckets 5f0a... rollups 77c1...","before":"2026-04-20T15:00:00Z"}
//! ```
//! All hours before that instant are rolled up in the collections that `identity` names. The file only saves
//! work: if it is missing or names other collections, all hours are rolled up again, with the same result.

use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::disk::replace_file;
use crate::model::Hour;

/// The contents of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RollupProgress {
    /// See [`crate::store::Rollups::identity`].
    pub(super) identity: String,
    /// The first hour that is not rolled up.
    pub(super) next: Hour,
}

#[derive(Serialize, Deserialize)]
struct Encoded {
    identity: String,
    before: String,
}

impl RollupProgress {
    /// Reads the file. Logs a warning if it exists and cannot be read.
    pub(super) fn load(path: &Path) -> Option<Self> {
        match std::fs::read(path) {
            Ok(bytes) => {
                let progress = Self::decode(&bytes);
                if progress.is_none() {
                    tracing::warn!(file = %path.display(), "the file is damaged; all hours are rolled up again");
                }
                progress
            }
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "cannot read the file; all hours are rolled up again");
                None
            }
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let Encoded { identity, before } = serde_json::from_slice(bytes).ok()?;
        let before: jiff::Timestamp = before.parse().ok()?;
        Some(Self { identity, next: Hour::of(before.as_millisecond()) })
    }

    /// Replaces the file. After a crash it has the old contents, or once this has returned, the new ones.
    pub(super) fn save(&self, path: &Path) -> std::io::Result<()> {
        let before = jiff::Timestamp::from_millisecond(self.next.start_ms()).map_err(std::io::Error::other)?;
        let encoded = Encoded { identity: self.identity.clone(), before: before.to_string() };
        replace_file(path, &serde_json::to_vec(&encoded)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_back_and_a_damaged_one_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rollups.json");
        assert_eq!(RollupProgress::load(&path), None);
        for next in [Hour(-1), Hour(0), Hour(493_527)] {
            let progress = RollupProgress { identity: "x".to_owned(), next };
            progress.save(&path).unwrap();
            assert_eq!(RollupProgress::load(&path), Some(progress));
        }
        assert!(std::fs::read_to_string(&path).unwrap().contains("\"2026-04-20T15:00:00Z\""));
        for bad in ["", "{}", r#"{"identity":"x","before":"soon"}"#] {
            std::fs::write(&path, bad).unwrap();
            assert_eq!(RollupProgress::load(&path), None, "{bad}");
        }
    }
}
