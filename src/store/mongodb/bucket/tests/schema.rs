//! The collection, its indexes and its validator.

use std::collections::BTreeSet;
use std::time::{Instant, SystemTime};

use super::*;
use crate::config::{BlockCompressor, Timeseries};
use crate::store::Rollups;
use crate::store::mongodb::TimeseriesStore;

const DAY: Duration = Duration::from_secs(86_400);

async fn ensure(scratch: &Scratch, retention: Option<Duration>, validate: bool) -> BucketStore {
    let options = MongodbOptions { retention, validate, ..scratch.options() };
    let store = BucketStore::connect(options).await.unwrap();
    store.ensure_schema().await.unwrap();
    store
}

/// The name of each index, with its expiry in seconds.
async fn indexes(scratch: &Scratch) -> Vec<(String, Option<i64>)> {
    let indexes = scratch.all(doc! { "listIndexes": "buckets" }).await;
    let seconds = |index: &Document| index.get("expireAfterSeconds").map(|at| at.to_string().parse().unwrap());
    indexes.iter().map(|index| (index.get_str("name").unwrap().to_owned(), seconds(index))).collect()
}

async fn validator(scratch: &Scratch) -> Option<Document> {
    let found = scratch.all(doc! { "listCollections": 1, "filter": { "name": "buckets" } }).await;
    found[0].get_document("options").unwrap().get_document("validator").ok().cloned()
}

#[tokio::test]
async fn expiry_is_created_prolonged_and_dropped_at_once_and_shortened_later() {
    let scratch = Scratch::new().await;
    let plain = ["_id_", "createdAt"].map(|name| (name.to_owned(), None));
    ensure(&scratch, None, false).await;
    assert_eq!(indexes(&scratch).await, plain);
    let expiry = |days: u32| Some(i64::from(days) * 86_400 + 3_600);
    for (days, before) in [(1, None), (1, expiry(1)), (30, expiry(30)), (7, expiry(30))] {
        let store = ensure(&scratch, Some(DAY * days), false).await;
        assert_eq!(indexes(&scratch).await[1].1, before, "{days} days, and hours are not rolled up yet");
        store.shorten_expiry().await.unwrap();
        assert_eq!(indexes(&scratch).await[1..], [("createdAt".to_owned(), expiry(days))]);
    }
    ensure(&scratch, None, false).await;
    assert_eq!(indexes(&scratch).await, plain);
    ensure(&scratch, Some(Duration::MAX), false).await.shorten_expiry().await.unwrap();
    assert_eq!(indexes(&scratch).await[1].1, Some(i64::from(i32::MAX)), "as long as the server can");
}

/// The compressor of a collection on disk.
pub(super) async fn compressor(scratch: &Scratch, name: &str) -> String {
    let stats = scratch.run(doc! { "collStats": name }).await;
    let created = stats.get_document("wiredTiger").unwrap().get_str("creationString").unwrap().to_owned();
    let (_, compressor) = created.split_once("block_compressor=").unwrap();
    compressor.split(',').next().unwrap().to_owned()
}

#[tokio::test]
async fn new_collections_are_compressed_as_configured_and_existing_ones_stay() {
    let scratch = Scratch::new().await;
    let open = async |block_compressor| {
        let options = MongodbOptions { block_compressor, ..scratch.options() };
        let timeseries = Timeseries::default();
        BucketStore::connect(options.clone()).await.unwrap().ensure_schema().await.unwrap();
        TimeseriesStore::connect(options, timeseries).await.unwrap().ensure_schema().await.unwrap();
    };
    for (configured, expected) in [(BlockCompressor::Zstd, "zstd"), (BlockCompressor::Snappy, "zstd")] {
        open(configured).await;
        for name in ["buckets", "rollups", "devices", "readings"] {
            assert_eq!(compressor(&scratch, name).await, expected, "{name}");
        }
    }
    drop_collection(&scratch, "buckets").await;
    open(BlockCompressor::None).await;
    assert_eq!(compressor(&scratch, "buckets").await, "none");
}

#[tokio::test]
async fn instances_that_start_together_agree_on_one_schema() {
    let scratch = Scratch::new().await;
    let one = || ensure(&scratch, Some(DAY), true);
    tokio::join!(one(), one(), one());
    assert_eq!(indexes(&scratch).await.len(), 2);
}

#[tokio::test]
async fn the_validator_comes_and_goes_with_its_option() {
    let scratch = Scratch::new().await;
    ensure(&scratch, None, false).await;
    assert_eq!(validator(&scratch).await, None);
    let store = ensure(&scratch, None, true).await;
    assert!(validator(&scratch).await.unwrap().contains_key("$jsonSchema"));
    write_one(&store, &write_at("d", 0..5)).await.unwrap();
    write_one(&store, &write_at("d", 5..9)).await.unwrap();
    write_one(&store, &write_at("d", 3..12)).await.unwrap();
    expect_instants(&store, "d", 0..12).await;
    let bad = doc! { "insert": "buckets", "documents": [{ "deviceId": "d" }] };
    let refused = scratch.run(bad).await;
    assert_eq!(refused.get_array("writeErrors").unwrap()[0].as_document().unwrap().get_i32("code").unwrap(), 121);
    ensure(&scratch, None, false).await;
    assert_eq!(validator(&scratch).await.unwrap_or_default(), doc! {});
}

#[tokio::test]
async fn a_validator_of_somebody_else_stays() {
    let scratch = Scratch::new().await;
    let theirs = doc! { "deviceId": { "$exists": true } };
    scratch.run(doc! { "create": "buckets", "validator": &theirs }).await;
    ensure(&scratch, None, false).await;
    assert_eq!(validator(&scratch).await, Some(theirs));
}

#[tokio::test]
async fn readings_wait_while_a_validator_refuses_the_mark_of_the_device_index() {
    let scratch = Scratch::new().await;
    let of_entries = doc! { "$jsonSchema": { "required": ["firstTs", "lastTs", "series"] } };
    scratch.run(doc! { "create": "devices", "validator": of_entries }).await;
    let (store, write) = (scratch.store().await, write_at("d", 0..5));
    let error = write_one(&store, &write).await.unwrap_err();
    assert_eq!(error.cause, Cause::Schema, "{error}");
    assert!(error.detail.contains("the collection devices refuses"), "{error}");
    scratch.run(doc! { "collMod": "devices", "validator": {} }).await;
    assert_eq!(write_one(&store, &write).await.unwrap().stored, 5);
}

#[tokio::test]
async fn a_time_series_collection_is_not_taken_for_buckets() {
    let scratch = Scratch::new().await;
    scratch.run(doc! { "create": "buckets", "timeseries": { "timeField": "ts" } }).await;
    let outcome = write_one(&scratch.store().await, &write_at("d", 0..5)).await;
    assert!(matches!(outcome, Err(StoreError { cause: Cause::Schema, .. })), "{outcome:?}");
}

/// Drops a collection.
async fn drop_collection(scratch: &Scratch, name: &str) {
    scratch.run(doc! { "drop": name }).await;
}

#[tokio::test]
async fn a_dropped_collection_comes_back_with_its_indexes_expiry_and_validator() {
    let scratch = Scratch::new().await;
    let store = ensure(&scratch, Some(DAY), true).await;
    let (expected, of_buckets) = (indexes(&scratch).await, validator(&scratch).await);
    write_one(&store, &write_at("d", 0..5)).await.unwrap();
    drop_collection(&scratch, "buckets").await;
    // The server creates the collection, and only that.
    assert_eq!(write_one(&store, &write_at("d", 5..9)).await.unwrap_err().cause, Cause::Schema);
    write_one(&store, &write_at("d", 9..12)).await.unwrap();
    expect_instants(&store, "d", 5..12).await;
    assert_eq!((indexes(&scratch).await, validator(&scratch).await), (expected.clone(), of_buckets.clone()));

    drop_collection(&scratch, "buckets").await;
    store.ping().await.unwrap();
    write_one(&store, &write_at("d", 12..13)).await.unwrap();
    assert_eq!((indexes(&scratch).await, validator(&scratch).await), (expected, of_buckets));
}

#[tokio::test]
async fn dropped_rollups_are_another_identity_and_come_back_at_once() {
    let scratch = Scratch::new().await;
    let store = ensure(&scratch, None, false).await;
    let before = store.identity().await.unwrap();
    assert_eq!(store.identity().await.unwrap(), before);
    drop_collection(&scratch, "rollups").await;
    let after = store.identity().await.unwrap();
    assert_ne!(after, before);
    let of_rollups = scratch.all(doc! { "listIndexes": "rollups" }).await;
    let names: Vec<_> = of_rollups.iter().map(|index| index.get_str("name").unwrap()).collect();
    assert_eq!(names, ["_id_", "createdAt"]);
    assert_eq!(store.identity().await.unwrap(), after);
}

/// The hour so many hours ago.
fn hours_ago(hours: i32) -> Hour {
    #[expect(clippy::disallowed_methods, reason = "the server expires by the date")]
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Hour(Hour::of(now.as_millis() as i64).0 - hours)
}

fn write_of_hour(device: &str, hour: Hour) -> Arc<BucketWrite> {
    let mut write = write_at(device, 0..3);
    Arc::make_mut(&mut write).hour = hour;
    write
}

/// Writes an old hour and a young one of many devices, and waits until the old ones are gone.
/// Returns the young hour, whose documents expire in more than an hour.
async fn expect_only_old_hours_to_go(store: &dyn Store) -> Hour {
    let devices: Vec<String> = (0..50).map(|nth| format!("d{nth}")).collect();
    let (old, young) = (hours_ago(5), hours_ago(0));
    let writes: Vec<_> =
        devices.iter().flat_map(|device| [old, young].map(|hour| write_of_hour(device, hour))).collect();
    for outcome in store.write(&writes).await {
        assert_eq!(outcome.unwrap().stored, 3);
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    for device in &devices {
        loop {
            let found = store.contents(device, old..hours_ago(-1)).await.unwrap();
            let hours: Vec<Hour> = found.into_iter().map(|(hour, _)| hour).collect();
            assert!(hours.contains(&young), "{device}: what is young has gone");
            if hours == [young] {
                break;
            }
            assert!(Instant::now() < deadline, "{device}: what is old is still there");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    young
}

#[tokio::test]
async fn the_server_lets_old_buckets_go_and_young_ones_stay() {
    let scratch = Scratch::on_an_impatient_member().await;
    let store = ensure(&scratch, Some(Duration::from_secs(3_600)), false).await;
    let young = expect_only_old_hours_to_go(&store).await;

    let seconds: BTreeSet<i64> = scratch
        .buckets()
        .await
        .iter()
        .map(|bucket| bucket.get_datetime("createdAt").unwrap().timestamp_millis() - young.start_ms())
        .collect();
    assert!(seconds.len() > 45, "each device has a second of its own, mostly: {seconds:?}");
    assert!(seconds.iter().all(|ms| (0..3_600_000).contains(ms)), "within the hour: {seconds:?}");
}

#[tokio::test]
async fn the_server_lets_a_device_go_after_its_readings_and_rollups() {
    let scratch = Scratch::on_an_impatient_member().await;
    let hour = Some(Duration::from_secs(3_600));
    let options = MongodbOptions { retention: hour, rollups_retention: hour, ..scratch.options() };
    let store = BucketStore::connect(options).await.unwrap();
    for (device, age) in [("gone", 60), ("stays", 40)] {
        write_one(&store, &write_of_hour(device, hours_ago(age))).await.unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while store.device("gone").await.unwrap().is_some() {
        assert!(Instant::now() < deadline, "the device is still there");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let listed = store.devices("", None, 10).await.unwrap().devices;
    assert_eq!(listed.iter().map(|summary| &*summary.device).collect::<Vec<_>>(), ["stays"]);
    write_one(&store, &write_of_hour("gone", hours_ago(0))).await.unwrap();
    assert!(store.device("gone").await.unwrap().is_some(), "it has come back");
}

#[tokio::test]
async fn the_server_lets_old_measurements_go_and_young_ones_stay() {
    let scratch = Scratch::on_an_impatient_member().await;
    let options = MongodbOptions { retention: Some(Duration::from_secs(3_600)), ..scratch.options() };
    let timeseries = Timeseries::default();
    expect_only_old_hours_to_go(&TimeseriesStore::connect(options, timeseries).await.unwrap()).await;
}
