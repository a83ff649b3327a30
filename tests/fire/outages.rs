//! mongod is gone: killed and started again, or away for longer than pending can hold, so that the log is the
//! buffer.

use std::time::Duration;

use super::siege::Siege;
use super::store::Store;
use crate::harness::{Database, Mongod, wait_until};

/// Small enough to be full at once.
const PENDING_BYTES: u64 = 32 << 10;
/// A log of so many bytes holds much more than pending may.
const MUCH_BYTES: u64 = 8 * PENDING_BYTES;
/// The log is cut by whole segments: with so many bytes there is nothing in it that can be cut.
const DRAINED_BYTES: u64 = 5 * PENDING_BYTES;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_mongod_with_mongodb() {
    let mut mongod = Mongod::start();
    let database = Database::on(&mongod);
    killed(&mut mongod, Store::Mongodb(&database)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_mongod_with_mongodb_timeseries() {
    let mut mongod = Mongod::start();
    let database = Database::on(&mongod);
    killed(&mut mongod, Store::Timeseries(&database)).await;
}

/// Sometimes tidegauge is killed too, while mongod is gone.
async fn killed(mongod: &mut Mongod, store: Store<'_>) {
    let mut siege = Siege::begin("kill -9 of mongod", store).await;
    while siege.goes_on(2) {
        siege.some_acked(300).await;
        mongod.kill9();
        siege.some_acked(100).await;
        if siege.one_of(3) == 0 {
            siege.kill_and_restart(0).await;
        }
        tokio::task::block_in_place(|| mongod.start_again());
        siege.stored_something().await;
    }
    siege.audit().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mongod_is_down_for_longer_than_pending_can_hold_with_mongodb() {
    let mut mongod = Mongod::start();
    let database = Database::on(&mongod);
    down_for_long(&mut mongod, Store::Mongodb(&database)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mongod_is_down_for_longer_than_pending_can_hold_with_mongodb_timeseries() {
    let mut mongod = Mongod::start();
    let database = Database::on(&mongod);
    down_for_long(&mut mongod, Store::Timeseries(&database)).await;
}

async fn down_for_long(mongod: &mut Mongod, store: Store<'_>) {
    let setup = store.setup().set("pending.max_bytes", PENDING_BYTES as i64);
    let mut siege = Siege::begin_set_up("mongod down, the log is the buffer", store, setup).await;
    while siege.goes_on(2) {
        siege.some_acked(300).await;
        mongod.kill9();
        wait_until("the log holds much more than pending may", async || {
            let metrics = siege.servers[0].metrics().await;
            let [log, pending] = ["tidegauge_log_bytes", "tidegauge_pending_bytes"].map(|name| metrics.count(name));
            assert!(pending <= 2 * PENDING_BYTES, "pending takes {pending} bytes, it may take {PENDING_BYTES}");
            (log > MUCH_BYTES).then_some(())
        })
        .await;
        if siege.one_of(2) == 0 {
            siege.kill_and_restart(0).await;
        }
        tokio::task::block_in_place(|| mongod.start_again());
        siege.drain().await;
        wait_until("the log is cut", async || {
            (siege.servers[0].metrics().await.count("tidegauge_log_bytes") < DRAINED_BYTES).then_some(())
        })
        .await;
    }
    siege.audit().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mongod_is_down_until_the_log_is_full_with_mongodb() {
    let mut mongod = Mongod::start();
    let database = Database::on(&mongod);
    let store = Store::Mongodb(&database);
    let setup = store.setup().set("pending.max_bytes", PENDING_BYTES as i64).set("log.max_bytes", "256KiB");
    let mut siege = Siege::begin_set_up("mongod down until the log is full", store, setup).await;
    while siege.goes_on(2) {
        siege.some_acked(300).await;
        let refused = siege.totals().refused_requests;
        mongod.kill9();
        wait_until("requests are refused", async || (siege.totals().refused_requests > refused + 5).then_some(()))
            .await;
        tokio::time::sleep(Duration::from_millis(siege.one_of(300) as u64)).await;
        tokio::task::block_in_place(|| mongod.start_again());
    }
    siege.audit().await;
}
