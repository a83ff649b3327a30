//! `tidegauge check`: checks the configuration and prints it in full.
//!
//! Flags select another check: `--log` reads the log, `--full` examines everything that the service uses,
//! `--report` writes the findings of `--full` and more into a file, `--ready` asks the running server.
//! `--rebuild-device-index` repairs a MongoDB database.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use tidegauge::common::clock::Clock;
use tidegauge::store::mongodb::check_uri;
use tidegauge::telemetry::logs;
use tidegauge::tls::Tls;

use super::serve::{forwarding_options, options, rollups};
use super::settings::Settings;

mod device_index;
mod files;
mod forward;
mod full;
mod log;
mod mqtt;
mod ready;
mod report;
mod rights;

/// The flags of `tidegauge check`.
#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(super) struct CheckArgs {
    #[command(flatten)]
    settings: Settings,
    /// Read the whole log, and report its content and any damage instead of the configuration; the server
    /// must not be running
    #[arg(long)]
    log: bool,
    /// Set aside the damage in the log, so that the server starts with the rest: the damaged bytes are copied
    /// to the folder quarantine in the data folder, and the server loses the readings in them
    #[arg(long, requires = "log")]
    quarantine: bool,
    /// Append the whole records in the folder quarantine to the log again, for files that an operator has
    /// mended: their values replace what was accepted for the same device, time and series since
    #[arg(long, requires = "log")]
    put_back: bool,
    /// Look at all that the service uses, also while it runs: the database with its indexes, expiry and
    /// queries, the server at forward.url, the certificate, the log, the disks. Each finding says how to mend
    /// it. Nothing is changed
    #[arg(long, conflicts_with_all = ["log", "ready"])]
    full: bool,
    /// With --full, read all pages of SQLite and the whole log, however long that takes
    #[arg(long, requires = "full")]
    deep: bool,
    /// Make the device index of a MongoDB database again, after its collection was dropped or was not
    /// restored, also while the service runs; this reads all readings and rollups
    #[arg(long, conflicts_with_all = ["log", "ready", "full"])]
    rebuild_device_index: bool,
    /// With --full, print the findings as one JSON object
    #[arg(long, requires = "full")]
    json: bool,
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["log", "ready", "rebuild_device_index", "json"],
        help = "Write a new file to report a fault with: the version, the machine, the configuration without its \
                secrets, what --full finds, and the metrics of the running server (with the variable TIDEGAUGE_TOKEN, \
                if it wants a token; with TLS, none is sent)"
    )]
    report: Option<PathBuf>,
    /// Only ask the running server with these flags whether it accepts readings (GET /readyz), and print
    /// "ready" if it does: the health check of a container
    #[arg(long, conflicts_with = "log")]
    ready: bool,
}

const HELP: &str = "\
Use the flags and the environment of the server: the printed values are then in force, and the end of the output names \
each value of the file that a flag or a variable overrides. All mistakes of a configuration are reported at once, each \
with its place. Of a list, such as [[webhook]], it is only the first one, with the number of its table.

Exit status: 0 if all is good, 64 if the configuration is wrong, 1 if the log is damaged, the server is not ready, \
--full found an error or another error occurred, 2 if --full found warnings and no errors.";

/// Prints the configuration in force as TOML, or what the flags ask for instead.
///
/// A wrong configuration is an error, as at the start of a server. Secrets are hidden, and values that follow
/// from other keys are filled in. With `--log`, damage is an error.
pub(super) async fn run(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let (config, overridden) = args.settings.load_and_compare()?;
    logs::init(&config.telemetry)?;
    if args.ready {
        return ready::check(&config.http, &mut std::io::stdout()).await.map(|()| ExitCode::SUCCESS);
    }
    let tls = Tls::load(&config.http.tls, &Clock::system())?;
    let forward = forwarding_options(&config, &Clock::system())?;
    let brokers = options::mqtt(&config)?;
    if let Some(uri) = config.mongodb.uri.as_ref().filter(|_| config.store_kind().is_mongodb()) {
        check_uri(uri).await?;
    }
    if args.rebuild_device_index {
        return device_index::rebuild(&config, &mut std::io::stdout()).await.map(|()| ExitCode::SUCCESS);
    }
    if args.full || args.report.is_some() {
        let (tls, forward) = (tls.as_ref(), forward.as_ref());
        let (file, overridden) = (args.settings.file(), &*overridden);
        let subject = full::Subject { config: &config, file, overridden, tls, forward, brokers: &brokers };
        let findings = full::look(&subject, args.deep).await?;
        if let Some(path) = &args.report {
            report::write(path, &config, overridden, &findings).await?;
            writeln!(std::io::stdout(), "wrote {}: read it before you send it", path.display())?;
            return Ok(ExitCode::SUCCESS);
        }
        return full::report(config.store_kind(), &findings, args.json, &mut std::io::stdout().lock());
    }
    let mut out = std::io::stdout().lock();
    if args.log {
        writeln!(out, "the configuration is valid")?;
        let mending = log::Mending { quarantine: args.quarantine, put_back: args.put_back };
        log::check(&config.server.data_dir, mending, &mut out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = toml::to_string(&config.filled()).context("the configuration as TOML")?;
    writeln!(out, "{text}")?;
    writeln!(out, "# rollups are written: {}", rollups(&config))?;
    let gather_max = config.flush.max_age.as_duration() / 10;
    if config.flush.gather.as_duration() > gather_max {
        writeln!(out, "# of flush.gather only {gather_max:?} are used, a tenth of flush.max_age")?;
    }
    for overridden in overridden {
        writeln!(out, "# {overridden}")?;
    }
    writeln!(out, "# configuration is valid")?;
    Ok(ExitCode::SUCCESS)
}
