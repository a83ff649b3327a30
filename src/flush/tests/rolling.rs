//! Hours are rolled up when they close, and again when readings come late.
//!
//! The store is a real one; its rollups are kept here, derived from what it holds, so that they can fail at
//! will.

use std::collections::BTreeMap;

use super::super::roller::Roller;
use super::super::rollup_progress::RollupProgress;
use super::*;
use crate::model::{Sample, Stats};

type ByBucket = BTreeMap<(Arc<str>, Hour), Vec<(Metric, Stats)>>;

/// Rollups that outlive the lives of the service.
#[derive(Default)]
pub(in crate::flush) struct Kept {
    identity: AtomicU64,
    away: AtomicBool,
    /// Every so often rolling up a whole hour fails, unless 0.
    fails_every: AtomicU64,
    tries: AtomicU64,
    hours: Mutex<ByBucket>,
    /// The hours that were rolled up whole, in that order.
    swept: Mutex<Vec<Hour>>,
}

impl Kept {
    /// Keeps the rollup with more readings if a bucket is rolled up twice at once, as a real store does.
    fn keep(&self, derived: impl IntoIterator<Item = ((Arc<str>, Hour), Vec<(Metric, Stats)>)>) {
        let readings = |stats: &[(Metric, Stats)]| stats.iter().map(|(_, stats)| stats.count).sum::<u64>();
        let mut hours = self.hours.lock().unwrap();
        for (bucket, stats) in derived {
            if hours.get(&bucket).is_none_or(|kept| readings(kept) <= readings(&stats)) {
                hours.insert(bucket, stats);
            }
        }
    }

    fn hours(&self) -> ByBucket {
        self.hours.lock().unwrap().clone()
    }

    fn swept(&self) -> Vec<Hour> {
        self.swept.lock().unwrap().clone()
    }
}

impl Faulty {
    fn kept(&self) -> &Kept {
        self.rollups.as_ref().unwrap()
    }

    /// The fold of all that is stored.
    async fn fold(&self) -> ByBucket {
        let mut fold = ByBucket::new();
        for device in self.store.devices("", None, 100).await.unwrap().devices {
            for (hour, contents) in self.store.contents(&device.device, Hour(0)..Hour(1000)).await.unwrap() {
                fold.insert((Arc::clone(&device.device), hour), contents.stats(hour));
            }
        }
        fold
    }
}

#[async_trait]
impl Rollups for Faulty {
    async fn identity(&self) -> Result<String, StoreError> {
        if self.kept().away.load(Ordering::Relaxed) {
            return Err(StoreError::new(Cause::Network, "connection refused"));
        }
        Ok(self.kept().identity.load(Ordering::Relaxed).to_string())
    }

    async fn next_hour(&self, from: Hour) -> Result<Option<Hour>, StoreError> {
        Ok(self.fold().await.keys().map(|(_, hour)| *hour).filter(|hour| *hour >= from).min())
    }

    async fn roll_up_hour(&self, hour: Hour) -> Result<u64, WriteError> {
        let tries = self.kept().tries.fetch_add(1, Ordering::Relaxed) + 1;
        let fails_every = self.kept().fails_every.load(Ordering::Relaxed);
        let mut stats: ByBucket = self.fold().await.into_iter().filter(|((_, of), _)| *of == hour).collect();
        let done = stats.len() as u64;
        if fails_every > 0 && tries.is_multiple_of(fails_every) {
            stats.pop_last();
            self.kept().keep(stats);
            return Err(away());
        }
        self.kept().keep(stats);
        self.kept().swept.lock().unwrap().push(hour);
        Ok(done)
    }

    async fn roll_up(&self, buckets: &[(Arc<str>, Hour)]) -> Vec<Result<(), WriteError>> {
        if self.kept().away.load(Ordering::Relaxed) {
            return vec![Err(away()); buckets.len()];
        }
        let mut fold = self.fold().await;
        for bucket in buckets {
            let stats = fold.remove(bucket).expect("the store has what is rolled up");
            self.kept().keep([(bucket.clone(), stats)]);
        }
        vec![Ok(()); buckets.len()]
    }
}

fn begin(folder: &Arc<TempDir>, kept: &Arc<Kept>) -> Life {
    Life::begin_with(folder, EAGER, sound(), Some(Arc::clone(kept)))
}

/// Stores readings of three devices in some hours, without rollups.
async fn fill(folder: &Arc<TempDir>, hours: Range<i32>) {
    let store = SqliteStore::open(&folder.path().join("tidegauge.sqlite")).unwrap();
    for hour in hours.step_by(3) {
        let samples = |value| (0..5).map(move |offset| (Sample { value, offset, metric: 0 }, true));
        let write = |device: &str, value| {
            Arc::new(BucketWrite::new(device.into(), Hour(hour), None, vec!["m".into()], samples(value)))
        };
        let writes = [write("a", 1.0), write("b", 2.0), write("c", f64::from(hour))];
        assert!(store.write(&writes).await.iter().all(Result::is_ok));
    }
}

fn progress_of(life: &Life) -> Option<RollupProgress> {
    RollupProgress::load(&life.folder.path().join("rollups.json"))
}

fn is_caught_up(life: &Life) -> bool {
    progress_of(life).is_some_and(|progress| progress.next > life.pipeline.newest_closed())
}

#[tokio::test]
async fn late_readings_stay_pending_until_their_hour_is_rolled_up_again() {
    let kept = Arc::new(Kept::default());
    let life = begin(&folder(), &kept);
    life.append(0..20).await;
    life.settled().await;
    assert_eq!(kept.hours(), life.store.fold().await);

    kept.away.store(true, Ordering::Relaxed);
    life.append(20..40).await;
    until("the store has some", || life.count("tidegauge_readings_stored_total") > 60).await;
    until("tries are counted", || life.count(r#"tidegauge_rollup_retries_total{reason="network"}"#) > 3).await;
    assert_eq!(life.pipeline.status().pending_readings, 60, "those that the store has included");
    assert!(life.pipeline.store_away().is_some());
    assert_ne!(kept.hours(), life.store.fold().await);

    kept.away.store(false, Ordering::Relaxed);
    life.settled().await;
    assert_eq!(kept.hours(), life.store.fold().await);
    assert_eq!(
        (life.count("tidegauge_readings_stored_total"), life.pipeline.store_away()),
        (120, None),
        "counted once"
    );
    assert_eq!(life.end(MINUTE).await, 0);
}

#[tokio::test]
async fn a_crash_between_a_write_and_its_rolling_up_is_mended_by_the_next_start() {
    let (folder, kept) = (folder(), Arc::new(Kept::default()));
    kept.away.store(true, Ordering::Relaxed);
    let life = begin(&folder, &kept);
    life.append(0..20).await;
    until("the store has some", || life.count("tidegauge_readings_stored_total") > 0).await;
    let stored = life.count("tidegauge_readings_stored_total");
    assert_eq!((kept.hours().len(), life.end(Duration::from_millis(20)).await), (0, 60));

    kept.away.store(false, Ordering::Relaxed);
    let life = begin(&folder, &kept);
    life.settled().await;
    assert_eq!(kept.hours(), life.store.fold().await);
    assert!(life.count("tidegauge_readings_duplicate_total") >= stored);
    assert_eq!(life.stored().await, 60);
    assert_eq!(life.end(MINUTE).await, 0);
}

#[tokio::test]
async fn what_was_stored_before_is_rolled_up_hour_by_hour_over_failures() {
    let (folder, kept) = (folder(), Arc::new(Kept::default()));
    fill(&folder, 0..60).await;
    kept.fails_every.store(3, Ordering::Relaxed);
    let life = begin(&folder, &kept);
    until("the progress includes all hours", || is_caught_up(&life)).await;
    assert_eq!(kept.hours(), life.store.fold().await);
    assert_eq!(kept.swept(), (0..60).step_by(3).map(Hour).collect::<Vec<_>>());
    assert_eq!(progress_of(&life).unwrap().next, Hour(life.pipeline.newest_closed().0 + 1));
    assert_eq!(life.count("tidegauge_rollups_written_total"), 60);
    assert!(life.count(r#"tidegauge_rollup_retries_total{reason="network"}"#) >= 9);
    assert_eq!(life.count("tidegauge_rollup_lag_seconds"), 0);
    assert_eq!(life.end(MINUTE).await, 0);
}

#[tokio::test]
async fn a_store_that_never_says_what_to_roll_up_shows_as_lag() {
    let (folder, kept) = (folder(), Arc::new(Kept::default()));
    fill(&folder, 0..60).await;
    kept.away.store(true, Ordering::Relaxed);
    let life = begin(&folder, &kept);
    until("it has failed", || life.count(r#"tidegauge_rollup_retries_total{reason="network"}"#) > 0).await;
    assert!(life.count("tidegauge_rollup_lag_seconds") >= 3600, "an hour at least is not rolled up");
    kept.away.store(false, Ordering::Relaxed);
    until("it has caught up", || life.count("tidegauge_rollup_lag_seconds") == 0).await;
    assert_eq!(kept.hours(), life.store.fold().await);
}

#[tokio::test]
async fn the_mark_spares_work_and_without_it_all_is_derived_again() {
    let (folder, kept) = (folder(), Arc::new(Kept::default()));
    fill(&folder, 0..9).await;
    let life = begin(&folder, &kept);
    until("the progress includes all hours", || is_caught_up(&life)).await;
    life.running.roller.abort();
    let look = async |progress| {
        kept.swept.lock().unwrap().clear();
        Roller::new(&life.pipeline, &*life.store, progress).catch_up().await.unwrap();
        kept.swept().len()
    };
    assert_eq!(look(progress_of(&life)).await, 0, "all is done");
    let behind = RollupProgress { next: Hour(4), ..progress_of(&life).unwrap() };
    assert_eq!(look(Some(behind)).await, 1, "the hour after it");
    assert_eq!(look(None).await, 3, "the file was deleted");
    kept.identity.store(7, Ordering::Relaxed);
    assert_eq!(look(progress_of(&life)).await, 3, "it speaks of another store");
    assert_eq!(look(progress_of(&life)).await, 0);
}
