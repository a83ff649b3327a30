//! Days are rolled up when they close, and their hours again when readings come late.
//!
//! The store is a real one; the test keeps its rollups (`kept`).

use super::super::roller::Roller;
use super::super::rollup_progress::{Partial, RollupProgress};
use super::kept::ByBucket;
use super::*;
use crate::model::{Day, Sample};

fn begin(folder: &Arc<TempDir>, kept: &Arc<Kept>) -> Life {
    Life::begin_with(folder, EAGER, sound(), Some(Arc::clone(kept)))
}

/// Stores readings of three devices in some hours, without rollups.
async fn fill(folder: &Arc<TempDir>, hours: Range<i32>) {
    let store = SqliteStore::open(&folder.path().join("tidegauge.sqlite")).unwrap();
    for hour in hours.step_by(3) {
        let samples = |value| (0..5).map(move |offset| (Sample { value, offset, metric: 0 }, true));
        let write = |device: &str, value| {
            Arc::new(BucketWrite::new(device.into(), Hour(hour), None, vec!["m".into()], samples(value)))
        };
        let writes = [write("a", 1.0), write("b", 2.0), write("c", f64::from(hour))];
        assert!(store.write(&writes).await.iter().all(Result::is_ok));
    }
}

fn progress_of(life: &Life) -> Option<RollupProgress> {
    RollupProgress::load(&life.folder.path().join("rollups.json"))
}

/// The progress of a roller that has rolled up the first day of the devices up to `b`.
fn reached_b() -> RollupProgress {
    let partial = Some(Partial { until: Hour(24), after: "b".into() });
    RollupProgress { identity: "0".to_owned(), next: Hour(0), partial, hours_of_day: Some(30) }
}

fn is_caught_up(life: &Life) -> bool {
    progress_of(life).is_some_and(|progress| progress.next > life.pipeline.newest_closed())
}

#[tokio::test]
async fn late_readings_stay_pending_until_their_hour_is_rolled_up_again() {
    let kept = Arc::new(Kept::default());
    let life = begin(&folder(), &kept);
    life.append(0..20).await;
    life.settled().await;
    assert_eq!(kept.hours(), life.store.fold().await);

    kept.away.store(true, Ordering::Relaxed);
    life.append(20..40).await;
    until("the store has some", || life.count("tidegauge_readings_stored_total") > 60).await;
    until("tries are counted", || life.count(r#"tidegauge_rollup_retries_total{reason="network"}"#) > 3).await;
    assert_eq!(life.pipeline.status().pending_readings, 60, "those that the store has included");
    assert!(life.pipeline.store_away().is_some());
    assert_ne!(kept.hours(), life.store.fold().await);

    kept.away.store(false, Ordering::Relaxed);
    life.settled().await;
    assert_eq!(kept.hours(), life.store.fold().await);
    assert_eq!(
        (life.count("tidegauge_readings_stored_total"), life.pipeline.store_away()),
        (120, None),
        "counted once"
    );
    assert_eq!(life.end(MINUTE).await, 0);
}

#[tokio::test]
async fn writes_whose_hours_cannot_be_rolled_up_keep_no_other_write_waiting() {
    let kept = Arc::new(Kept::default());
    kept.away.store(true, Ordering::Relaxed);
    let life = begin(&folder(), &kept);
    life.append(0..10).await; // a bucket each, more than two writes may have
    until("the store has all", || life.count("tidegauge_readings_stored_total") == 30).await;
    assert_eq!((kept.hours().len(), life.pipeline.status().pending_readings), (0, 30));
    until("what is stored is in memory once", || kept.writes_in_memory() == 0).await;

    kept.away.store(false, Ordering::Relaxed);
    life.settled().await;
    assert_eq!(kept.hours(), life.store.fold().await);
    assert_eq!(life.end(MINUTE).await, 0);
}

#[tokio::test]
async fn a_crash_between_a_write_and_its_rolling_up_is_mended_by_the_next_start() {
    let (folder, kept) = (folder(), Arc::new(Kept::default()));
    kept.away.store(true, Ordering::Relaxed);
    let life = begin(&folder, &kept);
    life.append(0..20).await;
    until("the store has some", || life.count("tidegauge_readings_stored_total") > 0).await;
    let stored = life.count("tidegauge_readings_stored_total");
    assert_eq!((kept.hours().len(), life.end(HOUR).await), (0, 60), "no waiting for a store that rolls up nothing");

    kept.away.store(false, Ordering::Relaxed);
    let life = begin(&folder, &kept);
    life.settled().await;
    assert_eq!(kept.hours(), life.store.fold().await);
    assert!(life.count("tidegauge_readings_duplicate_total") >= stored);
    assert_eq!(life.stored().await, 60);
    assert_eq!(life.end(MINUTE).await, 0);
}

#[tokio::test]
async fn what_was_stored_before_is_rolled_up_day_by_day_over_failures() {
    let (folder, kept) = (folder(), Arc::new(Kept::default()));
    fill(&folder, 0..60).await;
    kept.fails_every.store(3, Ordering::Relaxed);
    let life = begin(&folder, &kept);
    let shortened_with = || kept.shortened_with.load(Ordering::Relaxed);
    until("readings may expire earlier", || shortened_with() < u64::MAX).await;
    assert_eq!((shortened_with(), is_caught_up(&life)), (60, true));
    assert_eq!(kept.hours(), life.store.fold().await);
    let days = [0, 1, 2].map(|day| Day(day).hours());
    assert_eq!(kept.take_steps(), days.map(|day| [(day.clone(), 2), (day, 1)]).as_flattened());
    assert_eq!(progress_of(&life).unwrap().next, Hour(life.pipeline.newest_closed().0 + 1));
    assert_eq!(life.count("tidegauge_rollups_written_total"), 60);
    assert!(life.count(r#"tidegauge_rollup_retries_total{reason="network"}"#) >= 2);
    assert_eq!(life.count("tidegauge_rollup_lag_seconds"), 0);
    assert_eq!(life.end(MINUTE).await, 0);
}

#[tokio::test]
async fn readings_of_replaced_collections_may_expire_earlier_too() {
    let (folder, kept) = (folder(), Arc::new(Kept::default()));
    fill(&folder, 0..60).await;
    let life = begin(&folder, &kept);
    life.running.roller.abort();
    let mut roller = Roller::new(&life.pipeline, &*life.store, None);
    let mut shortened_with = async || {
        assert!(roller.catch_up().await.unwrap());
        kept.shortened_with.swap(u64::MAX, Ordering::Relaxed)
    };
    assert_eq!(shortened_with().await, 60);
    assert_eq!(shortened_with().await, u64::MAX, "once is enough");
    kept.identity.store(7, Ordering::Relaxed);
    assert_eq!(shortened_with().await, 60, "their expiry may be an older, longer one");
}

#[tokio::test]
async fn days_are_rolled_up_without_an_error_while_the_store_refuses_to_shorten_the_expiry() {
    let (folder, kept) = (folder(), Arc::new(Kept::default()));
    fill(&folder, 0..60).await;
    kept.refuses_expiry.store(true, Ordering::Relaxed);
    let life = begin(&folder, &kept);
    life.running.roller.abort();
    let mut roller = Roller::new(&life.pipeline, &*life.store, None);
    for _ in 0..2 {
        assert!(roller.catch_up().await.unwrap());
    }
    let shortened_with = || kept.shortened_with.load(Ordering::Relaxed);
    assert_eq!((kept.hours().len(), shortened_with()), (60, u64::MAX));
    kept.refuses_expiry.store(false, Ordering::Relaxed);
    assert!(roller.catch_up().await.unwrap());
    assert_eq!(shortened_with(), 60, "a later turn tries again");
}

#[tokio::test]
async fn hours_of_the_current_day_are_not_rolled_up_before_its_end() {
    let clock = Clock::fixed(Hour(20).start_ms());
    let (folder, kept) = (folder(), Arc::new(Kept::new(clock.clone(), Closing::Daily)));
    let life = begin(&folder, &kept);
    life.append(0..400).await; // a bit more than the first hour
    life.settled().await;
    until("the roller has looked", || is_caught_up(&life)).await;
    assert_eq!((kept.hours().len(), kept.take_steps()), (0, vec![]));
    assert_eq!(life.count("tidegauge_rollups_written_total"), 0);
    life.running.roller.abort(); // from here on, the steps are those of the test

    let mut roller = Roller::new(&life.pipeline, &*life.store, progress_of(&life));
    for (now_ms, devices, is_closed) in [
        (Day(1).start_ms() - 1, 0, false),
        (Day(1).start_ms() + 59_999, 0, false), // the delay is a minute
        (Day(1).start_ms() + 60_000, 10, true),
    ] {
        clock.set(now_ms);
        life.pipeline.close_past_hours();
        assert!(roller.catch_up().await.unwrap());
        let steps = kept.take_steps();
        assert_eq!(steps.iter().map(|(_, devices)| devices).sum::<usize>(), devices, "at {now_ms}");
        assert!(steps.iter().all(|(hours, _)| *hours == Day(0).hours()));
        assert_eq!(life.pipeline.is_closed(Hour(23)), is_closed);
        assert!(!life.pipeline.is_closed(Hour(24)));
    }
    assert_eq!(kept.hours(), life.store.fold().await);
    life.append(400..420).await;
    life.settled().await;
    assert_eq!(kept.hours(), life.store.fold().await, "late readings of the closed day");
    assert_eq!(life.end(MINUTE).await, 0);
}

#[tokio::test]
async fn the_lag_is_the_time_since_the_end_of_the_first_day_that_is_not_rolled_up() {
    let clock = Clock::fixed(Day(3).start_ms() + HOUR.as_millis() as i64);
    let (folder, kept) = (folder(), Arc::new(Kept::new(clock.clone(), Closing::Daily)));
    fill(&folder, 0..60).await;
    kept.stops_after.store(3, Ordering::Relaxed);
    let life = begin(&folder, &kept);
    until("it is behind by the second day", || life.count("tidegauge_rollup_lag_seconds") == 25 * 3600).await;
    kept.stops_after.store(u64::MAX, Ordering::Relaxed);
    until("it has caught up", || is_caught_up(&life)).await;
    assert_eq!(life.count("tidegauge_rollup_lag_seconds"), 0);
}

/// An instance that is new to the database takes long for its history. Others roll up the days that end
/// meanwhile.
#[tokio::test]
async fn a_day_that_ends_is_closed_while_earlier_days_are_rolled_up() {
    let an_hour_after = |day: Day| day.start_ms() + HOUR.as_millis() as i64;
    let clock = Clock::fixed(an_hour_after(Day(3)));
    let (folder, kept) = (folder(), Arc::new(Kept::new(clock.clone(), Closing::Daily)));
    fill(&folder, 0..60).await;
    kept.stops_after.store(1, Ordering::Relaxed);
    let life = begin(&folder, &kept);
    until("the second step has begun", || kept.tries.load(Ordering::Relaxed) == 2).await;
    clock.set(an_hour_after(Day(4)));
    assert!(life.pipeline.is_closed(Hour(71)) && !life.pipeline.is_closed(Hour(72)));
    kept.stops_after.store(2, Ordering::Relaxed);
    until("the day is closed", || life.pipeline.is_closed(Hour(95))).await;
    assert!(!life.pipeline.is_closed(Hour(96)));
}

#[tokio::test]
async fn each_hour_is_rolled_up_by_itself_if_readings_expire_soon() {
    let clock = Clock::fixed(Hour(7).start_ms() + 60_000);
    let (folder, kept) = (folder(), Arc::new(Kept::new(clock.clone(), Closing::Hourly)));
    fill(&folder, 0..12).await;
    let life = begin(&folder, &kept);
    until("the closed hours are rolled up", || is_caught_up(&life)).await;
    assert_eq!(progress_of(&life).unwrap().next, Hour(7));
    kept.take_steps();
    clock.set(Hour(10).start_ms() + 60_000);
    life.pipeline.close_past_hours();
    let mut roller = Roller::new(&life.pipeline, &*life.store, progress_of(&life));
    roller.catch_up().await.unwrap();
    assert_eq!(kept.take_steps(), [(Hour(7)..Hour(10), 2), (Hour(7)..Hour(10), 1)], "the day's document has others");
    assert_eq!(kept.hours(), life.store.fold().await);
}

/// The other readings of the bucket are in its rollup before it leaves pending.
#[tokio::test]
async fn an_hour_is_rolled_up_while_its_refused_readings_wait_for_the_dead_letter_file() {
    let (folder, kept) = (folder(), Arc::new(Kept::default()));
    let file = folder.path().join("dead-letters.ndjson");
    std::fs::create_dir(&file).unwrap(); // so it cannot be written
    let fault = |write: &BucketWrite| {
        let is_bad = write.contents.samples().iter().any(|sample| sample.offset == 1);
        is_bad.then(|| StoreError::new(Cause::Validation, "no"))
    };
    let life = Life::begin_with(&folder, EAGER, Box::new(fault), Some(Arc::clone(&kept)));
    life.running.roller.abort();
    life.append(0..1).await;
    until("the others are rolled up", || !kept.hours().is_empty()).await;
    assert_eq!(life.pipeline.status().pending_readings, 3);
    std::fs::remove_dir(&file).unwrap();
    life.settled().await;
    assert_eq!(kept.hours(), life.store.fold().await);
    assert_eq!(life.end(MINUTE).await, 0);
}

/// A crash in the middle of a day with many devices does not start the day over.
#[tokio::test]
async fn the_next_start_goes_on_with_the_device_that_the_last_one_has_reached() {
    let (folder, kept) = (folder(), Arc::new(Kept::default()));
    fill(&folder, 0..60).await;
    kept.stops_after.store(0, Ordering::Relaxed);
    let life = begin(&folder, &kept);
    until("it has begun", || kept.tries.load(Ordering::Relaxed) > 0).await;
    life.running.roller.abort();
    kept.stops_after.store(u64::MAX, Ordering::Relaxed);
    let reached = reached_b();
    reached.save(&life.pipeline.options.rollup_progress).unwrap();
    let reached = progress_of(&life);
    Roller::new(&life.pipeline, &*life.store, reached).catch_up().await.unwrap();
    let [first, second, third] = [0, 1, 2].map(|day| Day(day).hours());
    let all = |day: Range<Hour>| [(day.clone(), 2), (day, 1)];
    assert_eq!(kept.take_steps(), [[(first, 1)].as_slice(), &all(second), &all(third)].concat());
    assert_eq!(progress_of(&life).unwrap().partial, None);
    let of_c = |hours: &ByBucket| hours.keys().filter(|(device, hour)| **device == *"c" && hour.0 < 24).count();
    assert_eq!(of_c(&kept.hours()), of_c(&life.store.fold().await));

    // A day that is rolled up in part counts as closed, even if the clock is set back.
    let clock = Clock::fixed(Hour(5).start_ms());
    let kept = Arc::new(Kept::new(clock, Closing::Daily));
    let reached = reached_b();
    reached.save(&folder.path().join("rollups.json")).unwrap();
    std::fs::remove_file(folder.path().join("closed-hours")).unwrap();
    drop(life);
    let life = begin(&folder, &kept);
    assert!(life.pipeline.is_closed(Hour(23)) && !life.pipeline.is_closed(Hour(24)));
}

#[tokio::test]
async fn the_hours_of_a_day_are_known_after_a_walk_from_the_first_device_on() {
    let (folder, kept) = (folder(), Arc::new(Kept::default()));
    fill(&folder, 0..9).await;
    let life = begin(&folder, &kept);
    life.running.roller.abort();
    let after_a_larger_day = RollupProgress { partial: None, hours_of_day: Some(160), ..reached_b() };
    for (progress, hours) in [(None, 9), (Some(reached_b()), 30), (Some(after_a_larger_day), 150)] {
        Roller::new(&life.pipeline, &*life.store, progress).catch_up().await.unwrap();
        assert_eq!(progress_of(&life).unwrap().hours_of_day, Some(hours));
    }
}

/// Otherwise a large fleet would wait hours for it.
#[tokio::test]
async fn a_walk_over_replaced_collections_begins_anew_at_once() {
    let (folder, kept) = (folder(), Arc::new(Kept::default()));
    fill(&folder, 0..9).await;
    kept.replaced_in.store(1, Ordering::Relaxed);
    let life = begin(&folder, &kept);
    life.running.roller.abort();
    Roller::new(&life.pipeline, &*life.store, None).catch_up().await.unwrap();
    let day = Day(0).hours();
    assert_eq!(kept.take_steps(), [(day.clone(), 2), (day.clone(), 2), (day, 1)]);
}

/// Neither a crash nor a clock that is set back, nor both, opens a closed day again: there are rollups of it.
#[tokio::test]
async fn a_day_stays_closed_if_the_clock_is_set_back_during_a_crash() {
    let clock = Clock::fixed(Day(2).start_ms());
    let (folder, kept) = (folder(), Arc::new(Kept::new(clock.clone(), Closing::Daily)));
    let life = begin(&folder, &kept);
    life.running.roller.abort(); // the crash comes before it has saved anything
    life.append(0..20).await;
    life.settled().await;
    assert_eq!(kept.hours(), life.store.fold().await);
    std::fs::remove_file(folder.path().join("rollups.json")).ok();
    assert_eq!(life.end(MINUTE).await, 0);

    clock.set(Hour(0).start_ms());
    let life = begin(&folder, &kept);
    life.running.roller.abort();
    life.append(20..40).await;
    life.settled().await;
    assert_eq!(kept.hours(), life.store.fold().await);
    assert_eq!(life.stored().await, 120);
}

/// As after the file of the closed hours was lost: what is rolled up of the current day counts as closed.
#[tokio::test]
async fn hours_of_the_current_day_that_are_rolled_up_stay_closed() {
    let clock = Clock::fixed(Hour(30).start_ms());
    let (folder, kept) = (folder(), Arc::new(Kept::new(clock.clone(), Closing::Daily)));
    fill(&folder, 0..60).await;
    let rolled_up = r#"{"version":1,"identity":"0","before":"1970-01-02T04:00:00Z"}"#;
    std::fs::write(folder.path().join("rollups.json"), rolled_up).unwrap();
    let life = begin(&folder, &kept);
    life.running.roller.abort();
    assert!(life.pipeline.is_closed(Hour(27)) && !life.pipeline.is_closed(Hour(28)));
    clock.set(Hour(49).start_ms());
    life.pipeline.close_past_hours();
    Roller::new(&life.pipeline, &*life.store, progress_of(&life)).catch_up().await.unwrap();
    assert_eq!(kept.take_steps(), [(Hour(28)..Hour(48), 2), (Hour(28)..Hour(48), 1)], "the rest of the day");
}

#[tokio::test]
async fn the_roller_waits_until_the_store_knows_its_devices() {
    let (folder, kept) = (folder(), Arc::new(Kept::default()));
    fill(&folder, 0..9).await;
    kept.is_indexing.store(true, Ordering::Relaxed);
    let life = begin(&folder, &kept);
    let mut roller = Roller::new(&life.pipeline, &*life.store, None);
    assert!(!roller.catch_up().await.unwrap());
    assert_eq!((kept.take_steps(), progress_of(&life)), (vec![], None));
    life.append(0..20).await;
    life.settled().await;
    assert!(!kept.hours().is_empty(), "late readings do not wait");
    kept.is_indexing.store(false, Ordering::Relaxed);
    until("the progress includes all hours", || is_caught_up(&life)).await;
    assert_eq!(kept.hours(), life.store.fold().await);
}

#[tokio::test]
async fn a_store_that_never_says_what_to_roll_up_shows_as_lag() {
    let (folder, kept) = (folder(), Arc::new(Kept::default()));
    fill(&folder, 0..60).await;
    kept.away.store(true, Ordering::Relaxed);
    let life = begin(&folder, &kept);
    until("it has failed", || life.count(r#"tidegauge_rollup_retries_total{reason="network"}"#) > 0).await;
    let lag = || {
        let text = life.exposition.render();
        text.lines().find_map(|line| line.strip_prefix("tidegauge_rollup_lag_seconds ")?.parse::<f64>().ok())
    };
    until("it lags", || lag() > Some(0.0)).await;
    kept.away.store(false, Ordering::Relaxed);
    until("it has caught up", || is_caught_up(&life)).await;
    assert_eq!(life.count("tidegauge_rollup_lag_seconds"), 0);
    assert_eq!(kept.hours(), life.store.fold().await);
}

#[tokio::test]
async fn the_mark_spares_work_and_without_it_all_is_derived_again() {
    let (folder, kept) = (folder(), Arc::new(Kept::default()));
    fill(&folder, 0..60).await;
    let life = begin(&folder, &kept);
    until("the progress includes all hours", || is_caught_up(&life)).await;
    life.running.roller.abort();
    let look = async |progress| {
        kept.take_steps();
        Roller::new(&life.pipeline, &*life.store, progress).catch_up().await.unwrap();
        kept.take_steps().len()
    };
    assert_eq!(look(progress_of(&life)).await, 0, "all is done");
    let behind = RollupProgress { next: Hour(48), ..progress_of(&life).unwrap() };
    assert_eq!(look(Some(behind)).await, 2, "the day after it, in two steps");
    assert_eq!(look(None).await, 6, "the file was deleted");
    kept.identity.store(7, Ordering::Relaxed);
    assert_eq!(look(progress_of(&life)).await, 6, "it speaks of another store");
    assert_eq!(look(progress_of(&life)).await, 0);
}
