//! tidegauge ends under load: by `kill -9` at random moments, and by SIGTERM.

use super::siege::Siege;
use super::store::Store;
use crate::harness::Database;

#[tokio::test]
async fn kill_9_with_sqlite() {
    killed(Store::Sqlite).await;
}

#[tokio::test]
async fn kill_9_with_mongodb() {
    killed(Store::Mongodb(&Database::new())).await;
}

#[tokio::test]
async fn kill_9_with_mongodb_timeseries() {
    killed(Store::Timeseries(&Database::new())).await;
}

async fn killed(store: Store<'_>) {
    let mut siege = Siege::begin("kill -9 of tidegauge", store).await;
    while siege.goes_on(5) {
        siege.some_acked(300).await;
        siege.kill_and_restart(0).await;
    }
    siege.audit().await;
}

#[tokio::test]
async fn sigterm_with_sqlite() {
    terminated(Store::Sqlite).await;
}

#[tokio::test]
async fn sigterm_with_mongodb() {
    terminated(Store::Mongodb(&Database::new())).await;
}

#[tokio::test]
async fn sigterm_with_mongodb_timeseries() {
    terminated(Store::Timeseries(&Database::new())).await;
}

/// After a clean stop under load nothing is left in the log.
async fn terminated(store: Store<'_>) {
    let mut siege = Siege::begin("SIGTERM under load", store).await;
    while siege.goes_on(5) {
        siege.some_acked(300).await;
        siege.terminate(0).await;
        siege.restart(0).await;
        let recovered = siege.servers[0].metrics().await.count("tidegauge_readings_recovered_total");
        assert_eq!(recovered, 0, "it ended with 0 and left readings in its log");
    }
    siege.audit().await;
}
