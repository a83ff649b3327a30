//! The documents in the database, as people and other programs see them.

use bson::{Bson, DateTime};

use super::super::read::of_device;
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
        "part": 0, "schemaVersion": 1, "rev": 2_i64,
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

/// The queries of `read` and `devices`, which all have one of these shapes.
#[tokio::test]
async fn the_index_of_ids_finds_the_hours_of_devices_and_little_else() {
    let scratch = Scratch::new().await;
    let store = scratch.store().await;
    let devices: Vec<String> = (0..20).map(|nth| format!("d{nth}")).collect();
    let hours = || (0..10).map(|nth| Hour(HOUR.0 + nth));
    let nested = ["d3/2026-04-20T15", "d3/2026-04-20", "d3/7", "d3/x", "d30", "d3-"].map(str::to_owned);
    let write_of = |device: &String, hour| {
        let mut write = write_at(device, 0..3);
        std::sync::Arc::make_mut(&mut write).hour = hour;
        write
    };
    let all = devices.iter().chain(&nested).flat_map(|device| hours().map(move |hour| write_of(device, hour)));
    assert!(store.write(&all.collect::<Vec<_>>()).await.iter().all(Result::is_ok));
    let of = |device: &str, from: i32, to: i32| of_device(device, &(Hour(HOUR.0 + from)..Hour(HOUR.0 + to)));
    let several = devices.iter().flat_map(|device| [of(device, 1, 3), of(device, 6, 9)]).collect::<Vec<_>>();
    for (filter, sort, expected) in [
        (of("d5", 2, 6), doc! { "_id": 1 }, 4),
        (of_device("d5", &Hour::ALL), doc! { "_id": -1 }, 10),
        (of("d3", 3, 4), doc! {}, 1),
        (doc! { "$or": several }, doc! {}, 100),
    ] {
        let find = doc! { "find": "buckets", "filter": &filter, "sort": sort, "hint": { "_id": 1 } };
        let explained = scratch.run(doc! { "explain": find, "verbosity": "executionStats" }).await;
        let plan = explained.get_document("queryPlanner").unwrap().get_document("winningPlan").unwrap().to_string();
        assert!(plan.contains("IXSCAN") && !plan.contains("\"SORT\"") && !plan.contains("COLLSCAN"), "{plan}");
        let stats = explained.get_document("executionStats").unwrap();
        let [examined, returned] = ["totalDocsExamined", "nReturned"].map(|name| stats.get_i32(name).unwrap());
        assert_eq!(returned, expected, "{filter}");
        // The ranges of d3 have documents of devices whose IDs begin with it.
        assert!(examined <= expected + 21, "{examined} documents for {expected}: {filter}");
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
