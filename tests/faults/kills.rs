//! tidegauge ends under load: by `kill -9` at random times, and by SIGTERM.

use super::fault_test::FaultTest;
use super::store::{Store, on_stores};
use crate::harness::Setup;

on_stores!(kill_9, super::killed, [sqlite, mongodb, packed, timeseries]);
on_stores!(sigterm, super::terminated, [sqlite, packed, timeseries]);

async fn killed(store: Store<'_>) {
    let mut test = FaultTest::start("kill -9 of tidegauge", store).await;
    while test.next_fault(5) {
        test.wait_for_some_acks(300).await;
        test.kill_and_restart(0).await;
    }
    test.audit().await;
}

#[tokio::test]
async fn sigterm_with_all_readings_pending() {
    terminated_with(Store::Sqlite, Store::Sqlite.setup_all_pending()).await;
}

async fn terminated(store: Store<'_>) {
    terminated_with(store, store.setup()).await;
}

/// After a clean stop under load the log has no readings.
async fn terminated_with(store: Store<'_>, setup: Setup) {
    let mut test = FaultTest::start_with_setup("SIGTERM under load", store, setup).await;
    while test.next_fault(5) {
        test.wait_for_some_acks(300).await;
        test.terminate(0).await;
        test.restart(0).await;
        let recovered = test.servers[0].metrics().await.count("tidegauge_readings_recovered_total");
        assert_eq!(recovered, 0, "the server exited with 0 and left readings in its log");
    }
    test.restart_with_setup(store.setup()).await; // flushes what is pending
    test.audit().await;
}
