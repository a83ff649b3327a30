//! The roller: a task that rolls up each day of all devices some minutes after its end.
//!
//! Queries read the hours of the current day from the readings. So most hours cost no rollup of their own:
//! the rollups of a device and day are written together, once, as one document. If readings expire too soon
//! for that, each hour is rolled up after its end ([`Closing`]).
//!
//! Two rules keep the rollups complete when readings are stored after the end of their day:
//! - The roller **closes** a day, durably, before it rolls the day up. A write checks only after the store
//!   has accepted its readings whether their hour is closed. If so, the write rolls the hour up itself
//!   ([`super::write`]). If not, the roller has yet to begin, and includes the readings.
//! - Days are closed by the wall clock, whether they are rolled up yet or not, so no write depends on the
//!   progress of this instance or another one. They stay closed, whatever happens to the clock or the process
//!   (`closed_hours`).
//!
//! Instances that share a database close a day at about the same time, each by its own clock. If instance A
//! stores readings after instance B has rolled up the day, and before A closes the day itself, the rollup has
//! these readings once A has rolled up the day too.
//!
//! The roller walks the devices of the store in the order of their IDs, some at a time, one step after the
//! other. After each step it rests for as long as the step took, so that the flush keeps its share of the
//! store. Rolling up a day costs as much as storing an hour or two of its readings. So the rollups of a large
//! fleet are spread over some hours ([`SPREAD`]), unless the roller is late. It saves the last device from
//! time to time. Steps that an end of the process has undone are repeated, with the same result.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Pipeline;
use super::attempts::Attempts;
use super::hour_text;
use super::rollup_progress::{Partial, RollupProgress};
use super::writer::Retry;
use crate::common::once_per_change::OncePerChange;
use crate::model::{Day, Hour};
use crate::store::{RolledUp, Rollups, StoreError};

/// The time between two checks whether a day has ended.
const INTERVAL: Duration = Duration::from_secs(10);

/// The time between two checks whether the store knows all of its devices.
const READY_INTERVAL: Duration = Duration::from_millis(200);

/// The time between two saves of the progress while many devices are rolled up.
const SAVE_INTERVAL: Duration = Duration::from_secs(5);

/// The longest rest between two steps.
const MAX_REST: Duration = Duration::from_secs(1);

/// The time after the end of a day over which its rollups are spread, if there are at least [`SPREAD_HOURS`].
///
/// Readings that expire as early as [`Closing::Daily`] allows are left for twice that time.
const SPREAD: Duration = Duration::from_secs(6 * 3600);

/// The hours of a day of 200,000 devices. The rollups of a smaller fleet take a share of [`SPREAD`].
const SPREAD_HOURS: u64 = 4_800_000;

/// The hours that are rolled up first, without being spread: those of 5,000 devices.
const FIRST_HOURS: u64 = 120_000;

/// Which hours are closed and rolled up together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// All hours of a UTC day.
    Daily,
    /// Each hour, because readings may expire before their day is rolled up.
    Hourly,
}

impl Closing {
    /// The hours that are closed together with this one.
    const fn hours_with(self, hour: Hour) -> Range<Hour> {
        match self {
            Self::Daily => Day::of(hour).hours(),
            Self::Hourly => hour..Hour(hour.0 + 1),
        }
    }

    /// The newest hour that is closed at `now_ms`, if hours are closed `delay` after the last of them ends.
    #[must_use]
    pub fn newest_closed(self, now_ms: i64, delay: Duration) -> Hour {
        let delay_ms = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
        let open = self.hours_with(Hour::of(now_ms.saturating_sub(delay_ms)));
        Hour(open.start.0 - 1)
    }
}

/// Runs until it is aborted.
///
/// Returns at once if the store keeps no rollups of their own.
pub(super) async fn run(pipeline: Arc<Pipeline>, progress: Option<RollupProgress>) {
    let Some(rollups) = pipeline.store.rollups() else { return };
    let mut roller = Roller::new(&pipeline, rollups, progress);
    let mut attempts = Attempts::new(&pipeline);
    let mut failing = OncePerChange::default();
    loop {
        close_past_hours(&pipeline).await;
        match roller.catch_up().await {
            Ok(is_ready) => {
                if failing.ends() {
                    tracing::info!("days are rolled up again");
                }
                attempts.succeed();
                tokio::time::sleep(if is_ready { INTERVAL } else { READY_INTERVAL }).await;
            }
            Err(error) => {
                if failing.begins() {
                    tracing::warn!(
                        error = error.with_cause(),
                        "days cannot be rolled up; queries read their readings until they can"
                    );
                }
                pipeline.metrics.rollup_retries_total.with(error.cause.as_label()).increment(1);
                if attempts.next().await.is_err() {
                    return; // the service is stopping
                }
            }
        }
    }
}

async fn close_past_hours(pipeline: &Arc<Pipeline>) {
    let pipeline = Arc::clone(pipeline);
    // The blocking task fails only when the runtime ends, which ends the roller too.
    let _ = tokio::task::spawn_blocking(move || pipeline.close_past_hours()).await;
}

pub(super) struct Roller<'a> {
    pipeline: &'a Arc<Pipeline>,
    rollups: &'a dyn Rollups,
    progress: Option<RollupProgress>,
    is_saved: bool,
    saved: Instant,
    /// Whether the progress was found to belong to the collections of this store.
    is_checked: bool,
    /// Whether the store was told that the readings of these collections may expire earlier than before.
    has_shortened_expiry: bool,
    /// Whether the last attempt to shorten the expiry has failed, for the log line.
    expiry_fails: OncePerChange,
    /// When the search for the first hour that is not rolled up began.
    ///
    /// The lag counts from here until that hour is known.
    started: Instant,
}

impl<'a> Roller<'a> {
    pub(super) fn new(pipeline: &'a Arc<Pipeline>, rollups: &'a dyn Rollups, progress: Option<RollupProgress>) -> Self {
        let now = Instant::now();
        Self {
            pipeline,
            rollups,
            progress,
            is_saved: true,
            saved: now,
            is_checked: false,
            has_shortened_expiry: false,
            expiry_fails: OncePerChange::default(),
            started: now,
        }
    }

    /// Rolls up the closed hours that are not rolled up yet, day by day.
    ///
    /// From then on, readings may expire earlier than before the start. If the store refuses that, it is no
    /// error of the rollups.
    ///
    /// Returns false if it cannot begin, because the store is still looking for its devices.
    pub(super) async fn catch_up(&mut self) -> Result<bool, StoreError> {
        let end = Hour(self.pipeline.newest_closed().0 + 1);
        self.note_lag(end);
        let is_due = |roller: &Self| !roller.is_checked || roller.next().is_none_or(|next| next < end);
        match self.rollups.is_ready().await {
            Ok(true) => {}
            _ if !is_due(self) => return Ok(true), // then a store that is away is no error
            Ok(false) => return Ok(false),
            Err(error) => return Err(error),
        }
        let checked = self.check_identity().await;
        if is_due(self) {
            checked?;
            self.roll_up_before(end).await?;
        }
        if !self.is_saved {
            self.save().await;
        }
        if !self.has_shortened_expiry {
            self.shorten_expiry().await;
        }
        Ok(true)
    }

    /// Lets readings expire after the retention. If that fails, the next turn tries again.
    async fn shorten_expiry(&mut self) {
        if let Err(error) = self.rollups.shorten_expiry().await {
            if self.expiry_fails.begins() {
                tracing::warn!(error = error.with_cause(), "the expiry of readings cannot be shortened yet");
            }
            return;
        }
        self.expiry_fails.ends();
        self.has_shortened_expiry = true;
    }

    /// The first hour that is not rolled up, if it is known.
    fn next(&self) -> Option<Hour> {
        self.progress.as_ref().map(|progress| progress.next)
    }

    /// Drops the progress if it belongs to other collections, for example because they were dropped since.
    async fn check_identity(&mut self) -> Result<(), StoreError> {
        let identity = self.rollups.identity().await?;
        if self.progress.as_ref().is_none_or(|progress| progress.identity != identity) {
            if self.is_checked {
                tracing::warn!("the collections were dropped or replaced: all stored days are rolled up again");
            } else if self.progress.is_some() {
                tracing::warn!(
                    "the collections are not those of the last start (another database, or dropped and created \
                     again): all stored days are rolled up again"
                );
            } else if self.rollups.next_hour(Hour(i32::MIN)).await?.is_some() {
                tracing::info!("this data folder is new to the database: all stored days are rolled up once");
            }
            self.progress = Some(RollupProgress { identity, next: Hour(i32::MIN), partial: None, hours_of_day: None });
            self.has_shortened_expiry = false;
            self.started = Instant::now();
        }
        self.is_checked = true;
        Ok(())
    }

    async fn roll_up_before(&mut self, end: Hour) -> Result<(), StoreError> {
        while let Some((hours, after)) = self.next_hours(end).await? {
            self.note_lag(end);
            self.roll_up_hours(hours, after, end).await?;
        }
        self.advance(end);
        self.note_lag(end);
        Ok(())
    }

    /// Returns the hours of one day to roll up next, and the last device for which they are rolled up
    /// already.
    async fn next_hours(&mut self, end: Hour) -> Result<Option<(Range<Hour>, Option<Arc<str>>)>, StoreError> {
        let Some(RollupProgress { next, partial, .. }) = self.progress.clone() else { return Ok(None) };
        if let Some(Partial { until, after }) = partial {
            return Ok(Some((next..until, Some(after))));
        }
        let Some(first) = self.rollups.next_hour(next).await?.filter(|hour| *hour < end) else { return Ok(None) };
        let day = Day::of(first).hours();
        let hours = next.max(day.start)..day.end.min(end);
        self.advance(hours.start); // past days without readings
        Ok(Some((hours, None)))
    }

    /// Rolls up hours of one day, of all devices after `after`.
    ///
    /// Ends early if the collections are replaced meanwhile: then [`Self::next_hours`] begins anew.
    async fn roll_up_hours(
        &mut self,
        hours: Range<Hour>,
        mut after: Option<Arc<str>>,
        end: Hour,
    ) -> Result<(), StoreError> {
        let (begin, is_whole) = (Instant::now(), after.is_none() && hours == Day::of(hours.start).hours());
        let (mut rollups, mut hours_of_day) = (0, 0);
        loop {
            let start = Instant::now();
            let RolledUp { found, written, refused, last } =
                self.rollups.roll_up_devices(hours.clone(), after.as_deref()).await?;
            self.pipeline.metrics.rollups_written_total.increment(written);
            self.pipeline.metrics.rollups_refused_total.increment(refused);
            rollups += written;
            hours_of_day += found;
            close_past_hours(self.pipeline).await; // a long history takes hours, and others do not wait
            let Some(last) = last else { break };
            self.note_partial(Partial { until: hours.end, after: Arc::clone(&last) });
            self.note_lag(end);
            if self.saved.elapsed() > SAVE_INTERVAL {
                self.save().await;
            }
            after = Some(last);
            let options = &self.pipeline.options;
            let is_late = is_late(options.clock.now_ms(), &hours, end, options.closing, self.has_shortened_expiry);
            let of_last_day = self.progress.as_ref().and_then(|progress| progress.hours_of_day);
            let is_spread = hours_of_day > FIRST_HOURS && !is_late;
            let spread = of_last_day.filter(|_| is_spread).map(|of_last_day| share_of_spread(found, of_last_day));
            let took = start.elapsed();
            tokio::time::sleep(spread.unwrap_or_default().saturating_sub(took).max(took.min(MAX_REST))).await;
            self.check_identity().await?;
            if self.progress.as_ref().is_none_or(|progress| progress.partial.is_none()) {
                return Ok(()); // it is the progress of other collections
            }
        }
        if let Some(progress) = self.progress.as_mut().filter(|_| is_whole) {
            // After a quiet day, such as a Sunday, the pace must not be too slow for the next one.
            let least = progress.hours_of_day.map_or(0, |before| before - before / 16);
            progress.hours_of_day = Some(hours_of_day.max(least));
        }
        let [from, until] = [hours.start, hours.end].map(|hour| hour_text::encode(hour).unwrap_or_default());
        let seconds = begin.elapsed().as_secs_f64();
        tracing::info!(from, until, rollups, seconds, "rolled up the closed hours of a day");
        self.advance(hours.end);
        if self.saved.elapsed() > SAVE_INTERVAL {
            self.save().await;
        }
        Ok(())
    }

    fn advance(&mut self, next: Hour) {
        if let Some(progress) = self.progress.as_mut().filter(|progress| progress.next < next) {
            progress.next = next;
            progress.partial = None;
            self.is_saved = false;
        }
    }

    fn note_partial(&mut self, partial: Partial) {
        if let Some(progress) = &mut self.progress {
            progress.partial = Some(partial);
            self.is_saved = false;
        }
    }

    /// Sets the lag: the time since the end of the first day that is closed and not rolled up.
    fn note_lag(&self, end: Hour) {
        let lag_ms = match self.next().filter(|next| *next > Hour(i32::MIN)) {
            None => i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX),
            Some(next) if next < end => {
                let ended = self.pipeline.options.closing.hours_with(next).end;
                (self.pipeline.options.clock.now_ms() - ended.start_ms()).max(0)
            }
            Some(_) => 0,
        };
        self.pipeline.metrics.rollup_lag_seconds.set(lag_ms as f64 / 1000.0);
    }

    async fn save(&mut self) {
        let Some(progress) = self.progress.clone() else { return };
        let path = self.pipeline.options.rollup_progress.clone();
        let saved = tokio::task::spawn_blocking(move || progress.save(&path)).await;
        self.saved = Instant::now();
        match saved.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            Ok(()) => self.is_saved = true,
            Err(error) => {
                let file = Path::display(&self.pipeline.options.rollup_progress);
                tracing::warn!(%file, %error, "cannot save the progress of the rollups; the next start repeats some");
            }
        }
    }
}

/// Whether the rollups of these hours are not spread:
/// - [`SPREAD`] is over since the hours ended (a clock that is set back is before that),
/// - they are not those of the last closed day, which ends at `end`,
/// - each hour is closed by itself, because readings expire soon, or
/// - the store waits for the rollups to let readings expire earlier, as after a start.
fn is_late(now_ms: i64, hours: &Range<Hour>, end: Hour, closing: Closing, has_shortened_expiry: bool) -> bool {
    let since_ms = now_ms.saturating_sub(hours.end.start_ms());
    let is_over = u128::try_from(since_ms).is_ok_and(|since_ms| since_ms >= SPREAD.as_millis());
    is_over || hours.end < end || closing == Closing::Hourly || !has_shortened_expiry
}

/// The share of [`SPREAD`] that `found` hours take, if the last days had up to `of_last_day`.
fn share_of_spread(found: u64, of_last_day: u64) -> Duration {
    SPREAD.mul_f64(found as f64 / of_last_day.max(SPREAD_HOURS) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rollups_of_a_large_fleet_are_spread_over_hours() {
        let minutes = |hours: u64, of_last_day| share_of_spread(hours, of_last_day).as_secs() / 60;
        assert_eq!(minutes(4_800_000, 4_800_000), 360, "200,000 devices");
        assert_eq!(minutes(240_000_000, 240_000_000), 360, "ten million");
        assert_eq!(minutes(2_400_000, 2_400_000), 180, "100,000 devices");
    }

    #[test]
    fn rollups_that_are_late_are_not_spread() {
        let (day, at) = (Day(7).hours(), |minutes: i64| Day(8).start_ms() + minutes * 60_000);
        let (daily, hourly) = (Closing::Daily, Closing::Hourly);
        for (minutes, end, closing, has_shortened_expiry, expected) in [
            (20, day.end, daily, true, false),
            (359, day.end, daily, true, false),
            (360, day.end, daily, true, true),
            (20, Day(8).hours().end, daily, true, true), // an earlier day
            (20, day.end, hourly, true, true),
            (20, day.end, daily, false, true),
            (-600, day.end, daily, true, false), // the clock was set back
        ] {
            let is_late = is_late(at(minutes), &day, end, closing, has_shortened_expiry);
            assert_eq!(is_late, expected, "{minutes} {end:?} {closing:?} {has_shortened_expiry}");
        }
    }

    #[test]
    fn hours_are_closed_the_delay_after_the_last_of_them_ends() {
        let at = |minutes: i64| minutes * 60_000;
        let delay = Duration::from_secs(240);
        for (minutes, newest) in [(3, -2), (4, -1), (63, -1), (64, 0), (123, 0), (124, 1)] {
            assert_eq!(Closing::Hourly.newest_closed(at(minutes), delay), Hour(newest), "at minute {minutes}");
        }
        for (minutes, newest) in [(3, -25), (4, -1), (1443, -1), (1444, 23), (2883, 23), (2884, 47)] {
            assert_eq!(Closing::Daily.newest_closed(at(minutes), delay), Hour(newest), "at minute {minutes}");
        }
    }
}
