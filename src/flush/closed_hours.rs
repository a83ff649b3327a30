//! Which hours are closed: a write to one of them must roll it up again.
//!
//! The newest closed hour is saved in a file before it counts as closed. So an hour stays closed after a
//! crash, even if the wall clock was set back: there may be a rollup of it, which must not miss later
//! readings.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use super::hour_text;
use crate::common::small_file::read_small_regular_text;
use crate::disk::replace_file;
use crate::model::Hour;

/// The end of the newest closed hour may be this far ahead of the clock without a warning: small corrections
/// of the clock are normal.
const AHEAD_MS: i64 = 3_600_000;

/// All hours up to the newest closed one are closed.
#[derive(Debug)]
pub(super) struct ClosedHours {
    /// The file that has the newest closed hour.
    ///
    /// `None` if the store keeps no rollups of their own.
    file: Option<PathBuf>,
    /// The number of the newest closed [`Hour`].
    newest: AtomicI32,
    /// Whether the warning about closed hours that have not ended was logged.
    is_ahead: AtomicBool,
}

impl ClosedHours {
    /// Reads the file. Logs a warning if it exists and cannot be read.
    pub(super) fn load(file: Option<PathBuf>) -> Self {
        let newest = file.as_deref().and_then(read).unwrap_or(Hour(i32::MIN));
        Self { file, newest: AtomicI32::new(newest.0), is_ahead: AtomicBool::new(false) }
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

    /// Logs a warning, once, if hours are closed that have not ended: the clock was ahead.
    pub(super) fn warn_if_ahead(&self, now_ms: i64) {
        let until = Hour(self.newest().0.saturating_add(1));
        let is_ahead = until.start_ms().saturating_sub(now_ms) > AHEAD_MS;
        let was_ahead = self.is_ahead.swap(is_ahead, Ordering::Relaxed);
        let (Some(file), true, false, Ok(until)) = (&self.file, is_ahead, was_ahead, hour_text::encode(until)) else {
            return;
        };
        tracing::warn!(
            file = %file.display(),
            until,
            "the clock was ahead: all hours until then count as closed, so each write rolls up its hour again. Nothing \
             is lost or wrong, but writes cost about twice as much until then; do not just remove the file: \
             docs/reliability.md, \"Clock jumps\", says how to undo it"
        );
    }
}

/// Writes the end of the newest closed hour to the file.
fn write(file: &Path, newest: Hour) -> std::io::Result<()> {
    let end = hour_text::encode(Hour(newest.0 + 1))?;
    replace_file(file, format!("{end}\n").as_bytes())
}

fn read(file: &Path) -> Option<Hour> {
    let text = match read_small_regular_text(file) {
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
        for (now_ms, is_ahead) in [
            (Hour(493_526).start_ms(), false),
            (Hour(493_526).start_ms() - 1, true),
            (Hour(493_000).start_ms(), true),
            (Hour(493_527).start_ms(), false),
        ] {
            closed.warn_if_ahead(now_ms);
            assert_eq!(closed.is_ahead.load(Ordering::Relaxed), is_ahead, "at {now_ms}");
        }
        std::fs::write(&file, "soon").unwrap();
        assert_eq!(load().newest(), Hour(i32::MIN));
    }
}
