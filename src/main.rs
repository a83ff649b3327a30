//! The `tidegauge` program: parse, run, exit code.

use std::process::ExitCode;

use clap::Parser;

mod cli;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    match cli::Cli::try_parse() {
        Ok(command_line) => cli::run(command_line).await,
        Err(not_parsed) => cli::explain(&not_parsed),
    }
}
