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
