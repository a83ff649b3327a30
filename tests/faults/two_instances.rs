//! Two instances receive readings of the same devices at the same time, many of them twice. The writes of two
//! instances have no common order, so either value may stay; but each reading is stored once, and both
//! instances give the same answers.
//!
//! Time-series mode is left out: it promises this for one writer per device only.

use super::fault_test::FaultTest;
use super::history::Rule;
use super::store::Store;
use crate::harness::{Database, Server};

#[tokio::test]
async fn two_instances_with_resends_and_kills_with_mongodb() {
    let database = Database::new();
    with_resends_and_kills([Store::Mongodb(&database); 2]).await;
}

#[tokio::test]
async fn two_instances_with_resends_and_kills_with_packed_documents() {
    let database = Database::new();
    with_resends_and_kills([Store::Packed(&database); 2]).await;
}

/// As while the layout is changed, one instance after the other.
#[tokio::test]
async fn two_instances_with_resends_and_kills_with_both_layouts() {
    let database = Database::new();
    with_resends_and_kills([Store::Packed(&database), Store::Mongodb(&database)]).await;
}

async fn with_resends_and_kills([store, of_other]: [Store<'_>; 2]) {
    let (one, other) = tokio::join!(Server::start(store.setup()), Server::start(of_other.setup()));
    let mut test = FaultTest::start_on("two instances, kill -9 of either", store, Rule::OneOfThem, vec![one, other]);
    while test.next_fault(5) {
        test.wait_for_some_acks(300).await;
        let which = test.random_below(2);
        test.kill_and_restart(which).await;
    }
    test.audit().await;
}
