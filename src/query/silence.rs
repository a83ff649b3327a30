//! The number of devices that have been silent for long.

use std::ops::RangeInclusive;
use std::time::Duration;

use tokio::time::Instant;

use super::devices::{DeviceSelection, DevicesRequest, Keeping};
use super::{Queries, QueryError};
use crate::access::DeviceScope;
use crate::common::clock::Clock;
use crate::telemetry::LateGauge;

/// The wait after each page of devices. A page looks at up to 10,000 entries of the device index, or looks
/// some thousand devices up. So a pass takes few percent of a processor, and a million devices some minutes.
const PAGE_WAIT: Duration = Duration::from_secs(2);

/// The shortest and the longest wait after a pass. A pass looks each device up, which costs about as much as
/// two of its readings.
const PASS_WAIT: RangeInclusive<Duration> = Duration::from_secs(60)..=Duration::from_secs(900);

/// The wait after the first pass. Each further one is twice as long, until it is the usual one; and none is
/// shorter than the pass before it, so that the devices of a large fleet are not looked up all the time.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// The most silent devices of one page.
const PAGE: usize = 10_000;

impl Queries {
    /// Counts the devices without a reading for `silent_after`, again and again, and sets `gauge` after each
    /// pass over the device index. A pass begins a quarter of `silent_after` after the last one, between one
    /// minute and 15. The first waits are shorter, because a new service gets its devices then. While the
    /// store is away, the gauge keeps its value, or has none.
    pub async fn count_silent_devices(&self, silent_after: Duration, clock: &Clock, gauge: &LateGauge) {
        let longest = (silent_after / 4).clamp(*PASS_WAIT.start(), *PASS_WAIT.end());
        let mut wait = FIRST_WAIT;
        loop {
            let begun = Instant::now();
            match self.pass(silent_after, clock).await {
                Ok(silent) => gauge.set(silent as f64),
                Err(error) => tracing::debug!(%error, "the silent devices were not counted"),
            }
            tokio::time::sleep(wait.max(begun.elapsed().min(longest))).await;
            wait = (wait * 2).min(longest);
        }
    }

    async fn pass(&self, silent_after: Duration, clock: &Clock) -> Result<u64, QueryError> {
        let silent_after_ms = i64::try_from(silent_after.as_millis()).unwrap_or(i64::MAX);
        let (mut silent, mut after) = (0, None);
        loop {
            let now_ms = clock.now_ms();
            let silent_since_ms = Some(now_ms.saturating_sub(silent_after_ms));
            let selection = DeviceSelection { silent_since_ms, ..DeviceSelection::default() };
            let request = DevicesRequest { selection, after, limit: PAGE, now_ms, skips_any: false };
            let page = self.list(self.deadline(), DeviceScope::all(), &request, Keeping::Ids, |_, _| ()).await?;
            if page.partial {
                return Err(QueryError::incomplete());
            }
            silent += page.body.devices.len() as u64;
            let Some(next) = page.body.next else { return Ok(silent) };
            after = Some(next.to_string());
            tokio::time::sleep(PAGE_WAIT).await;
        }
    }
}
