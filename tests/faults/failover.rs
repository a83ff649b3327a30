//! The primary of a replica set of three is killed, stepped down, or frozen, so that it hangs without an
//! error.

use std::time::Duration;

use tokio::task::block_in_place;
use tokio::time::timeout;

use super::fault_test::{FaultTest, seed};
use super::store::Store;
use crate::harness::{Database, ReplicaSet};

/// The time limit of a freeze; it ends earlier when another primary is elected. A member that copies from the
/// frozen one waits for it half a minute at a time, and no write reaches a majority meanwhile.
const FROZEN_MAX: Duration = Duration::from_secs(15);

/// The number of fault kinds, which take turns.
const KINDS: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_fails_over_with_buckets() {
    let mut set = block_in_place(ReplicaSet::start);
    let database = Database::at(set.uri());
    let seed = seed();
    failing_over(&mut set, Store::of_buckets(&database, seed), seed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_fails_over_with_mongodb_timeseries() {
    let mut set = block_in_place(ReplicaSet::start);
    let database = Database::at(set.uri());
    failing_over(&mut set, Store::Timeseries(&database), seed()).await;
}

async fn failing_over(set: &mut ReplicaSet, store: Store<'_>, seed: u64) {
    let fault = "primary killed, stepped down, frozen";
    let mut test = FaultTest::start_with_seed(fault, store, store.setup(), seed).await;
    test.wait_for_store().await; // the collections exist: this test is about writes, not about creating them
    let mut kind = test.random_below(KINDS);
    while test.next_fault(KINDS as u64) {
        kind = (kind + 1) % KINDS;
        test.wait_for_some_acks(300).await;
        let primary = block_in_place(|| set.primary());
        match kind {
            0 => {
                block_in_place(|| set.kill9(primary));
                test.wait_for_store().await;
                block_in_place(|| set.start_again(primary));
            }
            1 => {
                block_in_place(|| set.step_down());
                test.wait_for_store().await;
            }
            _ => {
                set.freeze(primary);
                drop(timeout(FROZEN_MAX, test.wait_for_store()).await); // a timeout is fine
                set.thaw(primary); // it still believes to be the primary and handles what was sent to it meanwhile
                test.wait_for_store().await;
            }
        }
    }
    test.audit().await;
}
