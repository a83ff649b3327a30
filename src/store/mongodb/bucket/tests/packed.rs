//! The packed layout, alone and beside the readable one.

use super::*;
use crate::config::BucketLayout;
use crate::model::Metric;
use crate::store::Rollups;
use crate::store::mongodb::tests::counter;
use crate::store::scenarios::{Expiry, store_scenarios};

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

    /// The number of bucket documents that the profiler has seen in replies.
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
async fn later_flushes_of_buckets_from_before_a_start_merge_nothing() {
    let scratch = Scratch::new().await;
    let flush = |nth: u32, devices: std::ops::Range<usize>| -> Vec<_> {
        let device = |at| write_at(&format!("device {at}"), (0..10).map(move |of| nth * 1_000 + of));
        devices.map(device).collect()
    };
    let before = scratch.packed_store(1_000).await;
    before.ensure_schema().await.unwrap();
    for nth in 0..9 {
        let written = before.write(&flush(nth, 60 * nth as usize..600)).await; // 1 to 9 parts
        assert!(written.iter().all(|written| written.as_ref().unwrap().stored == 10));
    }
    let (slow_writes, slow) = counter();
    let after = BucketStore::connect(MongodbOptions { slow_writes, ..scratch.packed() }).await.unwrap();
    for (nth, duplicate) in [(9, 0), (10, 0), (0, 10)] {
        let written = after.write(&flush(nth, 0..600)).await;
        assert!(written.iter().all(|written| written.as_ref().unwrap().duplicate == duplicate), "{nth}");
        assert_eq!(slow.load(std::sync::atomic::Ordering::Relaxed), 60 * u64::from(duplicate), "{nth}");
    }
    let parts = scratch.all(doc! { "find": "buckets", "batchSize": 10_000 }).await;
    assert_eq!(parts.len(), (0..9).map(|nth| 600 - 60 * nth).sum::<usize>() + 2 * 600);
    assert!(parts.iter().all(|part| part.get_i64("readingCount").unwrap() == 10));
}

#[tokio::test]
async fn an_instance_that_has_just_started_inserts_only_buckets_that_do_not_exist() {
    for layout in [BucketLayout::Readable, BucketLayout::Packed] {
        let scratch = Scratch::new().await;
        let options = || MongodbOptions { layout, ..scratch.options() };
        let flush = |nth| (0..40).map(|at| write_at(&format!("device {at}"), [nth])).collect::<Vec<_>>();
        let before = BucketStore::connect(options()).await.unwrap();
        before.ensure_schema().await.unwrap();
        assert!(before.write(&flush(1)[..30]).await.iter().all(Result::is_ok));
        let after = BucketStore::connect(options()).await.unwrap();
        scratch.run(doc! { "profile": 2 }).await;
        assert!(after.write(&flush(2)).await.iter().all(|written| written.as_ref().unwrap().stored == 1));
        scratch.run(doc! { "profile": 0 }).await;
        let inserts =
            doc! { "find": "system.profile", "filter": { "op": "insert", "ns": { "$regex": r"\.buckets$" } } };
        let inserts = scratch.all(inserts).await;
        let inserted: i32 = inserts.iter().map(|insert| insert.get_i32("ninserted").unwrap()).sum();
        assert_eq!(inserted, if layout == BucketLayout::Packed { 40 } else { 10 }, "{layout:?}");
        // The reply has an error of some hundred bytes for each document that is refused.
        let replies = inserts.iter().map(|insert| insert.get_i32("responseLength").unwrap());
        assert!(replies.clone().all(|bytes| bytes < 400), "{layout:?}: {:?}", replies.collect::<Vec<_>>());
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

#[tokio::test]
async fn more_parts_than_have_expired_do_not_replace_their_rollup() {
    for layout in [BucketLayout::Readable, BucketLayout::Packed] {
        let scratch = Scratch::new().await;
        let options = MongodbOptions { layout, max_readings_per_document: 6, ..scratch.options() };
        let store = BucketStore::connect(options).await.unwrap();
        let device: [Arc<str>; 1] = ["d".into()];
        let stats = async || {
            let hour = HOUR..Hour(HOUR.0 + 1);
            let hours = store.hour_stats(&device, hour, &SeriesFilter::ALL, StatsNeeds::All).await.unwrap().remove(0);
            hours.into_iter().map(|of| of.stats).collect::<Vec<_>>()
        };
        write_one(&store, &write_at("d", [1, 2])).await.unwrap();
        scratch.expire_readings(&store, "d").await;
        let before = stats().await;
        write_one(&store, &write_at("d", 10..20)).await.unwrap();
        assert_eq!(scratch.buckets().await.len(), 2, "{layout:?}");
        store.roll_up(&[("d".into(), HOUR)]).await.remove(0).unwrap();
        assert_eq!(stats().await, before, "{layout:?}");
    }
}

/// One query would be larger than the server takes.
#[tokio::test]
async fn stats_of_many_devices_with_very_many_parts_are_read_by_several_queries() {
    let scratch = Scratch::new().await;
    let store = scratch.packed_store(1_000).await;
    let devices: Vec<Arc<str>> = (100..220).map(|nth| format!("{nth}{}", "x".repeat(125)).into()).collect();
    let writes: Vec<_> = devices.iter().map(|device| write_at(device, [1, 2])).collect();
    assert!(store.write(&writes).await.iter().all(Result::is_ok));
    for device in &devices {
        store.layout.known.note(device, HOUR, 1_000, 2);
    }
    let found = store.recent_stats(&devices, HOUR..Hour(HOUR.0 + 1)).await.unwrap();
    assert!(found.iter().all(|hours| hours.len() == 1 && hours[0].stats[0].1.count == 2), "{found:?}");
}
