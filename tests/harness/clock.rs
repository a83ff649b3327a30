//! A wall clock that a test can set: libfaketime, preloaded into a program, adds an offset to the date. The
//! monotonic clock of the program stays unchanged.

use std::path::PathBuf;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

use super::process::fetched;

/// The time of the machine in Unix milliseconds.
pub(crate) fn now_ms() -> i64 {
    #[expect(clippy::disallowed_methods, reason = "a server compares some instants with the clock of the machine")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    now.as_millis() as i64
}

/// Ten minutes after noon (UTC) of this day, in Unix seconds.
///
/// A server that starts at this time meets no turn of an hour during a test.
pub(crate) fn after_noon_s() -> i64 {
    const DAY_S: i64 = 86_400;
    now_ms() / 1_000 / DAY_S * DAY_S + DAY_S / 2 + 600
}

/// A wall clock with an offset.
#[derive(Debug)]
pub(crate) struct Clock {
    folder: TempDir,
}

impl Clock {
    /// Creates a clock without an offset.
    pub(crate) fn new() -> Self {
        let clock = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        clock.set(0);
        clock
    }

    /// Sets the offset in seconds.
    pub(crate) fn set(&self, offset_seconds: i64) {
        let new = self.folder.path().join("new");
        std::fs::write(&new, format!("{offset_seconds:+}")).expect("the folder is writable");
        std::fs::rename(new, self.file()).expect("the folder is writable");
    }

    /// Makes a command run with this clock.
    pub(crate) fn apply_to(&self, command: &mut Command) {
        command.env("LD_PRELOAD", fetched("get libfaketime")).env("FAKETIME_TIMESTAMP_FILE", self.file());
        command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("NO_FAKE_STAT", "1");
    }

    /// The time that this clock shows, in Unix milliseconds.
    pub(crate) fn now_ms(&self) -> i64 {
        let offset: i64 = std::fs::read_to_string(self.file()).expect("new sets it").parse().expect("a number");
        now_ms() + offset * 1_000
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }
}
