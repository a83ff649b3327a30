//! The schema after a start on an empty database, on one with an older schema, and on an unsuitable one.

use super::*;
use crate::config::{Granularity, Period};
use crate::store::Rollups;

async fn ensured(scratch: &Scratch, retention: Option<u64>, span: Span) -> Result<TimeseriesStore, String> {
    let options = MongodbOptions { retention: retention.map(Duration::from_secs), ..scratch.options() };
    let (granularity, bucket_max_span) = span;
    let timeseries = config::Timeseries { granularity, bucket_max_span, ..config::Timeseries::default() };
    let store = TimeseriesStore::connect(options, timeseries).await.unwrap();
    store.ensure_schema().await.map_err(|error| error.to_string())?;
    Ok(store)
}

async fn options(scratch: &Scratch) -> Document {
    let listed = scratch.all(doc! { "listCollections": 1, "filter": { "name": "readings" } }).await;
    listed[0].get_document("options").unwrap().clone()
}

/// `granularity` and `bucket_max_span`.
type Span = (Granularity, Option<Period>);

const SECONDS: Span = (Granularity::Seconds, None);
const MINUTES: Span = (Granularity::Minutes, None);

#[tokio::test]
async fn the_collection_and_its_index_are_made_and_made_again_without_harm() {
    let scratch = Scratch::new().await;
    for _ in 0..2 {
        ensured(&scratch, Some(86_400), SECONDS).await.unwrap();
    }
    let options = options(&scratch).await;
    let timeseries = options.get_document("timeseries").unwrap();
    assert_eq!(timeseries.get_str("timeField").unwrap(), "ts");
    assert_eq!(timeseries.get_str("metaField").unwrap(), "meta");
    assert_eq!(timeseries.get_str("granularity").unwrap(), "seconds");
    let indexes = scratch.all(doc! { "listIndexes": "readings" }).await;
    assert!(indexes.iter().any(|index| index.get_document("key").unwrap() == &doc! { "meta.deviceId": 1, "ts": 1 }));
}

#[tokio::test]
async fn a_changed_retention_changes_when_readings_expire() {
    let scratch = Scratch::new().await;
    let expiry = async || {
        options(&scratch).await.get("expireAfterSeconds").and_then(crate::store::mongodb::decode::server_integer)
    };
    let retentions = [Some(86_400), Some(7_200), None, Some(9)];
    for (retention, before) in retentions.into_iter().zip([Some(86_400), Some(86_400), None, None]) {
        let store = ensured(&scratch, retention, SECONDS).await.unwrap();
        assert_eq!(expiry().await, before, "{retention:?}, and hours are not rolled up yet");
        store.shorten_expiry().await.unwrap();
        assert_eq!(expiry().await, retention.map(u64::cast_signed));
    }
}

#[tokio::test]
async fn granularity_can_be_made_coarser_and_a_finer_one_is_refused_in_words() {
    let scratch = Scratch::new().await;
    ensured(&scratch, None, SECONDS).await.unwrap();
    ensured(&scratch, None, MINUTES).await.unwrap();
    let options = options(&scratch).await;
    assert_eq!(options.get_document("timeseries").unwrap().get_str("granularity").unwrap(), "minutes");
    let refused = ensured(&scratch, None, SECONDS).await.unwrap_err();
    assert!(refused.contains("granularity"), "{refused}");
}

#[tokio::test]
async fn a_bucket_span_on_a_server_that_has_none_is_refused_in_words() {
    let scratch = Scratch::new().await;
    let refused = ensured(&scratch, None, (Granularity::Seconds, Some(Period::hours(4)))).await.unwrap_err();
    assert!(refused.contains("set mongodb.timeseries.granularity instead of bucket_max_span"), "{refused}");
}

#[tokio::test]
async fn a_collection_of_another_kind_is_refused_in_words() {
    let scratch = Scratch::new().await;
    scratch.run(doc! { "create": "readings" }).await;
    let refused = ensured(&scratch, None, SECONDS).await.unwrap_err();
    assert!(refused.contains("the collection readings has the type collection, and timeseries is needed"), "{refused}");
    let outcome = write_one(&store(&scratch).await, &write_at("d", 0..1)).await;
    assert!(matches!(outcome, Err(StoreError { cause: Cause::Schema, .. })), "{outcome:?}");
}

#[tokio::test]
async fn a_dropped_collection_comes_back_as_a_time_series_and_nothing_is_lost() {
    let scratch = Scratch::new().await;
    let store = store(&scratch).await;
    write_one(&store, &write_at("d", 0..5)).await.unwrap();
    scratch.run(doc! { "drop": "readings" }).await;
    let writes = [write_at("d", 3..9), write_at("e", 0..2)];
    for outcome in store.write(&writes).await {
        // The server created a plain collection, from which readings would not expire.
        assert!(matches!(outcome, Err(StoreError { cause: Cause::Schema, .. })), "{outcome:?}");
    }
    for (outcome, stored) in store.write(&writes).await.into_iter().zip([6, 2]) {
        assert_eq!(outcome.unwrap(), Written { stored, duplicate: 0 });
    }
    let listed = scratch.all(doc! { "listCollections": 1, "filter": { "name": { "$regex": "^readings" } } }).await;
    let mut types: Vec<_> = listed.iter().map(|found| (found.get_str("type").unwrap(), found)).collect();
    types.sort_by_key(|(kind, _)| *kind);
    let [(_, aside), ("timeseries", _)] = types[..] else { panic!("{types:?}") };
    assert!(aside.get_str("name").unwrap().starts_with("readings_set_aside_"), "{aside}");
    let indexes = scratch.all(doc! { "listIndexes": "readings" }).await;
    assert!(indexes.iter().any(|index| index.get_document("key").unwrap() == &doc! { "meta.deviceId": 1, "ts": 1 }));
}

#[tokio::test]
async fn a_drop_that_a_ping_notices_costs_no_write() {
    let scratch = Scratch::new().await;
    let store = store(&scratch).await;
    write_one(&store, &write_at("d", 0..5)).await.unwrap();
    scratch.run(doc! { "drop": "readings" }).await;
    store.ping().await.unwrap();
    assert_eq!(write_one(&store, &write_at("d", 0..5)).await.unwrap(), Written { stored: 5, duplicate: 0 });
    expect_instants(&scratch, 0..5).await;
}

#[tokio::test]
async fn the_store_says_how_long_buckets_of_the_server_keep_expired_readings() {
    let scratch = Scratch::new().await;
    let timeseries = config::Timeseries { granularity: Granularity::Hours, ..config::Timeseries::default() };
    let store = TimeseriesStore::connect(scratch.options(), timeseries).await.unwrap();
    assert!(store.expiry_delay() >= Duration::from_secs(30 * 86_400));
}
