//! The state of a store that refuses some or all writes.

use futures_util::FutureExt;

use super::*;

fn is_silent(life: &Life) -> bool {
    life.pipeline.store_silent().now_or_never().is_some()
}

#[tokio::test]
async fn queries_ask_a_store_that_only_refuses_writes() {
    let gone = Arc::new(AtomicBool::new(true));
    let is_gone = Arc::clone(&gone);
    let fault = move |_: &BucketWrite| is_gone.load(Ordering::Relaxed).then(away);
    let life = Life::begin(&folder(), EAGER, Box::new(fault));
    life.append(0..2).await;
    until("the store has refused a write", || {
        assert!(!is_silent(&life));
        life.pipeline.store_away().is_some()
    })
    .await;
    until("it has refused more", || {
        assert!(!is_silent(&life));
        life.count(r#"tidegauge_flush_retries_total{reason="network"}"#) > 10
    })
    .await;

    gone.store(false, Ordering::Relaxed);
    life.settled().await;
    assert_eq!((life.pipeline.store_away(), is_silent(&life)), (None, false));
    assert_eq!(life.end(MINUTE).await, 0);
}

/// A cluster that has lost a shard acts like this store. The store refuses more devices than there may be
/// writes in flight.
#[tokio::test]
async fn a_store_that_takes_nothing_of_some_devices_is_away_and_takes_the_others() {
    const LOST: [&str; 4] = ["device-1", "device-3", "device-5", "device-7"];
    let gone = Arc::new(AtomicBool::new(true));
    let is_gone = Arc::clone(&gone);
    let fault =
        move |write: &BucketWrite| (LOST.contains(&&*write.device) && is_gone.load(Ordering::Relaxed)).then(away);
    let life = Life::begin(&folder(), EAGER, Box::new(fault));
    assert!(LOST.len() > life.pipeline.options.max_in_flight);
    let since = || life.pipeline.store_state.away().map(|(since, _)| since);
    let mut first = None;
    for batch in 0..100 {
        life.append(batch..batch + 1).await;
        let others = (0..=batch).filter(|batch| !LOST.contains(&&*format!("device-{}", batch % 10))).count() as u64;
        until("the others are stored", || life.count("tidegauge_readings_stored_total") == others * 3).await;
        first = first.or(since());
        assert_eq!((since(), is_silent(&life)), (first, false), "batch {batch}");
    }
    assert!(first.is_some());
    gone.store(false, Ordering::Relaxed);
    life.settled().await;
    assert_eq!((since(), life.stored().await), (None, 300));
    assert_eq!(life.end(MINUTE).await, 0);
}
