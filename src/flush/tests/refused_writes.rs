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

/// The names of readings that are stored fill pending by themselves: first in the middle of a record.
#[tokio::test]
async fn names_hold_up_no_readings_while_a_bucket_waits_for_the_dead_letter_file() {
    let folder = folder();
    let file = folder.path().join("dead-letters.ndjson");
    std::fs::create_dir(&file).unwrap(); // so it cannot be written
    let fault = |write: &BucketWrite| (&*write.device == "bad").then(|| StoreError::new(Cause::Validation, "no"));
    let life = Life::begin(&folder, Limits { max_bytes: 16 << 10, ..EAGER }, Box::new(fault));
    let append = async |device: &str, names: Range<u32>, instants: Range<i64>| {
        let names: Vec<String> = names.map(|name| format!("{name:0100}")).collect();
        let mut batch = BatchBuilder::default();
        for ts_ms in instants {
            batch.push(device, None, ts_ms, names.iter().map(|name| (name.as_str(), 1.0))).unwrap();
        }
        life.log.append(batch.finish()).unwrap().durable().await.unwrap();
    };
    append("bad", 0..20, 0..5).await;
    let is_parked = || life.pipeline.waiting_letters.try_lock().is_ok_and(|waiting| !waiting.is_empty());
    until("the bucket waits", is_parked).await;
    let are_others_stored = || life.pipeline.status().pending_readings == 5;
    append("good", 20..320, 0..20).await;
    until("the whole record is stored", are_others_stored).await;
    append("good", 20..21, 20..21).await;
    until("the next one is stored", are_others_stored).await;
    assert_eq!(life.count("tidegauge_readings_stored_total"), 21);

    std::fs::remove_dir(&file).unwrap();
    life.settled().await;
    assert_eq!(life.end(MINUTE).await, 0);
}
