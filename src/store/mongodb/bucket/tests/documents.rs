//! The documents in the database, as people and other programs see them.

use bson::{Bson, DateTime};

use super::*;
use crate::store::mongodb::names::created_at_ms;

fn instant(offset: HourOffset) -> DateTime {
    DateTime::from_millis(HOUR.instant_ms(offset))
}

#[tokio::test]
async fn a_bucket_is_the_documented_document() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    let device = "LIGHT-FL02-ZONE4";
    let sample = |offset, value| (Sample { value, offset, metric: 0 }, true);
    let metadata = r#"{"floor":2,"zone":"Zone 4","type":"LED-PIR"}"#;
    for samples in [vec![sample(10_000, 320.0), sample(20_000, 310.0)], vec![sample(30_000, 322.0)]] {
        let write = BucketWrite::new(device.into(), HOUR, Some(metadata.into()), vec!["lux".into()], samples);
        write_one(&store, &write.into()).await.unwrap();
    }
    let appended = scratch.buckets().await;
    let expected = doc! {
        "_id": "LIGHT-FL02-ZONE4/2026-04-20T14", "deviceId": device, "bucket": instant(0),
        "part": 0, "schemaVersion": 2, "rev": 2_i64,
        "createdAt": DateTime::from_millis(created_at_ms(device, HOUR)),
        "metadata": { "floor": 2, "type": "LED-PIR", "zone": "Zone 4" },
        "readingCount": 3_i64, "bytes": 399_i64, "firstTs": instant(10_000), "lastTs": instant(30_000),
        "stats": { "lux": {
            "count": 3_i64, "min": 310.0, "max": 322.0, "sum": 952.0,
            "first": { "ts": instant(10_000), "value": 320.0 }, "last": { "ts": instant(30_000), "value": 322.0 },
        } },
        "readings": [
            { "ts": instant(10_000), "lux": 320.0 },
            { "ts": instant(20_000), "lux": 310.0 },
            { "ts": instant(30_000), "lux": 322.0 },
        ],
    };
    assert_eq!(sorted(&appended[0]), sorted(&expected));

    let late = BucketWrite::new(device.into(), HOUR, None, vec!["lux".into()], [sample(5, 1.0)]);
    write_one(&store, &late.into()).await.unwrap();
    let rewritten = &scratch.buckets().await[0];
    assert_eq!(kinds(rewritten), kinds(&expected), "the slow path writes the same fields and types as the fast path");
    assert_eq!(rewritten.get_i64("rev").unwrap(), 3);
}

#[tokio::test]
async fn a_document_of_the_slow_path_has_the_same_shape() {
    let scratch = Scratch::new().await;
    let store = scratch.store_with_capacity(2).await;
    write_one(&store, &write_at("fast", 0..2)).await.unwrap();
    write_one(&store, &write_at("slow", 0..3)).await.unwrap();
    let buckets = scratch.buckets().await;
    let without_full = |document: &Document| {
        let mut document = document.clone();
        document.remove("full");
        kinds(&document)
    };
    assert_eq!(
        buckets.iter().map(|bucket| bucket.get_str("_id").unwrap()).collect::<Vec<_>>(),
        ["fast/2026-04-20T14", "slow/2026-04-20T14", "slow/2026-04-20T14/1"]
    );
    assert!(buckets[1].get_bool("full").unwrap() && !buckets[2].contains_key("full"));
    assert_eq!(without_full(&buckets[0]), without_full(&buckets[1]));
    assert_eq!(without_full(&buckets[0]), without_full(&buckets[2]));
}

#[tokio::test]
async fn the_guides_hourly_report_agrees_with_the_stats_of_every_bucket() {
    let scratch = Scratch::new().await;
    let store = scratch.store_with_capacity(20).await;
    for device in ["a", "b"] {
        for from in [0, 40, 20, 500, 10] {
            write_one(&store, &write_at(device, (from..from + 30).map(|at| at * 1000))).await.unwrap();
        }
    }
    let report = scratch
        .all(doc! { "aggregate": "buckets", "cursor": {}, "pipeline": [
            { "$unwind": "$readings" },
            { "$group": {
                "_id": { "id": "$_id", "hour": { "$dateTrunc": { "date": "$readings.ts", "unit": "hour" } } },
                "avg": { "$avg": "$readings.lux" }, "min": { "$min": "$readings.lux" },
                "max": { "$max": "$readings.lux" }, "count": { "$sum": 1 },
            } },
            { "$sort": { "_id.id": 1 } },
        ] })
        .await;
    let buckets = scratch.buckets().await;
    assert_eq!((report.len(), buckets.len() > 4), (buckets.len(), true), "each document is of one hour");
    for (report, bucket) in report.iter().zip(&buckets) {
        let stats = bucket.get_document("stats").unwrap().get_document("lux").unwrap();
        let hour = report.get_document("_id").unwrap().get_datetime("hour").unwrap();
        assert_eq!(hour, bucket.get_datetime("bucket").unwrap());
        let count = stats.get_i64("count").unwrap();
        assert_eq!(i64::from(report.get_i32("count").unwrap()), count);
        assert_eq!(bucket.get_i64("readingCount").unwrap(), count);
        for edge in ["min", "max"] {
            assert_eq!(report[edge], stats[edge]);
        }
        assert_eq!(report["avg"], Bson::from(stats.get_f64("sum").unwrap() / count as f64));
    }
}

#[tokio::test]
async fn the_index_finds_the_hours_of_a_device_in_order() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    write_one(&store, &write_at("d", 0..3)).await.unwrap();
    for (filter, sort) in [
        (doc! { "deviceId": "d", "bucket": { "$gte": instant(0), "$lt": instant(1) } }, doc! { "bucket": 1 }),
        (doc! { "deviceId": "d" }, doc! { "deviceId": -1, "bucket": -1 }),
        (doc! { "deviceId": { "$gt": "c", "$lt": "d\u{7F}" } }, doc! { "deviceId": 1, "bucket": 1 }),
    ] {
        let find = doc! { "find": "buckets", "filter": filter, "sort": sort, "limit": 1 };
        let plan = scratch.run(doc! { "explain": find, "verbosity": "queryPlanner" }).await;
        let plan = plan.get_document("queryPlanner").unwrap().get_document("winningPlan").unwrap().to_string();
        assert!(plan.contains("IXSCAN") && !plan.contains("\"SORT\"") && !plan.contains("COLLSCAN"), "{plan}");
    }
}

/// Field names and types, whatever their order: a server orders the fields of an upsert by name.
fn kinds(document: &Document) -> Vec<(String, bson::spec::ElementType)> {
    let mut kinds: Vec<_> = document.iter().map(|(key, value)| (key.clone(), value.element_type())).collect();
    kinds.retain(|(key, _)| key != "metadata");
    kinds.sort_by(|a, b| a.0.cmp(&b.0));
    let stats = document.get_document("stats").unwrap().get_document("lux").unwrap();
    kinds.extend(sorted(stats).iter().map(|(key, value)| (key.clone(), value.element_type())));
    kinds
}

fn sorted(document: &Document) -> Document {
    let mut fields: Vec<(String, Bson)> = document.clone().into_iter().collect();
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    fields
        .into_iter()
        .map(|(key, value)| match value {
            Bson::Document(inner) => (key, sorted(&inner).into()),
            other => (key, other),
        })
        .collect()
}
