//! Readings are forwarded from one server to another, while either of them is killed and the connections
//! between them break. At the end, the other server has each acknowledged reading exactly once, too.

use super::fault_test::FaultTest;
use super::store::Store;
use crate::forward::relay::Relay;
use crate::harness::{Database, Server, wait_for, wait_until};

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
    audit_both(test, &centre, store_of_centre).await;
}

/// Steps of the edge's clock of ten minutes: two hours.
const STEPS: u64 = 12;
const STEP_S: i64 = 600;

#[tokio::test]
async fn an_outage_of_two_hours_with_kills_loses_and_doubles_nothing() {
    let mut centre = Server::start(Store::Sqlite.setup()).await;
    let relay = Relay::start().await;
    relay.lead_to(Some(centre.http_addr()));
    let setup = Store::Sqlite.setup().set("forward.url", relay.url()).set("forward.max_batch_bytes", "4KiB");
    let edge = Server::start_with_clock(setup).await;
    let what = "forwarding, an outage of two hours and kill -9 of either side";
    let mut test = FaultTest::start_on(what, Store::Sqlite, Store::Sqlite.rule(), vec![edge]);
    test.wait_for_acks(100).await;
    relay.lead_to(None);
    centre.kill9();
    for step in 1..=STEPS as i64 {
        assert!(test.next_fault(STEPS), "the outage has a step of the clock at least");
        test.wait_for_some_acks(300).await;
        test.servers[0].clock().set(step * STEP_S);
        if step % 4 == 0 {
            test.kill_and_restart(0).await;
        }
    }
    test.wait_for_acks(100).await;
    wait_until("the oldest reading has waited for two hours", async || {
        let lag = test.servers[0].metrics().await.value("tidegauge_forward_lag_seconds")?;
        (lag >= (STEPS as i64 * STEP_S) as f64).then_some(())
    })
    .await;
    centre.start_again().await;
    relay.lead_to(Some(centre.http_addr()));
    for _ in 0..2 {
        test.wait_for_some_acks(100).await;
        centre.kill9();
        relay.lead_to(None);
        test.kill_and_restart(0).await;
        centre.start_again().await;
        relay.lead_to(Some(centre.http_addr()));
    }
    audit_both(test, &centre, Store::Sqlite).await;
}

/// Ends a test when all is forwarded, with an audit of both sides.
pub(super) async fn audit_both(mut test: FaultTest<'_>, centre: &Server, store_of_centre: Store<'_>) {
    test.settle().await;
    // The forwarder looks at the log once a second, so its lag does not tell yet that it has all.
    wait_for("the centre has what the site acknowledged", async || {
        centre.settled().await;
        test.findings_at(centre, store_of_centre).await.none()
    })
    .await;
    assert_eq!(test.servers[0].metrics().await.count("tidegauge_forward_refused_total"), 0);
    test.audit().await;
}
