//! Retention: deletes old readings and rollups from stores that do not do so themselves.
//!
//! Retention depends on the wall clock, which may jump: after a jump of half a year ahead, everything would
//! be deleted at once. So retention trusts a date that advances like a monotonic clock. It trusts a date
//! further ahead only if the wall clock still shows it a day later, which leaves an operator a day to correct
//! the clock.
//!
//! An hour expires only when all its accepted readings are stored: the rollups of an expired hour cannot take
//! another reading, because nothing tells a new reading from one that is sent again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Store;
use crate::common::clock::Clock;

/// The time between two runs. Whole hours expire, so shorter intervals would find nothing more.
const INTERVAL: Duration = Duration::from_secs(600);

/// The largest jump ahead that is trusted at once: clocks drift, and are set now and then.
const JUMP_MAX: Duration = Duration::from_secs(3_600);

/// The time that a larger jump ahead must last until it is trusted.
const JUMP_CONFIRMATION: Duration = Duration::from_secs(86_400);

/// The longest time from the admission of a reading, which checks its age, until the log has it.
const ADMISSION_TIME: Duration = Duration::from_secs(60);

/// Deletes readings older than `readings` and rollups older than `rollups`, now and every ten minutes. `None`
/// keeps them forever. Runs until it is aborted.
///
/// `first_unstored_ms` returns the first instant of the readings that are accepted and not stored yet, in
/// Unix milliseconds; `None` if that is not known, which puts the deletion off.
pub async fn run(
    clock: Clock,
    store: Arc<dyn Store>,
    readings: Option<Duration>,
    rollups: Option<Duration>,
    first_unstored_ms: impl AsyncFn() -> Option<i64>,
) {
    let date = || Duration::from_millis(clock.now_ms().try_into().unwrap_or_default());
    let mut ticks = tokio::time::interval(INTERVAL);
    let mut calendar = Calendar::new(date(), Instant::now());
    loop {
        ticks.tick().await;
        let today = calendar.trusted_date(date(), Instant::now());
        let Some(first_unstored_ms) = first_unstored_ms().await else { continue };
        let oldest_ms = |keep| oldest_ms(today, keep + ADMISSION_TIME).min(first_unstored_ms);
        if let Some(keep) = rollups {
            report("retention.rollups", store.expire_rollups(oldest_ms(keep)).await);
        }
        if let Some(keep) = readings {
            report("retention.readings", store.expire_readings(oldest_ms(keep)).await);
        }
    }
}

/// The trusted date. Dates are times since 1970.
struct Calendar {
    start: Instant,
    /// The date of `start`, by the trusted clock.
    date: Duration,
    /// The jumps ahead that are not trusted yet, in their order: when each was noticed, and the date of
    /// `start` by the clock since. These dates never descend.
    ahead: Vec<(Instant, Duration)>,
}

impl Calendar {
    fn new(date: Duration, now: Instant) -> Self {
        Self { start: now, date, ahead: Vec::new() }
    }

    /// The trusted date when the clock shows `shown`. A jump back is trusted at once: it deletes nothing too
    /// early. Each jump ahead has a day of its own, whatever jumps come before or after it.
    fn trusted_date(&mut self, shown: Duration, now: Instant) -> Duration {
        let elapsed = now - self.start;
        let date = shown.saturating_sub(elapsed);
        self.date = self.date.min(date);
        for (_, ahead) in &mut self.ahead {
            *ahead = date.min(*ahead);
        }
        while let Some(&(since, ahead)) = self.ahead.first()
            && (now - since >= JUMP_CONFIRMATION || ahead <= self.date + JUMP_MAX)
        {
            self.date = ahead;
            self.ahead.remove(0);
        }
        let newest = self.ahead.last_mut().map_or(&mut self.date, |(_, ahead)| ahead);
        if date > *newest + JUMP_MAX {
            let seconds = date.saturating_sub(*newest).as_secs();
            tracing::warn!(
                seconds,
                "the clock has jumped ahead; if it stays there, readings that are old by its date are deleted in a day"
            );
            self.ahead.push((now, date));
        } else {
            *newest = date;
        }
        self.date + elapsed
    }
}

/// The instant before which nothing is kept, in Unix milliseconds. It may be before 1970.
fn oldest_ms(today: Duration, keep: Duration) -> i64 {
    let [today, keep] = [today, keep].map(|span| i64::try_from(span.as_millis()).unwrap_or(i64::MAX));
    today - keep
}

fn report(key: &str, expired: Result<u64, super::StoreError>) {
    match expired {
        Ok(0) => {}
        Ok(buckets) => tracing::info!(buckets, "deleted everything older than {key}"),
        Err(error) => {
            tracing::warn!(%error, "could not delete everything older than {key}; the next try is in ten minutes");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::model::{BucketWrite, Hour, Sample};
    use crate::store::sqlite::SqliteStore;

    const DAY: Duration = Duration::from_secs(86_400);
    const TODAY: Duration = Duration::from_secs(20_000 * 86_400);

    #[test]
    fn a_clock_that_advances_or_jumps_back_is_trusted_at_once() {
        let start = Instant::now();
        let mut calendar = Calendar::new(TODAY, start);
        let back = DAY * 19_000;
        for (elapsed, shown) in [
            (INTERVAL, TODAY + INTERVAL),
            (2 * INTERVAL, TODAY + 2 * INTERVAL + JUMP_MAX),
            (3 * INTERVAL, back),
            (4 * INTERVAL, back + INTERVAL),
        ] {
            assert_eq!(calendar.trusted_date(shown, start + elapsed), shown);
        }
    }

    #[test]
    fn a_jump_ahead_is_trusted_a_day_later() {
        let start = Instant::now();
        let mut calendar = Calendar::new(TODAY, start);
        let ahead = TODAY + 200 * DAY;
        for elapsed in (1..=144).map(|tick| tick * INTERVAL) {
            assert_eq!(calendar.trusted_date(ahead + elapsed, start + elapsed), TODAY + elapsed, "{elapsed:?}");
        }
        let later = DAY + INTERVAL;
        assert_eq!(calendar.trusted_date(ahead + later, start + later), ahead + later);
        let after = later + INTERVAL;
        assert_eq!(calendar.trusted_date(ahead + after, start + after), ahead + after);
    }

    #[test]
    fn a_clock_corrected_within_a_day_deletes_nothing() {
        let start = Instant::now();
        let mut calendar = Calendar::new(TODAY, start);
        assert_eq!(calendar.trusted_date(TODAY + 200 * DAY, start + INTERVAL), TODAY + INTERVAL);
        assert_eq!(calendar.trusted_date(TODAY + DAY, start + DAY), TODAY + DAY);
        let again = start + DAY + INTERVAL;
        assert_eq!(
            calendar.trusted_date(TODAY + 200 * DAY, again),
            TODAY + DAY + INTERVAL,
            "a new jump takes a new day"
        );
    }

    #[test]
    fn each_jump_ahead_is_trusted_a_day_after_it() {
        let start = Instant::now();
        let mut calendar = Calendar::new(TODAY, start);
        let hour = DAY / 24;
        let (small, large) = (2 * hour, 200 * DAY);
        for elapsed in (1..=300).map(|tick| tick * INTERVAL) {
            let ahead = if elapsed < 22 * hour { small } else { large };
            let mut trusted = if elapsed < DAY + 22 * hour { small } else { large };
            if elapsed < DAY + INTERVAL {
                trusted = Duration::ZERO;
            }
            let found = calendar.trusted_date(TODAY + ahead + elapsed, start + elapsed);
            assert_eq!(found, TODAY + trusted + elapsed, "{elapsed:?}");
        }
    }

    #[test]
    fn a_jump_that_is_corrected_in_part_is_trusted_to_the_part_that_held_for_a_day() {
        let start = Instant::now();
        let mut calendar = Calendar::new(TODAY, start);
        let hour = DAY / 24;
        let mut trusted = |elapsed: Duration, ahead: Duration| {
            calendar.trusted_date(TODAY + ahead + elapsed, start + elapsed).checked_sub(TODAY + elapsed).unwrap()
        };
        assert_eq!(trusted(hour, 200 * DAY), Duration::ZERO);
        assert_eq!(trusted(2 * hour, 2 * hour), Duration::ZERO);
        assert_eq!(trusted(3 * hour, 200 * DAY), Duration::ZERO);
        assert_eq!(trusted(26 * hour, 200 * DAY), 2 * hour);
        assert_eq!(trusted(27 * hour, 200 * DAY), 200 * DAY);
    }

    /// As on a host that sleeps each night, which stops the monotonic clock.
    #[test]
    fn a_clock_that_often_jumps_is_trusted_a_day_late() {
        let start = Instant::now();
        let mut calendar = Calendar::new(TODAY, start);
        let hour = DAY / 24;
        for tick in 1..=6 * 24 * 30 {
            let elapsed = tick * INTERVAL;
            let nights = tick / (6 * 16);
            let shown = TODAY + elapsed + 8 * hour * nights;
            let late = shown.checked_sub(calendar.trusted_date(shown, start + elapsed)).unwrap();
            assert!(late <= 16 * hour, "{late:?} after {nights} nights");
        }
    }

    #[test]
    fn a_retention_of_more_than_the_time_since_1970_begins_before_1970() {
        assert_eq!(oldest_ms(TODAY, DAY), 19_999 * 86_400_000);
        assert_eq!(oldest_ms(TODAY, 24_855 * DAY), -4_855 * 86_400_000);
    }

    /// A store with one reading of the device `a`.
    async fn with_a_reading(folder: &std::path::Path, hour: Hour) -> Arc<dyn Store> {
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&folder.join("db")).unwrap());
        let sample = (Sample { value: 1.0, offset: 0, metric: 0 }, true);
        let write = Arc::new(BucketWrite::new("a".into(), hour, None, vec!["m".into()], [sample]));
        store.write(&[write]).await[0].clone().unwrap();
        store
    }

    #[tokio::test(start_paused = true)]
    async fn an_hour_stays_until_all_its_accepted_readings_are_stored() {
        let folder = tempfile::tempdir().unwrap();
        let hour = Hour::of(TODAY.as_millis() as i64);
        let store = with_a_reading(folder.path(), hour).await;
        let clock = Clock::fixed((TODAY + 91 * DAY).as_millis() as i64);
        let (unstored, passes) = (Mutex::new(None), AtomicU32::new(0));
        let running = run(clock, Arc::clone(&store), Some(90 * DAY), None, async || {
            passes.fetch_add(1, Ordering::SeqCst);
            *unstored.lock().unwrap()
        });
        let watching = async {
            for not_stored in [None, Some(hour.start_ms() + 1)] {
                *unstored.lock().unwrap() = not_stored;
                tokio::time::sleep(3 * INTERVAL).await;
                assert_eq!(store.last_hour("a").await.unwrap(), Some(hour), "{not_stored:?}");
            }
            assert!(passes.load(Ordering::SeqCst) >= 4, "it asks again");
            *unstored.lock().unwrap() = Some(Hour(hour.0 + 1).start_ms());
            tokio::time::sleep(2 * INTERVAL).await;
            while store.last_hour("a").await.unwrap().is_some() {
                tokio::time::sleep(INTERVAL).await;
            }
        };
        tokio::select! {
            () = running => unreachable!("it runs until it is aborted"),
            () = watching => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn readings_stay_for_a_day_after_a_jump_of_the_clock() {
        let folder = tempfile::tempdir().unwrap();
        let hour = Hour::of(TODAY.as_millis() as i64);
        let store = with_a_reading(folder.path(), hour).await;
        let start = Instant::now();
        let clock = Clock::fixed(TODAY.as_millis() as i64);
        let pass = async |time: Duration, ahead: Duration| {
            tokio::time::sleep(time).await;
            clock.set((TODAY + start.elapsed() + ahead).as_millis() as i64);
        };
        let running =
            tokio::spawn(run(clock.clone(), Arc::clone(&store), Some(90 * DAY), None, async || Some(i64::MAX)));
        pass(3 * INTERVAL / 2, 200 * DAY).await;
        while start.elapsed() < DAY + 3 * INTERVAL / 2 {
            pass(INTERVAL, 200 * DAY).await;
        }
        assert_eq!(store.last_hour("a").await.unwrap(), Some(hour), "nothing is deleted for a day");
        while store.last_hour("a").await.unwrap().is_some() {
            assert!(start.elapsed() < DAY + 4 * INTERVAL, "old readings are deleted after the day");
            pass(INTERVAL, 200 * DAY).await;
        }
        running.abort();
    }
}
