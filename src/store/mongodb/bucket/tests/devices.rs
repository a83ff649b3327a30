//! Documents of the device index.

use std::collections::BTreeSet;

use super::*;
use crate::model::Day;
use crate::store::DeviceSeries;

impl Scratch {
    async fn put_device(&self, document: Document) {
        let update = doc! { "q": { "_id": document.get("_id") }, "u": document, "upsert": true };
        self.run(doc! { "update": "devices", "updates": [update] }).await;
    }
}

fn of_day(device: usize, days: i32, metric: &str, metadata: &str) -> Arc<BucketWrite> {
    let samples = [(Sample { value: 1.0, offset: 7, metric: 0 }, true)];
    let hour = Hour(HOUR.0 + 24 * days);
    let metadata = Some(metadata).filter(|metadata| !metadata.is_empty()).map(Into::into);
    BucketWrite::new(format!("d{device:02}").into(), hour, metadata, vec![metric.into()], samples).into()
}

async fn write_all(store: &BucketStore, writes: impl IntoIterator<Item = Arc<BucketWrite>>) {
    for outcome in store.write(&writes.into_iter().collect::<Vec<_>>()).await {
        assert_eq!(outcome.unwrap().stored, 1);
    }
}

#[tokio::test]
async fn the_turn_of_a_day_changes_each_document_by_its_own_metadata() {
    let scratch = Scratch::new().await;
    let [one, other] = [scratch.store().await, scratch.store().await];
    let metadata = |nth: usize| ["", r#"{"a":1}"#, r#"{"a":2}"#][nth % 3];
    write_all(&one, (0..30).rev().map(|nth| of_day(nth, 0, "lux", metadata(nth)))).await;
    // Another instance, which knows no device, has newer metadata of some, and a series of others.
    write_all(&other, (0..6).map(|nth| of_day(nth, 2, "temp", r#"{"a":3}"#))).await;
    write_all(&one, (0..30).map(|nth| of_day(nth, 1, "lux", metadata(nth)))).await;
    for nth in 0..30 {
        let device = one.device(&format!("d{nth:02}")).await.unwrap().unwrap();
        let (text, day) = if nth < 6 { (r#"{"a":3}"#, 2) } else { (metadata(nth), 1) };
        let found = device.metadata.as_ref().map_or(("", None), |of| (&*of.text, Some(of.hour)));
        assert_eq!(found, (text, Some(Hour(HOUR.0 + 24 * day)).filter(|_| !text.is_empty())), "{nth}");
        let series = |name: &str, day| DeviceSeries { metric: name.into(), last_day: Day(Day::of(HOUR).0 + day) };
        let temp = (nth < 6).then(|| series("temp", 2));
        assert_eq!(device.series, [series("lux", 1)].into_iter().chain(temp).collect::<Vec<_>>(), "{nth}");
        assert_eq!(device.last_ts_ms, Hour(HOUR.0 + 24 * day).instant_ms(7));
    }
}

#[tokio::test]
async fn a_document_that_cannot_be_read_is_written_over() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    scratch.put_device(doc! { "_id": "d00", "deviceId": "d00", "series": 1 }).await;
    write_all(&store, [of_day(0, 0, "lux", r#"{"a":1}"#), of_day(1, 0, "lux", "")]).await;
    let device = store.device("d00").await.unwrap().unwrap();
    assert_eq!(device.metadata.map(|of| of.text), Some(r#"{"a":1}"#.into()));
    assert_eq!(device.series, [DeviceSeries::of("lux".into(), HOUR)]);
}

#[tokio::test]
async fn after_a_refused_bucket_the_last_day_is_not_exact_until_a_later_day() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    write_all(&store, [of_day(0, 0, "lux", "")]).await;
    let next_day = bson::DateTime::from_millis(Hour(HOUR.0 + 24).start_ms());
    scratch.run(doc! { "collMod": "buckets", "validator": { "bucket": { "$ne": next_day } } }).await;
    let entry = async || store.entries_of(&["d00".into()]).await.unwrap().devices.remove(0);
    for (days, is_exact, last_day) in [(0, true, 0), (1, false, 1), (2, true, 2), (1, true, 2)] {
        let outcome = store.write(&[of_day(0, days, "lux", "")]).await.remove(0);
        assert_eq!(outcome.is_err_and(|error| error.is_permanent()), days == 1);
        let entry = entry().await;
        assert_eq!((entry.is_last_day_exact(), entry.series[0].last_day.0), (is_exact, Day::of(HOUR).0 + last_day));
        let stored = Hour(HOUR.0 + if last_day == 2 { 48 } else { 0 });
        assert_eq!(store.last_instants(&[entry], Hour(0)).await.unwrap(), [stored.instant_ms(7)]);
        let lux = BTreeSet::from(["lux".into()]);
        assert_eq!(store.last_hour_with("d00", &lux, Hour(0)..Hour(1_000_000)).await.unwrap(), Some(stored));
    }
}
