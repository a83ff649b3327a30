//! The cutter: has the log save, about once a second, from where it is needed and up to where it is durable,
//! and look at the space on its disk. While that is short, the store gives back what it can spare.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use super::Pipeline;

/// How often. More often would cost syncs; less often, damage to more of the log's end would pass for a torn
/// tail.
const INTERVAL: Duration = Duration::from_secs(1);

/// Runs until it is aborted.
pub(super) async fn run(pipeline: Arc<Pipeline>) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = false;
    let mut reclaiming: Option<JoinHandle<()>> = None;
    loop {
        ticks.tick().await;
        let cutting = Arc::clone(&pipeline);
        let cut_and_look = move || {
            let cut = cutting.cut(false);
            cutting.log.check_disk();
            cut
        };
        match tokio::task::spawn_blocking(cut_and_look).await {
            Ok(Ok(())) if std::mem::take(&mut failing) => tracing::info!("the log is cut again"),
            Ok(Err(error)) if !std::mem::replace(&mut failing, true) => {
                tracing::warn!(%error, "the log could not be cut behind what is stored; it grows until that works");
            }
            _ => {}
        }
        // In a task of its own: the store may be slow, and the next look must not wait for it.
        if pipeline.log.usage().is_disk_full && reclaiming.as_ref().is_none_or(JoinHandle::is_finished) {
            let store = Arc::clone(&pipeline.store);
            reclaiming = Some(tokio::spawn(async move { store.reclaim().await }));
        }
    }
}
