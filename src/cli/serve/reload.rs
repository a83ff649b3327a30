//! SIGHUP: other tokens and keys from the next request on, and nothing else changes.

use std::convert::Infallible;

use tidegauge::access::{Gate, Tokens};
use tidegauge::config::{Config, ConfigError};
use tokio::signal::unix::{SignalKind, signal};

use super::super::settings::Settings;

/// From now on, reads `[auth]` again whenever SIGHUP comes. A configuration that cannot be used changes nothing.
pub(super) fn on_hangup(
    settings: &Settings,
    running: &Config,
    gate: &Gate,
) -> std::io::Result<impl Future<Output = Infallible>> {
    let mut hangups = signal(SignalKind::hangup())?;
    Ok(async move {
        loop {
            hangups.recv().await;
            match reload(settings, running) {
                Ok(tokens) => {
                    let (count, keys) = (tokens.count(), tokens.keys().count());
                    gate.replace(tokens);
                    tracing::info!(tokens = count, keys, "[auth] was read again");
                }
                Err(error) => {
                    tracing::error!(%error, "[auth] was not read again; the tokens and keys stay as they were");
                }
            }
        }
    })
}

/// The tokens and keys of the configuration as it is now, if they go together with the addresses that the server listens on.
fn reload(settings: &Settings, running: &Config) -> Result<Tokens, ConfigError> {
    let now = settings.load()?;
    let changed = running.with_auth(now.auth.clone())?;
    if now != changed {
        tracing::warn!("the configuration has changed outside [auth]: that takes a restart");
    }
    Ok(Tokens::new(&changed.auth, changed.ingest.device_id_case))
}
