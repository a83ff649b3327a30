//! The documents in MongoDB match the documentation: the hourly report of the MongoDB guides runs on them and
//! agrees with the `stats` of every bucket.

use bson::{Bson, Document, doc};
use serde_json::{Value, json};

use crate::harness::{Database, Server, Setup};

const HOUR_MS: i64 = 3_600_000;
const START_MS: i64 = 1_713_621_600_000; // 2024-04-20T14:00:00Z

#[tokio::test]
async fn a_bucket_is_one_plain_document() {
    let database = Database::new();
    let server = Server::start(Setup::mongodb(&database)).await;
    let readings: Vec<Value> = (0..3).map(|at| json!({ "ts": START_MS + at * 10_000, "value": 310 + at })).collect();
    let device = json!({ "deviceId": "LIGHT-1", "metadata": { "floor": 2, "zone": "Zone 4" }, "readings": readings });
    assert_eq!(server.ingest(&device).await.status, 200);
    server.settled().await;

    let buckets = database.aggregate("buckets", vec![doc! { "$match": {} }]).await;
    let [bucket] = buckets.as_slice() else { panic!("one bucket, not {buckets:#?}") };
    let instant = |ms: i64| bson::DateTime::from_millis(ms);
    assert_eq!(bucket.get_str("_id").expect("an id"), "LIGHT-1/2024-04-20T14");
    assert_eq!(bucket.get_str("deviceId").expect("a device"), "LIGHT-1");
    assert_eq!(bucket.get_datetime("bucket").expect("an hour"), &instant(START_MS));
    assert_eq!(bucket.get_datetime("firstTs").expect("a time"), &instant(START_MS));
    assert_eq!(bucket.get_datetime("lastTs").expect("a time"), &instant(START_MS + 20_000));
    let created = bucket.get_datetime("createdAt").expect("a time").timestamp_millis();
    assert!((START_MS..START_MS + HOUR_MS).contains(&created), "the TTL anchor lies in the hour: {created}");
    for (key, expected) in [("part", 0.0), ("schemaVersion", 1.0), ("readingCount", 3.0)] {
        assert_eq!(number(&bucket[key]), expected, "{key}");
    }
    assert!(number(&bucket["rev"]).as_f64() >= Some(1.0), "rev counts the writes");
    let metadata = bucket.get_document("metadata").expect("metadata");
    assert_eq!(number(&metadata["floor"]), 2.0);
    assert_eq!(metadata.get_str("zone").expect("a zone"), "Zone 4");
    let stats = bucket.get_document("stats").expect("stats").get_document("value").expect("stats of the metric");
    assert_eq!(["count", "min", "max", "sum"].map(|key| number(&stats[key])), [3.0, 310.0, 312.0, 933.0]);
    for (key, at, value) in [("first", 0, 310.0), ("last", 20_000, 312.0)] {
        let end = stats.get_document(key).expect("a value and its instant");
        assert_eq!(
            (end.get_datetime("ts").expect("a time"), number(&end["value"])),
            (&instant(START_MS + at), json!(value))
        );
    }
    let readings = bucket.get_array("readings").expect("readings");
    let second = readings[1].as_document().expect("a reading");
    assert_eq!(second.get_datetime("ts").expect("a time"), &instant(START_MS + 10_000));
    assert_eq!(number(&second["value"]), 311.0);
}

#[tokio::test]
async fn the_hourly_report_agrees_with_the_stats_of_every_bucket() {
    let database = Database::new();
    let small_parts =
        Setup::mongodb(&database).set("mongodb.max_readings_per_document", 50).set("flush.max_readings", 50);
    let server = Server::start(small_parts).await;
    // three hours, out of order and partly resent, 120 readings each: overflow parts, the slow path and
    // duplicates
    for round in [1, 0, 2, 1] {
        let ts = |at: i64| START_MS + ((at * 7 + round) % 360) * 30_000;
        let readings: Vec<Value> = (0..360).map(|at| json!({ "ts": ts(at), "value": ts(at) / 30_000 % 101 })).collect();
        assert_eq!(server.ingest(&json!({ "deviceId": "S1", "readings": readings })).await.status, 200);
        server.settled().await;
    }

    let report = database.aggregate("buckets", guides_report()).await;
    let stats = database.aggregate("buckets", stats_report()).await;
    assert_eq!(report.len(), 3);
    assert_eq!(stats.len(), 3);
    for (report, stats) in report.iter().zip(&stats) {
        assert_eq!(report["_id"], stats["_id"]);
        let [from_readings, from_stats] =
            [report, stats].map(|of| ["count", "min", "max", "avg"].map(|key| number(&of[key])));
        assert_eq!(from_readings, from_stats);
        assert_eq!(from_readings[0], 120.0, "each reading once");
    }
}

/// The aggregations of docs/mongodb.md about labels.
#[tokio::test]
async fn a_series_with_labels_is_a_field_with_its_text() {
    let database = Database::new();
    let server = Server::start(Setup::mongodb(&database)).await;
    let values = json!({ "cpu_idle{cpu=cpu0}": 90, "cpu_idle{cpu=cpu1}": 70, "load": 0.5, "disk{path=/a.b}": 1 });
    for at in 0..2 {
        let reading = json!({ "deviceId": "raspi", "ts": START_MS + at * 10_000, "values": values });
        assert_eq!(server.ingest(&reading).await.status, 200);
    }
    server.settled().await;
    let avg = doc! { "_id": "$bucket", "avg": { "$avg": "$readings.cpu_idle{cpu=cpu0}" } };
    let found = database.aggregate("buckets", vec![doc! { "$unwind": "$readings" }, doc! { "$group": avg }]).await;
    assert_eq!(number(&found[0]["avg"]), 90.0);
    let of_metric = [
        doc! { "$project": { "series": { "$objectToArray": "$stats" } } },
        doc! { "$unwind": "$series" },
        doc! { "$match": { "series.k": { "$regex": r"^cpu_idle(\{|$)" } } },
        doc! { "$group": { "_id": "$series.k", "sum": { "$sum": "$series.v.sum" } } },
        doc! { "$sort": { "_id": 1 } },
    ];
    let found = database.aggregate("buckets", of_metric.to_vec()).await;
    let found: Vec<_> = found.iter().map(|of| (of.get_str("_id").expect("a series"), number(&of["sum"]))).collect();
    assert_eq!(found, [("cpu_idle{cpu=cpu0}", json!(180.0)), ("cpu_idle{cpu=cpu1}", json!(140.0))]);
    let named = database.aggregate("buckets", vec![doc! { "$match": { "stats.disk{path=/a\u{FF0E}b}.count": 2 } }]);
    assert_eq!(named.await.len(), 1, "a full stop is stored as U+FF0E");
}

#[tokio::test]
async fn the_buckets_of_a_device_are_found_by_an_index() {
    let database = Database::new();
    let server = Server::start(Setup::mongodb(&database)).await;
    assert_eq!(server.ingest(&json!({ "deviceId": "S1", "ts": START_MS, "value": 1 })).await.status, 200);
    server.settled().await;
    let day = doc! { "deviceId": "S1", "_id": { "$gte": "S1/2024-04-20T00", "$lt": "S1/2024-04-21T00" } };
    let newest = doc! { "deviceId": "S1", "_id": { "$gte": "S1/", "$lt": "S10" } };
    for filter in [&day, &newest] {
        let found = database.handle().await.run_command(doc! { "count": "buckets", "query": filter }).await;
        assert_eq!(found.expect("a count").get_i32("n").ok(), Some(1), "{filter}");
    }
    let find = doc! { "find": "buckets", "filter": day };
    let explain = doc! { "explain": find, "verbosity": "queryPlanner" };
    let plan = database.handle().await.run_command(explain).await.expect("a plan");
    let plan =
        plan.get_document("queryPlanner").expect("a plan").get_document("winningPlan").expect("a plan").to_string();
    assert!(plan.contains("IXSCAN") && !plan.contains("COLLSCAN"), "{plan}");
}

/// The report as the guides write it: unwind the readings, group by hour.
fn guides_report() -> Vec<Document> {
    let hour = doc! { "$dateTrunc": { "date": "$readings.ts", "unit": "hour" } };
    let value = "$readings.value";
    let group = doc! {
        "_id": hour, "avg": { "$avg": value }, "min": { "$min": value }, "max": { "$max": value },
        "count": { "$sum": 1 },
    };
    vec![doc! { "$unwind": "$readings" }, doc! { "$group": group }, doc! { "$sort": { "_id": 1 } }]
}

/// The same from the stats, which the parts of a bucket share.
fn stats_report() -> Vec<Document> {
    let of = |key: &str| format!("$stats.value.{key}");
    let group = doc! {
        "_id": "$bucket", "count": { "$sum": of("count") }, "sum": { "$sum": of("sum") },
        "min": { "$min": of("min") }, "max": { "$max": of("max") },
    };
    let avg = doc! { "$set": { "avg": { "$divide": ["$sum", "$count"] } } };
    vec![doc! { "$group": group }, avg, doc! { "$sort": { "_id": 1 } }]
}

/// A BSON number of any type, as a float.
fn number(value: &Bson) -> Value {
    match value {
        Bson::Int32(value) => json!(f64::from(*value)),
        Bson::Int64(value) => json!(*value as f64),
        Bson::Double(value) => json!(value),
        other => panic!("not a number: {other}"),
    }
}
