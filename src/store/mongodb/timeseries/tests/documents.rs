//! The measurements in the collection, and the indexes that find them.

use super::*;

#[tokio::test]
async fn a_measurement_reads_as_anyone_would_write_it() {
    let scratch = Scratch::new().await;
    let store = store(&scratch).await;
    let samples = [(7, 1, 40.0), (7, 0, 22.5), (9, 0, 22.75)];
    let samples = samples.map(|(offset, metric, value)| (Sample { value, offset, metric }, true));
    let metadata = r#"{"zone":"Zone 4","floor":2}"#;
    let metrics = vec!["temp".into(), "hum".into()];
    let write = BucketWrite::new("S1".into(), HOUR, Some(metadata.into()), metrics, samples);
    write_one(&store, &write.into()).await.unwrap();

    let mut found = measurements(&scratch).await;
    for measurement in &mut found {
        measurement.remove("_id");
    }
    let meta = doc! { "deviceId": "S1", "floor": 2, "zone": "Zone 4" };
    let at = |offset| bson::DateTime::from_millis(HOUR.instant_ms(offset));
    let expected = [
        doc! { "ts": at(7), "meta": &meta, "hum": 40.0, "temp": 22.5 },
        doc! { "ts": at(9), "meta": &meta, "temp": 22.75 },
    ];
    assert_eq!(found, expected);
}

#[tokio::test]
async fn names_that_every_measurement_has_come_back_as_metrics() {
    let scratch = Scratch::new().await;
    let store = store(&scratch).await;
    let names = ["_id", "meta", "deviceId", "a.b", "$x"];
    let samples = (0..5).map(|metric| (Sample { value: f64::from(metric), offset: 1, metric }, metric == 0));
    let metrics = names.map(Into::into).to_vec();
    let write = BucketWrite::new("S1".into(), HOUR, None, metrics, samples);
    write_one(&store, &Arc::new(write.clone())).await.unwrap();
    let hours = HOUR..Hour(HOUR.0 + 1);
    let found = store.contents("S1", hours.clone()).await.unwrap();
    assert_eq!(found, [(HOUR, write.contents.clone())]);
    let mut stats = store
        .hour_stats(&["S1".into()], hours, &SeriesFilter::ALL, StatsNeeds::All)
        .await
        .unwrap()
        .remove(0)
        .remove(0)
        .stats;
    stats.sort_by(|a, b| a.1.min.total_cmp(&b.1.min));
    assert_eq!(stats, write.contents.stats(HOUR));
}

/// The server opens another bucket where the order of fields or the type of a value changes, or where `meta`
/// does.
#[tokio::test]
async fn an_hour_of_a_device_is_one_bucket_of_the_server() {
    let scratch = Scratch::new().await;
    let store = store(&scratch).await;
    for flush in 0..10_u32 {
        let order = if flush % 2 == 0 { ["a", "b"] } else { ["b", "a"] };
        let samples = (flush * 10..flush * 10 + 10).flat_map(|offset| {
            [0, 1].map(|metric| (Sample { value: f64::from(offset), offset: offset * 1000, metric }, metric == 0))
        });
        let metadata = (flush % 3 == 0).then(|| r#"{"floor":2}"#.into());
        let write = BucketWrite::new("S1".into(), HOUR, metadata, order.map(Into::into).to_vec(), samples);
        write_one(&store, &write.into()).await.unwrap();
    }
    let stats = scratch.run(doc! { "collStats": "readings" }).await;
    let buckets = stats.get_document("timeseries").unwrap().get("bucketCount").unwrap();
    assert_eq!(buckets.as_i32().map(i64::from).or(buckets.as_i64()), Some(1), "{stats}");
}

#[tokio::test]
async fn a_device_is_found_by_index() {
    let scratch = Scratch::new().await;
    let store = store(&scratch).await;
    write_one(&store, &write_at("S1", 0..10)).await.unwrap();
    let filter = doc! { "meta.deviceId": "S1", "ts": { "$gte": bson::DateTime::from_millis(HOUR.start_ms()) } };
    let explained = scratch.run(doc! { "explain": { "find": "readings", "filter": filter } }).await.to_string();
    assert!(explained.contains("IXSCAN") && !explained.contains("COLLSCAN"), "{explained}");
}
