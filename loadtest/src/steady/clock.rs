//! A clock that runs faster than time, for whole programs: a library that is preloaded into them multiplies
//! the clocks and divides the waits. Processor time stays real.
//!
//! libfaketime would not do: its builds from package registries do not change waits, and each look at the
//! clock costs 7 µs there. Here it costs 0.02 µs more than without.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

const SOURCE: &str = include_str!("clock.c");

/// The longest real wait of a program while the speed may still change.
const SHORT_NS: i64 = 50_000_000;
/// No limit of the real waits.
const UNLIMITED_NS: i64 = i64::MAX;

/// A fast clock.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The settings, as the library maps them.
    file: File,
    folder: TempDir,
    /// The wall clock minus the monotonic clock, both fast.
    wall_ns: i64,
    settings: Settings,
    version: i64,
}

/// The real and the fast monotonic clock at one instant, and the speed from then on.
#[derive(Debug, Clone, Copy)]
struct Settings {
    real_ns: i64,
    fast_ns: i64,
    speed: i64,
}

impl Clock {
    /// A clock that shows this instant, in Unix milliseconds, and runs as fast as time for now.
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

    /// The variables that give a program this clock.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let path = |name| self.folder.path().join(name).display().to_string();
        vec![("LD_PRELOAD".to_owned(), path("clock.so")), ("FAST_CLOCK".to_owned(), path("settings"))]
    }

    /// Lets the clock jump forward to an instant and run this many times as fast as time.
    pub(crate) fn jump_and_run(&mut self, wall_ms: u64, speed: u32) -> anyhow::Result<()> {
        ensure!(wall_ms >= self.now_ms()?, "the preparations lasted longer than the clock allows");
        self.set(wall_ms, speed.into(), UNLIMITED_NS)
    }

    /// Lets the clock run this many times as fast as time from now on.
    pub(crate) fn speed_up(&mut self, speed: u32) -> anyhow::Result<()> {
        self.set(self.now_ms()?, speed.into(), UNLIMITED_NS)
    }

    /// Lets the clock run as fast as time again. Waits that have begun end as they would have before.
    pub(crate) fn slow_down(&mut self) -> anyhow::Result<()> {
        self.set(self.now_ms()?, 1, SHORT_NS)
    }

    fn set(&mut self, wall_ms: u64, speed: i64, longest_ns: i64) -> anyhow::Result<()> {
        let fast_ns = nanoseconds(wall_ms)? - self.wall_ns;
        self.settings = Settings { real_ns: monotonic_ns()?, fast_ns, speed };
        self.write(longest_ns)
    }

    /// The time of its wall clock, in Unix milliseconds.
    pub(crate) fn now_ms(&self) -> anyhow::Result<u64> {
        let Settings { real_ns, fast_ns, speed } = self.settings;
        Ok(u64::try_from(fast_ns + (monotonic_ns()? - real_ns) * speed + self.wall_ns)? / 1_000_000)
    }

    /// The real time until its wall clock shows this instant, or zero.
    pub(crate) fn until(&self, wall_ms: u64) -> anyhow::Result<Duration> {
        let left_ms = wall_ms.saturating_sub(self.now_ms()?);
        Ok(Duration::from_micros(left_ms * 1_000 / u64::try_from(self.settings.speed)?))
    }

    /// Writes the settings for readers that read them meanwhile.
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

/// Compiles the library into a folder.
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
