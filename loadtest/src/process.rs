//! What a process has used, from `/proc`.

use anyhow::Context;

/// Clock ticks per second in `/proc/<pid>/stat`: 100 on every Linux that matters.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU seconds, user and system, of all threads so far.
pub(crate) fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let fields: Vec<&str> = stat.rsplit(')').next().context("no fields")?.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).with_context(|| path.clone());
    Ok((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}

/// The largest resident memory so far, in MiB.
pub(crate) fn peak_mib(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}
