//! Deletions among readings, over kills and faults, against a plain map.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::flush::deletions::Stage;
use crate::flush::{DeletionOutcome, deleter, scheduler};
use crate::log::{BegunDeletion, DeletionRecord};
use crate::pending::NextDeletion;

/// The values by device, time and metric.
type Model = BTreeMap<(String, i64, String), f64>;

const DEVICES: [&str; 2] = ["a", "b"];
const METRICS: [&str; 3] = ["m", "n", "m{x=1}"];
const HOURS: i64 = 4;

/// A random deletion of one or all series of a device.
///
/// It deletes values of all times, of whole hours, or of any range.
fn random_deletion(random: &mut StdRng) -> Deletion {
    let device = DEVICES[random.random_range(0..2)].into();
    let series = match random.random_range(0..3) {
        0 => SeriesFilter::new([METRICS[random.random_range(0..3)]], []).unwrap(),
        _ => SeriesFilter::ALL,
    };
    let hour_ms = 3_600_000;
    let range_ms = match random.random_range(0..5) {
        0 => None,
        1 => {
            let from = random.random_range(0..HOURS);
            Some(from * hour_ms..(from + random.random_range(1..3)) * hour_ms)
        }
        _ => {
            let from = random.random_range(0..HOURS * hour_ms);
            Some(from..from + random.random_range(1..2 * hour_ms))
        }
    };
    Deletion { device, range_ms, series }
}

fn delete(model: &mut Model, deletion: &Deletion) {
    model.retain(|(device, ts_ms, metric), _| {
        let is_named = deletion.series.matches(metric);
        let is_in_range = deletion.range_ms.as_ref().is_none_or(|range| range.contains(ts_ms));
        **device != *deletion.device || !is_named || !is_in_range
    });
}

async fn append(life: &Life, random: &mut StdRng, model: &mut Model) {
    let mut batch = BatchBuilder::default();
    for _ in 0..random.random_range(1..20) {
        let device = DEVICES[random.random_range(0..2)];
        // There are few different times, so that readings are sent again after they were deleted.
        let ts_ms = random.random_range(0..HOURS * 60) * 60_000;
        let metrics = &METRICS[random.random_range(0..3)..];
        let values: Vec<(&str, f64)> = metrics.iter().map(|metric| (*metric, random.random::<f64>())).collect();
        batch.push(device, None, ts_ms, values.iter().copied()).unwrap();
        model.extend(values.into_iter().map(|(metric, value)| ((device.into(), ts_ms, metric.into()), value)));
    }
    life.log.append(batch.finish()).unwrap().durable().await.unwrap();
}

/// Appends a reading of one device.
async fn append_at(life: &Life, ts_ms: i64) {
    let mut batch = BatchBuilder::default();
    batch.push("a", None, ts_ms, [("m", 1.0)].into_iter()).unwrap();
    life.log.append(batch.finish()).unwrap().durable().await.unwrap();
}

/// Ends a life as a kill does.
async fn kill(life: Life) {
    let Life { log, running, store, pipeline, .. } = life;
    let Running { feeder, scheduler, roller, others, .. } = running;
    for task in [scheduler, roller].into_iter().chain(others) {
        task.abort();
        let _ = task.await;
    }
    pipeline.lock().stopped = true;
    log.close();
    tokio::task::spawn_blocking(move || feeder.join().unwrap()).await.unwrap();
    store.store.close().await.unwrap(); // no transaction of this life commits in the next one
}

async fn stored(life: &Life) -> Model {
    let mut found = Model::new();
    for device in DEVICES {
        for (hour, contents) in life.store.contents(device, Hour(0)..Hour(1000)).await.unwrap() {
            for sample in contents.samples() {
                let metric = contents.metric_of(sample).to_string();
                found.insert((device.to_owned(), hour.instant_ms(sample.offset), metric), sample.value);
            }
            let (devices, hours) = ([device.into()], hour..Hour(hour.0 + 1));
            let stats = life.store.hour_stats(&devices, hours, &SeriesFilter::ALL, StatsNeeds::All);
            let mut stats = stats.await.unwrap().remove(0).remove(0).stats;
            let mut fold = contents.stats(hour);
            stats.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
            fold.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
            for ((metric, stats), (_, fold)) in stats.iter_mut().zip(&fold) {
                assert!((stats.sum - fold.sum).abs() < 1e-9, "{metric}"); // each append may round once
                stats.sum = fold.sum;
            }
            assert_eq!(stats, fold, "{device}, {hour:?}");
        }
    }
    found
}

fn balance(life: &Life, recovered: u64) {
    let of = |what: &str| life.count(&format!("tidegauge_readings_{what}_total"));
    let status = life.pipeline.status();
    let out = of("stored") + of("duplicate") + of("deleted") + status.pending_readings;
    assert_eq!(recovered + life.log.usage().appended_readings, out, "{status:?}");
}

#[tokio::test]
async fn what_was_deleted_stays_away_and_what_came_later_stays_over_kills_and_faults() {
    for seed in 0..12 {
        let (folder, mut random, mut model) = (folder(), StdRng::seed_from_u64(seed), Model::new());
        for life_number in 0..5 {
            let limits = if random.random() { EAGER } else { PATIENT };
            let away = Arc::new(AtomicBool::new(random.random_range(0..3) == 0));
            let is_away = Arc::clone(&away);
            let life =
                Life::begin(&folder, limits, Box::new(move |_| is_away.load(Ordering::Relaxed).then(super::away)));
            let recovered = life.pipeline.recovered;
            for _ in 0..random.random_range(1..25) {
                match random.random_range(0..10) {
                    0..6 => append(&life, &mut random, &mut model).await,
                    6..9 => {
                        let deletion = random_deletion(&mut random);
                        delete(&mut model, &deletion);
                        let max_wait = Duration::from_millis(random.random_range(0..3));
                        life.pipeline.delete(deletion, "test", max_wait).await.unwrap();
                    }
                    _ => away.store(random.random_range(0..3) == 0, Ordering::Relaxed),
                }
                if random.random_range(0..4) == 0 {
                    tokio::time::sleep(Duration::from_millis(random.random_range(0..12))).await;
                }
            }
            let place = format!("seed {seed}, life {life_number}");
            match random.random_range(0..3) {
                0 => kill(life).await,
                1 => _ = life.end(MINUTE).await,
                _ => {
                    away.store(false, Ordering::Relaxed);
                    assert_eq!(life.pipeline.catch_up(MINUTE).await, None);
                    balance(&life, recovered);
                    assert_eq!(life.end(MINUTE).await, 0, "{place}");
                    let life = Life::begin(&folder, EAGER, sound());
                    until("deletions are executed", || life.pipeline.with_pending(Pending::deletions) == 0).await;
                    life.settled().await;
                    assert_eq!(stored(&life).await, model, "{place}");
                    kill(life).await;
                }
            }
        }
    }
}

#[tokio::test]
async fn a_deletion_that_was_executed_is_not_executed_again_after_a_crash() {
    let folder = folder();
    let life = Life::begin(&folder, EAGER, sound());
    append_at(&life, 1).await;
    life.settled().await;
    kill(life).await;
    let life = Life::begin(&folder, PATIENT, sound());
    append_at(&life, 7_200_000).await; // no write takes it, so the log is not cut behind it
    append_at(&life, 2).await;
    let deletion = Deletion { device: "a".into(), range_ms: Some(0..1000), series: SeriesFilter::ALL };
    let outcome = life.pipeline.delete(deletion, "test", MINUTE).await.unwrap();
    assert!(matches!(outcome, DeletionOutcome::Executed { readings: 2, .. }), "{outcome:?}");
    kill(life).await;
    let other = SqliteStore::open(&folder.path().join("tidegauge.sqlite")).unwrap();
    let samples = [(crate::model::Sample { value: 5.0, offset: 3, metric: 0 }, true)];
    let write = BucketWrite::new("a".into(), Hour(0), None, vec!["m".into()], samples);
    other.write(&[Arc::new(write)]).await.remove(0).unwrap();
    let life = Life::begin(&folder, EAGER, sound());
    life.settled().await;
    let found = stored(&life).await;
    let times: Vec<i64> = found.keys().map(|(_, ts_ms, _)| *ts_ms).collect();
    assert_eq!(times, [3, 7_200_000], "what another instance has stored since is still there");
}

#[tokio::test]
async fn a_deletion_fails_for_its_client_if_an_hour_keeps_its_readings() {
    let refuse = || StoreError::new(Cause::Validation, "no");
    let life = Life::begin(&folder(), EAGER, Box::new(move |write: &BucketWrite| (write.hour == Hour(2)).then(refuse)));
    for ts_ms in [1, 3_600_000, 7_200_000] {
        append_at(&life, ts_ms).await;
    }
    life.settled().await;
    assert!(!life.pipeline.dead_letters.is_empty());
    let file = rusqlite::Connection::open(life.folder.path().join("tidegauge.sqlite")).unwrap();
    let damage = "UPDATE first_chunks SET data = x'010007'
        WHERE id = (SELECT first_chunk FROM buckets WHERE hour = 0)";
    file.execute_batch(damage).unwrap();
    let series = SeriesFilter::new(["m"], []).unwrap();
    let deletion = Deletion { device: "a".into(), range_ms: None, series };
    let outcome = life.pipeline.delete(deletion, "test", MINUTE).await.unwrap();
    let DeletionOutcome::Failed(why) = &outcome else { panic!("{outcome:?}") };
    assert!(why.starts_with("the hour 1970-01-01T00:00:00.000Z keeps its readings: unreadable_chunk: "), "{why}");
    let devices = ["a".into()];
    let left = life.store.hour_stats(&devices, Hour(0)..Hour(9), &SeriesFilter::ALL, StatsNeeds::All).await.unwrap();
    assert_eq!(left[0].iter().map(|left| left.hour).collect::<Vec<_>>(), [Hour(0)]);
    assert!(life.pipeline.dead_letters.is_empty());
}

/// A write that the killed process has sent may reach the store after the deletion.
#[tokio::test]
async fn readings_from_before_a_kill_leave_an_hour_unanswered_if_a_later_deletion_removes_them() {
    let folder = folder();
    let life = Life::begin(&folder, PATIENT, sound());
    append_at(&life, 1).await;
    kill(life).await;
    let life = Life::begin(&folder, PATIENT, Box::new(|_| Some(super::away())));
    append_at(&life, 3_600_000).await;
    life.pipeline.delete(Deletion::of_device("a".into()), "test", Duration::ZERO).await.unwrap();
    let next = || life.pipeline.lock().pending.next_deletion();
    until("the deletion waits for the store", || matches!(next(), NextDeletion::Ready(_))).await;
    let NextDeletion::Ready(step) = next() else { panic!("the store is away") };
    assert_eq!(step.erased.keys().copied().collect::<Vec<_>>(), [Hour(0), Hour(1)]);
    assert_eq!(*step.unanswered, BTreeSet::from([Hour(0)]));
}

/// The scheduler stands for the lease: without it, nothing is stored. Pending is full in the middle of the
/// first record.
#[tokio::test]
async fn nothing_is_stored_that_a_missed_deletion_removes_although_pending_is_full_before_it() {
    const DELETED: Range<i64> = 0..2_500;
    let is_written = Arc::new(AtomicBool::new(false));
    let wrote = Arc::clone(&is_written);
    let fault = move |write: &BucketWrite| {
        let of_deleted = |offset: u32| DELETED.contains(&write.hour.instant_ms(offset));
        if &*write.device == "a" && write.contents.samples().iter().any(|sample| of_deleted(sample.offset)) {
            wrote.store(true, Ordering::Relaxed);
        }
        None::<StoreError>
    };
    let mut life = Life::begin(&folder(), Limits { max_bytes: 2000, ..EAGER }, Box::new(fault));
    life.running.scheduler.abort();
    let _ = (&mut life.running.scheduler).await;
    let mut model = Model::new();
    let append = async |model: &mut Model, instants: Range<i64>| {
        let mut batch = BatchBuilder::default();
        for ts_ms in instants {
            for device in ["a", "b"] {
                batch.push(device, None, ts_ms, [("m", ts_ms as f64)].into_iter()).unwrap();
                model.insert((device.into(), ts_ms, "m".into()), ts_ms as f64);
            }
        }
        life.log.append(batch.finish()).unwrap().durable().await.unwrap();
    };
    append(&mut model, DELETED).await;
    until("pending is full", || life.pipeline.with_pending(Pending::is_full)).await;
    assert!(life.pipeline.with_pending(Pending::readings) < 5_000, "the rest of the record waits");
    let deletion = Deletion { device: "a".into(), range_ms: None, series: SeriesFilter::ALL };
    delete(&mut model, &deletion);
    let begun = BegunDeletion { id: 7, by: "me".into(), deletion: Arc::new(deletion), from: Some("other".into()) };
    drop(life.pipeline.deletions.add(&begun, Stage::Logged));
    deleter::append(&life.log, &DeletionRecord::Begun(begun)).await.unwrap();
    append(&mut model, 2_500..2_510).await;
    life.pipeline.deletions.tell_feeder(7, false);
    life.running.scheduler = tokio::spawn(scheduler::run(Arc::clone(&life.pipeline)));
    life.settled().await;
    assert!(!is_written.load(Ordering::Relaxed));
    assert_eq!(stored(&life).await, model, "what follows the deletion stays");
    balance(&life, 0);
}
