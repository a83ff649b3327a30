//! Rollups that a test keeps: derived from what a real store holds, so that they can fail at will.

use std::collections::BTreeMap;

use super::*;
use crate::model::{Day, Stats};

pub(super) type ByBucket = BTreeMap<(Arc<str>, Hour), Vec<(Metric, Stats)>>;

/// Rollups that outlive the lives of the service.
pub(in crate::flush) struct Kept {
    pub(super) clock: Clock,
    pub(super) closing: Closing,
    pub(super) identity: AtomicU64,
    pub(super) away: AtomicBool,
    /// Whether the store is still looking for its devices.
    pub(super) is_indexing: AtomicBool,
    /// With 3, each third step fails; with 0, no step fails.
    pub(super) fails_every: AtomicU64,
    pub(super) tries: AtomicU64,
    /// With 3, the steps after the third attempt wait until this is raised.
    pub(super) stops_after: AtomicU64,
    /// With 1, the collections are replaced in the first attempt.
    pub(super) replaced_in: AtomicU64,
    /// The number of rollups when readings were let expire earlier; `u64::MAX` before.
    pub(super) shortened_with: AtomicU64,
    /// Whether the store refuses to let readings expire earlier.
    pub(super) refuses_expiry: AtomicBool,
    /// The writes that the store got.
    pub(super) writes: Mutex<Vec<std::sync::Weak<BucketWrite>>>,
    hours: Mutex<ByBucket>,
    /// The steps that succeeded: the hours, and the number of devices.
    steps: Mutex<Vec<(Range<Hour>, usize)>>,
}

/// The number of devices in a step.
pub(super) const STEP: usize = 2;

impl Default for Kept {
    fn default() -> Self {
        Self::new(Clock::system(), Closing::Daily)
    }
}

impl Kept {
    pub(super) fn new(clock: Clock, closing: Closing) -> Self {
        Self {
            clock,
            closing,
            identity: AtomicU64::default(),
            away: AtomicBool::default(),
            is_indexing: AtomicBool::default(),
            fails_every: AtomicU64::default(),
            tries: AtomicU64::default(),
            stops_after: AtomicU64::new(u64::MAX),
            replaced_in: AtomicU64::default(),
            shortened_with: AtomicU64::new(u64::MAX),
            refuses_expiry: AtomicBool::default(),
            writes: Mutex::default(),
            hours: Mutex::default(),
            steps: Mutex::default(),
        }
    }

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

    /// The number of writes that are still in memory.
    pub(super) fn writes_in_memory(&self) -> usize {
        self.writes.lock().unwrap().iter().filter(|write| write.strong_count() > 0).count()
    }

    pub(super) fn hours(&self) -> ByBucket {
        self.hours.lock().unwrap().clone()
    }

    /// The steps since the last call.
    pub(super) fn take_steps(&self) -> Vec<(Range<Hour>, usize)> {
        std::mem::take(&mut *self.steps.lock().unwrap())
    }
}

impl Faulty {
    pub(super) fn kept(&self) -> &Kept {
        self.rollups.as_ref().unwrap()
    }

    /// The fold of all that is stored.
    pub(super) async fn fold(&self) -> ByBucket {
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

    async fn is_ready(&self) -> Result<bool, StoreError> {
        Ok(!self.kept().is_indexing.load(Ordering::Relaxed))
    }

    async fn roll_up_devices(&self, hours: Range<Hour>, after: Option<&str>) -> Result<RolledUp, StoreError> {
        let kept = self.kept();
        let tries = kept.tries.fetch_add(1, Ordering::Relaxed) + 1;
        while tries > kept.stops_after.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(Day::of(hours.start), Day::of(Hour(hours.end.0 - 1)), "hours of one day");
        let devices = self.store.devices("", after, STEP).await.unwrap().devices;
        let is_in_step = |device: &Arc<str>| devices.iter().any(|summary| summary.device == *device);
        let stats = self.fold().await.into_iter();
        let stats = stats.filter(|((device, hour), _)| is_in_step(device) && hours.contains(hour));
        let mut stats: ByBucket = stats.collect();
        let found = stats.len() as u64;
        let fails_every = kept.fails_every.load(Ordering::Relaxed);
        if fails_every > 0 && tries.is_multiple_of(fails_every) {
            stats.pop_last();
            kept.keep(stats);
            return Err(away());
        }
        kept.keep(stats);
        kept.steps.lock().unwrap().push((hours, devices.len()));
        if tries == kept.replaced_in.load(Ordering::Relaxed) {
            kept.identity.fetch_add(1, Ordering::Relaxed);
        }
        let last = devices.last().filter(|_| devices.len() == STEP);
        let last = last.map(|summary| Arc::clone(&summary.device));
        Ok(RolledUp { found, written: found, refused: 0, last })
    }

    async fn shorten_expiry(&self) -> Result<(), StoreError> {
        let kept = self.kept();
        if kept.refuses_expiry.load(Ordering::Relaxed) {
            return Err(StoreError::new(Cause::Auth, "not authorized"));
        }
        kept.shortened_with.store(kept.hours().len() as u64, Ordering::Relaxed);
        Ok(())
    }

    async fn roll_up(&self, buckets: &[(Arc<str>, Hour)]) -> Vec<Result<(), StoreError>> {
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
