//! Measurements of other programs in tidegauge's collection.

use std::sync::atomic::Ordering;

use super::*;
use crate::store::UnreadableDocuments;
use crate::store::mongodb::tests::counter;

#[tokio::test]
async fn foreign_measurements_change_no_answer() {
    let scratch = Scratch::new().await;
    let (unreadable, skipped) = counter();
    let options = MongodbOptions { unreadable_readings: UnreadableDocuments::new(unreadable), ..scratch.options() };
    let store = TimeseriesStore::connect(options, config::Timeseries::default()).await.unwrap();
    write_one(&store, &write_at("d", 0..5)).await.unwrap();
    let hours = HOUR..Hour(HOUR.0 + 1);
    let answers = async || {
        let stats = store.hour_stats(&["d".into()], hours.clone(), &SeriesFilter::ALL, StatsNeeds::All).await.unwrap();
        let devices = store.devices("", None, 9).await.unwrap().devices;
        (stats, store.contents("d", hours.clone()).await.unwrap(), store.last_hour("d").await.unwrap(), devices)
    };
    let before = answers().await;
    let at = |offset| bson::DateTime::from_millis(HOUR.instant_ms(offset));
    let decimal: bson::Decimal128 = "1.5".parse().unwrap();
    let foreign = vec![
        doc! { "ts": at(2) },
        doc! { "ts": at(2), "meta": "d" },
        doc! { "ts": at(2), "meta": { "deviceId": 7 } },
        doc! { "ts": at(3), "meta": { "deviceId": "d" }, "lux": "high" },
        doc! {
            "ts": at(4), "meta": { "deviceId": "d", "by": bson::oid::ObjectId::new() }, "lux": f64::NAN, "x": decimal,
        },
    ];
    scratch.run(doc! { "insert": "readings", "documents": foreign }).await;
    assert_eq!(answers().await, before);
    let skipped = skipped.load(Ordering::Relaxed);
    assert!(skipped >= 2, "{skipped}");
    assert_eq!(write_one(&store, &write_at("d", 3..8)).await.unwrap(), Written { stored: 3, duplicate: 2 });
}
