//! `tidegauge check`: is the configuration good, and what is it in full? With `--log`, is the log good as
//! well?

use std::io::Write;

use anyhow::Context;
use clap::Args;
use tidegauge::common::clock::Clock;
use tidegauge::http::Tls;
use tidegauge::store::mongodb::check_uri;
use tidegauge::telemetry::logs;

use super::settings::Settings;

mod log;

/// What to check.
#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    settings: Settings,
    /// Read the whole log as well, and tell what is in it and what is damaged; the server must not be running
    #[arg(long)]
    log: bool,
    /// Set aside what is damaged in the log, so that the server starts with the rest: the damaged bytes are
    /// copied to the folder quarantine in the data folder, and the readings in them are lost to the server
    #[arg(long, requires = "log")]
    quarantine: bool,
}

const HELP: &str = "\
Give it the flags and the environment that the server gets: what is printed is in force then, and a value of the file that \
a flag or a variable overrules is named at the end. Of a wrong configuration all mistakes are reported at once, each with \
its place.

Exit status: 0 when all is good, 64 when the configuration is wrong, 1 when the log is damaged or something else failed.";

/// Prints the effective configuration as TOML, secrets hidden and what follows from other keys filled in, or
/// fails as a server with these flags would. Then the log, if asked for: damage is an error.
pub(super) async fn run(args: &CheckArgs) -> anyhow::Result<()> {
    let (config, remarks) = args.settings.load_and_compare()?;
    logs::init(&config.telemetry)?;
    Tls::load(&config.http.tls, &Clock::system())?;
    if let Some(uri) = config.mongodb.uri.as_ref().filter(|_| config.store_kind().is_mongodb()) {
        check_uri(uri).await?;
    }
    let text = toml::to_string(&config.filled()).context("the configuration as TOML")?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    for renamed in remarks.renamed {
        writeln!(out, "# {renamed}")?;
    }
    for overruled in remarks.overruled {
        writeln!(out, "# {overruled}")?;
    }
    writeln!(out, "# configuration is valid")?;
    if args.log {
        writeln!(out)?;
        log::check(&config.server.data_dir, args.quarantine, &mut out)?;
    }
    Ok(())
}
