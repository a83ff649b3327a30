//! Rollups: they are derived from buckets, read instead of buckets, and outlive them.

mod days;

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::model::{Contents, DEVICE_ID_MAX_BYTES, Day, Metric, Stats};
use crate::store::mongodb::rollups::HourRollup;
use crate::store::scenarios::seeds;
use crate::store::{Cause, HourStats, Rollups};

const DAY: Duration = Duration::from_secs(86_400);

fn hour(nth: i32) -> Hour {
    Hour(HOUR.0 + nth)
}

/// A write of the metrics `lux` and `a.b`, in quarters, so that sums are exact in whatever order they are
/// added.
fn write_in(device: &str, hour: Hour, values: &[(HourOffset, u32, i32)]) -> Arc<BucketWrite> {
    let samples = values
        .iter()
        .map(|&(offset, metric, quarters)| (Sample { value: f64::from(quarters) / 4.0, offset, metric }, true));
    BucketWrite::new(device.into(), hour, None, vec!["lux".into(), "a.b".into()], samples).into()
}

async fn write_all(store: &BucketStore, writes: &[Arc<BucketWrite>]) {
    for outcome in store.write(writes).await {
        outcome.unwrap();
    }
}

async fn roll_up(store: &BucketStore, device: &str, hour: Hour) {
    store.roll_up(&[(device.into(), hour)]).await.remove(0).unwrap();
}

/// The stats as a query gets them.
async fn stats(store: &BucketStore, device: &str, nths: std::ops::Range<i32>) -> Vec<HourStats> {
    store
        .hour_stats(&[device.into()], hour(nths.start)..hour(nths.end), &SeriesFilter::ALL, StatsNeeds::All)
        .await
        .unwrap()
        .remove(0)
}

async fn stored(store: &BucketStore, device: &str, hour: Hour) -> Contents {
    store.contents(device, hour..Hour(hour.0 + 1)).await.unwrap().remove(0).1
}

fn by_name(stats: &[(Metric, Stats)]) -> BTreeMap<Metric, Stats> {
    stats.iter().cloned().collect()
}

impl Scratch {
    /// All the documents of the rollup collection, by `_id`.
    async fn rollups(&self) -> Vec<Document> {
        self.all(doc! { "find": "rollups", "sort": { "_id": 1 }, "batchSize": 1000 }).await
    }

    async fn delete_buckets(&self, filter: Document) {
        self.run(doc! { "delete": "buckets", "deletes": [{ "q": filter, "limit": 0 }] }).await;
    }

    /// How many documents of a collection the queries on it have looked at since the profiler was switched
    /// on.
    async fn examined(&self, collection: &str) -> i64 {
        let namespace = format!("{}.{collection}", self.name);
        let find = doc! { "find": "system.profile", "filter": { "ns": namespace, "op": "query" }, "batchSize": 1000 };
        let queries = self.all(find).await;
        assert!(!queries.is_empty(), "{collection} was asked");
        queries.iter().map(|query| query.get("docsExamined").unwrap().to_string().parse::<i64>().unwrap()).sum()
    }
}

#[tokio::test]
async fn a_rollup_is_the_fold_of_all_parts_and_anyone_can_read_it() {
    let scratch = Scratch::new().await;
    let store = scratch.store_with_capacity(6).await;
    let values: Vec<_> = (0..20).flat_map(|at| [(at, 0, at as i32), (at, 1, -3)]).collect();
    write_all(&store, &[write_in("a/b", HOUR, &values)]).await;
    let late = write_in("a/b", HOUR, &[(3, 0, 1000), (30, 1, 8)]);
    write_all(&store, &[late]).await;
    roll_up(&store, "a/b", HOUR).await;

    let day = scratch.rollups().await.remove(0);
    assert_eq!(day.get_str("_id").unwrap(), "a/b/2026-04-20");
    assert_eq!((day.get_str("deviceId").unwrap(), day.get_i32("schemaVersion").unwrap()), ("a/b", 1));
    let midnight = hour(-14).start_ms();
    assert_eq!(day.get_datetime("day").unwrap().timestamp_millis(), midnight);
    let created_ms = day.get_datetime("createdAt").unwrap().timestamp_millis();
    assert!((midnight..midnight + DAY.as_millis() as i64).contains(&created_ms));
    let entry = day.get_document("hours").unwrap().get_document("14").unwrap();
    assert_eq!(entry.get_datetime("lastTs").unwrap().timestamp_millis(), HOUR.instant_ms(30));
    let revs: i64 = scratch.buckets().await.iter().map(|part| part.get_i64("rev").unwrap()).sum();
    assert_eq!(entry.get_i64("rev").unwrap(), revs);
    let lux = entry.get_document("stats").unwrap().get_document("lux").unwrap();
    let at = |offset, value| doc! { "ts": bson::DateTime::from_millis(HOUR.instant_ms(offset)), "value": value };
    let expected = doc! {
        "count": 20_i64, "min": 0.0, "max": 250.0, "sum": f64::from(190 - 3 + 1000) / 4.0,
        "first": at(0, 0.0), "last": at(19, 4.75),
    };
    assert_eq!(lux, &expected);
    assert!(entry.get_document("stats").unwrap().contains_key("a\u{FF0E}b"));

    let fold = stored(&store, "a/b", HOUR).await.stats(HOUR);
    let answered = stats(&store, "a/b", 0..1).await;
    assert_eq!(by_name(&answered[0].stats), by_name(&fold));
    assert_eq!((answered[0].hour, answered[0].last_ts_ms), (HOUR, HOUR.instant_ms(30)));
}

#[tokio::test]
async fn late_readings_are_in_the_rollup_once_it_is_derived_again() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    for (step, offset) in [100, 200, 50, 300, 60].into_iter().enumerate() {
        write_all(&store, &[write_in("d", HOUR, &[(offset, 0, 4)])]).await;
        if step > 0 {
            assert_eq!(stats(&store, "d", 0..1).await[0].stats[0].1.count, step as u64, "as it was rolled up");
        }
        roll_up(&store, "d", HOUR).await;
        assert_eq!(stats(&store, "d", 0..1).await[0].stats[0].1.count, step as u64 + 1);
    }
}

#[tokio::test]
async fn a_query_reads_buckets_only_of_hours_that_are_not_rolled_up() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    for device in ["d", "e", "f"] {
        let writes: Vec<_> = (0..40).map(|nth| write_in(device, hour(nth), &[(1, 0, nth)])).collect();
        write_all(&store, &writes).await;
    }
    assert_eq!(roll_up_hours(&store, hour(0)..hour(10)).await.unwrap(), 30, "the rest of the day");
    for nth in 10..30 {
        assert_eq!(roll_up_hour(&store, hour(nth)).await.unwrap(), 3);
    }
    scratch.run(doc! { "profile": 2 }).await;
    let found = stats(&store, "d", -100..30).await;
    assert_eq!(found.len(), 30);
    assert_eq!(scratch.examined("buckets").await, 0, "closed hours");
    assert_eq!(scratch.examined("rollups").await, 2, "the documents of two days");
    let found = stats(&store, "d", 10..100).await;
    assert!(found.iter().map(|stats| stats.hour).eq((10..40).map(hour)));
    assert!(
        found
            .iter()
            .zip(10..)
            .all(|(stats, nth)| { stats.stats[0].1 == Stats::of(hour(nth).instant_ms(1), f64::from(nth) / 4.0) })
    );
    assert_eq!(scratch.examined("buckets").await, 10, "the hours that are open");
    let devices = ["f", "x", "d"].map(Arc::from);
    let found = store
        .hour_stats(&devices, hour(0)..hour(100), &SeriesFilter::new(["lux"], []).unwrap(), StatsNeeds::All)
        .await
        .unwrap();
    assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [40, 0, 40]);
    assert_eq!(scratch.examined("buckets").await, 30, "the open hours of two devices");
}

#[tokio::test]
async fn hours_between_rolled_up_ones_are_found_however_many_gaps_there_are() {
    let scratch = Scratch::new().await;
    let store = scratch.store_with_capacity(2).await;
    let writes: Vec<_> =
        (0..60).map(|nth| write_in("d", hour(nth), &[(1, 0, nth), (2, 1, nth), (3, 0, nth)])).collect();
    write_all(&store, &writes).await;
    // few of the hours, then half of them, then most
    let rounds: [fn(i32) -> bool; 3] = [|nth| nth % 7 == 0, |nth| nth % 2 == 0, |nth| nth % 6 != 5];
    for (round, is_rolled_up) in rounds.into_iter().enumerate() {
        let some: Vec<_> = (0..60).filter(|nth| is_rolled_up(*nth)).map(|nth| (Arc::from("d"), hour(nth))).collect();
        assert!(store.roll_up(&some).await.iter().all(Result::is_ok));
        let found = stats(&store, "d", 0..60).await;
        assert!(found.iter().map(|stats| stats.hour).eq((0..60).map(hour)), "round {round}");
        for (at, found) in found.iter().enumerate() {
            assert_eq!(
                by_name(&found.stats),
                by_name(&writes[at].contents.stats(writes[at].hour)),
                "hour {at}, round {round}"
            );
        }
    }
}

#[tokio::test]
async fn rollups_outlive_their_readings_and_what_is_left_does_not_replace_them() {
    let scratch = Scratch::new().await;
    let store = scratch.store_with_capacity(4).await;
    let values: Vec<_> = (0..10).map(|at| (at, 0, at as i32)).collect();
    for part in values.chunks(2) {
        write_all(&store, &[write_in("d", HOUR, part)]).await;
    }
    roll_up(&store, "d", HOUR).await;
    let before = stats(&store, "d", 0..1).await;
    scratch.delete_buckets(doc! { "part": { "$lt": 2 } }).await; // expiry takes documents one by one
    roll_up(&store, "d", HOUR).await;
    assert_eq!(stats(&store, "d", 0..1).await, before);
    scratch.delete_buckets(doc! {}).await;
    assert_eq!(roll_up_hour(&store, HOUR).await.unwrap(), 0);
    roll_up(&store, "d", HOUR).await;
    write_all(&store, &[write_in("d", HOUR, &[(99, 0, 1)])]).await;
    roll_up(&store, "d", HOUR).await;
    assert_eq!(roll_up_hour(&store, HOUR).await.unwrap(), 0);
    assert_eq!(stats(&store, "d", 0..1).await, before);
}

#[tokio::test]
async fn a_rollup_that_arrives_late_does_not_replace_a_newer_one() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    store.ensure_schema().await.unwrap();
    let rollup = |rev, count| HourRollup {
        device: "d".into(),
        rev,
        first_ts_ms: HOUR.start_ms(),
        stats: HourStats {
            hour: HOUR,
            last_ts_ms: HOUR.instant_ms(rev as u32),
            stats: vec![("lux".into(), Stats { count, ..Stats::of(HOUR.start_ms(), 1.0) })],
        },
        may_lack_deleted: false,
    };
    for (rev, count, expected) in [(5, 5, 5), (4, 4, 5), (5, 9, 5), (7, 6, 6), (5, 5, 6)] {
        store.rollups.put_all(&[rollup(rev, count)]).await.remove(0).unwrap();
        assert_eq!(stats(&store, "d", 0..1).await[0].stats[0].1.count, expected, "after rev {rev}");
    }
}

/// One query for all of them would be larger than the server takes.
#[tokio::test]
async fn the_rollups_of_very_many_devices_are_read_by_several_queries() {
    const DEVICES: usize = 60_000;
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    let device = |nth: usize| format!("{nth:05}{}", "x".repeat(DEVICE_ID_MAX_BYTES - 5));
    for nth in [0, DEVICES - 1] {
        write_all(&store, &[write_in(&device(nth), HOUR, &[(1, 0, 1)])]).await;
        roll_up(&store, &device(nth), HOUR).await;
    }
    let buckets: Vec<(Arc<str>, Hour)> = (0..DEVICES).map(|nth| (device(nth).into(), HOUR)).collect();
    assert_eq!(store.rollups.stored(&buckets).await.unwrap().len(), 2);
}

/// Each of the two hours fits into the document of their day, but not both.
#[tokio::test]
async fn an_hour_that_makes_its_day_too_large_has_no_rollup_and_no_older_one() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    let rollup = |nth: i32, rev, metrics: i32| {
        let name =
            |metric: i32| Metric::from(&*format!("{metric}{}", "x".repeat(if metric == 0 { 0 } else { 100_000 })));
        let stats = (0..metrics).map(|metric| (name(metric), Stats::of(hour(nth).start_ms(), 1.0))).collect();
        let stats = HourStats { hour: hour(nth), last_ts_ms: hour(nth).start_ms(), stats };
        HourRollup { device: "d".into(), rev, first_ts_ms: hour(nth).start_ms(), stats, may_lack_deleted: false }
    };
    let found = async || {
        let found = stats(&store, "d", 0..2).await;
        found.iter().map(|found| (found.hour.0 - HOUR.0, found.stats.len())).collect::<Vec<_>>()
    };
    let outcomes = store.rollups.put_all(&[rollup(0, 1, 1), rollup(1, 1, 90)]).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert_eq!(found().await, [(0, 1), (1, 90)]);
    let refused = store.rollups.put_all(&[rollup(0, 2, 90)]).await.remove(0).unwrap_err();
    assert_eq!(refused.cause, Cause::TooLarge);
    assert_eq!(found().await, [(1, 90)]);
    store.rollups.put_all(&[rollup(0, 1, 1)]).await.remove(0).unwrap();
    assert_eq!(found().await, [(1, 90)], "an older rollup does not come back");
    store.rollups.put_all(&[rollup(0, 3, 2)]).await.remove(0).unwrap();
    assert_eq!(found().await, [(0, 2), (1, 90)]);
}

#[tokio::test]
async fn a_bucket_that_is_not_readable_does_not_hold_up_the_others() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    let writes = ["a", "b", "c"].map(|device| write_in(device, HOUR, &[(1, 0, 1)]));
    write_all(&store, &writes).await;
    let spoil = doc! { "q": { "deviceId": "b" }, "u": { "$set": { "stats": "high" } } };
    scratch.run(doc! { "update": "buckets", "updates": [spoil] }).await;
    let foreign = doc! { "createdAt": bson::DateTime::from_millis(HOUR.start_ms()) };
    scratch.run(doc! { "insert": "buckets", "documents": [foreign] }).await;
    assert_eq!(roll_up_hour(&store, HOUR).await.unwrap(), 2);
    let outcomes = store.roll_up(&["a", "b", "c"].map(|device| (device.into(), HOUR))).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

#[tokio::test]
async fn collections_that_were_made_again_are_others() {
    let scratch = Scratch::new().await;
    let identity = scratch.store().await.identity().await.unwrap();
    assert_eq!(scratch.store().await.identity().await.unwrap(), identity);
    for dropped in ["rollups", "buckets"] {
        let before = scratch.store().await.identity().await.unwrap();
        scratch.run(doc! { "drop": dropped }).await;
        assert_ne!(scratch.store().await.identity().await.unwrap(), before, "{dropped}");
    }
}

#[tokio::test]
async fn rollups_expire_by_a_retention_of_their_own() {
    let scratch = Scratch::new().await;
    for (days, expected) in [(Some(400), Some(401)), (Some(400), Some(401)), (Some(1_830), Some(1_831)), (None, None)] {
        let options = MongodbOptions { rollups_retention: days.map(|days| DAY * days), ..scratch.options() };
        BucketStore::connect(options).await.unwrap().ensure_schema().await.unwrap();
        let indexes = scratch.all(doc! { "listIndexes": "rollups" }).await;
        let names: Vec<&str> = indexes.iter().map(|index| index.get_str("name").unwrap()).collect();
        assert_eq!(names, ["_id_", "createdAt"]);
        let seconds = indexes[1].get("expireAfterSeconds").map(|at| at.to_string().parse::<i64>().unwrap());
        assert_eq!(seconds, expected.map(|days: i64| days * 86_400));
    }
}

/// Each write to an hour that was rolled up is followed by a roll-up, as the flush promises, and the hours of
/// a day, from its first or from a later one, are rolled up in between. What a query then gets is the fold of
/// all that was ever written.
#[tokio::test]
async fn random_histories_leave_the_fold_of_everything() {
    const HOURS_APART: i32 = 5; // 14:00 and 19:00, and four hours of the next day
    for seed in seeds(2) {
        let scratch = Scratch::new().await;
        let stores = [scratch.store_with_capacity(5).await, scratch.store_with_capacity(8).await];
        let mut random = StdRng::seed_from_u64(seed);
        let mut model: BTreeMap<i32, BTreeMap<(u32, u32), i32>> = BTreeMap::new();
        let mut closed = 0;
        for step in 0..50 {
            let store = &stores[random.random_range(0..2)];
            if random.random_range(0..10) == 0 {
                let start =
                    if random.random_range(0..2) == 0 { Day::of(hour(closed)).hours().start } else { hour(closed) };
                closed += HOURS_APART;
                roll_up_hours(store, start..hour(closed).min(Day::of(start).hours().end)).await.unwrap();
            } else {
                let nth = HOURS_APART * random.random_range(0..6);
                let values: Vec<_> = (0..random.random_range(1..6))
                    .map(|_| (random.random_range(0..40), random.random_range(0..2), random.random_range(-9..9)))
                    .collect();
                let before = model.entry(nth).or_default();
                before.extend(values.iter().map(|&(offset, metric, value)| ((offset, metric), value)));
                write_all(store, &[write_in("d", hour(nth), &values)]).await;
                if nth < closed {
                    roll_up(store, "d", hour(nth)).await;
                }
            }
            let found = stats(store, "d", 0..40).await;
            let expected: Vec<_> = model
                .iter()
                .map(|(nth, values)| {
                    let all: Vec<_> =
                        values.iter().map(|(&(offset, metric), &value)| (offset, metric, value)).collect();
                    (hour(*nth), by_name(&write_in("d", hour(*nth), &all).contents.stats(hour(*nth))))
                })
                .collect();
            let found: Vec<_> = found.iter().map(|stats| (stats.hour, by_name(&stats.stats))).collect();
            assert_eq!(found, expected, "seed {seed}, step {step}, closed {closed}");
        }
    }
}
