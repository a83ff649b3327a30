//! The mark: up to where hours are rolled up, in a file of its own.
//!
//! ```json
//! {"identity":"mongodb buckets 5f0a... rollups 77c1...","before":"2026-04-20T15:00:00Z"}
//! ```
//! All hours before that instant are rolled up in what `identity` names. The file only spares work: without
//! it, or when it speaks of something else, all hours are rolled up again, and come out the same.

use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::disk::replace_file;
use crate::model::Hour;

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    /// See [`crate::store::Rollups::identity`].
    pub(super) identity: String,
    /// The first hour that is not rolled up.
    pub(super) next: Hour,
}

#[derive(Serialize, Deserialize)]
struct Contents {
    identity: String,
    before: String,
}

impl Mark {
    /// Reads the file. One that cannot be read is as good as none, and said so.
    pub(super) fn load(path: &Path) -> Option<Self> {
        match std::fs::read(path) {
            Ok(bytes) => {
                let mark = Self::decode(&bytes);
                if mark.is_none() {
                    tracing::warn!(file = %path.display(), "is not readable; all hours are rolled up again");
                }
                mark
            }
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "cannot be read; all hours are rolled up again");
                None
            }
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let Contents { identity, before } = serde_json::from_slice(bytes).ok()?;
        let before: jiff::Timestamp = before.parse().ok()?;
        Some(Self { identity, next: Hour::of(before.as_millisecond()) })
    }

    /// Replaces the file. When this returns, the new one survives a crash; before, the old one does.
    pub(super) fn save(&self, path: &Path) -> std::io::Result<()> {
        let before = jiff::Timestamp::from_millisecond(self.next.start_ms()).map_err(std::io::Error::other)?;
        let contents = Contents { identity: self.identity.clone(), before: before.to_string() };
        replace_file(path, &serde_json::to_vec(&contents)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_back_and_a_bad_one_is_as_good_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rollups.json");
        assert_eq!(Mark::load(&path), None);
        for next in [Hour(-1), Hour(0), Hour(493_527)] {
            let mark = Mark { identity: "x".to_owned(), next };
            mark.save(&path).unwrap();
            assert_eq!(Mark::load(&path), Some(mark));
        }
        assert!(std::fs::read_to_string(&path).unwrap().contains("\"2026-04-20T15:00:00Z\""));
        for bad in ["", "{}", r#"{"identity":"x","before":"soon"}"#] {
            std::fs::write(&path, bad).unwrap();
            assert_eq!(Mark::load(&path), None, "{bad}");
        }
    }
}
