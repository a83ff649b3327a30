//! Buckets that do not fit into one document, and writers that race for them.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::*;
use crate::model::Metric;
use crate::store::mongodb::tests::counter;

/// 57 instants in an order that is neither rising nor falling.
fn mixed() -> Vec<HourOffset> {
    (0..57).map(|at| at * 23 % 57 * 1000).collect()
}

/// The fields of each part that the tests compare, ascending by part.
async fn parts(scratch: &Scratch) -> Vec<(i32, i64, bool, i64)> {
    let mut parts: Vec<_> = scratch.buckets().await.iter().map(describe).collect();
    parts.sort_unstable();
    parts
}

fn describe(part: &Document) -> (i32, i64, bool, i64) {
    let readings = part.get_array("readings").unwrap();
    let count = part.get_i64("readingCount").unwrap();
    assert_eq!(readings.len() as i64, count);
    let ts = readings.iter().map(|reading| *reading.as_document().unwrap().get_datetime("ts").unwrap());
    assert!(ts.is_sorted_by(|a, b| a < b), "readings are sorted and no instant comes twice");
    let last_ms = part.get_datetime("lastTs").unwrap().timestamp_millis() - HOUR.start_ms();
    (part.get_i32("part").unwrap(), count, part.contains_key("full"), last_ms)
}

fn assert_parts(parts: &[(i32, i64, bool, i64)], capacity: i64) {
    for (at, (number, count, full, _)) in parts.iter().enumerate() {
        assert_eq!(*number, at as i32);
        assert!(*count <= capacity, "{parts:?}");
        assert_eq!(*full, at + 1 < parts.len(), "every part but the last is full: {parts:?}");
    }
    assert!(parts.is_sorted_by_key(|(_, _, _, last)| *last), "lastTs never falls: {parts:?}");
}

#[tokio::test]
async fn readings_in_any_order_fill_parts_and_a_resend_changes_nothing() {
    let scratch = Scratch::new().await;
    let store = scratch.store_with_capacity(10).await;
    for chunk in mixed().chunks(7) {
        let written = write_one(&store, &write_at("d", chunk.iter().copied())).await.unwrap();
        assert_eq!((written.stored, written.duplicate), (chunk.len() as u32, 0));
    }
    let filled = parts(&scratch).await;
    assert_eq!(filled.len(), 6);
    assert_parts(&filled, 10);
    expect_instants(&store, "d", mixed()).await;

    let before = scratch.buckets().await;
    let written = write_one(&store, &write_at("d", mixed())).await.unwrap();
    assert_eq!((written.stored, written.duplicate), (0, 57));
    assert_eq!(scratch.buckets().await, before, "not even rev has moved");
}

#[tokio::test]
async fn a_write_larger_than_a_document_makes_its_parts_at_once() {
    let scratch = Scratch::new().await;
    let store = scratch.store_with_capacity(10).await;
    assert_eq!(write_one(&store, &write_at("d", mixed())).await.unwrap().stored, 57);
    let filled = parts(&scratch).await;
    assert_eq!(filled.iter().map(|part| part.1).collect::<Vec<_>>(), [10, 10, 10, 10, 10, 7]);
    assert_parts(&filled, 10);
    expect_instants(&store, "d", mixed()).await;
}

#[tokio::test]
async fn a_larger_capacity_does_not_append_to_a_part_that_has_a_successor() {
    let scratch = Scratch::new().await;
    let small = scratch.store_with_capacity(10).await;
    write_one(&small, &write_at("d", 0..15)).await.unwrap();
    let large = scratch.store_with_capacity(1000).await;
    // 12 is in part 1, and later than all of part 0: only the mark keeps the fast path from storing it twice
    assert_eq!(write_one(&large, &write_at("d", 12..20)).await.unwrap(), Written { stored: 5, duplicate: 3 });
    assert_eq!(
        parts(&scratch).await.iter().map(|part| (part.1, part.2)).collect::<Vec<_>>(),
        [(10, true), (10, false)]
    );
    expect_instants(&large, "d", 0..20).await;
}

#[tokio::test]
async fn a_device_is_summed_up_over_all_parts() {
    let scratch = Scratch::new().await;
    let store = scratch.store_with_capacity(2).await;
    write_one(&store, &write_at("d", 10..12)).await.unwrap();
    let late = Sample { value: 1.0, offset: 3, metric: 0 };
    let metadata = r#"{"floor":2}"#;
    let write = BucketWrite::new("d".into(), HOUR, Some(metadata.into()), vec!["hum".into()], [(late, true)]);
    write_one(&store, &write.into()).await.unwrap();
    let devices = store.devices("", None, 10).await.unwrap().devices;
    let [device] = &devices[..] else { panic!("{devices:?}") };
    assert_eq!(device.series.iter().map(|series| &*series.metric).collect::<Vec<_>>(), ["hum", "lux"]);
    assert_eq!(device.metadata.as_ref().map(|of| (of.hour, &*of.text)), Some((HOUR, metadata)));
    assert_eq!((device.first_ts_ms, device.last_ts_ms), (HOUR.instant_ms(3), HOUR.instant_ms(11)));
}

#[tokio::test]
async fn every_write_raises_the_revision_by_one() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    let rev = async || scratch.buckets().await[0].get_i64("rev").unwrap();
    for (write, expected) in [
        (write_at("d", [10]), 1), // made by the fast path
        (write_at("d", [20]), 2), // appended
        (write_at("d", [5]), 3),  // merged
        (write_at("d", [5]), 3),  // nothing new
        (write_at("d", [30]), 4),
    ] {
        write_one(&store, &write).await.unwrap();
        assert_eq!(rev().await, expected);
    }
}

#[tokio::test]
async fn instances_with_different_capacities_race_and_lose_nothing() {
    let scratch = Scratch::new().await;
    let stores = [scratch.store_with_capacity(10).await, scratch.store_with_capacity(25).await];
    let write_all = async |store: &BucketStore, offsets: Vec<HourOffset>| {
        for chunk in offsets.chunks(5) {
            let write = write_at("d", chunk.iter().copied());
            while let Err(error) = write_one(store, &write).await {
                assert!(matches!(error, StoreError { cause: Cause::Contention, .. }), "{error}");
            }
        }
    };
    let forwards: Vec<HourOffset> = (0..150).collect();
    let backwards: Vec<HourOffset> = (100..250).rev().collect();
    tokio::join!(write_all(&stores[0], forwards), write_all(&stores[1], backwards));
    assert_parts(&parts(&scratch).await, 25);
    for store in &stores {
        expect_instants(store, "d", 0..250).await;
    }
}

/// The size of the largest document, in bytes.
async fn largest_document(scratch: &Scratch) -> i32 {
    let sizes = doc! { "$group": { "_id": null, "max": { "$max": { "$bsonSize": "$$ROOT" } } } };
    let found = scratch.all(doc! { "aggregate": "buckets", "pipeline": [sizes], "cursor": {} }).await;
    found[0].get_i32("max").unwrap()
}

/// A hundred readings a second for an hour, as a faulty or a very busy device sends them. With two threads,
/// the driver can listen for heartbeats while documents are decoded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outlier_fills_parts_of_a_mebibyte_and_takes_the_slow_path_once_for_each() {
    let scratch = Scratch::new().await;
    let (slow_writes, slow) = counter();
    let options = MongodbOptions { max_readings_per_document: 100_000, slow_writes, ..scratch.options() };
    let store = BucketStore::connect(options).await.unwrap();
    for flush in 0..30_u32 {
        let write = write_at("outlier", (flush * 4_000..(flush + 1) * 4_000).map(|at| at * 10));
        assert_eq!(write_one(&store, &write).await.unwrap(), Written { stored: 4_000, duplicate: 0 });
    }
    let parts = parts(&scratch).await;
    assert!((3..8).contains(&parts.len()), "{}", parts.len());
    assert_parts(&parts, 100_000);
    let largest = largest_document(&scratch).await;
    assert!((900_000..=1 << 20).contains(&largest), "{largest} bytes");
    assert_eq!(slow.load(Ordering::Relaxed), parts.len() as u64 - 1, "once for each part but the first");
    expect_instants(&store, "outlier", (0..120_000).map(|at| at * 10)).await;

    let resent = write_at("outlier", (0..4_000).map(|at| at * 10 + 5 * (at % 2)));
    assert_eq!(write_one(&store, &resent).await.unwrap(), Written { stored: 2_000, duplicate: 2_000 });
}

#[tokio::test]
async fn an_instance_that_knows_an_old_last_part_finds_the_new_one() {
    let scratch = Scratch::new().await;
    let (one, other) = (scratch.store_with_capacity(5).await, scratch.store_with_capacity(5).await);
    for at in 0..40_u32 {
        let store = if at % 7 < 3 { &one } else { &other };
        write_one(store, &write_at("d", [at])).await.unwrap();
    }
    assert_parts(&parts(&scratch).await, 5);
    expect_instants(&one, "d", 0..40).await;
}

/// TTL takes the parts of a bucket one by one.
#[tokio::test]
async fn a_part_that_is_gone_is_not_made_again_by_an_append() {
    let scratch = Scratch::new().await;
    let store = scratch.store_with_capacity(5).await;
    write_one(&store, &write_at("d", 0..12)).await.unwrap();
    scratch.run(doc! { "delete": "buckets", "deletes": [{ "q": {}, "limit": 0 }] }).await;
    assert_eq!(write_one(&store, &write_at("d", [20])).await.unwrap(), Written { stored: 1, duplicate: 0 });
    expect_instants(&store, "d", [20]).await;
}

/// Each reading brings other metrics with long names, and every instant gets more of them later.
#[tokio::test]
async fn wide_readings_stay_within_the_size_of_a_document() {
    let scratch = Scratch::new().await;
    let options = MongodbOptions { max_document_bytes: 128 << 10, ..scratch.options() };
    let store = BucketStore::connect(options).await.unwrap();
    let mut expected = BTreeMap::new();
    for round in 0..30_u32 {
        let metrics: Vec<Metric> =
            (0..50).map(|nth| format!("{:0>100}", format!("{round}-{nth}")).as_str().into()).collect();
        let samples: Vec<Sample> = (0..100)
            .map(|nth| Sample { value: f64::from(round), offset: round % 10 * 10 + nth / 50, metric: nth % 50 })
            .collect();
        for sample in &samples {
            expected.insert((sample.offset, metrics[sample.metric as usize].clone()), sample.value);
        }
        let arrived = samples.into_iter().map(|sample| (sample, sample.metric == 0));
        let write = BucketWrite::new("wide".into(), HOUR, None, metrics, arrived);
        write_one(&store, &write.into()).await.unwrap();
    }
    assert!(largest_document(&scratch).await <= 128 << 10);
    let found = store.contents("wide", HOUR..Hour(HOUR.0 + 1)).await.unwrap().remove(0).1;
    let found: BTreeMap<_, _> =
        found.samples().iter().map(|sample| ((sample.offset, found.metric_of(sample).clone()), sample.value)).collect();
    assert_eq!(found, expected);
    let stats = store
        .hour_stats(&["wide".into()], HOUR..Hour(HOUR.0 + 1), &SeriesFilter::ALL, StatsNeeds::All)
        .await
        .unwrap()
        .remove(0)
        .remove(0);
    assert_eq!(stats.stats.iter().map(|(_, stats)| stats.count).sum::<u64>(), expected.len() as u64);
}
