//! The cutter: has the log save, about once a second, from where it is needed and up to where it is durable.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::Flush;

/// How often. More often would cost syncs; less often, damage to more of the log's end would pass for a torn tail.
const INTERVAL: Duration = Duration::from_secs(1);

/// Runs until it is aborted.
pub(super) async fn run(flush: Arc<Flush>) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = false;
    loop {
        ticks.tick().await;
        let cutting = Arc::clone(&flush);
        match tokio::task::spawn_blocking(move || cutting.cut(false)).await {
            Ok(Ok(())) if std::mem::take(&mut failing) => tracing::info!("the log is cut again"),
            Ok(Err(error)) if !std::mem::replace(&mut failing, true) => {
                tracing::warn!(%error, "the log could not be cut behind what is stored; it grows until that works");
            }
            _ => {}
        }
    }
}
