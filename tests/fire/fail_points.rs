//! mongod answers with errors: its own fail points, with the real error codes, in the real places.

use bson::{Document, doc};
use mongodb::Client;

use super::siege::Siege;
use super::store::Store;
use crate::harness::{Database, Mongod};

/// Codes that mean "try again": elections, shutdowns, the network, time limits, lost races.
const TRANSIENT: [i32; 17] = [6, 7, 24, 50, 89, 91, 112, 134, 189, 262, 9001, 10058, 10107, 11600, 11602, 13435, 13436];

/// Kinds of faults, each of which comes in turn.
const KINDS: usize = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fail_points_with_mongodb() {
    let mongod = Mongod::start();
    let database = Database::on(&mongod);
    failing(&mongod, Store::Mongodb(&database), "failAllUpdates").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fail_points_with_mongodb_timeseries() {
    let mongod = Mongod::start();
    let database = Database::on(&mongod);
    failing(&mongod, Store::Timeseries(&database), "failAllInserts").await;
}

/// The fail point `single` lets single statements of a write fail, so that the answer has some `writeErrors`.
async fn failing(mongod: &Mongod, store: Store<'_>, single: &str) {
    let admin = Client::with_uri_str(mongod.uri()).await.expect("a MongoDB URI").database("admin");
    let mut siege = Siege::begin("fail points of mongod", store).await;
    let mut kind = siege.one_of(KINDS);
    while siege.goes_on(KINDS as u64) {
        kind = (kind + 1) % KINDS;
        siege.some_acked(200).await;
        let mode = if siege.one_of(2) == 0 {
            doc! { "times": siege.one_of(20) as i32 + 1 }
        } else {
            doc! { "activationProbability": 0.5 }
        };
        let code = TRANSIENT[siege.one_of(TRANSIENT.len())];
        let (point, data) = match kind {
            0 => ("failCommand", any_command(doc! { "errorCode": code })),
            1 => ("failCommand", any_command(doc! { "closeConnection": true })),
            2 => ("failCommand", writes(doc! { "writeConcernError": { "code": code, "errmsg": "a fail point" } })),
            3 => {
                let milliseconds = siege.one_of(2_500) as i32; // longer than mongodb.timeout, or shorter
                ("failCommand", writes(doc! { "blockConnection": true, "blockTimeMS": milliseconds }))
            }
            4 => (single, doc! {}),
            _ => ("WTWriteConflictException", doc! {}),
        };
        let configure = |mode: bson::Bson| {
            admin.run_command(doc! { "configureFailPoint": point, "mode": mode, "data": data.clone() })
        };
        let before = configure(mode.into()).await.expect("the fail point is there");
        siege.some_acked(300).await;
        let met = before.get_i32("count").expect("how often it was met before") + 1;
        let wait = doc! { "waitForFailPoint": point, "timesEntered": met, "maxTimeMS": 60_000 };
        admin.run_command(wait).await.unwrap_or_else(|error| panic!("{point} {data} was not met: {error}"));
        configure("off".into()).await.expect("the fail point is there");
        siege.stored_something().await;
    }
    siege.audit().await;
}

fn any_command(how: Document) -> Document {
    fail(&["update", "insert", "find", "aggregate", "getMore", "ping"], how)
}

fn writes(how: Document) -> Document {
    fail(&["update", "insert"], how)
}

/// Only commands of tidegauge fail.
fn fail(commands: &[&str], how: Document) -> Document {
    let mut data = doc! { "failCommands": commands, "appName": "tidegauge" };
    data.extend(how);
    data
}
