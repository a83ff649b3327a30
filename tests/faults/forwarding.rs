//! Readings are forwarded from one server to another, while either of them is killed and the connections
//! between them break. At the end, the other server has each acknowledged reading exactly once, too.

use super::fault_test::FaultTest;
use super::store::Store;
use crate::forward::relay::Relay;
use crate::harness::{Database, Server, wait_until};

#[tokio::test]
async fn kills_of_either_side_with_sqlite_at_the_centre() {
    killed(Store::Sqlite).await;
}

#[tokio::test]
async fn kills_of_either_side_with_mongodb_at_the_centre() {
    let database = Database::new();
    killed(Store::Mongodb(&database)).await;
}

async fn killed(store_of_centre: Store<'_>) {
    let mut centre = Server::start(store_of_centre.setup()).await;
    let relay = Relay::start().await;
    relay.lead_to(Some(centre.http_addr()));
    let setup = Store::Sqlite.setup().set("forward.url", relay.url()).set("forward.max_batch_bytes", "4KiB");
    let mut test = FaultTest::start_with_setup("forwarding, kill -9 of either side", Store::Sqlite, setup).await;
    while test.next_fault(6) {
        test.wait_for_some_acks(300).await;
        match test.random_below(4) {
            0 => test.kill_and_restart(0).await,
            1 => {
                centre.kill9();
                relay.lead_to(None);
                test.wait_for_some_acks(200).await;
                centre.start_again().await;
                relay.lead_to(Some(centre.http_addr()));
            }
            2 => relay.break_connections(),
            _ => {
                centre.kill9();
                test.kill(0);
                tokio::join!(centre.start_again(), test.restart(0));
                relay.lead_to(Some(centre.http_addr()));
            }
        }
    }
    test.settle().await;
    wait_until("all is forwarded", async || {
        (test.servers[0].metrics().await.count("tidegauge_forward_lag_bytes") == 0).then_some(())
    })
    .await;
    assert_eq!(test.servers[0].metrics().await.count("tidegauge_forward_refused_total"), 0);
    centre.settled().await;
    test.findings_at(&centre, store_of_centre).await.assert_none();
    test.audit().await;
}
