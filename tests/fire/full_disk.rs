//! The disk of the log is full, mostly in the middle of a record, and has space again later. What finds no space is refused,
//! and does not come back, even when tidegauge is killed while the disk is full.

use super::siege::Siege;
use super::store::Store;
use crate::harness::{Database, Server, wait_until};

const DISK_MEBIBYTES: usize = 8;

#[tokio::test]
async fn the_disk_of_the_log_is_full_with_sqlite() {
    filled(Store::Sqlite).await;
}

#[tokio::test]
async fn the_disk_of_the_log_is_full_with_mongodb() {
    filled(Store::Mongodb(&Database::new())).await;
}

async fn filled(store: Store<'_>) {
    let server = Server::start_with_disk_of_log(store.setup(), DISK_MEBIBYTES).await;
    let mut siege = Siege::begin_with("disk of the log full", store, store.rule(), vec![server]);
    while siege.goes_on(4) {
        siege.some_acked(300).await;
        let refused = siege.totals().refused_requests;
        let spare = siege.one_of(40_000) as u64;
        siege.servers[0].disk().fill(spare);
        wait_until("requests are refused", async || (siege.totals().refused_requests > refused + 5).then_some(()))
            .await;
        if siege.one_of(2) == 0 {
            siege.kill(0);
            siege.servers[0].disk().free();
            siege.restart(0).await;
        } else {
            siege.servers[0].disk().free();
        }
    }
    siege.audit().await;
}
