//! An instance among others, by the notes that they have in the store.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::log::BegunDeletion;
use crate::model::{Deletion, OperatorMetadata};

/// A stage whose store has the notes of instances.
fn sharing(notes: &Arc<KeptNotes>) -> Stage {
    Stage::with_notes(OPTIONS, Duration::ZERO, |_| None, Some(Arc::clone(notes)))
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_began_with_nothing_passes_earlier_deletions_although_an_answer_was_lost() {
    let notes = Arc::new(KeptNotes::default());
    notes.add_closed(1, "a");
    let stage = sharing(&notes);
    pass(ms(10)).await;
    notes.add_closed(2, "a");
    notes.loses_answers.store(true, Ordering::Relaxed);
    tokio::spawn(instances::run(Arc::clone(&stage.pipeline)));
    pass(ms(10)).await;
    notes.loses_answers.store(false, Ordering::Relaxed);
    pass(ms(1_000)).await;
    assert_eq!((notes.executed(), stage.pipeline.deletions.waiting()), (vec![1], 1), "it executes the later one");
}

/// The deletions in the log are behind the readings that have filled pending.
#[tokio::test(start_paused = true)]
async fn an_instance_whose_pending_is_full_gets_a_lease_although_many_deletions_wait_in_its_log() {
    let notes = Arc::new(KeptNotes::default());
    let limits = Limits { max_bytes: 1, ..OPTIONS.limits };
    let stage = Stage::with_notes(Options { limits, ..OPTIONS }, Duration::ZERO, |_| None, Some(Arc::clone(&notes)));
    let (waiting, deletion) = (deleter::MAX_WAITING, Arc::new(Deletion::of_device("a".into())));
    for id in 0..waiting as u64 {
        let begun = BegunDeletion { id, by: "test".into(), deletion: Arc::clone(&deletion), from: None };
        drop(stage.pipeline.deletions.add(&begun, deletions::Stage::Logged));
    }
    notes.add_closed(u64::MAX, "a");
    tokio::spawn(instances::run(Arc::clone(&stage.pipeline)));
    pass(ms(1_000)).await;
    assert_eq!(stage.pipeline.deletions.waiting(), waiting, "the feeder is about to reach some of them");
    stage.put("b");
    pass(ms(200)).await;
    assert_eq!(stage.pipeline.deletions.waiting(), waiting + 1);
    let pipeline = Arc::clone(&stage.pipeline);
    let gets_lease = move || {
        while !pipeline.peers.has_lease() {
            std::thread::yield_now();
        }
    };
    tokio::task::spawn_blocking(gets_lease).await.unwrap(); // the clock stands still meanwhile
    assert!(stage.pipeline.deletions.has_missed(), "nothing is stored before the feeder is done");
}

#[tokio::test(start_paused = true)]
async fn a_client_hears_of_absent_instances_although_the_answer_to_closing_its_deletion_was_lost() {
    let notes = Arc::new(KeptNotes::default());
    let stage = sharing(&notes);
    let own = std::fs::read_to_string(stage.folder.path().join("instance")).unwrap();
    let deletion = Arc::new(Deletion::of_device("a".into()));
    let begun = BegunDeletion { id: 7, by: "test".into(), deletion, from: None };
    let mut answer = stage.pipeline.deletions.add(&begun, deletions::Stage::Logged);
    stage.pipeline.deletions.note_executed(&begun, Ok(3), true);
    notes.add_executed(&begun, own.trim_end(), 3);
    notes.add_stopped("other", ms(2_000));
    notes.loses_closing.store(true, Ordering::Relaxed);
    tokio::spawn(instances::run(Arc::clone(&stage.pipeline)));
    pass(ms(1_000)).await;
    assert!(answer.try_recv().is_err(), "the other instance may still run");
    pass(ms(5_000)).await;
    let expected = DeletionOutcome::Executed { readings: 3, absent: vec!["other".into()] };
    assert_eq!(answer.try_recv().ok(), Some(expected));
}

#[tokio::test(start_paused = true)]
async fn an_end_stores_nothing_that_a_missed_deletion_removes_if_the_log_takes_no_more() {
    let notes = Arc::new(KeptNotes::default());
    let stage = sharing(&notes);
    notes.loses_answers.store(true, Ordering::Relaxed);
    let ended = || tokio::spawn(std::future::ready(()));
    let watcher = tokio::spawn(instances::run(Arc::clone(&stage.pipeline)));
    let running = Running {
        pipeline: Arc::clone(&stage.pipeline),
        feeder: std::thread::spawn(|| {}),
        scheduler: tokio::spawn(scheduler::run(Arc::clone(&stage.pipeline))),
        roller: ended(),
        others: [watcher, ended(), ended(), ended(), ended()],
    };
    stage.put("deleted");
    pass(ms(10)).await;
    notes.add_closed(7, "deleted");
    stage.pipeline.log.close();
    notes.loses_answers.store(false, Ordering::Relaxed);
    let begun = Instant::now();
    assert_eq!((running.drain(ms(500_000)).await.left, stage.noted()), (1, vec![]));
    assert!(begun.elapsed() <= ms(1_000), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_change_of_metadata_waits_for_the_store_unless_it_takes_no_metadata() {
    let gone = Arc::new(AtomicBool::new(true));
    let is_gone = Arc::clone(&gone);
    let fault = move |_: &BucketWrite| is_gone.load(Ordering::Relaxed).then(away);
    let stage = Stage::with_notes(OPTIONS, Duration::ZERO, fault, Some(Arc::default()));
    let devices: [Arc<str>; 1] = ["a".into()];
    let add = || {
        let device = Arc::clone(&devices[0]);
        stage.pipeline.lock().metadata.add(device, OperatorMetadata::default(), Position(0));
    };
    let waited = async || {
        let begun = Instant::now();
        stage.pipeline.metadata_seen(&devices, ms(2_000)).await;
        begun.elapsed()
    };
    stage.pipeline.announced.send_replace(stage.pipeline.log.usage().readable);
    add();
    store_state::note_failing(&stage.pipeline, &away()); // a write of readings
    assert!(waited().await >= ms(2_000));
    tokio::spawn(metadata::run(Arc::clone(&stage.pipeline)));
    assert!(waited().await >= ms(2_000), "the next attempt may succeed");
    assert_eq!(waited().await, ms(0), "the last attempt has failed");
    gone.store(false, Ordering::Relaxed);
    pass(ms(1_000)).await;
    assert!(stage.pipeline.lock().metadata.is_done());
    add(); // the saver does not hear of it
    assert!(waited().await >= ms(2_000));
}

#[tokio::test(start_paused = true)]
async fn without_a_lease_the_scheduler_sleeps_and_with_one_it_writes_at_once() {
    let notes = Arc::new(KeptNotes::default());
    let stage = sharing(&notes);
    tokio::spawn(scheduler::run(Arc::clone(&stage.pipeline)));
    stage.put("a");
    pass(ms(60_250)).await;
    let text = stage.exposition.render();
    let locks = text.lines().find_map(|line| line.strip_prefix("tidegauge_pending_lock_seconds_count "));
    let locks: u64 = locks.expect("the metric").parse().unwrap();
    assert!((100..1_000).contains(&locks), "{locks} in a minute");
    assert_eq!(stage.noted(), []);
    tokio::spawn(instances::run(Arc::clone(&stage.pipeline)));
    pass(ms(100)).await;
    assert_eq!(stage.noted().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn while_beats_are_slow_the_lease_is_longer_and_readings_are_stored_on_time() {
    let notes = Arc::new(KeptNotes::default());
    let stage = sharing(&notes);
    let path = stage.folder.path().join("lines");
    let lines = tracing_subscriber::fmt().with_ansi(false);
    let lines = lines.with_writer(Mutex::new(std::fs::File::create(&path).unwrap())).finish();
    let _lines_of_this_thread = tracing::subscriber::set_default(lines);
    *notes.beat_takes.lock().unwrap() = ms(10_000);
    tokio::spawn(scheduler::run(Arc::clone(&stage.pipeline)));
    tokio::spawn(instances::run(Arc::clone(&stage.pipeline)));
    pass(ms(30_000)).await;
    let mut expected = Vec::new();
    for number in 0..20 {
        let device = format!("device-{number}");
        stage.put(&device);
        expected.push((stage.pipeline.now_ms() + 1_000, device, 1));
        pass(ms(3_777)).await;
    }
    assert_eq!(stage.noted(), expected);
    let text = std::fs::read_to_string(path).unwrap();
    assert_eq!(text.matches("the lease was over before it began").count(), 1, "{text}");
}

#[tokio::test(start_paused = true)]
async fn no_lease_is_longer_than_the_last_beat_says_although_it_has_no_answer() {
    let notes = Arc::new(KeptNotes::default());
    let stage = sharing(&notes);
    let takes = |time| *notes.beat_takes.lock().unwrap() = time;
    takes(ms(10_000));
    let watcher = tokio::spawn(instances::run(Arc::clone(&stage.pipeline)));
    pass(ms(23_000)).await;
    takes(Duration::ZERO);
    pass(ms(2_000)).await;
    assert!(stage.pipeline.peers.has_lease() && notes.leases()[0] > ms(20_000), "{:?}", notes.leases());
    takes(ms(60_000));
    pass(ms(2_000)).await;
    watcher.abort();
    let lease = notes.leases()[0];
    assert!(lease < ms(9_000), "{lease:?}");
    pass(lease).await;
    assert!(!stage.pipeline.peers.has_lease());
}

#[tokio::test(start_paused = true)]
async fn the_store_is_away_while_looks_fail_and_there_is_no_lease() {
    let notes = Arc::new(KeptNotes::default());
    let stage = sharing(&notes);
    notes.refuses_beats.store(true, Ordering::Relaxed);
    tokio::spawn(instances::run(Arc::clone(&stage.pipeline)));
    let is = |up: u8, why: Option<&str>| {
        assert_eq!(stage.pipeline.store_away().map(|(_, why)| why).as_deref(), why);
        let text = stage.exposition.render();
        assert!(text.contains(&format!("\ntidegauge_store_up {up}\n")), "{text}");
    };
    pass(ms(10)).await;
    is(0, Some("not_primary: not primary"));
    notes.loses_answers.store(true, Ordering::Relaxed);
    notes.refuses_beats.store(false, Ordering::Relaxed);
    pass(ms(1_000)).await;
    is(0, Some("network: connection refused"));
    notes.loses_answers.store(false, Ordering::Relaxed);
    pass(ms(1_000)).await;
    is(1, None);
    notes.refuses_beats.store(true, Ordering::Relaxed);
    pass(ms(7_000)).await;
    is(1, None); // the lease of the last look still lasts
    pass(ms(3_000)).await;
    is(0, Some("not_primary: not primary"));
}

/// Each look takes 10 s, so the lease in the note is longer, unless it has to be short.
#[tokio::test(start_paused = true)]
async fn a_lease_is_short_while_an_earlier_beat_without_an_answer_may_take_effect() {
    let notes = Arc::new(KeptNotes::default());
    let stage = sharing(&notes);
    *notes.beat_takes.lock().unwrap() = ms(10_000);
    *notes.longest_command.lock().unwrap() = ms(32_000);
    tokio::spawn(instances::run(Arc::clone(&stage.pipeline)));
    pass(ms(31_000)).await; // it beats at 0, 12 and 24 s
    assert_eq!(notes.leases(), [ms(8_000)], "an earlier process may have a beat under way");
    pass(ms(6_000)).await; // and at 36 s
    assert!(notes.leases()[0] > ms(20_000), "{:?}", notes.leases());
    notes.loses_answers.store(true, Ordering::Relaxed);
    pass(ms(9_500)).await; // the answer is lost at 46 s
    notes.loses_answers.store(false, Ordering::Relaxed);
    pass(ms(30_500)).await; // it beats at 47, 59 and 71 s
    assert_eq!(notes.leases(), [ms(8_000)]);
    pass(ms(7_000)).await; // and at 83 s
    assert!(notes.leases()[0] > ms(20_000), "{:?}", notes.leases());
    notes.refuses_beats.store(true, Ordering::Relaxed);
    pass(ms(9_500)).await; // the beat is refused at 93 s
    notes.refuses_beats.store(false, Ordering::Relaxed);
    pass(ms(1_000)).await; // and at 94 s
    assert!(notes.leases()[0] > ms(20_000), "no refused beat takes effect: {:?}", notes.leases());
}
