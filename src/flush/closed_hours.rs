//! Which hours are closed: a write to one of them must roll it up again.
//!
//! A file has the newest closed hour before the hour counts as closed. So an hour stays closed after a crash,
//! even if the wall clock was set back: there may be a rollup of it, which must not miss later readings.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};

use super::hour_text;
use crate::disk::replace_file;
use crate::model::Hour;

/// All hours up to the newest closed one are closed.
#[derive(Debug)]
pub(super) struct ClosedHours {
    /// `None`: the store keeps no rollups of their own.
    file: Option<PathBuf>,
    /// The number of the newest closed [`Hour`].
    newest: AtomicI32,
}

impl ClosedHours {
    /// Reads the file. Logs a warning if it exists and cannot be read.
    pub(super) fn load(file: Option<PathBuf>) -> Self {
        let newest = file.as_deref().and_then(read).unwrap_or(Hour(i32::MIN));
        Self { file, newest: AtomicI32::new(newest.0) }
    }

    pub(super) fn newest(&self) -> Hour {
        Hour(self.newest.load(Ordering::SeqCst))
    }

    /// Closes all hours up to this one. Logs a warning if the file cannot be written.
    pub(super) fn close(&self, newest: Hour) {
        if newest <= self.newest() {
            return;
        }
        if let Some(file) = &self.file
            && let Err(error) = write(file, newest)
        {
            let file = file.display();
            tracing::warn!(%file, %error, "cannot save which hours are closed; do not set the clock back");
        }
        self.newest.fetch_max(newest.0, Ordering::SeqCst);
    }
}

/// The file has the end of the newest closed hour.
fn write(file: &Path, newest: Hour) -> std::io::Result<()> {
    let end = hour_text::encode(Hour(newest.0 + 1))?;
    replace_file(file, format!("{end}\n").as_bytes())
}

fn read(file: &Path) -> Option<Hour> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!(file = %file.display(), %error, "cannot read which hours are closed");
            return None;
        }
    };
    let end = hour_text::decode(text.trim_end());
    if end.is_none() {
        tracing::warn!(file = %file.display(), "the file is damaged; the clock says which hours are closed");
    }
    end.map(|end| Hour(end.0 - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_hours_stay_closed_and_a_damaged_file_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("closed-hours");
        let load = || ClosedHours::load(Some(file.clone()));
        assert_eq!(load().newest(), Hour(i32::MIN));
        let closed = load();
        for (close, newest) in [(-30, -30), (493_526, 493_526), (7, 493_526)] {
            closed.close(Hour(close));
            assert_eq!((closed.newest(), load().newest()), (Hour(newest), Hour(newest)));
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "2026-04-20T15:00:00Z\n");
        std::fs::write(&file, "soon").unwrap();
        assert_eq!(load().newest(), Hour(i32::MIN));
    }
}
