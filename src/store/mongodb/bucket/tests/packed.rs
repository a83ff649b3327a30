//! The packed layout, alone and beside the readable one.

use std::sync::atomic::Ordering;

use super::*;
use crate::model::{Day, Metric};
use crate::store::Rollups;
use crate::store::mongodb::BucketLayout;
use crate::store::mongodb::tests::counter;
use crate::store::scenarios::store_scenarios;

on_every_deployment!(@all one_member, on_one_member, two_instances, in_parts);

async fn two_instances(scratch: Scratch) -> (Scratch, BucketStore, BucketStore) {
    let (one, other) = (scratch.packed_store(6).await, scratch.packed_store(11).await);
    (scratch, one, other)
}

mod both_layouts {
    use super::{Scratch, Store, store_scenarios};

    async fn open() -> (Scratch, impl Store, impl Store) {
        let scratch = Scratch::on_one_member().await;
        let (one, other) = (scratch.packed_store(6).await, scratch.store_with_capacity(11).await);
        (scratch, one, other)
    }

    store_scenarios!(@two open, concurrent:
        two_writers_of_the_same_readings_store_each_once,
        two_writers_of_different_readings_lose_none,
        two_writers_of_different_metrics_lose_none,
    );
}

impl Scratch {
    async fn packed_store(&self, readings: u32) -> BucketStore {
        let options = MongodbOptions { max_readings_per_document: readings, ..self.packed() };
        BucketStore::connect(options).await.unwrap()
    }

    fn packed(&self) -> MongodbOptions {
        MongodbOptions { layout: BucketLayout::Packed, ..self.options() }
    }

    /// The schema version, the revision and the number of readings of each document, by `_id`, and whether it
    /// is full.
    async fn versions(&self) -> Vec<(i32, i64, i64, bool)> {
        let version = |document: &Document| {
            let integer = |field| document.get_i64(field).unwrap();
            let version = document.get_i32("schemaVersion").unwrap();
            (version, integer("rev"), integer("readingCount"), document.contains_key("full"))
        };
        self.buckets().await.iter().map(version).collect()
    }
}

#[tokio::test]
async fn a_flush_is_one_insert_and_a_late_reading_finds_its_part() {
    let scratch = Scratch::new().await;
    let (slow_writes, slow) = counter();
    let store = BucketStore::connect(MongodbOptions { slow_writes, ..scratch.packed() }).await.unwrap();
    for from in [0, 1_000, 2_000] {
        write_one(&store, &write_at("d", from..from + 100)).await.unwrap();
    }
    assert_eq!(scratch.versions().await, [(3, 1, 100, false); 3]);
    assert_eq!(slow.load(Ordering::Relaxed), 0);
    assert_eq!(write_one(&store, &write_at("d", 500..505)).await.unwrap(), Written { stored: 5, duplicate: 0 });
    assert_eq!(write_one(&store, &write_at("d", 1_090..1_110)).await.unwrap(), Written { stored: 10, duplicate: 10 });
    assert_eq!(scratch.versions().await, [(3, 1, 100, false), (3, 2, 105, false), (3, 2, 110, false)]);
    assert_eq!(slow.load(Ordering::Relaxed), 2);
    let before = scratch.buckets().await;
    let other = scratch.packed_store(1_000).await; // knows nothing
    assert_eq!(write_one(&other, &write_at("d", 0..100)).await.unwrap(), Written { stored: 0, duplicate: 100 });
    assert_eq!(scratch.buckets().await, before);
    expect_instants(&store, "d", (0..100).chain(500..505).chain(1_000..1_110).chain(2_000..2_100)).await;
    assert_eq!(roll_up_hour(&store, HOUR).await.unwrap(), 1);
    expect_instants(&store, "d", (0..100).chain(500..505).chain(1_000..1_110).chain(2_000..2_100)).await;
}

#[tokio::test]
async fn a_day_is_rolled_up_as_columns_and_a_late_hour_counts_instead_of_its_own() {
    let scratch = Scratch::new().await;
    let (store, readable) = (scratch.packed_store(1_000).await, scratch.store_with_capacity(1_000).await);
    let day = Day::of(HOUR).hours();
    write_one(&store, &write_at("d", 0..100)).await.unwrap();
    write_one(&store, &write_at("e", 0..7)).await.unwrap();
    let days = async || {
        let found = scratch.all(doc! { "find": "rollups", "sort": { "_id": 1 } }).await;
        let of = |day: &Document| (day.get_i32("schemaVersion").unwrap(), day.get_document("hours").unwrap().len());
        (found.iter().map(of).collect::<Vec<_>>(), found)
    };
    assert_eq!(roll_up_hours(&store, day.clone()).await.unwrap(), 2);
    let (found, before) = days().await;
    assert_eq!(found, [(3, 0); 2]);
    for store in [&store, &readable] {
        assert_eq!(roll_up_hours(store, day.clone()).await.unwrap(), 0, "each hour is stored");
        assert!(store.roll_up(&[("d".into(), HOUR)]).await[0].is_ok(), "which may write it again");
    }
    for (late, store) in [(200..210, &readable), (300..310, &store)] {
        write_one(store, &write_at("d", late.clone())).await.unwrap();
        assert!(store.roll_up(&[("d".into(), HOUR)]).await[0].is_ok());
        let (found, now) = days().await;
        assert_eq!(found, [(3, 1), (3, 0)]);
        assert_eq!(now[1], before[1]);
    }
    expect_instants(&readable, "d", (0..100).chain(200..210).chain(300..310)).await;
    scratch.run(doc! { "delete": "buckets", "deletes": [{ "q": {}, "limit": 0 }] }).await;
    for store in [&store, &readable] {
        let devices = ["d".into(), "e".into()];
        let found = store.hour_stats(&devices, day.clone(), &SeriesFilter::ALL, StatsNeeds::All).await.unwrap();
        let written: [Vec<u32>; 2] = [(0..100).chain(200..210).chain(300..310).collect(), (0..7).collect()];
        for (found, offsets) in found.iter().zip(written) {
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].stats, write_at("d", offsets).contents.stats(HOUR));
        }
    }
}

#[tokio::test]
async fn many_late_hours_of_a_day_are_rolled_up_as_columns() {
    let scratch = Scratch::new().await;
    let store = scratch.packed_store(1_000).await;
    let hours = Day::of(HOUR).hours();
    let write_in = |hour: i32| {
        let mut write = write_at("d", 0..=hour.unsigned_abs() % 5);
        Arc::make_mut(&mut write).hour = Hour(hour);
        write
    };
    let buckets: Vec<_> = (hours.start.0..hours.end.0).map(|hour| (Arc::from("d"), Hour(hour))).collect();
    for (_, hour) in &buckets {
        write_one(&store, &write_in(hour.0)).await.unwrap();
    }
    for buckets in [&buckets[..10], &buckets[10..20], &buckets[20..]] {
        assert!(store.roll_up(buckets).await.iter().all(Result::is_ok));
    }
    let day = scratch.all(doc! { "find": "rollups" }).await.remove(0);
    assert_eq!((day.get_i32("schemaVersion").unwrap(), day.get_document("hours").unwrap().len()), (3, 14));
    scratch.run(doc! { "delete": "buckets", "deletes": [{ "q": {}, "limit": 0 }] }).await;
    let found = store.hour_stats(&["d".into()], hours, &SeriesFilter::ALL, StatsNeeds::All).await.unwrap().remove(0);
    let expected = buckets.iter().map(|(_, hour)| (*hour, write_in(hour.0).contents.stats(*hour)));
    assert_eq!(found.into_iter().map(|of| (of.hour, of.stats)).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

#[tokio::test]
async fn the_server_unpacks_the_readings_for_a_view() {
    let scratch = Scratch::new().await;
    let store = scratch.packed_store(1_000).await;
    store.ensure_schema().await.unwrap();
    for (device, seconds) in [("d", 0..200_u32), ("d", 300..350), ("e", 0..60)] {
        write_one(&store, &write_at(device, seconds.map(|second| second * 1_000))).await.unwrap();
    }
    let ts = |second: u32| bson::DateTime::from_millis(HOUR.instant_ms(second * 1_000));
    let find = async |filter: Document| {
        scratch.all(doc! { "find": "buckets_unpacked", "filter": filter, "sort": { "ts": 1 }, "batchSize": 1000 }).await
    };
    let of_device = doc! { "meta.deviceId": "d", "ts": { "$gte": ts(190), "$lt": ts(310) } };
    let found = find(of_device.clone()).await;
    let expected = (190..200).chain(300..310).map(|second| {
        let id = format!("d/2026-04-20T14{}", if second < 300 { "" } else { "/1" });
        let values = doc! { "lux": value_at(second * 1_000) };
        doc! { "ts": ts(second), "meta": { "_id": id, "deviceId": "d" }, "values": values }
    });
    assert_eq!(found.len(), 20);
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.iter().collect::<std::collections::BTreeMap<_, _>>(), expected.iter().collect());
    }
    assert_eq!(find(doc! { "meta._id": { "$gte": "d/2026-04-20T14", "$lt": "d/2026-04-20T15" } }).await.len(), 250);
    let high = (0..60).filter(|second| value_at(second * 1_000) > 50.0).count();
    assert_eq!(find(doc! { "meta.deviceId": "e", "values.lux": { "$gt": 50.0 } }).await.len(), high);

    let explain = doc! { "explain": { "find": "buckets_unpacked", "filter": of_device }, "verbosity": "queryPlanner" };
    let plan = scratch.run(explain).await.to_string();
    assert!(plan.contains("\"deviceId\": { \"$eq\": \"d\" }"), "only documents of the device are unpacked: {plan}");
}

#[tokio::test]
async fn a_foreign_collection_with_the_name_of_the_view_stays() {
    let scratch = Scratch::new().await;
    scratch.run(doc! { "create": "buckets_unpacked" }).await;
    let store = scratch.packed_store(1_000).await;
    write_one(&store, &write_at("d", 0..3)).await.unwrap();
    assert_eq!(scratch.all(doc! { "find": "buckets_unpacked" }).await, []);
}

#[tokio::test]
async fn documents_of_the_other_layout_are_read_and_converted_when_they_are_touched() {
    let scratch = Scratch::new().await;
    let readable = scratch.store().await;
    for device in ["d", "e", "still"] {
        write_one(&readable, &write_at(device, 0..10)).await.unwrap();
    }
    let packed = scratch.packed_store(1_000).await;
    expect_instants(&packed, "d", 0..10).await;
    for device in ["d", "e"] {
        let written = write_one(&packed, &write_at(device, (5..10).chain(20..30))).await.unwrap();
        assert_eq!(written, Written { stored: 10, duplicate: 5 });
        for store in [&readable, &packed] {
            expect_instants(store, device, (0..10).chain(20..30)).await;
        }
    }
    assert_eq!(
        scratch.versions().await,
        [(3, 2, 10, true), (3, 1, 10, false), (3, 2, 10, true), (3, 1, 10, false), (2, 1, 10, false)]
    );
    // The readable instance appended to the first document. It finds it packed, and takes the slow path.
    assert_eq!(write_one(&readable, &write_at("d", 40..45)).await.unwrap().stored, 5);
    assert_eq!(scratch.versions().await[..3], [(2, 3, 10, true), (2, 2, 10, true), (2, 1, 5, false)]);
    // The packed one inserts part 2, which exists now.
    assert_eq!(write_one(&packed, &write_at("d", 44..50)).await.unwrap(), Written { stored: 5, duplicate: 1 });
    for store in [&readable, &packed] {
        expect_instants(store, "d", (0..10).chain(20..30).chain(40..50)).await;
    }
    assert_eq!(write_one(&packed, &write_at("d", 60..62)).await.unwrap().stored, 2);
    expect_instants(&readable, "d", (0..10).chain(20..30).chain(40..50).chain(60..62)).await;
}

/// 800 readings of 800 metrics.
#[tokio::test]
async fn sparse_readings_stay_readable() {
    let scratch = Scratch::new().await;
    let store = scratch.packed_store(1_000).await;
    let metrics: Vec<Metric> = (0..800).map(|nth| format!("m{nth}").into()).collect();
    let samples = (0..800).map(|at| (Sample { value: 1.5, offset: at, metric: at }, true));
    let write = Arc::new(BucketWrite::new("d".into(), HOUR, None, metrics, samples));
    assert_eq!(write_one(&store, &write).await.unwrap(), Written { stored: 800, duplicate: 0 });
    assert_eq!(scratch.versions().await, [(2, 1, 800, true)]);
    assert_eq!(write_one(&store, &write_at("d", [5, 900])).await.unwrap(), Written { stored: 2, duplicate: 0 });
    let found = store.contents("d", HOUR..Hour(HOUR.0 + 1)).await.unwrap().remove(0).1;
    assert_eq!((found.reading_count(), found.samples().len()), (801, 802));
}

/// TTL takes the parts of a bucket one by one, and people delete documents.
#[tokio::test]
async fn deleted_parts_hold_up_nothing() {
    let scratch = Scratch::new().await;
    let store = scratch.packed_store(1_000).await;
    for from in [0, 10, 20] {
        write_one(&store, &write_at("d", from..from + 5)).await.unwrap();
    }
    for (deleted, next) in [("d/2026-04-20T14/1", 30), ("d/2026-04-20T14", 40)] {
        scratch.run(doc! { "delete": "buckets", "deletes": [{ "q": { "_id": deleted }, "limit": 0 }] }).await;
        let written = write_one(&store, &write_at("d", [next, 22])).await.unwrap();
        assert_eq!(written, Written { stored: 1, duplicate: 1 });
    }
    expect_instants(&store, "d", (20..25).chain([30, 40])).await;
}

#[tokio::test]
async fn a_validator_accepts_both_layouts() {
    let scratch = Scratch::new().await;
    let validated = |options| MongodbOptions { validate: true, ..options };
    for (options, from) in [(scratch.packed(), 0), (scratch.options(), 100), (scratch.packed(), 200)] {
        let store = BucketStore::connect(validated(options)).await.unwrap();
        assert_eq!(write_one(&store, &write_at("d", from..from + 9)).await.unwrap().stored, 9);
        assert_eq!(write_one(&store, &write_at("d", [from + 3])).await.unwrap().stored, 0);
    }
}

impl Scratch {
    /// The number of bucket documents that queries have returned since the profiler was started.
    async fn documents_read(&self) -> i64 {
        let queries = doc! { "op": { "$in": ["query", "getmore"] }, "ns": { "$regex": r"\.buckets$" } };
        let all = self.all(doc! { "find": "system.profile", "filter": queries, "batchSize": 10_000 }).await;
        all.iter().map(|entry| i64::from(entry.get_i32("nreturned").unwrap())).sum()
    }

    /// Writes flushes that are later and later, and returns how many documents each of them read on average.
    async fn documents_read_by(&self, stores: &[&BucketStore], flushes: &[Arc<BucketWrite>]) -> f64 {
        let before = self.documents_read().await;
        for (write, store) in flushes.iter().zip(stores.iter().cycle()) {
            assert_eq!(write_one(store, write).await.unwrap().duplicate, 0);
        }
        (self.documents_read().await - before) as f64 / flushes.len() as f64
    }
}

#[tokio::test]
async fn a_later_flush_reads_the_last_part_alone() {
    let scratch = Scratch::new().await;
    let (one, other) = (scratch.packed_store(1_000).await, scratch.packed_store(1_000).await);
    one.ensure_schema().await.unwrap();
    scratch.run(doc! { "profile": 2 }).await;
    let flushes = |device: &str| -> Vec<_> {
        (0..20).map(|flush| write_at(device, (0..10).map(move |at| flush * 1_000 + at))).collect()
    };
    let read = scratch.documents_read_by(&[&one, &other], &flushes("two instances")).await;
    assert!(read <= 3.0, "two instances in turn: {read} parts for each flush");

    let metrics: Vec<Metric> = (0..800).map(|metric: u32| metric.to_string().as_str().into()).collect();
    let sparse = |flush: u32| -> Arc<BucketWrite> {
        let sample = |at: u32| (Sample { value: 1.0, offset: flush * 1_000 + at, metric: at }, true);
        BucketWrite::new("sparse".into(), HOUR, None, metrics.clone(), (0..800).map(sample)).into()
    };
    let read = scratch.documents_read_by(&[&one], &(0..8).map(sparse).collect::<Vec<_>>()).await;
    assert!(read <= 2.0, "sparse readings: {read} parts for each flush");

    let flushes = flushes("many parts");
    write_one(&one, &flushes[0]).await.unwrap();
    let first =
        scratch.buckets().await.into_iter().find(|part| part.get_str("deviceId").unwrap() == "many parts").unwrap();
    let copy = |part: i32| {
        let mut copy = first.clone();
        copy.insert("_id", format!("many parts/2026-04-20T14/{part}"));
        copy.insert("part", part);
        copy
    };
    let copies: Vec<Document> = (1..1_100).map(copy).collect();
    scratch.run(doc! { "insert": "buckets", "documents": copies }).await;
    write_one(&one, &flushes[1]).await.unwrap();
    let read = scratch.documents_read_by(&[&one], &flushes[2..]).await;
    assert!(read <= 2.0, "more parts than known numbers: {read} parts for each flush");
}

#[tokio::test]
async fn an_hour_of_too_many_values_is_not_merged() {
    const METRICS: u32 = 250;
    let scratch = Scratch::new().await;
    let store = scratch.packed_store(2_000).await;
    let metrics: Vec<Metric> = (0..METRICS).map(|metric| metric.to_string().as_str().into()).collect();
    let write = |offsets: std::ops::Range<u32>| -> Arc<BucketWrite> {
        let reading = |offset| (0..METRICS).map(move |metric| (Sample { value: 1.0, offset, metric }, metric == 0));
        BucketWrite::new("d".into(), HOUR, None, metrics.clone(), offsets.flat_map(reading)).into()
    };
    for from in [1_000, 2_000] {
        write_one(&store, &write(from..from + 1_000)).await.unwrap();
    }
    assert_eq!(write_one(&store, &write_at("d", 0..1)).await.unwrap(), Written { stored: 1, duplicate: 0 });
    write_one(&store, &write(3_000..4_000)).await.unwrap();
    let error = write_one(&store, &write_at("d", 1..2)).await.unwrap_err();
    assert_eq!(error.cause, Cause::UnreadableDocument);
    assert!(error.detail.contains("its hour has more than 524288 values"), "{error}");
}
