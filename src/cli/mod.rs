//! The command line: a file or a folder for each command.
//!
//! A command receives its parsed flags and does its work. [`run`] prints its error and turns it into an exit
//! code: 64 for bad usage or configuration, 1 for any other error. Only `check` chooses a code itself: with
//! `--full`, 2 if there are warnings and no errors.

use std::fmt;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tidegauge::common::finding::counted;
use tidegauge::common::printable::printable;
use tidegauge::config::ConfigError;
use tidegauge::store::mongodb::UriError;
use tidegauge::telemetry::{VERSION, logs};
use tidegauge::tls::TlsError;

use self::settings::Settings;

/// Prints a line to stderr.
///
/// Unlike the macro of the standard library, this one does not panic when the reader of a pipe has gone, as
/// in `tidegauge check 2>&1 | head`.
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::cli::print_line(&mut std::io::stderr(), format_args!($($text)*)) };
}

/// Prints a line to stdout. Like `eprintln`, it does not panic at a closed pipe.
macro_rules! println {
    ($($text:tt)*) => { $crate::cli::print_line(&mut std::io::stdout(), format_args!($($text)*)) };
}

mod backup;
mod check;
mod client;
mod credential;
mod data_dir;
mod dead_letters;
mod demo;
mod estimate;
mod export;
mod import;
mod key;
mod known_store;
mod man;
mod migrate;
mod mover;
mod serve;
mod settings;
mod target;
mod token;

/// `EX_USAGE` of sysexits.h.
const BAD_USAGE: u8 = 64;

/// Receives readings from sensors, makes them durable, and stores them in MongoDB or SQLite.
///
/// The default command is serve: `tidegauge --http ADDR` means `tidegauge serve --http ADDR`.
#[derive(Debug, Parser)]
#[command(name = "tidegauge", version = VERSION, args_conflicts_with_subcommands = true, after_long_help = HELP)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Settings,
}

const HELP: &str = "\
Examples:
  tidegauge demo
      Serve a simulated factory with a week of history, on 127.0.0.1:8080, until Ctrl-C
  tidegauge
      Serve with the defaults: HTTP on 127.0.0.1:8080, UDP on 127.0.0.1:8089, SQLite and the log in ./data
  tidegauge serve --config /etc/tidegauge/tidegauge.toml --data-dir /var/lib/tidegauge
  tidegauge serve --mongodb-uri 'mongodb://localhost:27017/?replicaSet=rs0'
  tidegauge check --config /etc/tidegauge/tidegauge.toml --data-dir /var/lib/tidegauge
      Report the mistakes of a configuration, or print the values in force with these flags; with --full, check the
      database, the log and the disks too
  tidegauge token new --name gateway-1 --scope ingest,query
  tidegauge import history.csv --device machine-1

Environment:
  TIDEGAUGE_<SECTION>__<KEY>  Sets a key of the configuration, with two underscores: TIDEGAUGE_HTTP__LISTEN sets
                              http.listen. A flag overrides the environment, which overrides the file.
  TIDEGAUGE_TOKEN             The token that import, export and dead-letters retry send to the server.

Exit status: 0 on success, 64 if the command line or the configuration is wrong (a restart does not help until it is \
corrected), 1 for every other error. check --full also ends with 2: warnings and no errors.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server (the default)
    Serve(Settings),
    /// Serve a simulated factory, to try tidegauge out
    Demo(demo::DemoArgs),
    /// Send readings from CSV and NDJSON files to a running server
    Import(import::ImportArgs),
    /// Write the readings of a running server to a file, which import reads
    Export(export::ExportArgs),
    /// Copy all readings of one store into another, which a running service uses
    Move(mover::MoveArgs),
    /// Rewrite buckets that were made after a guide to the bucket pattern of MongoDB
    Migrate(migrate::MigrateArgs),
    /// List the readings that the store refused permanently, or send them again
    DeadLetters(dead_letters::DeadLettersArgs),
    /// Check the configuration and print the values in force; with --full, check all that the service uses
    Check(check::CheckArgs),
    /// Estimate the storage, memory, processors and nodes that a fleet of devices needs
    Estimate(estimate::EstimateArgs),
    /// Copy the log, the dead letters and the SQLite file of a service, which may be running
    Backup(backup::BackupArgs),
    /// Fill an empty data folder from a backup
    Restore(backup::RestoreArgs),
    /// Create, hash and check the tokens of clients
    Token(token::TokenArgs),
    /// Create the keys that sign datagrams, and sign with them
    Key(key::KeyArgs),
    /// Print the script that completes commands and flags in a shell
    Completions(man::CompletionsArgs),
    /// Print the manual page of a command
    Man(man::ManArgs),
}

/// Prints a line with its control characters escaped. If nothing reads the output, the line is lost.
fn print_line(out: &mut impl Write, line: fmt::Arguments<'_>) {
    let line = line.to_string();
    let _ = out.write_fmt(format_args!("{}\n", printable(&line)));
}

/// The command line is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

/// Runs the command, prints its error, and returns the exit code.
pub(crate) async fn run(command_line: Cli) -> ExitCode {
    let done = match command_line.command.unwrap_or(Command::Serve(command_line.serve)) {
        Command::Serve(settings) => serve::run(&settings).await,
        Command::Demo(args) => demo::run(&args).await,
        Command::Import(args) => import::run(args).await,
        Command::Export(args) => export::run(args).await,
        Command::Move(args) => mover::run(args).await,
        Command::Migrate(args) => migrate::run(args).await,
        Command::DeadLetters(args) => dead_letters::run(args).await,
        Command::Check(args) => match check::run(&args).await {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Estimate(args) => estimate::run(&args),
        Command::Backup(args) => backup::run(&args),
        Command::Restore(args) => backup::restore(&args),
        Command::Token(args) => token::run(args),
        Command::Key(args) => key::run(args),
        Command::Completions(args) => man::complete(&args),
        Command::Man(args) => man::run(&args),
    };
    let Err(error) = done else {
        return ExitCode::SUCCESS;
    };
    if error.downcast_ref().is_some_and(|error: &std::io::Error| error.kind() == ErrorKind::BrokenPipe) {
        return ExitCode::FAILURE; // the reader of the output has closed its pipe
    }
    match logs::json_line("ERROR", &format!("{error:#}"), &[]) {
        Some(line) => eprintln!("{line}"),
        None => eprintln!("tidegauge: {error:#}"),
    }
    let is_bad_uri = matches!(error.downcast_ref(), Some(UriError::Unusable(_)));
    let is_usage = is_bad_uri || error.is::<Usage>() || error.is::<ConfigError>() || error.is::<TlsError>();
    if is_usage { BAD_USAGE.into() } else { ExitCode::FAILURE }
}

/// Prints why a command line is wrong, or the text of `--help` and `--version`.
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

    /// The text of `--help` of a command and of its subcommands.
    fn help_of(command: &mut clap::Command, name: &str) -> String {
        let text = command.render_long_help().to_string();
        let lines: Vec<&str> = text.trim_end().lines().map(str::trim_end).collect();
        let mut help = format!("$ {name} --help\n{}\n", lines.join("\n"));
        for below in command.get_subcommands_mut().filter(|below| below.get_name() != "help") {
            let name = format!("{name} {}", below.get_name());
            help.push('\n');
            help += &help_of(below, &name);
        }
        help
    }

    #[test]
    fn the_help_of_every_command_is_a_contract() {
        let mut command = Cli::command();
        command.build();
        let help = help_of(&mut command, "tidegauge");
        insta::assert_snapshot!(help);
    }
}
