//! An orderly end: each bucket is tried once, and the wait for it is limited.

use super::*;

#[tokio::test(start_paused = true)]
async fn an_orderly_end_writes_what_is_not_due_and_tries_each_bucket_once() {
    let stage = Stage::new(OPTIONS, ms(10), |write| (&*write.device == "refused").then(away));
    let running = stage.start().await;
    (0..10).for_each(|number| stage.put(&format!("device-{number}")));
    stage.put("refused");
    stage.pipeline.log.close();
    let begun = Instant::now();
    assert_eq!(running.drain(ms(12_345)).await, 1, "readings are left");
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
    assert_eq!((running.drain(ms(12_345)).await, begun.elapsed()), (1, ms(12_345)));
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
    assert_eq!(running.drain(ms(500_000)).await, 0);
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
    assert_eq!((running.drain(ms(60_000)).await, begun.elapsed()), (0, ms(16_000)));
}
