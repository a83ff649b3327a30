//! Documents of other programs or unknown versions in tidegauge's collections, and damaged documents.

use std::sync::atomic::Ordering;

use super::*;
use crate::config::BucketLayout;
use crate::model::OperatorMetadata;
use crate::store::mongodb::tests::counter;
use crate::store::{HourStats, ReadingsQuery, Rollups, UnreadableDocuments};

const NEXT: Hour = Hour(HOUR.0 + 1);

/// The answers of every query about the device `d`, and the list of devices.
async fn answers(store: &BucketStore) -> (Vec<HourStats>, Vec<(Hour, usize)>, Option<Hour>, Vec<String>) {
    let hours = Hour(HOUR.0 - 9)..Hour(HOUR.0 + 9);
    let stats =
        store.hour_stats(&["d".into()], hours.clone(), &SeriesFilter::ALL, StatsNeeds::All).await.unwrap().remove(0);
    let contents = store.contents("d", hours).await.unwrap();
    let counts = contents.iter().map(|(hour, contents)| (*hour, contents.reading_count())).collect();
    let devices = store.devices("", None, 10).await.unwrap().devices;
    let named = devices.iter().map(|device| format!("{} {}", device.device, device.last_ts_ms)).collect();
    (stats, counts, store.last_hour("d").await.unwrap(), named)
}

#[tokio::test]
async fn foreign_documents_change_no_answer() {
    let scratch = Scratch::new().await;
    let (of_readings, skipped_readings) = counter();
    let (of_rollups, skipped_rollups) = counter();
    let skipped = || [&skipped_readings, &skipped_rollups].map(|count| count.load(Ordering::Relaxed));
    let options = MongodbOptions {
        unreadable_readings: UnreadableDocuments::new(of_readings),
        unreadable_rollups: UnreadableDocuments::new(of_rollups),
        ..scratch.options()
    };
    let store = BucketStore::connect(options).await.unwrap();
    for device in ["b", "d", "e"] {
        write_one(&store, &write_at(device, 0..5)).await.unwrap();
    }
    let before = answers(&store).await;
    assert_eq!(skipped(), [0, 0]);

    let mut newer = scratch.buckets().await.remove(1);
    newer.insert("_id", "d/2026-04-20T14-of-a-newer-version");
    newer.insert("schemaVersion", 2);
    let mut copy = newer.clone();
    copy.insert("_id", "d/2026-04-20T14/without-stats");
    copy.insert("schemaVersion", 1);
    copy.remove("stats");
    let at = |hour: Hour| bson::DateTime::from_millis(hour.start_ms());
    let foreign = [
        doc! { "_id": 1, "hello": "world" },
        doc! { "_id": "d/2026-04-20T13", "deviceId": "d", "bucket": "not a date" },
        doc! { "_id": "d/2026-04-20T15", "deviceId": "d", "bucket": at(NEXT), "createdAt": at(NEXT), "part": 0 },
        doc! { "_id": 4, "deviceId": "a", "bucket": at(HOUR), "part": 0, "schemaVersion": 1 },
        doc! { "_id": "a/2026-04-20T14", "deviceId": "a", "bucket": at(HOUR), "part": 0, "schemaVersion": 1 },
        doc! { "_id": "c/2026-04-20T14", "deviceId": 7, "bucket": at(HOUR), "createdAt": at(HOUR) },
        doc! { "_id": "z/2026-04-20T14", "deviceId": "z", "lastTs": f64::NAN, "readings": 5, "stats": [] },
        doc! { "_id": "d/2026-04-20", "deviceId": "d" },
        newer,
        copy,
    ];
    scratch.run(doc! { "insert": "buckets", "documents": foreign.to_vec() }).await;
    let day = bson::DateTime::from_millis(Hour(HOUR.0 - 14).start_ms());
    let foreign = [
        doc! { "_id": "d/2026-04-20-", "deviceId": "d", "day": day, "hours": "many" },
        doc! { "_id": "d/2026-04-20+", "deviceId": "d", "day": day, "schemaVersion": 1,
        "hours": { "14": { "stats": 5 }, "99": 1 } },
        doc! { "_id": "d/2026-04-20/", "deviceId": "d", "day": day, "schemaVersion": 7,
        "hours": { "14": { "stats": {} } } },
        doc! { "_id": 4, "deviceId": "d", "day": day },
    ];
    scratch.run(doc! { "insert": "rollups", "documents": foreign.to_vec() }).await;

    assert_eq!(answers(&store).await, before);
    assert!(skipped()[0] >= 5, "{:?}", skipped());
    assert_eq!(roll_up_hour(&store, HOUR).await.unwrap(), 3);
    assert_eq!(roll_up_hour(&store, NEXT).await.unwrap(), 0);
    assert_eq!(answers(&store).await, before);

    // Late readings find their own document, and none of the others.
    assert_eq!(write_one(&store, &write_at("d", 3..8)).await.unwrap(), Written { stored: 3, duplicate: 2 });
    assert!(store.roll_up(&[("d".into(), HOUR)]).await[0].is_ok());
    let (stats, counts, ..) = answers(&store).await;
    assert_eq!((stats[0].stats[0].1.count, &counts[..]), (8, &[(HOUR, 8)][..]));
}

#[tokio::test]
async fn a_damaged_document_fails_late_readings_of_its_bucket_only() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    write_one(&store, &write_at("d", 0..5)).await.unwrap();
    let broken = doc! { "q": { "deviceId": "d" }, "u": { "$set": { "readings.3": "broken" } } };
    scratch.run(doc! { "update": "buckets", "updates": [broken] }).await;
    let outcome = write_one(&store, &write_at("d", 2..5)).await;
    assert!(matches!(outcome, Err(StoreError { cause: Cause::UnreadableDocument, .. })), "{outcome:?}");
    assert_eq!(write_one(&store, &write_at("e", 0..5)).await.unwrap(), Written { stored: 5, duplicate: 0 });
    let (stats, counts, ..) = answers(&store).await;
    assert_eq!((stats.len(), counts), (1, vec![(HOUR, 4)]), "all but the broken one");
}

#[tokio::test]
async fn a_write_to_a_document_of_a_newer_version_fails_and_names_both_versions() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    write_one(&store, &write_at("d", 0..5)).await.unwrap();
    let newer = doc! { "q": { "deviceId": "d" }, "u": { "$set": { "schemaVersion": 2 } } };
    scratch.run(doc! { "update": "buckets", "updates": [newer] }).await;
    let error = write_one(&store, &write_at("d", 2..5)).await.unwrap_err();
    assert_eq!(error.cause, Cause::UnreadableDocument);
    for words in ["d/2026-04-20T14", "schemaVersion is 2", "knows version 1 only"] {
        assert!(error.detail.contains(words), "{error}");
    }
    let (stats, counts, last_hour, devices) = answers(&store).await;
    assert_eq!((stats, counts, last_hour), (vec![], vec![], None), "reads skip it");
    assert_eq!(devices.len(), 1, "the device index has the device");
}

#[tokio::test]
async fn a_rollup_of_a_newer_version_is_skipped_and_counted() {
    let scratch = Scratch::new().await;
    let (of_rollups, skipped) = counter();
    let options = MongodbOptions { unreadable_rollups: UnreadableDocuments::new(of_rollups), ..scratch.options() };
    let store = BucketStore::connect(options).await.unwrap();
    write_one(&store, &write_at("d", 0..5)).await.unwrap();
    let before = answers(&store).await;
    assert!(store.roll_up(&[("d".into(), HOUR)]).await[0].is_ok());
    let newer = doc! { "q": {}, "u": { "$set": { "schemaVersion": 2, "hours": { "14": "in another shape" } } } };
    scratch.run(doc! { "update": "rollups", "updates": [newer] }).await;
    assert_eq!(answers(&store).await, before, "the buckets have the same stats");
    assert!(skipped.load(Ordering::Relaxed) >= 1, "by hour");
}

#[tokio::test]
async fn a_document_whose_bucket_is_not_that_of_its_id_is_skipped_and_holds_up_no_page() {
    let (of_readings, skipped) = counter();
    for layout in [BucketLayout::Readable, BucketLayout::Packed] {
        let scratch = Scratch::new().await;
        let unreadable_readings = UnreadableDocuments::new(of_readings.clone());
        let options = MongodbOptions { layout, unreadable_readings, ..scratch.options() };
        let store = BucketStore::connect(MongodbOptions { max_readings_per_document: 40, ..options }).await.unwrap();
        for part in 0..3 {
            write_one(&store, &write_at("d", (0..40).map(|at| part * 1_000 + at))).await.unwrap();
        }
        for hour in [Hour(HOUR.0 - 1), NEXT, Hour(-2_000_000), Hour(2_000_000)] {
            let set = |hour: Hour| doc! { "$set": { "bucket": bson::DateTime::from_millis(hour.start_ms()) } };
            let update = |to| doc! { "update": "buckets", "updates": [ { "q": { "part": 1 }, "u": set(to) } ] };
            scratch.run(update(hour)).await;
            let before = skipped.load(Ordering::Relaxed);
            let mut query = ReadingsQuery { max_instants: 7, ..ReadingsQuery::all("d", &(HOUR..NEXT)) };
            let (mut found, mut pages) = (0, 0);
            while query.range_ms.start < query.range_ms.end {
                let page = store.readings(&query).await.unwrap();
                assert!(page.complete_until_ms > query.range_ms.start, "{hour:?}: each page makes progress");
                found += page.hours.iter().map(|(_, contents)| contents.reading_count()).sum::<usize>();
                (query.range_ms.start, pages) = (page.complete_until_ms, pages + 1);
            }
            assert_eq!(found, 80, "all but the part");
            assert!(pages < 20 && skipped.load(Ordering::Relaxed) > before, "{pages} pages");
            let late = write_one(&store, &write_at("d", 500..501)).await;
            assert!(matches!(late, Err(StoreError { cause: Cause::UnreadableDocument, .. })), "{late:?}");
            scratch.run(update(HOUR)).await;
        }
    }
}

#[tokio::test]
async fn the_first_unreadable_document_says_why_metadata_of_operators_is_not_merged() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    let newer = [("a", 8_i32), ("b", 9)].map(|(device, version)| doc! { "_id": device, "schemaVersion": version });
    let durable = doc! { "w": "majority" };
    scratch.run(doc! { "insert": "buckets_metadata", "documents": newer.to_vec(), "writeConcern": durable }).await;
    let changes: [(Arc<str>, OperatorMetadata); 2] =
        ["a", "b"].map(|device| (device.into(), OperatorMetadata::default()));
    let error = store.operator_metadata().merge_metadata(&changes).await.unwrap_err();
    assert!(error.detail.contains("its schemaVersion is 8"), "{error:?}");
}
