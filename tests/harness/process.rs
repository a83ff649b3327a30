//! Runs a command of the binary and waits for its end.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// The path of the binary.
///
/// It is `TEST_BINARY`, or else the binary that was built with these tests.
pub(crate) fn binary() -> PathBuf {
    std::env::var_os("TEST_BINARY").map_or_else(|| env!("CARGO_BIN_EXE_tidegauge").into(), PathBuf::from)
}

/// Removes the settings of the developer's environment from a command.
pub(super) fn remove_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"TIDEGAUGE_") {
            command.env_remove(name);
        }
    }
}

/// The path that a command of `tests` prints, such as `get nginx`. It fetches a program or packages if they
/// are missing. The command runs once.
pub(crate) fn fetched(command: &'static str) -> &'static str {
    static PATHS: Mutex<BTreeMap<&str, &str>> = Mutex::new(BTreeMap::new());
    let mut paths = PATHS.lock().unwrap_or_else(PoisonError::into_inner); // a command that failed may run again
    paths.entry(command).or_insert_with(|| printed_by(command).leak())
}

fn printed_by(command: &str) -> String {
    let mut words = command.split(' ');
    let script = format!("{}/tests/{}", env!("CARGO_MANIFEST_DIR"), words.next().expect("a script"));
    let mut python = Command::new("python3");
    let output = python.arg(script).args(words).stdin(Stdio::null()).output().expect("python3 is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("a path").trim_end().to_owned()
}

/// A process that is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill()); // it may have ended
        drop(self.0.wait());
    }
}

/// The exit code and the output of a command.
#[derive(Debug)]
pub(crate) struct Finished {
    /// The exit code; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    /// Its stdout.
    pub(crate) stdout: String,
    /// Its stderr.
    pub(crate) stderr: String,
}

/// Runs `tidegauge` with these arguments and without input.
pub(crate) async fn run(args: &[&str]) -> Finished {
    run_with(args, "").await
}

/// Runs `tidegauge` with these arguments and this text on stdin.
pub(crate) async fn run_with(args: &[&str], input: &str) -> Finished {
    let mut command = Command::new(binary());
    remove_settings(&mut command);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    let (mut stdin, input) = (child.stdin.take().expect("piped"), input.to_owned());
    let feed_and_wait = move || {
        drop(stdin.write_all(input.as_bytes())); // the command may end without reading it
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
