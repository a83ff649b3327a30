//! An orderly end: each bucket is tried once, and the end does not wait longer than it may.

use super::*;
use crate::log::BegunDeletion;
use crate::model::{Deletion, SeriesFilter};
use crate::store::Cause;

#[tokio::test(start_paused = true)]
async fn an_orderly_end_writes_what_is_not_due_and_tries_each_bucket_once() {
    let stage = Stage::new(OPTIONS, ms(10), |write| (&*write.device == "refused").then(away));
    let running = stage.start().await;
    (0..10).for_each(|number| stage.put(&format!("device-{number}")));
    stage.put("refused");
    stage.pipeline.log.close();
    let begun = Instant::now();
    let drained = running.drain(ms(12_345)).await;
    assert_eq!((drained.left, drained.store_away), (1, Some("network: connection refused".to_owned())));
    assert!(begun.elapsed() <= ms(100), "{:?}", begun.elapsed());
    let stored = stage.noted().into_iter().filter(|(_, device, _)| device != "refused");
    let at_ms: Vec<_> = stored.map(|(at_ms, ..)| at_ms).collect();
    assert_eq!(at_ms, [0, 0, 10, 10, 20, 20, 30, 30, 40, 40]);
}

#[tokio::test(start_paused = true)]
async fn an_orderly_end_gives_up_exactly_at_its_deadline() {
    let stage = Stage::new(OPTIONS, ms(1_000_000), |_| None);
    let running = stage.start().await;
    stage.put("hangs");
    stage.pipeline.log.close();
    let begun = Instant::now();
    assert_eq!((running.drain(ms(12_345)).await.left, begun.elapsed()), (1, ms(12_345)));
}

#[tokio::test(start_paused = true)]
async fn an_orderly_end_does_not_wait_for_a_retry() {
    let attempts = AtomicU32::new(0);
    let options = Options { retry: ms(1_000_000)..=ms(1_000_000), ..OPTIONS };
    let stage = Stage::new(options, Duration::ZERO, move |_: &BucketWrite| {
        (attempts.fetch_add(1, Ordering::Relaxed) == 0).then(away)
    });
    let running = stage.start().await;
    stage.put("a");
    pass(ms(60_000)).await;
    assert!(stage.pipeline.store_away().is_some(), "it waits for the retry");
    stage.pipeline.log.close();
    let begun = Instant::now();
    assert_eq!(running.drain(ms(500_000)).await.left, 0);
    assert!(begun.elapsed() <= ms(100), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_orderly_end_tries_once_more_what_fails_in_an_attempt_from_before() {
    let attempts = AtomicU32::new(0);
    let stage = Stage::new(OPTIONS, ms(10_000), move |_: &BucketWrite| {
        (attempts.fetch_add(1, Ordering::Relaxed) == 0).then(away)
    });
    let running = stage.start().await;
    stage.put("a");
    pass(ms(5_000)).await; // the attempt of the first second is under way
    stage.pipeline.log.close();
    let begun = Instant::now();
    assert_eq!((running.drain(ms(60_000)).await.left, begun.elapsed()), (0, ms(16_000)));
}

#[tokio::test(start_paused = true)]
async fn an_orderly_end_waits_shortly_for_a_store_that_was_away_and_then_hangs() {
    let attempts = AtomicU32::new(0);
    let stage = Stage::new(OPTIONS, ms(10_000), move |_: &BucketWrite| {
        (attempts.fetch_add(1, Ordering::Relaxed) == 0).then(away)
    });
    let running = stage.start().await;
    stage.put("a");
    pass(ms(12_000)).await; // the second attempt is under way
    assert!(stage.pipeline.store_away().is_some());
    stage.pipeline.log.close();
    let begun = Instant::now();
    let drained = running.drain(ms(500_000)).await;
    assert_eq!((drained.left, drained.store_away), (1, Some("network: connection refused".to_owned())));
    assert!(begun.elapsed() <= 2 * STORE_WAIT, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_orderly_end_writes_on_while_a_store_that_was_away_stores_something() {
    let attempts = AtomicU32::new(0);
    let stage = Stage::new(OPTIONS, ms(1_500), move |_: &BucketWrite| {
        (attempts.fetch_add(1, Ordering::Relaxed) == 0).then(away)
    });
    let running = stage.start().await;
    stage.put("device-0");
    pass(ms(2_600)).await; // the first attempt has failed
    assert!(stage.pipeline.store_away().is_some());
    (1..20).for_each(|number| stage.put(&format!("device-{number}")));
    stage.pipeline.log.close();
    let begun = Instant::now();
    let drained = running.drain(ms(500_000)).await;
    assert_eq!((drained.left, drained.store_away), (0, None));
    assert!(begun.elapsed() > 2 * STORE_WAIT, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_orderly_end_does_not_wait_for_the_dead_letter_file() {
    let stage = Stage::new(OPTIONS, ms(10), |write| {
        (&*write.device == "refused").then(|| StoreError::new(Cause::Validation, "no"))
    });
    std::fs::create_dir(stage.folder.path().join("dead-letters.ndjson")).unwrap(); // so it cannot be written
    let running = stage.start().await;
    (0..10).for_each(|number| stage.put(&format!("device-{number}")));
    stage.put("refused");
    stage.pipeline.log.close();
    let begun = Instant::now();
    let drained = running.drain(ms(500_000)).await;
    assert_eq!((drained.left, drained.store_away), (1, None));
    assert!(begun.elapsed() <= ms(1_000), "{:?}", begun.elapsed());
}

/// The deletion blocks a bucket of its device. Both stay in the log.
#[tokio::test(start_paused = true)]
async fn an_orderly_end_does_not_wait_for_a_deletion_that_fails() {
    let stage = Stage::new(OPTIONS, ms(10), |write| (write.accepted == 0).then(away));
    let running = stage.start().await;
    let deletion = Deletion { device: "deleted".into(), range_ms: None, series: SeriesFilter::ALL };
    let begun = BegunDeletion { id: 7, by: "test".into(), deletion: deletion.into(), from: None };
    stage.pipeline.lock().pending.begin_deletion(begun, std::collections::BTreeSet::new(), Position(0), 0);
    stage.pipeline.lock().pending.end_erasure(7);
    stage.put("deleted");
    (0..10).for_each(|number| stage.put(&format!("device-{number}")));
    stage.pipeline.deletions.reached.notify_one();
    stage.pipeline.log.close();
    let begun = Instant::now();
    assert_eq!(running.drain(ms(500_000)).await.left, 1);
    assert!(begun.elapsed() <= ms(1_000), "{:?}", begun.elapsed());
    assert_eq!(stage.noted().iter().filter(|(_, device, _)| device.starts_with("device-")).count(), 10);
}
