//! Runs a command of the binary to its end.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The binary: the one that was built with these tests, or what `TEST_BINARY` names.
pub(crate) fn binary() -> PathBuf {
    std::env::var_os("TEST_BINARY").map_or_else(|| env!("CARGO_BIN_EXE_tidegauge").into(), PathBuf::from)
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
    run_with(args, "").await
}

/// The same, with this text on standard input.
pub(crate) async fn run_with(args: &[&str], input: &str) -> Finished {
    let mut command = Command::new(binary());
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    let (mut stdin, input) = (child.stdin.take().expect("piped"), input.to_owned());
    let feed_and_wait = move || {
        drop(stdin.write_all(input.as_bytes())); // it may end without reading
        drop(stdin);
        child.wait_with_output()
    };
    let output = tokio::task::spawn_blocking(feed_and_wait).await.expect("no panic").expect("our child");
    Finished {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
