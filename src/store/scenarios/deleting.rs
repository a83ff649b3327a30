//! Deletions, against a plain map.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::model::{Day, Deletion, MS_PER_HOUR};
use crate::store::Deleted;

/// The hours of a device.
type Hours = BTreeMap<Hour, Model>;

/// Executes a deletion, twice, and returns the hours that are to be rolled up if they are closed.
async fn delete(store: &dyn Store, hours: &mut Hours, deletion: &Deletion) -> BTreeSet<Hour> {
    let is_selected = |hour: Hour, (offset, metric): &(HourOffset, String)| deletion.selects(hour, *offset, metric);
    let mut readings = 0;
    for (&hour, model) in hours.iter_mut() {
        let mut selected: Vec<HourOffset> =
            model.keys().filter(|identity| is_selected(hour, identity)).map(|(offset, _)| *offset).collect();
        selected.dedup();
        readings += selected.len() as u64;
        model.retain(|identity, _| !is_selected(hour, identity));
    }
    hours.retain(|_, model| !model.is_empty());
    let deletions = store.deletions();
    let unanswered = BTreeSet::new();
    assert_eq!(deletions.delete(deletion, &unanswered).await.unwrap().readings, readings, "{deletion:?}");
    let again = deletions.delete(deletion, &unanswered).await.unwrap();
    assert_eq!(again.readings, 0, "a repetition of {deletion:?}");
    again.hours
}

/// Rolls up hours again, as after late readings.
async fn roll_up(store: &dyn Store, device: &str, hours: impl IntoIterator<Item = Hour>) {
    let Some(rollups) = store.rollups() else { return };
    let buckets: Vec<(Arc<str>, Hour)> = hours.into_iter().map(|hour| (device.into(), hour)).collect();
    for outcome in rollups.roll_up(&buckets).await {
        outcome.unwrap();
    }
}

/// Checks the contents and the stats of all hours of a device.
async fn expect_hours(store: &dyn Store, device: &str, hours: &Hours) {
    let found = store.contents(device, Hour(0)..Hour(1_000_000)).await.unwrap();
    let found: Vec<Hour> = found.into_iter().map(|(hour, _)| hour).collect();
    assert_eq!(found, hours.keys().copied().collect::<Vec<_>>(), "{device}");
    for (hour, model) in hours {
        expect(store, device, *hour, model).await;
    }
}

/// Checks the entry of a device in the device index.
async fn expect_entry(store: &dyn Store, device: &str, hours: &Hours) {
    expect_covered(store, device, hours).await;
    let known = store.device(device).await.unwrap();
    assert_eq!(known.is_some(), !hours.is_empty(), "{device}: the device index");
    let Some(known) = known else { return };
    let (first, _) = span_of(hours);
    assert_eq!(known.first_ts_ms, first, "{device}: first seen");
    let known: BTreeSet<&str> = known.series.iter().map(|series| &*series.metric).collect();
    let expected = last_hours(hours);
    assert_eq!(known, expected.keys().copied().collect(), "{device}: series");
}

/// Checks that the entry of a device covers its readings, and that queries find what it does not say exactly.
async fn expect_covered(store: &dyn Store, device: &str, hours: &Hours) {
    let Some(entry) = store.entries_of(&[device.into()]).await.unwrap().devices.pop() else {
        assert!(hours.is_empty(), "{device} is not in the index");
        return;
    };
    let expected = last_hours(hours);
    for (metric, hour) in &expected {
        let known = entry.series.iter().find(|series| &*series.metric == *metric);
        let last_day = known.unwrap_or_else(|| panic!("{device}: {metric} is not in the index")).last_day;
        assert!(last_day >= Day::of(*hour), "{device}: {metric} has {hour:?}");
    }
    let all: BTreeSet<Metric> = entry.series.iter().map(|series| series.metric.clone()).collect();
    let last_hour =
        async |series: &BTreeSet<Metric>, before| store.last_hour_with(device, series, Hour(0)..before).await.unwrap();
    for metric in &all {
        let only = BTreeSet::from([metric.clone()]);
        let found = last_hour(&only, Hour(1_000_000)).await;
        assert_eq!(found, expected.get(&**metric).copied(), "{device}: {metric}");
        if let Some(hour) = found {
            let earlier = hours.range(..hour).rev().find(|(_, model)| model.keys().any(|(_, of)| *of == **metric));
            assert_eq!(last_hour(&only, hour).await, earlier.map(|(hour, _)| *hour), "{device}: {metric} before");
        }
    }
    assert_eq!(last_hour(&all, Hour(1_000_000)).await, expected.values().copied().max(), "{device}");
    if hours.is_empty() {
        return;
    }
    let (first, last) = span_of(hours);
    assert!(entry.first_ts_ms <= first, "{device}: first seen");
    if entry.is_last_day_exact() {
        let day = |ts_ms| Day::of(Hour::of(ts_ms));
        assert!(day(entry.last_ts_ms) == day(last) && entry.last_ts_ms <= last, "{device}: {entry:?}, {last}");
    }
    assert_eq!(store.last_instants(&[entry], Hour(0)).await.unwrap(), [last], "{device}: last seen");
}

/// The last hour of each metric.
fn last_hours(hours: &Hours) -> BTreeMap<&str, Hour> {
    let all = hours.iter().flat_map(|(hour, model)| model.keys().map(move |(_, metric)| (metric.as_str(), *hour)));
    all.collect() // ascending, so the last one stays
}

/// The first and the last instant of a device.
fn span_of(hours: &Hours) -> (i64, i64) {
    let instants = || hours.iter().flat_map(|(hour, model)| model.keys().map(|(offset, _)| hour.instant_ms(*offset)));
    (instants().min().unwrap(), instants().max().unwrap())
}

/// A write or a deletion.
enum Step {
    Write(Arc<BucketWrite>),
    Delete(Deletion),
}

fn random_step(random: &mut StdRng, device: &str, step: u32) -> Step {
    let hour = Hour(HOUR.0 + random.random_range(0..4));
    if step % 5 < 3 {
        let write = super::writing::random_write(random, device, hour, step);
        let metadata = format!(r#"{{"step":{step}}}"#);
        return Step::Write(if random.random() { with_metadata(write, &metadata) } else { write });
    }
    let series = if random.random() { series_of(&[["a", "b", "c"][step as usize % 3]]) } else { SeriesFilter::ALL };
    let from = hour.start_ms() + if random.random() { 0 } else { random.random_range(0..300) };
    let range = from..from + [MS_PER_HOUR, 2 * MS_PER_HOUR, 20, 100][random.random_range(0..4)];
    let range_ms = (random.random_range(0..6) > 0).then_some(range);
    Step::Delete(Deletion { device: device.into(), range_ms, series })
}

/// Takes a step, and rolls up the hours that it changes if they are closed.
async fn take(store: &dyn Store, device: &str, hours: &mut Hours, step: Step, is_closed: bool) {
    let changed = match step {
        Step::Delete(deletion) => delete(store, hours, &deletion).await,
        Step::Write(next) => {
            write(store, &next).await;
            hours.entry(next.hour).or_default().extend(samples_of(&next.contents));
            BTreeSet::from([next.hour])
        }
    };
    if is_closed {
        roll_up(store, device, changed).await;
    }
}

/// With an odd seed, all hours are closed.
pub(in crate::store) async fn random_writes_and_deletions_leave_what_a_map_would_hold(store: &dyn Store) {
    for seed in seeds(2) {
        let is_closed = seed % 2 == 1;
        let device = format!("deleted-{seed}");
        let other = format!("deleted-{seed}0"); // an ID that begins with the other
        let (mut random, mut hours) = (StdRng::seed_from_u64(seed), Hours::new());
        let kept = write_of(&other, HOUR, &[(5, &[("a", 1.0)])]);
        write(store, &kept).await;
        for step in 0..30 {
            let step = random_step(&mut random, &device, step);
            take(store, &device, &mut hours, step, is_closed).await;
            expect_hours(store, &device, &hours).await;
            expect_entry(store, &device, &hours).await;
        }
        delete(store, &mut hours, &Deletion::of_device(device.as_str().into())).await;
        expect_hours(store, &device, &hours).await;
        expect_entry(store, &device, &hours).await;
        expect(store, &other, HOUR, &model_of(&[(5, &[("a", 1.0)])])).await;
    }
}

/// A step among ten days, so that a deletion may remove the last readings of a series, or the first ones of
/// the device.
fn step_of_days(random: &mut StdRng, device: &str, step: u32) -> Step {
    let hour = Hour(HOUR.0 + random.random_range(0..20) * 12);
    if step % 5 < 2 {
        let metrics = &["a", "b", "c{k=v}"][random.random_range(0..3)..];
        let values: Vec<(&str, f64)> = metrics.iter().map(|name| (*name, f64::from(step))).collect();
        return Step::Write(write_of(device, hour, &[(step, &values)]));
    }
    let series = match random.random_range(0..4) {
        0 => SeriesFilter::ALL,
        nth => series_of(&[["a", "b", "c"][nth - 1]]),
    };
    let days = i64::from(random.random_range(1..5_u32));
    let range_ms = hour.start_ms()..hour.start_ms() + days * 24 * MS_PER_HOUR;
    Step::Delete(Deletion { device: device.into(), range_ms: Some(range_ms), series })
}

pub(in crate::store) async fn after_deletions_the_index_covers_what_is_left(store: &dyn Store) {
    for seed in seeds(2) {
        let device = format!("covered-{seed}");
        let (mut random, mut hours) = (StdRng::seed_from_u64(seed), Hours::new());
        for step in 0..30 {
            let step = step_of_days(&mut random, &device, step);
            take(store, &device, &mut hours, step, seed % 2 == 1).await;
            expect_entry(store, &device, &hours).await;
        }
    }
}

/// Both stores execute each deletion, as instances do.
///
/// In between they write by what they remember of the index.
pub(in crate::store) async fn the_index_covers_what_two_instances_leave(store: &dyn Store, other: &dyn Store) {
    for seed in seeds(2) {
        let device: Arc<str> = format!("covered-by-two-{seed}").into();
        let (mut random, mut hours) = (StdRng::seed_from_u64(seed), Hours::new());
        for step in 0..30 {
            let (one, two) = if random.random() { (store, other) } else { (other, store) };
            match step_of_days(&mut random, &device, step) {
                Step::Write(next) => take(one, &device, &mut hours, Step::Write(next), false).await,
                Step::Delete(deletion) => {
                    for instance in [one, two] {
                        delete(instance, &mut hours, &deletion).await;
                        let hour = Hour(HOUR.0 + random.random_range(0..20) * 12);
                        let sent = write_of(&device, hour, &[(1_000 + step, &[("b", 1.0), ("c{k=v}", 2.0)])]);
                        take(one, &device, &mut hours, Step::Write(sent), false).await;
                    }
                    for instance in [one, two] {
                        if let Some(instances) = instance.instances() {
                            instances.check_entry(&device).await.unwrap();
                        }
                    }
                }
            }
            expect_covered(store, &device, &hours).await;
            expect_covered(other, &device, &hours).await;
        }
    }
}

/// Each instance remembers what it knew of a bucket before the other one has deleted from it.
pub(in crate::store) async fn two_instances_write_and_delete_in_turn(store: &dyn Store, other: &dyn Store) {
    for seed in seeds(2) {
        let device = format!("deleted-in-turn-{seed}");
        let (mut random, mut hours) = (StdRng::seed_from_u64(seed), Hours::new());
        for step in 0..30 {
            let (one, two) = if random.random() { (store, other) } else { (other, store) };
            let step = random_step(&mut random, &device, step);
            take(one, &device, &mut hours, step, seed % 2 == 1).await;
            expect_hours(two, &device, &hours).await;
        }
    }
}

pub(in crate::store) async fn a_device_is_deleted_with_all_that_belongs_to_it(store: &dyn Store) {
    let readings: [Sent<'_>; 2] = [(1, &[("a", 1.0), ("b", 2.0)]), (9, &[("a", 3.0)])];
    let others = [("gone-", HOUR), ("gon", HOUR)].map(|(device, hour)| write_of(device, hour, &readings));
    for other in &others {
        write(store, other).await;
    }
    for _ in 0..2 {
        let hours = [HOUR, Hour(HOUR.0 + 1), Hour(HOUR.0 + 40)];
        for hour in hours {
            write(store, &write_of("gone", hour, &readings)).await;
        }
        roll_up(store, "gone", hours).await;
        let mut hours: Hours = hours.into_iter().map(|hour| (hour, model_of(&readings))).collect();
        expect_hours(store, "gone", &hours).await;
        expect_entry(store, "gone", &hours).await;
        let changed = delete(store, &mut hours, &Deletion::of_device("gone".into())).await;
        roll_up(store, "gone", changed).await;
        expect_hours(store, "gone", &hours).await;
        expect_entry(store, "gone", &hours).await;
        assert_eq!(store.last_hour("gone").await.unwrap(), None);
        let stats = hour_stats(store, "gone", HOUR..Hour(HOUR.0 + 99), &SeriesFilter::ALL).await;
        assert_eq!(stats, []);
    }
    for other in &others {
        expect(store, &other.device, HOUR, &model_of(&readings)).await;
    }
}

/// A write that is sent again after the deletion is a new one: a client may correct readings in this way.
pub(in crate::store) async fn readings_can_be_written_again_after_they_were_deleted(store: &dyn Store) {
    let readings: [Sent<'_>; 2] = [(1, &[("a", 1.0), ("b", 2.0)]), (9, &[("a", 3.0)])];
    let sent = write_of("corrected", HOUR, &readings);
    for _ in 0..3 {
        assert_eq!(write(store, &sent).await, written(2, 0));
        expect(store, "corrected", HOUR, &model_of(&readings)).await;
        let mut hours = Hours::from([(HOUR, model_of(&readings))]);
        delete(store, &mut hours, &Deletion::of_device("corrected".into())).await;
        expect_hours(store, "corrected", &hours).await;
        expect_entry(store, "corrected", &hours).await;
    }
}

pub(in crate::store) async fn a_series_that_is_deleted_leaves_the_device_index(store: &dyn Store) {
    let readings: [Sent<'_>; 1] = [(1, &[("a", 1.0), ("b", 2.0)])];
    write(store, &write_of("unlisted", HOUR, &readings)).await;
    let mut hours = Hours::from([(HOUR, model_of(&readings))]);
    delete(store, &mut hours, &Deletion { device: "unlisted".into(), range_ms: None, series: series_of(&["b"]) }).await;
    let series = async || store.device("unlisted").await.unwrap().unwrap().series;
    assert_eq!(series().await.iter().map(|series| &*series.metric).collect::<Vec<_>>(), ["a"]);
    write(store, &write_of("unlisted", HOUR, &readings)).await;
    assert_eq!(series().await.len(), 2, "it comes back with its readings");
}

pub(in crate::store) async fn of_expired_readings_a_deletion_removes_the_stats_of_whole_hours<E: Expiry>(
    guard: &E,
    store: &dyn Store,
) {
    write(store, &write_of("expired", HOUR, &[(1, &[("a", 1.0), ("b", 2.0)]), (9, &[("a", 3.0)])])).await;
    guard.expire_readings(store, "expired").await;
    let deletions = store.deletions();
    let whole = HOUR.start_ms()..HOUR.end_ms();
    let stats = async || hour_stats(store, "expired", only(HOUR), &SeriesFilter::ALL).await;
    let before = stats().await;
    let of = |range, series| Deletion { device: "expired".into(), range_ms: Some(range), series };
    let delete = async |range, series| {
        let deleted = deletions.delete(&of(range, series), &BTreeSet::new()).await.unwrap();
        assert_eq!(deleted, Deleted::default());
    };
    delete(whole.start..whole.end - 1, SeriesFilter::ALL).await;
    assert_eq!(stats().await, before);
    delete(whole.clone(), series_of(&["a"])).await;
    assert_eq!(by_name(&stats().await[0].stats).into_keys().collect::<Vec<_>>(), ["b"]);
    delete(whole, SeriesFilter::ALL).await;
    assert_eq!((stats().await, store.device("expired").await.unwrap()), (Vec::new(), None));
}
