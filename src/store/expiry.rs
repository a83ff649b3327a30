//! Old readings leave the store, where the store does not see to that by itself.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Store;

/// How often. Hours expire whole, so more often would find nothing more.
const INTERVAL: Duration = Duration::from_secs(600);

/// Deletes what is older than `keep`, now and every ten minutes. Runs until it is aborted.
pub async fn run(store: Arc<dyn Store>, keep: Duration) {
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        ticks.tick().await;
        #[expect(clippy::disallowed_methods, reason = "readings expire by the date")]
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let oldest_ms = i64::try_from(now.saturating_sub(keep).as_millis()).unwrap_or(i64::MAX);
        match store.expire(oldest_ms).await {
            Ok(0) => {}
            Ok(buckets) => tracing::info!(buckets, "buckets older than retention.readings are deleted"),
            Err(error) => tracing::warn!(%error, "old buckets could not be deleted; the next try is in ten minutes"),
        }
    }
}
