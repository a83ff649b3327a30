//! The `tidegauge` program: parse, run, exit code.

use std::mem::ManuallyDrop;
use std::process::ExitCode;

use clap::Parser;
use nix::sys::stat::{Mode, umask};
use tokio::runtime::Runtime;

mod cli;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Readings, dead letters and secrets are for the owner alone, whatever the umask of who starts the
    // program.
    umask(Mode::from_bits_truncate(0o077));
    // What has to be done is done when a command returns. Tasks that are still under way then, the MongoDB
    // driver's above all, are left to the end of the process: cut off one by one, some panic over the loss of
    // another.
    let runtime = ManuallyDrop::new(Runtime::new().expect("the system has threads"));
    runtime.block_on(run())
}

async fn run() -> ExitCode {
    match cli::Cli::try_parse() {
        Ok(command_line) => cli::run(command_line).await,
        Err(not_parsed) => cli::explain(&not_parsed),
    }
}
