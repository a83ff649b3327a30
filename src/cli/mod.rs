//! The command line: one file per command.
//!
//! A command gets its parsed flags, does its work, and returns an error to be told and turned into an exit code: 64 for
//! bad usage or configuration, 1 for everything else.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tidegauge::config::ConfigError;
use tidegauge::http::TlsError;
use tidegauge::store::mongodb::UriError;

use self::settings::Settings;

mod check;
mod client;
mod credential;
mod data_dir;
mod dead_letters;
mod import;
mod key;
mod serve;
mod settings;
mod token;

/// `EX_USAGE` of sysexits.h.
const BAD_USAGE: u8 = 64;

/// Takes readings from sensors, makes them durable, stores them in MongoDB or SQLite, and answers rollups.
///
/// Without a command it serves: `tidegauge --http ADDR` is `tidegauge serve --http ADDR`.
#[derive(Debug, Parser)]
#[command(name = "tidegauge", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Settings,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server: the default
    Serve(Settings),
    /// Send readings from CSV and NDJSON files to a running server
    Import(import::ImportArgs),
    /// Look at what the store refused for good, or send it again
    DeadLetters(dead_letters::DeadLettersArgs),
    /// Validate the configuration and print all of it; with --log, check the log too
    Check(check::CheckArgs),
    /// Make, hash and try the tokens by which clients are known
    Token(token::TokenArgs),
    /// Make the keys that datagrams are signed with, and sign with them
    Key(key::KeyArgs),
}

/// The command line asks for what cannot be done.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

/// So many of what `one` names: `1 reading`, `2 readings`.
fn counted(count: u64, one: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {one}{plural}")
}

/// Runs the command, tells its error, and returns the exit code.
pub(crate) async fn run(command_line: Cli) -> ExitCode {
    let done = match command_line.command.unwrap_or(Command::Serve(command_line.serve)) {
        Command::Serve(settings) => serve::run(&settings).await,
        Command::Import(args) => import::run(args).await,
        Command::DeadLetters(args) => dead_letters::run(args).await,
        Command::Check(args) => check::run(&args).await,
        Command::Token(args) => token::run(args),
        Command::Key(args) => key::run(args),
    };
    let Err(error) = done else {
        return ExitCode::SUCCESS;
    };
    eprintln!("tidegauge: {error:#}");
    let is_bad_uri = matches!(error.downcast_ref(), Some(UriError::Unusable(_)));
    let is_usage = is_bad_uri || error.is::<Usage>() || error.is::<ConfigError>() || error.is::<TlsError>();
    if is_usage { BAD_USAGE.into() } else { ExitCode::FAILURE }
}

/// Says why a command line was not understood, or what `--help` and `--version` ask for.
pub(crate) fn explain(not_parsed: &clap::Error) -> ExitCode {
    let asked_for_help = !not_parsed.use_stderr();
    match not_parsed.print() {
        Ok(()) if asked_for_help => ExitCode::SUCCESS,
        Ok(()) => BAD_USAGE.into(),
        Err(_) => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
