//! When writes are made, to the millisecond, by a clock that moves only while everything waits for it.
//!
//! The tests insert readings into pending in place of the feeder. All other parts are those of the service.

use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use super::scheduler::MAX_SLEEP;
use super::stop::STORE_WAIT;
use super::tests::notes::KeptNotes;
use super::tests::{Faulty, away};
use super::*;
use crate::log::{BatchBuilder, Followed, Instruments};
use crate::model::BucketWrite;
use crate::store::StoreError;
use crate::store::sqlite::SqliteStore;
use crate::telemetry::Exposition;

mod orderly_end;
mod shared;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Buckets are due by age only, after a second; two writes of one bucket each are under way at most.
const OPTIONS: Options = Options {
    limits: Limits { max_bytes: 1 << 30, max_readings: 1 << 20, max_age: ms(1_000) },
    gather: Duration::ZERO,
    max_in_flight: 2,
    max_buckets_per_write: 1,
    max_write_bytes: 1 << 20,
    closing: Closing::Daily,
    rollup_delay: ms(60_000),
    rollup_progress: PathBuf::new(),
    closed_hours: PathBuf::new(),
    instance: PathBuf::new(),
    retry: ms(100)..=ms(1_600),
    clock: Clock::system(), // a stage has a clock of its own
};

/// A write that reached the store: when, in milliseconds, of which device, how many readings.
type Noted = (u64, String, u32);

struct Stage {
    pipeline: Arc<Pipeline>,
    noted: Arc<Mutex<Vec<Noted>>>,
    readings: AtomicU32,
    clock: Clock,
    exposition: Exposition,
    folder: TempDir,
}

impl Stage {
    /// Creates a pipeline whose store takes this long for a write, and refuses it with the error of `fault`.
    fn new(
        options: Options,
        takes: Duration,
        fault: impl Fn(&BucketWrite) -> Option<StoreError> + Send + std::marker::Sync + 'static,
    ) -> Self {
        Self::with_notes(options, takes, fault, None)
    }

    /// Creates a pipeline like [`Self::new`], whose store may have notes of instances.
    fn with_notes(
        options: Options,
        takes: Duration,
        fault: impl Fn(&BucketWrite) -> Option<StoreError> + Send + std::marker::Sync + 'static,
        notes: Option<Arc<KeptNotes>>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::fixed(0);
        let options = Options { clock: clock.clone(), instance: folder.path().join("instance"), ..options };
        let log = crate::log::Options::of_test(folder.path().join("log"));
        let log = crate::log::Options { segment_bytes: 1 << 16, max_bytes: 1 << 20, ..log };
        let (log, recovery) = Log::open(log, Instruments::default()).unwrap();
        let noted: Arc<Mutex<Vec<Noted>>> = Arc::default();
        let (started, to) = (Instant::now(), Arc::clone(&noted));
        let note = move |write: &BucketWrite| {
            let at_ms = started.elapsed().as_millis() as u64;
            to.lock().unwrap().push((at_ms, write.device.to_string(), write.accepted));
            fault(write)
        };
        let store = SqliteStore::open(&folder.path().join("tidegauge.sqlite")).unwrap();
        let store = Arc::new(Faulty { store, fault: Box::new(note), takes, rollups: None, notes });
        let dead_letters = DeadLetters::new(folder.path().join("dead-letters.ndjson"), 1 << 20, Clock::system());
        let (metrics, exposition) = Metrics::new();
        let pipeline =
            Pipeline::new(options, Arc::new(log), &recovery, store, dead_letters, Arc::new(metrics)).unwrap();
        Self { pipeline, noted, readings: AtomicU32::new(0), clock, exposition, folder }
    }

    /// Creates a pipeline like [`Self::new`], and starts its scheduler.
    fn running(
        options: Options,
        takes: Duration,
        fault: impl Fn(&BucketWrite) -> Option<StoreError> + Send + std::marker::Sync + 'static,
    ) -> Self {
        let stage = Self::new(options, takes, fault);
        tokio::spawn(scheduler::run(Arc::clone(&stage.pipeline)));
        stage
    }

    /// Starts all tasks, and waits until the feeder has read the log.
    ///
    /// An orderly end waits for the feeder too. The feeder has a thread of its own, so the clock would move
    /// while the tasks wait for the feeder.
    async fn start(&self) -> Running {
        let running = self.pipeline.start().unwrap();
        let pipeline = Arc::clone(&self.pipeline);
        let has_read = move || {
            let readable = pipeline.log.usage().readable;
            pipeline.log.read_up_to(readable);
            while pipeline.lock().inserted < readable {
                std::thread::yield_now();
            }
        };
        tokio::task::spawn_blocking(has_read).await.unwrap(); // the clock stands still meanwhile
        running
    }

    /// Puts one reading of a device into pending, and does what the feeder does then.
    fn put(&self, device: &str) {
        self.put_at(Position(0), device);
    }

    /// Puts one reading into pending like [`Self::put`], as if its record were at this position of the log.
    fn put_at(&self, position: Position, device: &str) {
        let number = self.readings.fetch_add(1, Ordering::Relaxed);
        let mut batch = BatchBuilder::default();
        batch.push(device, None, number.into(), [("m", 1.0)].into_iter()).unwrap();
        let mut state = self.pipeline.lock();
        state.pending.insert(batch.finish().payload(), position, self.pipeline.now_ms()).unwrap();
        if state.wakes_scheduler() {
            self.pipeline.due.notify_one();
        }
    }

    /// Lets time pass on both clocks.
    async fn pass(&self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            let step = ms(50).min(end - Instant::now());
            self.clock.set(self.clock.now_ms() + step.as_millis() as i64);
            tokio::time::sleep(step).await;
        }
    }

    /// Returns how many buckets were taken for this reason.
    fn taken(&self, reason: &str) -> u64 {
        let wanted = format!("tidegauge_flush_buckets_total{{reason=\"{reason}\"}} ");
        let text = self.exposition.render();
        text.lines().find_map(|line| line.strip_prefix(&wanted)?.parse().ok()).expect("the metric")
    }

    fn noted(&self) -> Vec<Noted> {
        self.noted.lock().unwrap().clone()
    }
}

async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

#[tokio::test(start_paused = true)]
async fn a_bucket_is_written_exactly_when_its_first_reading_is_as_old_as_max_age() {
    let stage = Stage::running(OPTIONS, Duration::ZERO, |_| None);
    let mut expected = Vec::new();
    for (number, wait) in [3, 1, 0, 499, 500, 501, 999, 1_000, 1_001, 7_777].into_iter().enumerate() {
        pass(ms(wait)).await;
        stage.put(&format!("device-{number}"));
        expected.push((stage.pipeline.now_ms() + 1_000, format!("device-{number}"), 2));
        pass(ms(1)).await;
        stage.put(&format!("device-{number}")); // a second reading does not make the bucket younger
    }
    pass(ms(1_000)).await;
    assert_eq!(stage.pipeline.status().oldest_pending, Duration::ZERO);
    assert_eq!(stage.noted(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_bucket_is_not_late_because_an_older_one_waits_for_its_flight() {
    let stage = Stage::running(OPTIONS, ms(5_000), |_| None);
    stage.put("slow");
    pass(ms(1_001)).await; // the write of the first bucket is under way
    stage.put("slow");
    pass(ms(100)).await;
    stage.put("other");
    pass(ms(20_000)).await;
    let other = (1_001 + 100 + 1_000, "other".to_owned(), 1);
    assert_eq!(stage.noted(), [(1_000, "slow".to_owned(), 1), other, (6_000, "slow".to_owned(), 1)]);
}

#[tokio::test(start_paused = true)]
async fn while_memory_is_short_the_oldest_go_first_and_no_more_than_needed() {
    let limits = Limits { max_bytes: 4_000, ..OPTIONS.limits };
    let stage = Stage::running(Options { limits, max_in_flight: 1, ..OPTIONS }, ms(1), |_| None);
    let devices: Vec<String> = (0..40).map(|number| format!("device-{number}")).collect();
    for device in &devices {
        stage.put(device);
        pass(ms(1)).await;
    }
    pass(ms(100)).await;
    let early: Vec<_> = stage.noted().into_iter().map(|(_, device, _)| device).collect();
    assert!(!early.is_empty() && early == devices[..early.len()], "{early:?}");
    let left = stage.pipeline.status().pending_bytes;
    assert!((2_500..=3_000).contains(&left), "{left} bytes of 4,000 are left");
    pass(ms(1_000)).await;
    assert_eq!(stage.noted().len(), devices.len());
}

#[tokio::test(start_paused = true)]
async fn the_feeder_hears_at_once_that_a_bucket_with_very_many_values_was_taken() {
    let stage = Stage::running(OPTIONS, ms(60_000), |_| None);
    stage.pipeline.lock().pending.max_values = 1;
    let room = stage.pipeline.completed.notified();
    stage.put("a");
    assert!(stage.pipeline.with_pending(Pending::is_full));
    assert!(tokio::time::timeout(ms(10), room).await.is_ok(), "long before the end of the write");
    assert!(!stage.pipeline.with_pending(Pending::is_full));
}

#[tokio::test(start_paused = true)]
async fn of_one_bucket_one_write_is_under_way_at_most_and_what_comes_meanwhile_goes_with_the_next() {
    let limits = Limits { max_readings: 3, ..OPTIONS.limits };
    let stage = Stage::running(Options { limits, ..OPTIONS }, ms(700), |_| None);
    for _ in 0..40 {
        stage.put("a");
        pass(ms(100)).await;
    }
    pass(ms(10_000)).await;
    let noted = stage.noted();
    let times: Vec<_> = noted.iter().map(|(at_ms, ..)| *at_ms).collect();
    // The first bucket is full after three readings. The next ones are full while the write before is in
    // flight, and are taken at its end. The last one is due by its age.
    assert_eq!(times[..5], [200, 900, 1_600, 2_300, 3_000]);
    assert!(times.windows(2).all(|pair| pair[0] + 700 <= pair[1]), "{times:?}");
    assert_eq!(noted.iter().map(|(.., readings)| readings).sum::<u32>(), 40);
}

#[tokio::test(start_paused = true)]
async fn retries_wait_half_to_all_of_a_wait_that_doubles_up_to_its_limit_and_begins_anew_after_a_success() {
    let attempts = AtomicU32::new(0);
    let fault = move |_: &BucketWrite| (attempts.fetch_add(1, Ordering::Relaxed) % 9 != 8).then(away);
    let stage = Stage::running(OPTIONS, Duration::ZERO, fault);
    for _ in 0..5 {
        stage.put("a");
        pass(ms(60_000)).await;
        let times: Vec<_> = stage.noted.lock().unwrap().drain(..).map(|(at_ms, ..)| at_ms).collect();
        let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let waits = [100, 200, 400, 800, 1_600, 1_600, 1_600, 1_600];
        assert_eq!(gaps.len(), waits.len(), "{times:?}");
        // The upper bound has one more millisecond, because the times are whole milliseconds.
        let holds = gaps.iter().zip(waits).all(|(&gap, wait)| (wait / 2..=wait + 1).contains(&gap));
        assert!(holds, "{gaps:?}");
        assert_eq!(stage.pipeline.store_away(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn waits_begin_anew_when_the_store_takes_a_part_of_a_write() {
    let attempts = AtomicU32::new(0);
    let fault = move |write: &BucketWrite| match &*write.device {
        "never" => Some(away()),
        _ => (attempts.fetch_add(1, Ordering::Relaxed) < 4).then(away),
    };
    let stage = Stage::running(Options { max_buckets_per_write: 2, ..OPTIONS }, Duration::ZERO, fault);
    stage.put("after four");
    stage.put("never");
    pass(ms(5_000)).await;
    let times: Vec<_> =
        stage.noted().iter().filter(|(_, device, _)| device == "never").map(|(at_ms, ..)| *at_ms).collect();
    let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (gap, wait) in gaps.iter().zip([100, 200, 400, 800, 100, 200, 400]) {
        assert!((wait / 2..=wait + 1).contains(gap), "{gaps:?}");
    }
    assert!(gaps.len() >= 7, "{gaps:?}");
}

/// Returns how many buckets were written in each interval, by the times of the writes.
fn per_interval(noted: &[Noted], interval_ms: u64) -> Vec<usize> {
    let last = noted.last().map_or(0, |(at_ms, ..)| at_ms / interval_ms);
    (0..=last).map(|interval| noted.iter().filter(|(at_ms, ..)| at_ms / interval_ms == interval).count()).collect()
}

#[tokio::test(start_paused = true)]
async fn buckets_that_are_due_within_the_window_share_a_command_and_none_waits_longer_than_max_age() {
    let options = Options { gather: ms(100), max_buckets_per_write: 100, max_in_flight: 8, ..OPTIONS };
    let stage = Stage::running(options, Duration::ZERO, |_| None);
    let mut put = Vec::new();
    for number in 0..300 {
        put.push(stage.pipeline.now_ms());
        stage.put(&format!("device-{number}"));
        pass(ms(3 + number % 13)).await;
    }
    let took_ms = stage.pipeline.now_ms();
    pass(ms(1_000)).await;
    let noted = stage.noted();
    assert_eq!(noted.len(), 300);
    for ((at_ms, device, _), put_ms) in noted.iter().zip(put) {
        assert!((900..=1_000).contains(&(at_ms - put_ms)), "{device} was written after {} ms", at_ms - put_ms);
    }
    let mut times: Vec<_> = noted.into_iter().map(|(at_ms, ..)| at_ms).collect();
    times.dedup();
    assert!(times.len() as u64 <= took_ms / 100 + 1, "{} commands in {took_ms} ms", times.len());
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] > 100), "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn an_ended_hour_of_a_small_fleet_is_written_at_once_and_without_max_age_it_waits() {
    let limits = Limits { max_age: ms(1_000_000), ..OPTIONS.limits };
    let options = Options { limits, gather: ms(1_000), max_buckets_per_write: 100, ..OPTIONS };
    let stage = Stage::running(options, Duration::ZERO, |_| None);
    stage.clock.set(3_600_000 - 400_000);
    (0..40).for_each(|number| stage.put(&format!("device-{number}")));
    stage.pass(ms(429_900)).await;
    assert_eq!(stage.noted(), [], "the last readings of the hour are on their way");
    stage.pass(ms(700)).await;
    let noted = stage.noted();
    assert!(noted.len() == 40 && noted.iter().all(|(at_ms, ..)| *at_ms == noted[0].0), "{noted:?}");
    stage.put("late");
    stage.pass(ms(299_500)).await;
    assert_eq!(stage.noted().len(), 40, "more late readings are likely");
    stage.pass(ms(1_100)).await;
    assert_eq!(stage.noted().len(), 41);
    // The clock is set back: the hour has not ended, and the bucket waits for its age.
    stage.clock.set(0);
    // An idle scheduler looks at the clock every ten seconds.
    stage.pass(ms(10_100)).await;
    stage.put("in an hour that is back");
    stage.pass(ms(999_900)).await;
    assert_eq!(stage.noted().len(), 41);
    stage.pass(ms(200)).await;
    assert_eq!(stage.noted().len(), 42);
}

#[tokio::test(start_paused = true)]
async fn an_ended_hour_of_a_large_fleet_is_written_at_a_pace() {
    // A hundred seconds for the turns of the hour, so five of 500 buckets a second, and at least two.
    let limits = Limits { max_age: ms(300_000), ..OPTIONS.limits };
    let options = Options { limits, gather: ms(1_000), max_buckets_per_write: 2, max_in_flight: 1, ..OPTIONS };
    let stage = Stage::running(options, Duration::ZERO, |_| None);
    stage.clock.set(3_600_000 - 100_000);
    (0..500).for_each(|number| stage.put(&format!("device-{number:03}")));
    stage.pass(ms(300_100)).await;
    let noted = stage.noted();
    let paced: Vec<_> = noted.iter().filter(|(at_ms, ..)| *at_ms < 299_000).cloned().collect();
    assert!((130_000..131_000).contains(&noted[0].0), "it began at {} ms", noted[0].0);
    assert!(noted.iter().map(|(_, device, _)| device).is_sorted(), "in the order of the age");
    let mut waiting = 500;
    for (second, buckets) in per_interval(&paced, 1_000).into_iter().enumerate().skip(131) {
        assert!(buckets >= 2.min(waiting), "{buckets} buckets in second {second}");
        assert!(buckets <= waiting.div_ceil(100).max(2) + 1, "{buckets} of {waiting} buckets in second {second}");
        waiting -= buckets;
    }
    assert_eq!(noted.len(), 500, "what has had no turn is written by age");
    let (turns, age) = (stage.taken("hour"), stage.taken("age"));
    assert!(turns as usize >= paced.len() && age > 0 && turns + age == 500, "{turns} and {age}");
}

#[tokio::test(start_paused = true)]
async fn a_log_that_runs_short_is_relieved_of_its_oldest_readings_before_it_is_full() {
    let stage = Stage::running(Options { max_buckets_per_write: 100, ..OPTIONS }, Duration::ZERO, |_| None);
    // The log takes a MiB. The readings of a and b are at its beginning, as far as the scheduler knows.
    let mut batch = BatchBuilder::default();
    for number in 0..50_000 {
        batch.push("c", None, number, [("m", 1.0)].into_iter()).unwrap();
    }
    stage.pipeline.log.append(batch.finish()).unwrap().durable().await.unwrap();
    let usage = stage.pipeline.log.usage();
    assert!((Position(1)..Position(300_000)).contains(&usage.short_before) && !usage.is_full, "{usage:?}");
    let put_ms = stage.pipeline.now_ms(); // time has passed, while the writer of the log was at work
    stage.put("a");
    stage.put("b");
    pass(MAX_SLEEP + ms(100)).await;
    let early: Vec<_> = stage.noted().into_iter().map(|(at_ms, ..)| at_ms - put_ms).collect();
    assert!(early.len() == 2 && early.iter().all(|&waited_ms| waited_ms <= 600), "{early:?}");
    assert_eq!((stage.taken("log"), stage.taken("age")), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn buckets_are_written_at_once_while_the_log_is_full_unless_only_forwarding_can_make_space() {
    let stage = Stage::running(OPTIONS, Duration::ZERO, |_| None);
    let log = &stage.pipeline.log;
    log.follow(Followed { position: Position(0), as_of_ms: 0 }).unwrap();
    let mut batch = BatchBuilder::default();
    for number in 0..4_000 {
        batch.push("c", None, number, [("m", 1.0)].into_iter()).unwrap();
    }
    let batch = batch.finish();
    while let Ok(mut ack) = log.append(batch.clone()) {
        ack.durable().await.unwrap();
    }
    let end = log.usage().readable;
    assert!(log.usage().is_full && log.usage().held_to < end, "{:?}", log.usage());
    stage.pipeline.lock().inserted = end; // all readings before are stored
    let put_ms = stage.pipeline.now_ms();
    stage.put_at(end, "a");
    pass(ms(1_100)).await;
    assert_eq!(stage.noted(), [(put_ms + 1_000, "a".to_owned(), 1)]);
    assert_eq!((stage.taken("log"), stage.taken("age")), (0, 1));
    log.save_followed(Followed { position: end, as_of_ms: 0 }).unwrap();
    stage.put_at(end, "b");
    pass(ms(1)).await;
    assert_eq!((stage.taken("log"), stage.taken("age")), (1, 1));
}
