//! Waits for a store or server that is away.

use std::time::Duration;

use anyhow::bail;
use tidegauge::common::backoff::Backoff;
use tidegauge::store::{StoreError, WriteError};
use tokio::time::Instant;

/// How long a store or server may be away before the command ends.
const RETRY_FOR: Duration = Duration::from_secs(300);

/// The trouble with a store, in a few words.
const AWAY: &str = "a store does not answer";

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LAST_WAIT: Duration = Duration::from_secs(10);

/// Repeats a request to a store while it fails for a reason that may pass, for at most five minutes.
pub(in super::super) async fn patiently<T>(
    mut request: impl AsyncFnMut() -> Result<T, StoreError>,
) -> anyhow::Result<T> {
    let mut patience = Patience::new(AWAY);
    loop {
        match request().await {
            Ok(answer) => return Ok(answer),
            Err(error) if error.cause.is_permanent() => return Err(error.into()),
            Err(error) => patience.wait(&error.detail).await?,
        }
    }
}

/// Repeats a request for those of several items that fail for a reason that may pass, for at most five
/// minutes. Returns the other outcomes of all items, in any order.
pub(super) async fn patiently_each<T, O>(
    mut items: Vec<T>,
    mut request: impl AsyncFnMut(&[T]) -> Vec<Result<O, WriteError>>,
) -> anyhow::Result<Vec<(T, Result<O, WriteError>)>> {
    let (mut settled, mut patience) = (Vec::with_capacity(items.len()), Patience::new(AWAY));
    while !items.is_empty() {
        let outcomes = request(&items).await;
        let (mut again, mut trouble) = (Vec::new(), None);
        for (item, outcome) in items.into_iter().zip(outcomes) {
            match outcome {
                Err(error) if !error.is_permanent() => {
                    again.push(item);
                    trouble = Some(error);
                }
                outcome => settled.push((item, outcome)),
            }
        }
        if let Some(error) = trouble {
            patience.wait(&error.detail).await?;
        }
        items = again;
    }
    Ok(settled)
}

/// The waits for a store or server that is away.
pub(in super::super) struct Patience {
    what: &'static str,
    backoff: Backoff,
    until: Option<Instant>,
}

impl Patience {
    /// `what` is the trouble in a few words.
    pub(in super::super) fn new(what: &'static str) -> Self {
        Self { what, backoff: Backoff::new(FIRST_WAIT..=LAST_WAIT), until: None }
    }

    /// Waits before the next attempt. It fails once the trouble has lasted for too long.
    pub(in super::super) async fn wait(&mut self, why: &str) -> anyhow::Result<()> {
        self.wait_for(why, None).await
    }

    /// The same for as long as the server asks for, if it does.
    pub(in super::super) async fn wait_for(&mut self, why: &str, asked: Option<Duration>) -> anyhow::Result<()> {
        if self.until.is_none() {
            tracing::warn!(why, "{}; trying again", self.what);
        }
        if Instant::now() > *self.until.get_or_insert_with(|| Instant::now() + RETRY_FOR) {
            bail!("{why}; gave up after {RETRY_FOR:?}");
        }
        let own = self.backoff.next_wait();
        tokio::time::sleep(asked.map_or(own, |asked| asked.mul_f64(rand::random_range(1.0..1.1)))).await;
        Ok(())
    }
}
