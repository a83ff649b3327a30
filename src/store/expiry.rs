//! Old readings and old rollups leave the store, where the store does not see to that by itself.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Store;

/// How often. Hours expire whole, so more often would find nothing more.
const INTERVAL: Duration = Duration::from_secs(600);

/// Deletes readings older than `readings` and rollups older than `rollups`, now and every ten minutes; what is `None` is
/// kept forever. Runs until it is aborted.
pub async fn run(store: Arc<dyn Store>, readings: Option<Duration>, rollups: Option<Duration>) {
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        ticks.tick().await;
        if let Some(keep) = rollups {
            report("retention.rollups", store.expire_rollups(oldest_ms(keep)).await);
        }
        if let Some(keep) = readings {
            report("retention.readings", store.expire_readings(oldest_ms(keep)).await);
        }
    }
}

fn oldest_ms(keep: Duration) -> i64 {
    #[expect(clippy::disallowed_methods, reason = "readings expire by the date")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(now.saturating_sub(keep).as_millis()).unwrap_or(i64::MAX)
}

fn report(key: &str, expired: Result<u64, super::StoreError>) {
    match expired {
        Ok(0) => {}
        Ok(buckets) => tracing::info!(buckets, "what is older than {key} is deleted"),
        Err(error) => {
            tracing::warn!(%error, "what is older than {key} could not be deleted; the next try is in ten minutes");
        }
    }
}
