//! `tidegauge check`: is the configuration good, and what is it in full?

use std::io::Write;

use anyhow::Context;

use super::settings::Settings;

/// Prints the effective configuration as TOML, secrets hidden, or fails as a server with these flags would.
pub(super) fn run(settings: &Settings) -> anyhow::Result<()> {
    let config = settings.load()?;
    let text = toml::to_string(&config).context("the configuration as TOML")?;
    writeln!(std::io::stdout(), "{text}\n# configuration is valid")?;
    Ok(())
}
