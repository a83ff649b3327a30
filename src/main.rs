//! The `tidegauge` program: parses the command line, runs the command, and ends with its exit code.

use std::mem::ManuallyDrop;
use std::process::ExitCode;

use clap::Parser;
use nix::sys::stat::{Mode, umask};
use tokio::runtime::Runtime;

mod cli;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Only the owner may read readings, dead letters and secrets, whatever the inherited umask.
    umask(Mode::from_bits_truncate(0o077));
    // A command completes all its work before it returns. The runtime is not dropped, because that would
    // cancel the remaining tasks one by one, and some tasks of the MongoDB driver panic if another one is
    // gone.
    let runtime = ManuallyDrop::new(Runtime::new().expect("the system can start threads"));
    runtime.block_on(run())
}

async fn run() -> ExitCode {
    match cli::Cli::try_parse() {
        Ok(command_line) => cli::run(command_line).await,
        Err(not_parsed) => cli::explain(&not_parsed),
    }
}
