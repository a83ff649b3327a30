//! Two instances take the readings of the same devices at once, and much of it both. Between them nobody can
//! say which of two values came last, so that either may stay; but each reading is stored once, and both give
//! the same answers.
//!
//! Not for time-series mode, which promises this for one writer per device only.

use super::ledger::Rule;
use super::siege::Siege;
use super::store::Store;
use crate::harness::{Database, Server};

#[tokio::test]
async fn two_instances_with_overlapping_resends_and_kills_with_mongodb() {
    let database = Database::new();
    let store = Store::Mongodb(&database);
    let (one, other) = tokio::join!(Server::start(store.setup()), Server::start(store.setup()));
    let mut siege = Siege::begin_with("two instances, kill -9 of either", store, Rule::OneOfThem, vec![one, other]);
    while siege.goes_on(5) {
        siege.some_acked(300).await;
        let which = siege.one_of(2);
        siege.kill_and_restart(which).await;
    }
    siege.audit().await;
}
