//! Kills a child process when this process ends, in whichever way.
//!
//! Statics are never dropped and a killed process drops nothing, so `Drop` alone would leak servers. A
//! parent-death signal is too strong: it fires when the *thread* that started the child ends, and each test
//! is a thread. So a shell holds the read end of a pipe whose only write end is in this process (pipes are
//! close-on-exec, so no sibling inherits it). When this process is gone, the shell reads end-of-file and
//! kills.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A guard: while it exists, the child is killed when this process ends.
#[derive(Debug)]
pub(crate) struct KillOnExit {
    shell: Child,
}

impl KillOnExit {
    /// Guards `child`. If this process ends without dropping the guard, `folder` is removed too.
    pub(crate) fn new(child: &Child, folder: &Path) -> Self {
        let script = r#"read -r _; kill -KILL "$0"; sleep 1; rm -rf "$1""#;
        let shell = Command::new("sh")
            .args(["-c", script, &child.id().to_string()])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0) // Ctrl-C in the terminal must not end the shell first
            .spawn()
            .expect("sh is there");
        Self { shell }
    }
}

impl Drop for KillOnExit {
    fn drop(&mut self) {
        self.shell.kill().expect("the shell is our child");
        self.shell.wait().expect("the shell is our child");
    }
}
