//! The `process_*` metrics, as the client libraries of Prometheus define them.
//!
//! They are read from `/proc` at each scrape. On systems without `/proc` they are missing.

use std::fmt::Write;
use std::fs;

/// Clock ticks per second in `/proc`: `USER_HZ`, which is always 100 on Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// Reads the metrics of this process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Process {
    /// The start of the process, as Unix time in seconds.
    ///
    /// It is read once: it is computed from the boot time, which Linux moves when the clock is set.
    started: Option<f64>,
}

impl Process {
    pub(super) fn new() -> Self {
        Self { started: start_time() }
    }

    /// Appends the metrics that can be read to `page`.
    pub(super) fn write(&self, page: &mut String) {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ticks = |at| field(&stat, at).map(|ticks| ticks / TICKS_PER_SECOND);
        let cpu = ticks(14).zip(ticks(15)).map(|(user, system)| user + system);
        let open_fds = fs::read_dir("/proc/self/fd").ok().map(|files| files.count().saturating_sub(1) as f64);
        for (name, kind, help, value) in [
            ("cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.", cpu),
            ("max_fds", "gauge", "Maximum number of open file descriptors.", max_fds()),
            ("open_fds", "gauge", "Number of open file descriptors.", open_fds),
            ("resident_memory_bytes", "gauge", "Resident memory size in bytes.", bytes(&status, "VmRSS:")),
            ("start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", self.started),
            ("threads", "gauge", "Number of OS threads in the process.", field(&stat, 20)),
            ("virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", bytes(&status, "VmSize:")),
        ] {
            if let Some(value) = value {
                let name = format!("process_{name}");
                let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
            }
        }
    }
}

/// A field of `/proc/self/stat`, by its number in proc(5), from the third on.
///
/// The second field is a name in brackets, which may contain spaces. So the search begins behind the last
/// `)`.
fn field(stat: &str, number: usize) -> Option<f64> {
    let (_, behind_name) = stat.rsplit_once(") ")?;
    behind_name.split(' ').nth(number.checked_sub(3)?)?.trim().parse().ok()
}

/// The bytes that a line of `/proc/self/status` gives in kB.
fn bytes(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<f64>().ok()? * 1024.0)
}

/// The soft limit of open files; `None` if it is unlimited or unknown.
fn max_fds() -> Option<f64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn start_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let of_system = fs::read_to_string("/proc/stat").ok()?;
    let boot: f64 = of_system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot + field(&stat, 22)? / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    fn value(page: &str, name: &str) -> f64 {
        let line = page.lines().find_map(|line| line.strip_prefix(&format!("process_{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in\n{page}")).parse().unwrap()
    }

    #[test]
    fn the_process_is_measured_in_seconds_bytes_and_files() {
        let process = Process::new();
        let mut page = String::new();
        process.write(&mut page);
        let used = vec![1_u8; 64 << 20];
        let files: Vec<_> = (0..20).map(|_| fs::File::open("/proc/self/stat").unwrap()).collect();
        let mut later = String::new();
        process.write(&mut later);
        let (before, after) = (value(&page, "resident_memory_bytes"), value(&later, "resident_memory_bytes"));
        assert!(used.iter().all(|byte| *byte == 1) && after > 64e6 && after > before, "{page}\n{later}");
        assert!(value(&later, "virtual_memory_bytes") >= after, "{later}");
        assert!(value(&later, "open_fds") >= files.len() as f64, "{later}");
        assert!(value(&later, "max_fds") >= value(&later, "open_fds"), "{later}");
        assert!(value(&later, "threads") >= 1.0, "{later}");
        #[expect(clippy::disallowed_methods, reason = "a start time is a date")]
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - value(&later, "start_time_seconds");
        assert!((-2.0..86_400.0).contains(&age), "{age} s old\n{later}");
    }

    #[test]
    fn cpu_time_grows_with_work() {
        let cpu = || {
            let mut page = String::new();
            Process::new().write(&mut page);
            value(&page, "cpu_seconds_total")
        };
        let before = cpu();
        let mut sum = 0_u64;
        while cpu() < before + 0.05 {
            sum = (0..1_000_000).fold(sum, |sum: u64, number| sum.wrapping_mul(31).wrapping_add(number));
        }
        assert_ne!(sum, 0);
    }

    #[test]
    fn a_name_with_brackets_and_spaces_moves_no_field() {
        let stat = "7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 9 0 12345 4096 1";
        assert_eq!([14, 15, 20, 22].map(|number| field(stat, number)), [150.0, 50.0, 9.0, 12345.0].map(Some));
    }
}
