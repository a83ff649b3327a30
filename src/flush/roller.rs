//! The roller: rolls up each hour some minutes after its end, of all devices at once.
//!
//! Two things keep it right when readings come late:
//! - An hour is **closed**, in memory, before its rolling up begins. A write asks only after the store has
//!   taken the readings whether the hour is closed, and then rolls it up itself (`late`). If it was not, the
//!   rolling up has yet to begin, and sees the readings.
//! - By the clock all hours of the past are closed, also those that are not rolled up yet, so that no write
//!   depends on how far this instance or another one has come.
//!
//! Instances that share a database close an hour at about the same time, by their own clocks. What one stores
//! after the other has rolled up the hour, and before it closes the hour itself, is in the rollup once it has
//! rolled up the hour too.
//!
//! The mark is written behind the work. An hour that was broken off is rolled up again, which does no harm.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Pipeline;
use super::mark::Mark;
use crate::common::backoff::Backoff;
use crate::model::{Hour, MS_PER_HOUR};
use crate::store::{Rollups, StoreError, WriteError};

/// How often it looks whether an hour has ended.
const INTERVAL: Duration = Duration::from_secs(10);

/// How often the mark is written while many hours are rolled up.
const MARK_INTERVAL: Duration = Duration::from_secs(5);

/// The newest hour that is closed at `now_ms`, if hours are closed `delay` after their end.
pub(super) fn newest_closed(now_ms: i64, delay: Duration) -> Hour {
    let delay_ms = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
    Hour(Hour::of(now_ms.saturating_sub(delay_ms)).0 - 1)
}

/// Runs until it is aborted, or at once to its end where the store needs no rolling up.
pub(super) async fn run(pipeline: Arc<Pipeline>, mark: Option<Mark>) {
    let Some(rollups) = pipeline.store.rollups() else { return };
    let mut roller = Roller::new(&pipeline, rollups, mark);
    let mut backoff = Backoff::new(pipeline.options.retry.clone());
    let mut failing = false;
    loop {
        pipeline.close_past_hours();
        match roller.catch_up().await {
            Ok(()) => {
                if std::mem::take(&mut failing) {
                    tracing::info!("hours are rolled up again");
                }
                backoff.reset();
                tokio::time::sleep(INTERVAL).await;
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "hours cannot be rolled up; queries read their readings until that works");
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
    mark: Option<Mark>,
    is_saved: bool,
    /// Whether the mark is known to speak of this store.
    is_checked: bool,
    /// The last hour that had ended at the start. As long as nothing is known of older ones, the lag counts
    /// from it.
    started: Hour,
}

impl<'a> Roller<'a> {
    pub(super) fn new(pipeline: &'a Pipeline, rollups: &'a dyn Rollups, mark: Option<Mark>) -> Self {
        Self { pipeline, rollups, mark, is_saved: true, is_checked: false, started: pipeline.newest_closed() }
    }

    /// Rolls up what is closed and was not rolled up yet, hour by hour.
    pub(super) async fn catch_up(&mut self) -> Result<(), WriteError> {
        let end = Hour(self.pipeline.newest_closed().0 + 1);
        self.note_lag(end);
        let checked = self.check_identity().await;
        if !self.is_checked || self.mark.as_ref().is_none_or(|mark| mark.next < end) {
            checked?; // otherwise nothing is due, and it does not matter that the store is away
            self.roll_up_before(end).await?;
        }
        if !self.is_saved {
            self.save().await;
        }
        Ok(())
    }

    /// Forgets a mark that speaks of something else, such as a collection that was dropped since.
    async fn check_identity(&mut self) -> Result<(), StoreError> {
        let identity = self.rollups.identity().await?;
        if self.mark.as_ref().is_none_or(|mark| mark.identity != identity) {
            if self.mark.is_some() {
                tracing::warn!(
                    "the collections are not those of the last start (another database, or dropped and made again): all \
                     hours that are stored are rolled up again"
                );
            } else if self.rollups.next_hour(Hour(i32::MIN)).await?.is_some() {
                tracing::info!("this data folder is new to the database: the hours stored there are rolled up once");
            }
            self.mark = Some(Mark { identity, next: Hour(i32::MIN) });
        }
        self.is_checked = true;
        Ok(())
    }

    async fn roll_up_before(&mut self, end: Hour) -> Result<(), WriteError> {
        let mut saved = Instant::now();
        while let Some(hour) = self.next_hour().await?.filter(|hour| *hour < end) {
            self.advance(hour); // over hours of which nobody has readings
            self.note_lag(end);
            let done = self.rollups.roll_up_hour(hour).await?;
            self.pipeline.metrics.rollups_written_total.increment(done);
            tracing::debug!(hour_ms = hour.start_ms(), devices = done, "rolled up an hour");
            self.advance(Hour(hour.0 + 1));
            if saved.elapsed() > MARK_INTERVAL {
                self.save().await;
                saved = Instant::now();
            }
        }
        self.advance(end);
        self.note_lag(end);
        Ok(())
    }

    async fn next_hour(&self) -> Result<Option<Hour>, StoreError> {
        match &self.mark {
            Some(mark) => self.rollups.next_hour(mark.next).await,
            None => Ok(None),
        }
    }

    fn advance(&mut self, next: Hour) {
        if let Some(mark) = self.mark.as_mut().filter(|mark| mark.next < next) {
            mark.next = next;
            self.is_saved = false;
        }
    }

    fn note_lag(&self, end: Hour) {
        let next = self.mark.as_ref().map(|mark| mark.next).filter(|next| *next > Hour(i32::MIN));
        let hours = (i64::from(end.0) - i64::from(next.unwrap_or(self.started).0)).max(0);
        self.pipeline.metrics.rollup_lag_seconds.set((hours * MS_PER_HOUR / 1000) as f64);
    }

    async fn save(&mut self) {
        let Some(mark) = self.mark.clone() else { return };
        let path = self.pipeline.options.rollup_mark.clone();
        let saved = tokio::task::spawn_blocking(move || mark.save(&path)).await;
        match saved.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            Ok(()) => self.is_saved = true,
            Err(error) => {
                let file = Path::display(&self.pipeline.options.rollup_mark);
                tracing::warn!(%file, %error, "the mark of the rollups was not written; the next start does more than it must");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_closed_when_it_ended_so_long_ago() {
        let at = |minutes: i64| minutes * 60_000;
        let delay = Duration::from_secs(240);
        for (minutes, newest) in [(3, -2), (4, -1), (63, -1), (64, 0), (123, 0), (124, 1)] {
            assert_eq!(newest_closed(at(minutes), delay), Hour(newest), "at minute {minutes}");
        }
    }
}
