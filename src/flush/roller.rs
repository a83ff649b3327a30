//! The roller: a task that rolls up each hour of all devices some minutes after its end.
//!
//! Two rules keep the rollups complete when readings are late:
//! - The roller **closes** an hour, in memory, before it rolls the hour up. A write checks only after the
//!   store has accepted its readings whether the hour is closed. If so, the write rolls the hour up itself
//!   (`late`). If not, the roller has yet to begin, and includes the readings.
//! - Hours are closed by the wall clock, whether they are rolled up yet or not, so no write depends on the
//!   progress of this instance or another one.
//!
//! Instances that share a database close an hour at about the same time, each by its own clock. If one
//! instance stores readings after another one has rolled up the hour, and before it closes the hour itself,
//! they are in the rollup once it has rolled up the hour too.
//!
//! The progress is saved after the work. An hour that was interrupted is rolled up again, with the same
//! result.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Pipeline;
use super::rollup_progress::RollupProgress;
use crate::common::backoff::Backoff;
use crate::common::once_per_change::OncePerChange;
use crate::model::{Hour, MS_PER_HOUR};
use crate::store::{Rollups, StoreError, WriteError};

/// The time between two checks whether an hour has ended.
const INTERVAL: Duration = Duration::from_secs(10);

/// The time between two saves of the progress while many hours are rolled up.
const SAVE_INTERVAL: Duration = Duration::from_secs(5);

/// The newest hour that is closed at `now_ms`, if hours are closed `delay` after their end.
pub(super) fn newest_closed(now_ms: i64, delay: Duration) -> Hour {
    let delay_ms = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
    Hour(Hour::of(now_ms.saturating_sub(delay_ms)).0 - 1)
}

/// Runs until it is aborted. Returns at once if the store keeps no rollups of their own.
pub(super) async fn run(pipeline: Arc<Pipeline>, progress: Option<RollupProgress>) {
    let Some(rollups) = pipeline.store.rollups() else { return };
    let mut roller = Roller::new(&pipeline, rollups, progress);
    let mut backoff = Backoff::new(pipeline.options.retry.clone());
    let mut failing = OncePerChange::default();
    loop {
        pipeline.close_past_hours();
        match roller.catch_up().await {
            Ok(()) => {
                if failing.ends() {
                    tracing::info!("hours are rolled up again");
                }
                backoff.reset();
                tokio::time::sleep(INTERVAL).await;
            }
            Err(error) => {
                if failing.begins() {
                    tracing::warn!(%error, "hours cannot be rolled up; queries read their readings until they can");
                }
                pipeline.metrics.rollup_retries_total.with(error.cause.as_label()).increment(1);
                tokio::time::sleep(backoff.next_wait()).await;
            }
        }
    }
}

pub(super) struct Roller<'a> {
    pipeline: &'a Pipeline,
    rollups: &'a dyn Rollups,
    progress: Option<RollupProgress>,
    is_saved: bool,
    /// Whether the progress was found to belong to the collections of this store.
    is_checked: bool,
    /// The last hour that had ended at the start. The lag counts from it until the first hour that is not
    /// rolled up is known.
    started: Hour,
}

impl<'a> Roller<'a> {
    pub(super) fn new(pipeline: &'a Pipeline, rollups: &'a dyn Rollups, progress: Option<RollupProgress>) -> Self {
        Self { pipeline, rollups, progress, is_saved: true, is_checked: false, started: pipeline.newest_closed() }
    }

    /// Rolls up the closed hours that are not rolled up yet, one by one.
    pub(super) async fn catch_up(&mut self) -> Result<(), WriteError> {
        let end = Hour(self.pipeline.newest_closed().0 + 1);
        self.note_lag(end);
        let checked = self.check_identity().await;
        if !self.is_checked || self.progress.as_ref().is_none_or(|progress| progress.next < end) {
            checked?; // if no hour is due, a store that is away is no error
            self.roll_up_before(end).await?;
        }
        if !self.is_saved {
            self.save().await;
        }
        Ok(())
    }

    /// Drops the progress if it belongs to other collections, for example to one that was dropped since.
    async fn check_identity(&mut self) -> Result<(), StoreError> {
        let identity = self.rollups.identity().await?;
        if self.progress.as_ref().is_none_or(|progress| progress.identity != identity) {
            if self.progress.is_some() {
                tracing::warn!(
                    "the collections are not those of the last start (another database, or dropped and created \
                     again): all stored hours are rolled up again"
                );
            } else if self.rollups.next_hour(Hour(i32::MIN)).await?.is_some() {
                tracing::info!("this data folder is new to the database: all stored hours are rolled up once");
            }
            self.progress = Some(RollupProgress { identity, next: Hour(i32::MIN) });
        }
        self.is_checked = true;
        Ok(())
    }

    async fn roll_up_before(&mut self, end: Hour) -> Result<(), WriteError> {
        let mut saved = Instant::now();
        while let Some(hour) = self.next_hour().await?.filter(|hour| *hour < end) {
            self.advance(hour); // past hours without readings
            self.note_lag(end);
            let done = self.rollups.roll_up_hour(hour).await?;
            self.pipeline.metrics.rollups_written_total.increment(done);
            tracing::debug!(hour_ms = hour.start_ms(), devices = done, "rolled up an hour");
            self.advance(Hour(hour.0 + 1));
            if saved.elapsed() > SAVE_INTERVAL {
                self.save().await;
                saved = Instant::now();
            }
        }
        self.advance(end);
        self.note_lag(end);
        Ok(())
    }

    async fn next_hour(&self) -> Result<Option<Hour>, StoreError> {
        match &self.progress {
            Some(progress) => self.rollups.next_hour(progress.next).await,
            None => Ok(None),
        }
    }

    fn advance(&mut self, next: Hour) {
        if let Some(progress) = self.progress.as_mut().filter(|progress| progress.next < next) {
            progress.next = next;
            self.is_saved = false;
        }
    }

    fn note_lag(&self, end: Hour) {
        let next = self.progress.as_ref().map(|progress| progress.next).filter(|next| *next > Hour(i32::MIN));
        let hours = (i64::from(end.0) - i64::from(next.unwrap_or(self.started).0)).max(0);
        self.pipeline.metrics.rollup_lag_seconds.set((hours * MS_PER_HOUR / 1000) as f64);
    }

    async fn save(&mut self) {
        let Some(progress) = self.progress.clone() else { return };
        let path = self.pipeline.options.rollup_progress.clone();
        let saved = tokio::task::spawn_blocking(move || progress.save(&path)).await;
        match saved.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            Ok(()) => self.is_saved = true,
            Err(error) => {
                let file = Path::display(&self.pipeline.options.rollup_progress);
                tracing::warn!(%file, %error, "cannot save the progress of the rollups; the next start repeats some");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_closed_the_delay_after_its_end() {
        let at = |minutes: i64| minutes * 60_000;
        let delay = Duration::from_secs(240);
        for (minutes, newest) in [(3, -2), (4, -1), (63, -1), (64, 0), (123, 0), (124, 1)] {
            assert_eq!(newest_closed(at(minutes), delay), Hour(newest), "at minute {minutes}");
        }
    }
}
