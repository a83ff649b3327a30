//! The number of devices that have been silent for a long time.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Queries, QueryError, blocking};
use crate::common::clock::Clock;
use crate::pending::PendingDevice;
use crate::store::DeviceSet;
use crate::telemetry::LateGauge;

/// The longest wait after a pass.
const LONGEST_WAIT: Duration = Duration::from_secs(900);

/// The wait after the first pass. Each wait is twice as long as the one before, until it is as long as
/// [`Queries::count_silent_devices`] says. A new service gets its devices in its first minutes.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// A wait is at least this many times as long as the pass before it. So passes take at most a twentieth of
/// the time, unless [`LONGEST_WAIT`] limits the wait. On a busy machine, a pass of a few devices may take
/// seconds; the next one must still come soon.
const WAIT_PER_PASS: u32 = 20;

/// The most silent pending devices that are looked up in the store. If there are more, a silent device counts
/// only once it is stored.
const NEW_DEVICES: usize = 1_000;

/// The most pending devices that are looked at under one lock of pending.
const PENDING_PER_STEP: usize = 256;

impl Queries {
    /// Counts the silent devices again and again, and sets `gauge` after each pass.
    ///
    /// A device is silent if it has no reading for `silent_after`. A silent device that is not stored yet
    /// counts only while few silent devices are pending. While the store is away, or acknowledged readings
    /// are not in pending, the gauge keeps its value, or has none.
    ///
    /// The wait between two passes is a quarter of `silent_after`, at least one minute and at most 15. The
    /// first waits are shorter, if the passes take little time.
    pub async fn count_silent_devices(&self, silent_after: Duration, clock: &Clock, gauge: &LateGauge) {
        let usual = (silent_after / 4).clamp(Duration::from_secs(60), LONGEST_WAIT);
        let mut wait = FIRST_WAIT;
        loop {
            match self.pass(silent_after, clock).await {
                Ok((silent, took)) => {
                    gauge.set(silent as f64);
                    wait = wait.max(took.saturating_mul(WAIT_PER_PASS).min(LONGEST_WAIT));
                }
                Err(error) => tracing::debug!(%error, "the silent devices were not counted"),
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(usual);
        }
    }

    /// Makes one pass. Returns the number of silent devices, and how long it took to count them.
    async fn pass(&self, silent_after: Duration, clock: &Clock) -> Result<(u64, Duration), QueryError> {
        if self.catch_up().await.is_some() {
            return Err(QueryError::Lagging); // the devices of these readings would count
        }
        let begun = Instant::now(); // the wait before may take seconds, and costs nothing
        let silent = self.count_silent(silent_after, clock.now_ms()).await?;
        Ok((silent, begun.elapsed()))
    }

    /// Counts the silent devices once. It looks at pending first, because a reading is pending until the
    /// store has it.
    async fn count_silent(&self, silent_after: Duration, now_ms: i64) -> Result<u64, QueryError> {
        let since_ms = now_ms.saturating_sub(i64::try_from(silent_after.as_millis()).unwrap_or(i64::MAX));
        let pipeline = Arc::clone(&self.pipeline);
        let pending = blocking(move || {
            let (mut active, mut inactive, mut after) = (DeviceSet::default(), Vec::new(), None);
            loop {
                let last_of = |found: PendingDevice| (found.newest.span_ms().1, found.device);
                let found = pipeline.pending_devices("", after.as_deref(), PENDING_PER_STEP, last_of);
                after = found.last().filter(|_| found.len() == PENDING_PER_STEP).map(|(_, last)| Arc::clone(last));
                for (last_ms, device) in found {
                    if last_ms >= since_ms {
                        active.insert(&device);
                    } else if inactive.len() <= NEW_DEVICES {
                        inactive.push(device);
                    }
                }
                if after.is_none() {
                    return (active, inactive);
                }
            }
        });
        let (active, inactive) = pending.await?;
        let silent = self.ask(self.deadline(), self.store.count_silent(since_ms, active)).await?;
        if inactive.is_empty() || inactive.len() > NEW_DEVICES {
            return Ok(silent);
        }
        let stored = self.ask(self.deadline(), self.store.entries_of(&inactive)).await?;
        let new = inactive.len() - stored.devices.len();
        Ok(silent + new as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::MS_PER_HOUR;
    use crate::query::tests::{limits, over, store_of};

    #[tokio::test]
    async fn devices_are_counted_only_once_the_acknowledged_readings_are_in_pending() {
        let folder = tempfile::tempdir().unwrap();
        let store = store_of(folder.path(), &["d"], 1, &["m".into()]).await;
        let mut queries = over(store, folder.path(), limits());
        let (hour, clock) = (Duration::from_secs(3_600), Clock::fixed(9 * MS_PER_HOUR));
        let lagging = queries.pass(hour, &clock).await;
        assert!(matches!(lagging, Err(QueryError::Lagging)), "nothing reads the log: {lagging:?}");
        let _running = queries.pipeline.start().unwrap();
        queries.limits.catch_up = Duration::from_secs(60);
        assert_eq!(queries.pass(hour, &clock).await.unwrap().0, 1);
    }
}
