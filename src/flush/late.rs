//! Late readings: readings of days that are closed.
//!
//! A write to an hour of such a day is complete only when the rollup includes the readings; until then they
//! stay pending. The store writes the late hours of one device and day together, in one change of their
//! document. After a crash in between, replay of the log repairs this: the next start writes the readings
//! again, to no effect, and rolls the hour up.

use std::sync::Arc;

use super::Pipeline;
use super::attempts::{Attempts, GaveUp};
use crate::model::Hour;

/// Rolls up hours of devices again. Retries until all of them are rolled up.
pub(super) async fn roll_up(pipeline: &Pipeline, mut waiting: Vec<(Arc<str>, Hour)>) -> Result<(), GaveUp> {
    let Some(rollups) = pipeline.store.rollups() else { return Ok(()) };
    let mut attempts = Attempts::new(pipeline);
    while !waiting.is_empty() {
        let outcomes = rollups.roll_up(&waiting).await;
        debug_assert_eq!(outcomes.len(), waiting.len(), "an outcome for each bucket");
        let mut again = Vec::new();
        let mut transient = None;
        for (bucket, outcome) in waiting.into_iter().zip(outcomes) {
            match outcome {
                Ok(()) => pipeline.metrics.rollups_written_total.increment(1),
                Err(error) if error.is_permanent() => {
                    let (device, hour_ms) = (&*bucket.0, bucket.1.start_ms());
                    tracing::error!(
                        device,
                        hour_ms,
                        error = error.with_cause(),
                        "cannot roll up the hour again; queries read its readings until they expire"
                    );
                    pipeline.metrics.rollups_refused_total.increment(1);
                }
                Err(error) => {
                    pipeline.metrics.rollup_retries_total.with(error.cause.as_label()).increment(1);
                    again.push(bucket);
                    transient = Some(error);
                }
            }
        }
        waiting = again;
        match transient {
            None => attempts.succeed(),
            Some(error) => {
                attempts.fail(&error);
                attempts.next().await?;
            }
        }
    }
    Ok(())
}
