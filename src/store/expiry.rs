//! Old readings and old rollups leave the store, where the store does not see to that by itself.
//!
//! What is old, the date decides, and the clock of the world may be wrong: one that jumps half a year ahead
//! would have everything deleted at once. So the date is believed to go on as a clock does that only goes
//! forward; one that jumped further ahead is believed only when it is still there a day later, which leaves a
//! day to set it right.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Store;
use crate::common::clock::Clock;

/// How often. Hours expire whole, so more often would find nothing more.
const INTERVAL: Duration = Duration::from_secs(600);

/// How far ahead the date may jump and be believed: what a clock drifts, or is set by now and then.
const JUMP_MAX: Duration = Duration::from_secs(3_600);

/// How long the date must stay ahead until it is believed.
const DOUBT: Duration = Duration::from_secs(86_400);

/// Deletes readings older than `readings` and rollups older than `rollups`, now and every ten minutes; what
/// is `None` is kept forever. Runs until it is aborted.
pub async fn run(clock: Clock, store: Arc<dyn Store>, readings: Option<Duration>, rollups: Option<Duration>) {
    let date = || Duration::from_millis(clock.now_ms().try_into().unwrap_or_default());
    let mut ticks = tokio::time::interval(INTERVAL);
    let mut calendar = Calendar::new(date(), Instant::now());
    loop {
        ticks.tick().await;
        let today = calendar.believe(date(), Instant::now());
        if let Some(keep) = rollups {
            report("retention.rollups", store.expire_rollups(oldest_ms(today, keep)).await);
        }
        if let Some(keep) = readings {
            report("retention.readings", store.expire_readings(oldest_ms(today, keep)).await);
        }
    }
}

/// The date as far as it is believed. Dates are times since 1970.
struct Calendar {
    date: Duration,
    at: Instant,
    /// Since when the clock has been too far ahead.
    ahead_since: Option<Instant>,
}

impl Calendar {
    fn new(date: Duration, now: Instant) -> Self {
        Self { date, at: now, ahead_since: None }
    }

    /// The date to believe when the clock shows `shown`. A clock that went back is believed at once: nothing
    /// is deleted too early by it.
    fn believe(&mut self, shown: Duration, now: Instant) -> Duration {
        let expected = self.date + (now - self.at);
        let is_ahead = shown > expected + JUMP_MAX;
        if is_ahead && self.ahead_since.is_none() {
            let seconds = shown.saturating_sub(expected).as_secs();
            tracing::warn!(
                seconds,
                "the clock has jumped ahead; if it stays there, what is old by it is deleted in a day"
            );
        }
        self.ahead_since = is_ahead.then(|| self.ahead_since.unwrap_or(now));
        let is_believed = self.ahead_since.is_none_or(|since| now - since >= DOUBT);
        if is_believed {
            self.ahead_since = None;
        }
        (self.date, self.at) = (if is_believed { shown } else { expected }, now);
        self.date
    }
}

/// The end of what is kept no longer, in Unix milliseconds.
fn oldest_ms(today: Duration, keep: Duration) -> i64 {
    i64::try_from(today.saturating_sub(keep).as_millis()).unwrap_or(i64::MAX)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{BucketWrite, Hour, Sample};
    use crate::store::sqlite::SqliteStore;

    const DAY: Duration = Duration::from_secs(86_400);
    const TODAY: Duration = Duration::from_secs(20_000 * 86_400);

    #[test]
    fn a_clock_that_goes_on_or_back_is_believed_at_once() {
        let start = Instant::now();
        let mut calendar = Calendar::new(TODAY, start);
        let back = DAY * 19_000;
        for (elapsed, shown) in [
            (INTERVAL, TODAY + INTERVAL),
            (2 * INTERVAL, TODAY + 2 * INTERVAL + JUMP_MAX),
            (3 * INTERVAL, back),
            (4 * INTERVAL, back + INTERVAL),
        ] {
            assert_eq!(calendar.believe(shown, start + elapsed), shown);
        }
    }

    #[test]
    fn a_clock_that_jumps_ahead_is_believed_when_it_is_still_there_a_day_later() {
        let start = Instant::now();
        let mut calendar = Calendar::new(TODAY, start);
        let ahead = TODAY + 200 * DAY;
        for elapsed in (1..=144).map(|tick| tick * INTERVAL) {
            assert_eq!(calendar.believe(ahead + elapsed, start + elapsed), TODAY + elapsed, "{elapsed:?}");
        }
        let later = DAY + INTERVAL;
        assert_eq!(calendar.believe(ahead + later, start + later), ahead + later);
        let after = later + INTERVAL;
        assert_eq!(calendar.believe(ahead + after, start + after), ahead + after);
    }

    #[test]
    fn a_clock_that_was_set_right_in_time_has_deleted_nothing() {
        let start = Instant::now();
        let mut calendar = Calendar::new(TODAY, start);
        assert_eq!(calendar.believe(TODAY + 200 * DAY, start + INTERVAL), TODAY + INTERVAL);
        assert_eq!(calendar.believe(TODAY + DAY, start + DAY), TODAY + DAY);
        let again = start + DAY + INTERVAL;
        assert_eq!(calendar.believe(TODAY + 200 * DAY, again), TODAY + DAY + INTERVAL, "a new doubt, a new day");
    }

    #[tokio::test(start_paused = true)]
    async fn readings_outlive_a_jump_of_the_clock_until_it_is_believed() {
        let folder = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&folder.path().join("db")).unwrap());
        let sample = (Sample { value: 1.0, offset: 0, metric: 0 }, true);
        let hour = Hour::of(TODAY.as_millis() as i64);
        let write = Arc::new(BucketWrite::new("a".into(), hour, None, vec!["m".into()], [sample]));
        store.write(&[write]).await[0].clone().unwrap();
        let start = Instant::now();
        let clock = Clock::fixed(TODAY.as_millis() as i64);
        let pass = async |time: Duration, ahead: Duration| {
            tokio::time::sleep(time).await;
            clock.set((TODAY + start.elapsed() + ahead).as_millis() as i64);
        };
        let running = tokio::spawn(run(clock.clone(), Arc::clone(&store), Some(90 * DAY), None));
        pass(3 * INTERVAL / 2, 200 * DAY).await;
        while start.elapsed() < DAY + 3 * INTERVAL / 2 {
            pass(INTERVAL, 200 * DAY).await;
        }
        assert_eq!(store.last_hour("a").await.unwrap(), Some(hour), "nothing is deleted for a day");
        while store.last_hour("a").await.unwrap().is_some() {
            assert!(start.elapsed() < DAY + 4 * INTERVAL, "what is old is deleted in the end");
            pass(INTERVAL, 200 * DAY).await;
        }
        running.abort();
    }
}
