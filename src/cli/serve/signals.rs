//! The signals of the operating system. `reload.rs` handles SIGHUP if it reloads.

use futures_util::future::select_all;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Makes SIGUSR1 and SIGUSR2 only log a line.
///
/// By default they end a process, and tools send them by habit, for example after the rotation of log files.
pub(super) fn ignore_user_signals() -> std::io::Result<()> {
    for (name, kind) in [("SIGUSR1", SignalKind::user_defined1()), ("SIGUSR2", SignalKind::user_defined2())] {
        let mut received = signal(kind)?;
        tokio::spawn(async move {
            while received.recv().await.is_some() {
                tracing::info!(
                    signal = name,
                    "does nothing; SIGHUP reloads tokens, keys, certificates and the log level"
                );
            }
        });
    }
    Ok(())
}

/// The signals that stop the service in order, with their names.
pub(in super::super) struct StopSignals(Vec<(&'static str, Signal)>);

impl StopSignals {
    /// Handles the signals, which then no longer end the process by themselves.
    pub(in super::super) fn new(with_hangup: bool) -> std::io::Result<Self> {
        let mut kinds = vec![("SIGTERM", SignalKind::terminate()), ("SIGINT", SignalKind::interrupt())];
        kinds.extend(with_hangup.then_some(("SIGHUP", SignalKind::hangup())));
        kinds.into_iter().map(|(name, kind)| Ok((name, signal(kind)?))).collect::<std::io::Result<_>>().map(Self)
    }

    /// Waits for one of the signals, and returns its name.
    pub(in super::super) async fn received(&mut self) -> &'static str {
        let each = self.0.iter_mut().map(|(name, signal)| {
            Box::pin(async move {
                signal.recv().await;
                *name
            })
        });
        select_all(each).await.0
    }
}
