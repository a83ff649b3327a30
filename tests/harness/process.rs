//! Runs a command of the binary to its end.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The binary: the one that was built with these tests, or what `TIDEGAUGE_BINARY` names.
pub(crate) fn binary() -> PathBuf {
    std::env::var_os("TIDEGAUGE_BINARY").map_or_else(|| env!("CARGO_BIN_EXE_tidegauge").into(), PathBuf::from)
}

/// How a command ended and what it printed.
#[derive(Debug)]
pub(crate) struct Finished {
    /// The exit code; `None` when a signal ended it.
    pub(crate) code: Option<i32>,
    /// What it printed on stdout.
    pub(crate) stdout: String,
    /// What it printed on stderr.
    pub(crate) stderr: String,
}

/// Runs `tidegauge` with these arguments, without input, and waits for it on a thread of its own.
pub(crate) async fn run(args: &[&str]) -> Finished {
    let mut command = Command::new(binary());
    command.args(args).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("no panic");
    let output = output.expect("the binary runs");
    Finished {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
