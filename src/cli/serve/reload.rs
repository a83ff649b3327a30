//! SIGHUP reloads tokens, keys, certificates and the log level.
//!
//! Tokens and keys hold for later requests, certificates for later connections.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use tidegauge::access::{Gate, Tokens};
use tidegauge::common::clock::Clock;
use tidegauge::config::Config;
use tidegauge::telemetry::{Metrics, logs};
use tidegauge::tls::Tls;
use tokio::signal::unix::Signal;

use super::super::settings::Settings;

/// The parts of a running server that a reload replaces.
pub(super) struct Replaceable {
    /// The configuration of the start, with the sections reloaded since.
    pub(super) config: Config,
    /// The addresses of the sockets for HTTP and for datagrams that were passed to the process.
    pub(super) passed_at: (Option<SocketAddr>, Option<SocketAddr>),
    pub(super) gate: Arc<Gate>,
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Clock,
}

/// Reloads with each SIGHUP.
///
/// It reads `[auth]`, `[http.tls]` and its files, and `telemetry.log_level` again. If any of it cannot be
/// used, nothing changes.
pub(super) async fn on_hangup(settings: &Settings, mut hangups: Signal, mut running: Replaceable) -> Infallible {
    loop {
        hangups.recv().await;
        let reloaded = running.reload(settings);
        running.metrics.record_config(reloaded.is_ok(), running.clock.now_ms());
        if let Err(error) = reloaded {
            let error = format!("{error:#}");
            tracing::error!(error, "nothing was reloaded; log level, tokens, keys and certificates are unchanged");
        }
    }
}

impl Replaceable {
    fn reload(&mut self, settings: &Settings) -> anyhow::Result<()> {
        let now = settings.load()?;
        let changed = self.config.reloaded(&now)?;
        changed.listening_at(self.passed_at.0, self.passed_at.1)?; // as at the start
        let other_tls = Tls::load(&changed.http.tls, &self.clock)?;
        if now != changed {
            let keys = changed.differing_keys(&now).join(", ");
            tracing::warn!(
                keys,
                "keys outside [auth], telemetry.log_level and the files of [http.tls] have changed: restart the server \
                 to apply them"
            );
        }
        if changed.auth.lets_anybody_in() && !self.config.auth.lets_anybody_in() {
            tracing::warn!("from now on no token is needed: every client that can connect may do everything");
        }
        let (level, before) = (&changed.telemetry.log_level, &self.config.telemetry.log_level);
        if level != before {
            tracing::info!(%before, now = %level, "telemetry.log_level changes");
            logs::set_level(level)?;
        }
        let tokens = Tokens::new(&changed);
        let (count, keys) = (tokens.count(), tokens.keys.count());
        self.gate.replace(tokens);
        if let (Some(tls), Some(other)) = (&self.tls, other_tls) {
            tls.replace(other);
            tls.record_expiry(&self.metrics);
            tracing::info!(tokens = count, keys, "[auth] and the files of [http.tls] were reloaded");
        } else {
            tracing::info!(tokens = count, keys, "[auth] was reloaded");
        }
        self.config = changed;
        Ok(())
    }
}
