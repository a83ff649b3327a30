//! A validator refuses one device for good. Its readings go to the dead-letter file, and all others are
//! stored.

use std::collections::BTreeMap;

use bson::doc;
use serde_json::Value;

use super::fault_test::FaultTest;
use super::store::Store;
use crate::harness::Database;

const REFUSED_DEVICE: &str = "client-1/device-2";

#[tokio::test]
async fn readings_refused_by_a_validator_become_dead_letters() {
    let database = Database::new();
    let store = Store::Mongodb(&database);
    let handle = database.handle().await;
    let validator = doc! { "deviceId": { "$ne": REFUSED_DEVICE } };
    let create = doc! { "create": "buckets", "validator": validator };
    handle.run_command(create).await.expect("the collection is made");
    let mut test = FaultTest::start("a validator refuses one device", store).await;
    while test.next_fault(2) {
        test.wait_for_some_acks(1_000).await;
        test.kill_and_restart(0).await;
    }
    test.wait_for_acks(500).await;
    test.settle().await;
    let dead_lettered = test.servers[0].metrics().await.count("tidegauge_readings_dead_lettered_total");
    assert!(dead_lettered > 0, "nothing was refused");
    let file = test.servers[0].data_dir().join("dead-letters.ndjson");
    let letters = dead_letters(&std::fs::read_to_string(file).expect("the dead-letter file"));
    test.audit_with(REFUSED_DEVICE, letters).await;
}

/// The values in the file by instant and metric. A crash may repeat a reading; the last one counts.
fn dead_letters(text: &str) -> BTreeMap<(i64, String), f64> {
    let mut values = BTreeMap::new();
    for line in text.lines() {
        let letter: Value = serde_json::from_str(line).expect("a whole line");
        assert_eq!(letter["deviceId"], REFUSED_DEVICE, "{line}");
        for reading in letter["readings"].as_array().expect("readings") {
            for (metric, value) in reading["values"].as_object().expect("values") {
                let at = (reading["ts"].as_i64().expect("an instant"), metric.clone());
                values.insert(at, value.as_f64().expect("a number"));
            }
        }
    }
    values
}
