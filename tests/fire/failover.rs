//! The primary of a replica set of three goes: killed, stepped down, or frozen, so that it hangs and refuses
//! nothing.

use std::time::Duration;

use tokio::task::block_in_place;
use tokio::time::timeout;

use super::siege::Siege;
use super::store::Store;
use crate::harness::{Database, ReplicaSet};

/// For how long a primary is frozen, unless another has taken over before. A member that was about to copy
/// from the frozen one waits for it half a minute at a time, and as long there is no majority for anything.
const FROZEN_MAX: Duration = Duration::from_secs(15);

/// Kinds of faults, each of which comes in turn.
const KINDS: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_is_killed_stepped_down_and_frozen_with_mongodb() {
    let mut set = block_in_place(ReplicaSet::start);
    let database = Database::at(set.uri());
    failing_over(&mut set, Store::Mongodb(&database)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_is_killed_stepped_down_and_frozen_with_mongodb_timeseries() {
    let mut set = block_in_place(ReplicaSet::start);
    let database = Database::at(set.uri());
    failing_over(&mut set, Store::Timeseries(&database)).await;
}

async fn failing_over(set: &mut ReplicaSet, store: Store<'_>) {
    let mut siege = Siege::begin("primary killed, stepped down, frozen", store).await;
    siege.stored_something().await; // the collections are there: this is about writes, not about making them
    let mut kind = siege.one_of(KINDS);
    while siege.goes_on(KINDS as u64) {
        kind = (kind + 1) % KINDS;
        siege.some_acked(300).await;
        let primary = block_in_place(|| set.primary());
        match kind {
            0 => {
                block_in_place(|| set.kill9(primary));
                siege.stored_something().await;
                block_in_place(|| set.start_again(primary));
            }
            1 => {
                block_in_place(|| set.step_down());
                siege.stored_something().await;
            }
            _ => {
                set.freeze(primary);
                drop(timeout(FROZEN_MAX, siege.stored_something()).await); // not in time is fine
                set.thaw(primary); // it still takes itself for the primary, and finds what was sent to it meanwhile
                siege.stored_something().await;
            }
        }
    }
    siege.audit().await;
}
