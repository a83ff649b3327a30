//! Reads CPU time and memory of processes from `/proc`.

use std::str::FromStr;

use anyhow::Context;

/// Clock ticks per second in `/proc/<pid>/stat`: `USER_HZ`, always 100 on Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// A process to measure: `NAME=PID`, or a process ID.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    name: String,
    pid: u32,
    cpu_seconds_before: f64,
}

/// The CPU time and memory of a process.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct Usage {
    pub(crate) name: String,
    /// CPU seconds, user and system, of all threads since the count began.
    pub(crate) cpu_seconds: f64,
    /// The largest resident memory since the process started, in MiB.
    pub(crate) peak_mib: f64,
    /// The resident memory now, in MiB.
    pub(crate) resident_mib: f64,
}

impl FromStr for Process {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, pid) = text.split_once('=').unwrap_or((text, text));
        let pid = pid.parse().with_context(|| format!("{pid} is no process id"))?;
        Self::watch(name, pid)
    }
}

impl Process {
    /// Starts to count the CPU time of a process.
    pub(crate) fn watch(name: &str, pid: u32) -> anyhow::Result<Self> {
        Ok(Self { name: name.to_owned(), pid, cpu_seconds_before: cpu_seconds(pid)? })
    }

    /// Restarts the count of CPU time at 0.
    pub(crate) fn reset(&mut self) -> anyhow::Result<()> {
        self.cpu_seconds_before = cpu_seconds(self.pid)?;
        Ok(())
    }

    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        let path = format!("/proc/{}/status", self.pid);
        let status = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        Ok(Usage {
            name: self.name.clone(),
            cpu_seconds: cpu_seconds(self.pid)? - self.cpu_seconds_before,
            // Both are read at the same time, so that the peak is at least the resident memory.
            peak_mib: mib(&status, "VmHWM:").context(path.clone())?,
            resident_mib: mib(&status, "VmRSS:").context(path)?,
        })
    }
}

fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let fields: Vec<&str> = stat.rsplit(')').next().context("no fields")?.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).with_context(|| path.clone());
    Ok((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}

/// The memory that a field of `/proc/<pid>/status` states, in MiB.
fn mib(status: &str, field: &str) -> anyhow::Result<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field)).with_context(|| format!("no {field}"))?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen_to_work_and_to_take_memory() {
        let this = Process::watch("this", std::process::id()).unwrap();
        let mut memory = vec![1_u8; 64 << 20];
        while this.usage().unwrap().cpu_seconds < 0.05 {
            for byte in &mut memory {
                *byte = byte.wrapping_add(1);
            }
        }
        let usage = this.usage().unwrap();
        assert!(usage.resident_mib >= 64.0 && usage.peak_mib >= usage.resident_mib, "{usage:?}");
        assert_eq!(std::hint::black_box(memory).len(), 64 << 20);
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        assert!("name=4194304999".parse::<Process>().is_err());
        assert!("name=nonsense".parse::<Process>().is_err());
    }
}
