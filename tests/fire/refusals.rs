//! The store refuses some readings for good: a validator dislikes one device. Its readings go to the
//! dead-letter file, all others are stored as if nothing was.

use std::collections::BTreeMap;

use bson::doc;
use serde_json::Value;

use super::siege::Siege;
use super::store::Store;
use crate::harness::Database;

const DISLIKED: &str = "client-1/device-2";

#[tokio::test]
async fn what_a_validator_refuses_is_in_the_dead_letter_file_with_mongodb() {
    let database = Database::new();
    let store = Store::Mongodb(&database);
    let handle = database.handle().await;
    let validator = doc! { "deviceId": { "$ne": DISLIKED } };
    let create = doc! { "create": "buckets", "validator": validator };
    handle.run_command(create).await.expect("the collection is made");
    let mut siege = Siege::begin("a validator refuses one device", store).await;
    while siege.goes_on(2) {
        siege.some_acked(1_000).await;
        siege.kill_and_restart(0).await;
    }
    siege.acked(500).await;
    siege.settle().await;
    let dead_lettered = siege.servers[0].metrics().await.count("tidegauge_readings_dead_lettered_total");
    assert!(dead_lettered > 0, "nothing was refused");
    let file = siege.servers[0].data_dir().join("dead-letters.ndjson");
    let letters = dead_letters(&std::fs::read_to_string(file).expect("the dead-letter file"));
    siege.audit_with(DISLIKED, letters).await;
}

/// The values in the file by instant and metric; of a reading that is there again after a crash, the last.
fn dead_letters(text: &str) -> BTreeMap<(i64, String), f64> {
    let mut values = BTreeMap::new();
    for line in text.lines() {
        let letter: Value = serde_json::from_str(line).expect("a whole line");
        assert_eq!(letter["deviceId"], DISLIKED, "{line}");
        for reading in letter["readings"].as_array().expect("readings") {
            for (metric, value) in reading["values"].as_object().expect("values") {
                let at = (reading["ts"].as_i64().expect("an instant"), metric.clone());
                values.insert(at, value.as_f64().expect("a number"));
            }
        }
    }
    values
}
