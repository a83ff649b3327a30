//! Waits for a store that is away.

use std::time::Duration;

use anyhow::bail;
use tidegauge::common::backoff::Backoff;
use tidegauge::store::StoreError;
use tokio::time::Instant;

/// How long a store may be away before the command ends.
const RETRY_FOR: Duration = Duration::from_secs(300);

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LAST_WAIT: Duration = Duration::from_secs(10);

/// Repeats a request to a store while it fails for a reason that may pass, for at most five minutes.
pub(in super::super) async fn patiently<T>(
    mut request: impl AsyncFnMut() -> Result<T, StoreError>,
) -> anyhow::Result<T> {
    let mut patience = Patience::new();
    loop {
        match request().await {
            Ok(answer) => return Ok(answer),
            Err(error) if error.cause.is_permanent() => return Err(error.into()),
            Err(error) => patience.wait(&error.detail).await?,
        }
    }
}

/// The waits for a store that is away.
pub(in super::super) struct Patience {
    backoff: Backoff,
    until: Option<Instant>,
}

impl Patience {
    pub(in super::super) fn new() -> Self {
        Self { backoff: Backoff::new(FIRST_WAIT..=LAST_WAIT), until: None }
    }

    /// Waits before the next attempt. It fails once the store has been away for too long.
    pub(in super::super) async fn wait(&mut self, why: &str) -> anyhow::Result<()> {
        if self.until.is_none() {
            tracing::warn!(why, "a store does not answer; trying again");
        }
        if Instant::now() > *self.until.get_or_insert_with(|| Instant::now() + RETRY_FOR) {
            bail!("{why}; gave up after {RETRY_FOR:?}");
        }
        tokio::time::sleep(self.backoff.next_wait()).await;
        Ok(())
    }
}
