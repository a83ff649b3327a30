//! A clock that runs faster than time, for the programs under test.
//!
//! A library (`clock.c`) is preloaded into the programs. It multiplies the time that passes on their clocks
//! by the speed, and divides their waits by it. CPU time stays real.
//!
//! libfaketime is no alternative: its packages do not change waits, and reading the clock costs 7 µs there.
//! With this library it costs 0.02 µs more than without.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

const SOURCE: &str = include_str!("clock.c");

/// The longest real wait of a program while its clock runs at normal speed.
///
/// The library cuts a longer wait off, because the speed may rise during it.
const SHORT_NS: i64 = 50_000_000;
/// The limit of real waits while the clock runs fast: none.
const UNLIMITED_NS: i64 = i64::MAX;

/// A clock that runs faster than time.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The file with the settings, which the library maps into memory.
    file: File,
    folder: TempDir,
    /// The fast wall clock minus the fast monotonic clock.
    wall_ns: i64,
    settings: Settings,
    version: i64,
}

/// The real and the fast monotonic clock at one instant, and the speed since then.
#[derive(Debug, Clone, Copy)]
struct Settings {
    real_ns: i64,
    fast_ns: i64,
    speed: i64,
}

impl Clock {
    /// A clock that shows `wall_ms` (Unix milliseconds) now, and runs at normal speed.
    pub(crate) fn starting_at(wall_ms: u64) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("loadtest-clock-").tempdir()?;
        compile(folder.path())?;
        let file = File::create_new(folder.path().join("settings"))?;
        let real_ns = monotonic_ns()?;
        let settings = Settings { real_ns, fast_ns: real_ns, speed: 1 };
        let mut clock = Self { file, folder, wall_ns: nanoseconds(wall_ms)? - real_ns, settings, version: 0 };
        clock.write(SHORT_NS)?;
        Ok(clock)
    }

    /// The environment variables that make a program use this clock.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let path = |name| self.folder.path().join(name).display().to_string();
        vec![("LD_PRELOAD".to_owned(), path("clock.so")), ("FAST_CLOCK".to_owned(), path("settings"))]
    }

    /// Lets the clock jump forward to `wall_ms`, and run at `speed` times normal speed.
    pub(crate) fn jump_and_run(&mut self, wall_ms: u64, speed: u32) -> anyhow::Result<()> {
        ensure!(wall_ms >= self.now_ms()?, "the preparations lasted longer than the clock allows");
        self.set(wall_ms, speed.into(), UNLIMITED_NS)
    }

    /// Lets the clock run at `speed` times normal speed from now on.
    pub(crate) fn speed_up(&mut self, speed: u32) -> anyhow::Result<()> {
        self.set(self.now_ms()?, speed.into(), UNLIMITED_NS)
    }

    /// Lets the clock run at normal speed again.
    ///
    /// Waits that have begun still end as at the earlier speed.
    pub(crate) fn slow_down(&mut self) -> anyhow::Result<()> {
        self.set(self.now_ms()?, 1, SHORT_NS)
    }

    fn set(&mut self, wall_ms: u64, speed: i64, longest_ns: i64) -> anyhow::Result<()> {
        let fast_ns = nanoseconds(wall_ms)? - self.wall_ns;
        self.settings = Settings { real_ns: monotonic_ns()?, fast_ns, speed };
        self.write(longest_ns)
    }

    /// The time that the fast wall clock shows, in Unix milliseconds.
    pub(crate) fn now_ms(&self) -> anyhow::Result<u64> {
        let Settings { real_ns, fast_ns, speed } = self.settings;
        Ok(u64::try_from(fast_ns + (monotonic_ns()? - real_ns) * speed + self.wall_ns)? / 1_000_000)
    }

    /// The real time until the fast wall clock shows `wall_ms`, or zero.
    pub(crate) fn until(&self, wall_ms: u64) -> anyhow::Result<Duration> {
        let left_ms = wall_ms.saturating_sub(self.now_ms()?);
        Ok(Duration::from_micros(left_ms * 1_000 / u64::try_from(self.settings.speed)?))
    }

    /// Writes the settings to the file, as the writer of a seqlock.
    ///
    /// Programs read the file at the same time. The version is odd while the settings change. A reader reads
    /// again if the version was odd or has changed meanwhile.
    fn write(&mut self, longest_ns: i64) -> anyhow::Result<()> {
        let Settings { real_ns, fast_ns, speed } = self.settings;
        let fields = [real_ns, fast_ns, self.wall_ns, speed, longest_ns];
        self.file.write_all_at(&(self.version + 1).to_ne_bytes(), 0)?;
        self.file.write_all_at(fields.map(i64::to_ne_bytes).as_flattened(), 8)?;
        self.version += 2;
        self.file.write_all_at(&self.version.to_ne_bytes(), 0)?;
        Ok(())
    }
}

/// Compiles the library into `folder`.
fn compile(folder: &Path) -> anyhow::Result<()> {
    let source = folder.join("clock.c");
    std::fs::write(&source, SOURCE)?;
    let mut command = Command::new("cc");
    command.args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
    let output = command.arg(folder.join("clock.so")).arg(source).arg("-ldl").stdin(Stdio::null()).output();
    let output = output.context("a C compiler, cc, is needed for the fast clock")?;
    ensure!(output.status.success(), "cc: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn monotonic_ns() -> anyhow::Result<i64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(now.tv_sec() * 1_000_000_000 + now.tv_nsec())
}

fn nanoseconds(ms: u64) -> anyhow::Result<i64> {
    i64::try_from(ms)?.checked_mul(1_000_000).context("a date too far away")
}
