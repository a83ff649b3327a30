//! The cutter: tells the log, now and then, up to where it is not needed any more.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::Flush;
use crate::log::Position;

/// How often. More often would cost syncs, less often disk and a longer start after a crash.
const INTERVAL: Duration = Duration::from_secs(1);

/// Runs until it is aborted.
pub(super) async fn run(flush: Arc<Flush>) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = Position::default();
    let mut failing = false;
    loop {
        ticks.tick().await;
        let position = {
            let state = flush.lock();
            state.pending.cut_position(state.fed)
        };
        if position == last {
            continue;
        }
        let cutting = Arc::clone(&flush);
        match tokio::task::spawn_blocking(move || cutting.cut(false)).await {
            Ok(Ok(position)) => {
                last = position;
                if std::mem::take(&mut failing) {
                    tracing::info!("the log is cut again");
                }
            }
            Ok(Err(error)) if !std::mem::replace(&mut failing, true) => {
                tracing::warn!(%error, "the log could not be cut behind what is stored; it grows until that works");
            }
            _ => {}
        }
    }
}
