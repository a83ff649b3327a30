//! Buckets that do not fit into one document, and writers that race for them.

use super::*;

/// 57 instants in an order that is neither rising nor falling.
fn mixed() -> Vec<HourOffset> {
    (0..57).map(|at| at * 23 % 57 * 1000).collect()
}

/// What each part says of itself, ascending by part.
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
    let devices = store.devices("", None, 10).await.unwrap();
    assert_eq!(devices.len(), 1);
    assert_eq!(devices[0].metrics, ["hum".into(), "lux".into()]);
    assert_eq!(devices[0].metadata.as_deref(), Some(metadata));
    assert_eq!((devices[0].first_ts_ms, devices[0].last_ts_ms), (HOUR.instant_ms(3), HOUR.instant_ms(11)));
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
                assert!(matches!(error, WriteError::Transient { reason: "contention", .. }), "{error}");
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
