//! The file that says which hours are rolled up.
//!
//! ```json
//! {"version":1,"identity":"mongodb buckets 5f0a... rollups 77c1...","before":"2026-04-20T00:00:00Z",
//!  "partial":{"until":"2026-04-21T00:00:00Z","after":"LIGHT-FL02-ZONE4"},"hours":480000}
//! ```
//! All hours before `before` are rolled up in the collections that `identity` names; and if there is a
//! `partial`, so are the hours from there until `until` of all devices up to `after`. `hours` is the number
//! of hours of all devices in the last day of which it is known. The file only saves work: if it is missing
//! or names other collections, all hours are rolled up again, with the same result.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::hour_text;
use crate::common::small_file::read_small_regular_file;
use crate::common::version::Version1;
use crate::disk::replace_file;
use crate::model::{Day, Hour};

/// The contents of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RollupProgress {
    /// See [`crate::store::Rollups::identity`].
    pub(super) identity: String,
    /// The first hour that is not rolled up.
    pub(super) next: Hour,
    /// How far the roller has come with the hours from `next` on.
    ///
    /// `None`: it has rolled up none of the devices.
    pub(super) partial: Option<Partial>,
    /// The number of hours of devices in the last whole day that the roller has walked from the first device
    /// on. It shrinks by at most a sixteenth a day. `None`: no such day is known, and none is spread.
    pub(super) hours_of_day: Option<u64>,
}

/// Hours that are rolled up for a part of the devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Partial {
    /// The end of the hours.
    pub(super) until: Hour,
    /// The last device whose hours are rolled up, in the order of the IDs.
    pub(super) after: Arc<str>,
}

#[derive(Serialize, Deserialize)]
struct Encoded {
    version: Version1,
    identity: String,
    before: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    partial: Option<EncodedPartial>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hours: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct EncodedPartial {
    until: String,
    after: Arc<str>,
}

impl RollupProgress {
    /// Reads the file. Logs a warning if it exists and cannot be read.
    pub(super) fn load(path: &Path) -> Option<Self> {
        match read_small_regular_file(path) {
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

    /// The first hour that is not rolled up for any device.
    pub(super) fn end(&self) -> Hour {
        self.partial.as_ref().map_or(self.next, |partial| partial.until)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let Encoded { version: _, identity, before, partial, hours } = serde_json::from_slice(bytes).ok()?;
        let next = hour_text::decode(&before)?;
        let partial = match partial {
            Some(EncodedPartial { until, after }) => {
                let until =
                    hour_text::decode(&until).filter(|until| next < *until && *until <= Day::of(next).hours().end)?;
                Some(Partial { until, after })
            }
            None => None,
        };
        Some(Self { identity, next, partial, hours_of_day: hours })
    }

    /// Replaces the file.
    ///
    /// When this returns, the new contents survive a crash; before, the old ones do.
    pub(super) fn save(&self, path: &Path) -> std::io::Result<()> {
        let partial = match &self.partial {
            Some(Partial { until, after }) => {
                Some(EncodedPartial { until: hour_text::encode(*until)?, after: Arc::clone(after) })
            }
            None => None,
        };
        let before = hour_text::encode(self.next)?;
        let (identity, hours) = (self.identity.clone(), self.hours_of_day);
        let encoded = Encoded { version: Version1, identity, before, partial, hours };
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
            let partial = Partial { until: Day::of(next).hours().end, after: "a/b \"1\"".into() };
            for (partial, hours_of_day) in [(Some(partial), Some(480_000)), (None, None)] {
                let progress = RollupProgress { identity: "x".to_owned(), next, partial, hours_of_day };
                progress.save(&path).unwrap();
                assert_eq!(RollupProgress::load(&path), Some(progress));
            }
        }
        let until = Day::of(Hour(493_527)).hours().end;
        let partial = Some(Partial { until, after: "a/b \"1\"".into() });
        let (identity, next) = ("x".to_owned(), Hour(493_527));
        RollupProgress { identity, next, partial, hours_of_day: Some(480_000) }.save(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), include_str!("../../tests/golden/rollups-1.json"));
        let of = |version: u32, partial: &str| {
            format!(r#"{{"version":{version},"identity":"x","before":"2026-04-20T15:00:00Z","partial":{partial}}}"#)
        };
        let with = |partial: &str| of(1, partial);
        std::fs::write(&path, with("null")).unwrap();
        assert!(RollupProgress::load(&path).is_some());
        for bad in [
            "",
            "{}",
            r#"{"version":1,"identity":"x","before":"soon"}"#,
            &of(2, "null"),
            &with(r#"{"until":"2026-04-20T15:00:00Z","after":"d"}"#),
            &with(r#"{"until":"2026-04-21T01:00:00Z","after":"d"}"#),
            &with(r#"{"until":"2026-04-21T00:00:00Z"}"#),
        ] {
            std::fs::write(&path, bad).unwrap();
            assert_eq!(RollupProgress::load(&path), None, "{bad}");
        }
    }
}
