//! mongod is down: killed and started again, or down for longer than pending can hold, so that the log is the
//! buffer.

use std::time::Duration;

use super::fault_test::{FaultTest, seed};
use super::store::Store;
use crate::harness::{Database, Mongod, wait_until};

/// Small enough to fill up quickly.
const PENDING_BYTES: u64 = 32 << 10;
/// The size of a log that holds much more than pending may.
const MUCH_BYTES: u64 = 8 * PENDING_BYTES;
/// The size of a log without a segment that can be removed.
const DRAINED_BYTES: u64 = 5 * PENDING_BYTES;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_mongod_with_mongodb() {
    let mut mongod = Mongod::start();
    let database = Database::on(&mongod);
    killed(&mut mongod, Store::Mongodb(&database)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_mongod_with_packed_documents() {
    let mut mongod = Mongod::start();
    let database = Database::on(&mongod);
    killed(&mut mongod, Store::Packed(&database)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_mongod_with_mongodb_timeseries() {
    let mut mongod = Mongod::start();
    let database = Database::on(&mongod);
    killed(&mut mongod, Store::Timeseries(&database)).await;
}

/// The test sometimes kills tidegauge too while mongod is down.
async fn killed(mongod: &mut Mongod, store: Store<'_>) {
    let mut test = FaultTest::start("kill -9 of mongod", store).await;
    while test.next_fault(2) {
        test.wait_for_some_acks(300).await;
        mongod.kill9();
        test.wait_for_some_acks(100).await;
        wait_until("the store is reported as down", async || {
            (test.servers[0].metrics().await.count("tidegauge_store_up") == 0).then_some(())
        })
        .await;
        if test.random_below(3) == 0 {
            test.kill_and_restart(0).await;
        }
        tokio::task::block_in_place(|| mongod.start_again());
        test.wait_for_store().await;
    }
    test.audit().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_buffers_an_outage_with_buckets() {
    let mut mongod = Mongod::start();
    let database = Database::on(&mongod);
    let seed = seed();
    down_for_long(&mut mongod, Store::of_buckets(&database, seed), seed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_buffers_an_outage_with_mongodb_timeseries() {
    let mut mongod = Mongod::start();
    let database = Database::on(&mongod);
    down_for_long(&mut mongod, Store::Timeseries(&database), seed()).await;
}

async fn down_for_long(mongod: &mut Mongod, store: Store<'_>, seed: u64) {
    let setup = store.setup().set("pending.max_bytes", PENDING_BYTES as i64);
    let mut test = FaultTest::start_with_seed("mongod down, the log is the buffer", store, setup, seed).await;
    while test.next_fault(2) {
        test.wait_for_some_acks(300).await;
        mongod.kill9();
        wait_until("the log holds much more than pending may", async || {
            let metrics = test.servers[0].metrics().await;
            let [log, pending] = ["tidegauge_log_bytes", "tidegauge_pending_bytes"].map(|name| metrics.count(name));
            assert!(pending <= 2 * PENDING_BYTES, "pending holds {pending} bytes, its limit is {PENDING_BYTES}");
            (log > MUCH_BYTES).then_some(())
        })
        .await;
        if test.random_below(2) == 0 {
            test.kill_and_restart(0).await;
        }
        tokio::task::block_in_place(|| mongod.start_again());
        test.drain_until("the log is cut", async || {
            test.servers[0].metrics().await.count("tidegauge_log_bytes") < DRAINED_BYTES
        })
        .await;
    }
    test.audit().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_fills_the_log_with_packed_documents() {
    let mut mongod = Mongod::start();
    let database = Database::on(&mongod);
    let store = Store::Packed(&database);
    let setup = store.setup().set("pending.max_bytes", PENDING_BYTES as i64).set("log.max_bytes", "256KiB");
    let mut test = FaultTest::start_with_setup("mongod down until the log is full", store, setup).await;
    while test.next_fault(2) {
        test.wait_for_some_acks(300).await;
        let refused = test.totals().refused_requests;
        mongod.kill9();
        wait_until("requests are refused", async || (test.totals().refused_requests > refused + 5).then_some(())).await;
        tokio::time::sleep(Duration::from_millis(test.random_below(300) as u64)).await;
        tokio::task::block_in_place(|| mongod.start_again());
    }
    test.audit().await;
}
