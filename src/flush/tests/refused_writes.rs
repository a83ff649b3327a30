//! Queries of a store that refuses writes.

use super::*;

#[tokio::test]
async fn queries_ask_a_store_that_only_refuses_writes() {
    let gone = Arc::new(AtomicBool::new(true));
    let is_gone = Arc::clone(&gone);
    let fault = move |_: &BucketWrite| is_gone.load(Ordering::Relaxed).then(away);
    let life = Life::begin(&folder(), EAGER, Box::new(fault));
    let of = |life: &Life| [life.pipeline.store_away(), life.pipeline.store_unanswering()].map(|away| away.is_some());
    life.append(0..2).await;
    until("the store has refused a write and answered a probe", || of(&life) == [true, false]).await;

    gone.store(false, Ordering::Relaxed);
    life.settled().await;
    assert_eq!(of(&life), [false, false]);
    assert_eq!(life.end(MINUTE).await, 0);
}
