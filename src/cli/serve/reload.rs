//! SIGHUP: other tokens and keys from the next request on, other certificates from the next connection on,
//! and nothing else changes.

use std::convert::Infallible;
use std::sync::Arc;

use tidegauge::access::{Gate, Tokens};
use tidegauge::common::clock::Clock;
use tidegauge::config::Config;
use tidegauge::http::Tls;
use tidegauge::telemetry::Metrics;
use tokio::signal::unix::{SignalKind, signal};

use super::super::settings::Settings;

/// What can be replaced in a running server.
pub(super) struct Replaceable {
    /// What it was started with, and what was taken over since.
    pub(super) config: Config,
    pub(super) gate: Arc<Gate>,
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Clock,
}

/// From now on, reads `[auth]`, `[http.tls]` and the files that it names again whenever SIGHUP comes. Where
/// any of it cannot be used, nothing changes.
pub(super) fn on_hangup(
    settings: &Settings,
    mut running: Replaceable,
) -> std::io::Result<impl Future<Output = Infallible>> {
    let mut hangups = signal(SignalKind::hangup())?;
    Ok(async move {
        loop {
            hangups.recv().await;
            let reloaded = running.reload(settings);
            running.metrics.record_config(reloaded.is_ok(), running.clock.now_ms());
            if let Err(error) = reloaded {
                let error = format!("{error:#}");
                tracing::error!(error, "nothing was read again; tokens, keys and certificates stay as they were");
            }
        }
    })
}

impl Replaceable {
    fn reload(&mut self, settings: &Settings) -> anyhow::Result<()> {
        let now = settings.load()?;
        let changed = self.config.reloaded(&now)?;
        let other_tls = Tls::load(&changed.http.tls, &self.clock)?;
        if now != changed {
            let keys = changed.differing_keys(&now).join(", ");
            tracing::warn!(keys, "keys outside [auth] and the files of [http.tls] have changed: that takes a restart");
        }
        if changed.auth.lets_anybody_in() && !self.config.auth.lets_anybody_in() {
            tracing::warn!("from now on it takes no token: whoever reaches this service may do everything");
        }
        let tokens = Tokens::new(&changed);
        let (count, keys) = (tokens.count(), tokens.keys().count());
        self.gate.replace(tokens);
        if let (Some(tls), Some(other)) = (&self.tls, other_tls) {
            tls.replace(other);
            tls.record_expiry(&self.metrics);
            tracing::info!(tokens = count, keys, "[auth] and the files of [http.tls] were read again");
        } else {
            tracing::info!(tokens = count, keys, "[auth] was read again");
        }
        self.config = changed;
        Ok(())
    }
}
