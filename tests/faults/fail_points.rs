//! mongod answers with errors: its own fail points with real error codes.

use bson::{Document, doc};
use mongodb::Client;

use super::fault_test::FaultTest;
use super::store::Store;
use crate::harness::{Database, Mongod};

/// The codes of transient errors: elections, shutdowns, the network, time limits, write conflicts.
const TRANSIENT: [i32; 17] = [6, 7, 24, 50, 89, 91, 112, 134, 189, 262, 9001, 10058, 10107, 11600, 11602, 13435, 13436];

/// The number of fault kinds, which take turns.
const KINDS: usize = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fail_points_with_mongodb() {
    let mongod = Mongod::start();
    let database = Database::on(&mongod);
    failing(&mongod, Store::Mongodb(&database), "failAllUpdates").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fail_points_with_packed_documents() {
    let mongod = Mongod::start();
    let database = Database::on(&mongod);
    failing(&mongod, Store::Packed(&database), "failAllInserts").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fail_points_with_mongodb_timeseries() {
    let mongod = Mongod::start();
    let database = Database::on(&mongod);
    failing(&mongod, Store::Timeseries(&database), "failAllInserts").await;
}

/// The fail point `single` makes single statements of a write fail, so that the answer has `writeErrors`.
async fn failing(mongod: &Mongod, store: Store<'_>, single: &str) {
    let admin = Client::with_uri_str(mongod.uri()).await.expect("a MongoDB URI").database("admin");
    let mut test = FaultTest::start("fail points of mongod", store).await;
    let mut kind = test.random_below(KINDS);
    while test.next_fault(KINDS as u64) {
        kind = (kind + 1) % KINDS;
        test.wait_for_some_acks(200).await;
        let mode = if test.random_below(2) == 0 {
            doc! { "times": test.random_below(20) as i32 + 1 }
        } else {
            doc! { "activationProbability": 0.5 }
        };
        let code = TRANSIENT[test.random_below(TRANSIENT.len())];
        let (point, data) = match kind {
            0 => ("failCommand", any_command(doc! { "errorCode": code })),
            1 => ("failCommand", any_command(doc! { "closeConnection": true })),
            2 => ("failCommand", writes(doc! { "writeConcernError": { "code": code, "errmsg": "a fail point" } })),
            3 => {
                let milliseconds = test.random_below(2_500) as i32; // longer or shorter than mongodb.timeout
                ("failCommand", writes(doc! { "blockConnection": true, "blockTimeMS": milliseconds }))
            }
            4 => (single, doc! {}),
            _ => ("WTWriteConflictException", doc! {}),
        };
        let configure = |mode: bson::Bson| {
            admin.run_command(doc! { "configureFailPoint": point, "mode": mode, "data": data.clone() })
        };
        let before = configure(mode.into()).await.expect("the fail point is there");
        test.wait_for_some_acks(300).await;
        let entered = before.get_i32("count").expect("the count of past entries") + 1;
        let wait = doc! { "waitForFailPoint": point, "timesEntered": entered, "maxTimeMS": 60_000 };
        admin.run_command(wait).await.unwrap_or_else(|error| panic!("{point} {data} was not entered: {error}"));
        configure("off".into()).await.expect("the fail point is there");
        test.wait_for_store().await;
    }
    test.audit().await;
}

fn any_command(how: Document) -> Document {
    fail(&["update", "insert", "find", "aggregate", "getMore", "ping"], how)
}

fn writes(how: Document) -> Document {
    fail(&["update", "insert"], how)
}

/// The data of a fail point that affects commands of tidegauge only.
fn fail(commands: &[&str], how: Document) -> Document {
    let mut data = doc! { "failCommands": commands, "appName": "tidegauge" };
    data.extend(how);
    data
}
