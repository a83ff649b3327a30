//! The line that a fault test prints when it ends.

use std::io::Write;
use std::time::Duration;

/// The results of a fault test.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) fault: &'static str,
    pub(crate) store: &'static str,
    pub(crate) injected: u64,
    pub(crate) acked: u64,
    pub(crate) lost: usize,
    pub(crate) duplicated: usize,
    pub(crate) longest_stall: Duration,
    pub(crate) seed: u64,
}

impl Line {
    /// Prints the line. It bypasses the test harness, which hides the output of passing tests.
    pub(crate) fn print(&self) {
        let Self { fault, store, injected, acked, lost, duplicated, seed, .. } = self;
        let stall = self.longest_stall.as_secs_f64();
        say(&format!(
            "fault test | {fault:<34} | {store:<18} | injected {injected:>4} | acked {acked:>7} | lost {lost} \
             | duplicated {duplicated} | longest stall {stall:>5.2} s | seed {seed}"
        ));
    }
}

/// Prints a line on stderr in one write.
pub(crate) fn say(line: &str) {
    drop(std::io::stderr().lock().write_all(format!("{line}\n").as_bytes())); // stderr may be closed
}
