//! Writes buckets to a store: for the flush, and for the commands that fill a store.
//!
//! Both do the same with a batch of buckets:
//! 1. They write the buckets together. Those that fail for a reason that may pass are written again, as long
//!    as [`Retry`] allows it.
//! 2. If the store refuses a bucket for good, they write parts of it with the next attempt, until they know
//!    which of its readings the store refuses ([`super::bisection`]).
//! 3. They roll up the closed hours among the written ones. The check for closed hours must follow the write
//!    (see [`super::roller`]).
//!
//! The caller decides how long a write is repeated, which hours are closed, and what happens to a bucket that
//! is done. The flush completes a bucket as soon as it is done, and gives its refused readings to the
//! dead-letter file. A command counts and lists them.

use std::sync::Arc;

use tokio::time::Instant;

use super::bisection::{Bisection, BucketOutcome};
use super::refused::RefusedMetadata;
use crate::model::{BucketWrite, Hour};
use crate::store::{Store, StoreError, Written};
use crate::telemetry::Metrics;

/// Decides whether and when a request to the store is repeated after a transient error.
pub trait Retry: Send {
    /// Why the request is not repeated.
    type GaveUp;

    /// Notes that the store has done at least a part of the last attempt.
    fn succeed(&mut self);

    /// Waits before the next attempt.
    ///
    /// `is_whole`: the store has done nothing of the last attempt.
    ///
    /// # Errors
    /// When there is no next attempt.
    fn wait(&mut self, error: &StoreError, is_whole: bool) -> impl Future<Output = Result<(), Self::GaveUp>> + Send;
}

/// Writes to one store.
pub struct Writer {
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    refused_metadata: RefusedMetadata,
}

/// Buckets that are written together.
pub struct Writes<'a> {
    writer: &'a Writer,
    left: Vec<Bisection>,
    /// The transient error of the last attempt, and whether the store has done nothing of that attempt.
    failed: Option<(StoreError, bool)>,
}

impl Writer {
    /// Creates a writer. It records what it does in `metrics`.
    pub fn new(store: Arc<dyn Store>, metrics: Arc<Metrics>) -> Self {
        Self { store, metrics, refused_metadata: RefusedMetadata::default() }
    }

    /// Begins to write buckets. No two of the writes may be of the same bucket.
    pub fn begin(&self, writes: Vec<Arc<BucketWrite>>) -> Writes<'_> {
        Writes { writer: self, left: writes.into_iter().map(Bisection::new).collect(), failed: None }
    }

    /// Rolls up closed hours of devices, if the store keeps rollups of their own.
    ///
    /// The store writes the hours of one device and day together, in one change of their document. A bucket
    /// is complete only when the rollup includes its readings. After a crash in between, replay of the log
    /// repairs this: the next start writes the readings again, to no effect, and rolls the hour up.
    ///
    /// # Errors
    /// When `retry` gives up.
    pub async fn roll_up<R: Retry>(&self, mut hours: Vec<(Arc<str>, Hour)>, retry: &mut R) -> Result<(), R::GaveUp> {
        let Some(rollups) = self.store.rollups() else { return Ok(()) };
        while !hours.is_empty() {
            let outcomes = rollups.roll_up(&hours).await;
            let (settled, again, failed) = settle(hours, outcomes);
            hours = again;
            let is_whole = settled.is_empty();
            if !is_whole {
                retry.succeed();
            }
            for ((device, hour), outcome) in settled {
                let Err(error) = outcome else {
                    self.metrics.rollups_written_total.increment(1);
                    continue;
                };
                let (device, hour_ms, error) = (&*device, hour.start_ms(), error.with_cause());
                tracing::error!(
                    device,
                    hour_ms,
                    error,
                    "cannot roll up the hour again; queries read its readings until they expire"
                );
                self.metrics.rollups_refused_total.increment(1);
            }
            if let Some(error) = failed {
                self.metrics.rollup_retries_total.with(error.cause.as_label()).increment(hours.len() as u64);
                retry.wait(&error, is_whole).await?;
            }
        }
        Ok(())
    }

    /// Sends one write to the store.
    async fn attempt(&self, writes: &[Arc<BucketWrite>]) -> Vec<Result<Written, StoreError>> {
        let start = Instant::now();
        self.metrics.flush_in_flight.increment(1.0);
        let outcomes = self.store.write(writes).await;
        self.metrics.flush_in_flight.decrement(1.0);
        self.metrics.flush_seconds.with(self.store.name()).record(start.elapsed().as_secs_f64());
        outcomes
    }

    /// Counts readings that the store has accepted.
    fn count(&self, written: Written) {
        self.metrics.readings_stored_total.increment(written.stored.into());
        self.metrics.readings_duplicate_total.increment(written.duplicate.into());
        self.metrics.flush_readings_per_bucket.record(f64::from(written.stored + written.duplicate));
    }
}

impl Writes<'_> {
    /// Writes until at least one more bucket is done.
    ///
    /// Returns the buckets that are done; `None` after the last.
    ///
    /// # Errors
    /// When `retry` gives up.
    pub async fn next<R: Retry>(&mut self, retry: &mut R) -> Result<Option<Vec<BucketOutcome>>, R::GaveUp> {
        let Self { writer, left, failed } = self;
        let mut done = Vec::new();
        while done.is_empty() && !left.is_empty() {
            if let Some((error, is_whole)) = failed.take() {
                retry.wait(&error, is_whole).await?;
            }
            let parts: Vec<_> = left.iter().filter_map(Bisection::next).cloned().collect();
            let outcomes = writer.attempt(&parts).await;
            let (settled, again, error) = settle(std::mem::take(left), outcomes);
            *left = again;
            if !settled.is_empty() {
                retry.succeed();
            }
            if let Some(error) = error {
                writer.metrics.flush_retries_total.with(error.cause.as_label()).increment(1);
                *failed = Some((error, settled.is_empty()));
            }
            for (mut bisection, outcome) in settled {
                match outcome {
                    Ok(written) if bisection.accept(written) => writer.count(written),
                    Ok(_) => {} // its readings are counted already
                    Err(error) => bisection.refuse(error),
                }
                if bisection.next().is_some() {
                    left.push(bisection);
                    continue;
                }
                let outcome = bisection.finish();
                if writer.refused_metadata.note(&outcome) {
                    writer.metrics.metadata_refused_total.increment(1);
                }
                done.push(outcome);
            }
        }
        Ok((!done.is_empty()).then_some(done))
    }
}

/// The outcomes of an attempt: the items that the store has done or refused for good, the items to try again,
/// and the first transient error.
type Settled<T, O> = (Vec<(T, Result<O, StoreError>)>, Vec<T>, Option<StoreError>);

fn settle<T, O>(items: Vec<T>, outcomes: Vec<Result<O, StoreError>>) -> Settled<T, O> {
    debug_assert_eq!(outcomes.len(), items.len(), "an outcome for each");
    let (mut settled, mut again, mut failed) = (Vec::with_capacity(items.len()), Vec::new(), None);
    for (item, outcome) in items.into_iter().zip(outcomes) {
        match outcome {
            Err(error) if !error.is_permanent() => {
                again.push(item);
                failed.get_or_insert(error);
            }
            outcome => settled.push((item, outcome)),
        }
    }
    (settled, again, failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flush::tests::{Faulty, away};
    use crate::model::Sample;
    use crate::store::Cause;
    use crate::store::sqlite::SqliteStore;

    /// Repeats a few times, without a wait.
    struct Times(u32);

    impl Retry for Times {
        type GaveUp = ();

        fn succeed(&mut self) {}

        async fn wait(&mut self, _: &StoreError, _: bool) -> Result<(), ()> {
            self.0 = self.0.checked_sub(1).ok_or(())?;
            Ok(())
        }
    }

    fn bucket(device: &str) -> Arc<BucketWrite> {
        let sample = |at: u32| (Sample { value: 1.0, offset: at, metric: 0 }, true);
        BucketWrite::new(device.into(), Hour(0), None, vec!["t".into()], (0..100).map(sample)).into()
    }

    #[tokio::test]
    async fn no_bucket_of_a_write_waits_for_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let fault = |write: &BucketWrite| match &*write.device {
            "lost" => Some(away()),
            "bad" if write.contents.samples().iter().any(|sample| sample.offset == 61) => {
                Some(StoreError::new(Cause::Validation, "no"))
            }
            _ => None,
        };
        let store = SqliteStore::open(&folder.path().join("tidegauge.sqlite")).unwrap();
        let takes = std::time::Duration::ZERO;
        let store = Faulty { store, fault: Box::new(fault), takes, rollups: None, notes: None };
        let writer = Writer::new(Arc::new(store), Arc::new(Metrics::new().0));
        let mut writes = writer.begin(["good", "lost", "bad"].map(bucket).to_vec());
        let mut times = Times(20);
        let mut found = Vec::new();
        while let Ok(Some(done)) = writes.next(&mut times).await {
            found.extend(done.into_iter().map(|of| {
                let refused = of.refused.map(|(refused, error)| (refused.accepted, error.cause));
                (of.write.device.to_string(), of.stored, refused)
            }));
        }
        let bad = Some((1, Cause::Validation));
        assert_eq!(found, [("good".to_owned(), 100, None), ("bad".to_owned(), 99, bad)]);
        assert_eq!((times.0, writes.left.len()), (0, 1), "the lost bucket is tried until the end");
    }
}
