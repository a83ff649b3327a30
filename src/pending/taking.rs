//! Taking buckets to write them.
//!
//! A bucket is due when it is full (`flush.max_readings`) or old (`flush.max_age`). While memory is short,
//! the oldest bucket is due. When the service stops, or the disk or the log is full, the scheduler takes all
//! buckets. The size of the writes adapts to the store: while a slow store keeps the scheduler busy, buckets
//! grow.
//!
//! A bucket that was opened while a write of the same device and hour is in flight is *blocked*: it is in no
//! queue until that write has completed.

use std::sync::Arc;

use super::{BucketSnapshot, HourSlot, Key, Pending};
use crate::log::Position;
use crate::model::BucketWrite;

/// Which buckets to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// The buckets that are due.
    Due,
    /// All buckets: the service is about to stop, or the log is full.
    All,
}

/// A bucket that was taken and is not stored yet.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) bucket: Arc<BucketSnapshot>,
    position: Position,
    since_ms: u64,
    bytes: u64,
}

/// A bucket that was taken, for the store.
#[derive(Debug, Clone)]
pub struct TakenBucket {
    device: Arc<str>,
    bucket: Arc<BucketSnapshot>,
}

impl TakenBucket {
    /// The number of values, repetitions included.
    #[must_use]
    pub fn values(&self) -> usize {
        self.bucket.values()
    }

    /// Makes the write for the store. Sorts the readings, which takes a while.
    #[must_use]
    pub fn to_write(&self) -> BucketWrite {
        self.bucket.to_write(Arc::clone(&self.device))
    }
}

impl Pending {
    /// Returns when the oldest reading was inserted.
    pub fn oldest_ms(&self) -> Option<u64> {
        // A blocked bucket is younger than the write that blocks it.
        let open = self.by_age.oldest(&self.open).map(|bucket| self.open[bucket].since_ms);
        open.into_iter().chain(self.in_flight.iter().map(|taken| taken.since_ms)).min()
    }

    /// Returns the position before which the log is no longer needed, if it was inserted up to `inserted`.
    pub fn cut_position(&self, inserted: Position) -> Position {
        let open = self.by_age.oldest(&self.open).map(|bucket| self.open[bucket].position);
        let in_flight = self.in_flight.iter().map(|taken| taken.position);
        open.into_iter().chain(in_flight).fold(inserted, Position::min)
    }

    /// Returns whether a bucket is due. While memory is short, all buckets may be blocked nevertheless.
    pub fn is_due(&self, now_ms: u64) -> bool {
        !self.full.is_empty() || self.is_short_of_memory() || self.due_at_ms().is_some_and(|due_ms| due_ms <= now_ms)
    }

    /// Returns when the next bucket is due by age, not counting blocked ones.
    pub fn due_at_ms(&self) -> Option<u64> {
        let oldest = self.by_age.oldest(&self.open)?;
        Some(self.open[oldest].since_ms.saturating_add(self.max_age_ms()))
    }

    /// Takes up to `max` buckets: full ones first, then by age.
    ///
    /// They are in flight until [`Self::complete`] is called with each of them.
    pub fn take(&mut self, which: Take, now_ms: u64, max: usize) -> Vec<TakenBucket> {
        let mut taken = Vec::new();
        while taken.len() < max
            && let Some(bucket) = self.next_to_take(which, now_ms)
        {
            taken.push(self.take_bucket(bucket));
        }
        taken
    }

    fn next_to_take(&mut self, which: Take, now_ms: u64) -> Option<Key> {
        self.full.pop_front().or_else(|| {
            let bucket = self.by_age.oldest(&self.open)?;
            let is_old = now_ms.saturating_sub(self.open[bucket].since_ms) >= self.max_age_ms();
            (which == Take::All || is_old || self.is_short_of_memory()).then_some(bucket)
        })
    }

    fn take_bucket(&mut self, bucket: Key) -> TakenBucket {
        self.by_age.remove(&mut self.open, bucket);
        let open = self.open.remove(bucket);
        let device = &mut self.devices[open.device];
        let (hour, position, since_ms, bytes) = (open.hour, open.position, open.since_ms, open.bytes());
        let bucket = Arc::new(open.into_snapshot(self.keep));
        let in_flight = self.in_flight.insert(InFlight { bucket: Arc::clone(&bucket), position, since_ms, bytes });
        let at = device.hours.binary_search_by_key(&hour, |slot| slot.hour).expect("an open bucket has a slot");
        device.hours[at] = HourSlot { hour, open: None, in_flight: Some(in_flight) };
        TakenBucket { device: Arc::clone(&device.id), bucket }
    }

    /// Removes a bucket that was taken, once it is stored or dead-lettered.
    ///
    /// Returns its readings, which may be large: drop them without the lock.
    pub fn complete(&mut self, write: &BucketWrite) -> Arc<BucketSnapshot> {
        let device = self.find_device(&write.device).expect("a device with a write in flight is known");
        let hours = &mut self.devices[device].hours;
        let at = hours.binary_search_by_key(&write.hour, |slot| slot.hour).expect("a write in flight has a slot");
        let taken = hours[at].in_flight.take().expect("the write is in flight");
        if let Some(bucket) = hours[at].open {
            self.unblock(bucket);
        } else {
            hours.remove(at);
            if hours.is_empty() {
                self.remove_device(device);
            }
        }
        let taken = self.in_flight.remove(taken);
        self.bytes -= taken.bytes;
        self.readings -= u64::from(taken.bucket.accepted);
        taken.bucket
    }

    fn unblock(&mut self, bucket: Key) {
        let open = &mut self.open[bucket];
        open.is_blocked = false;
        self.by_age.add_unblocked(open.position, bucket);
        if open.accepted >= self.limits.max_readings {
            self.full.push_back(bucket);
        }
    }

    fn max_age_ms(&self) -> u64 {
        self.limits.max_age.as_millis() as u64
    }

    /// Returns whether buckets are taken before they are due, so that memory is rarely used up.
    const fn is_short_of_memory(&self) -> bool {
        self.bytes > self.limits.max_bytes / 4 * 3
    }
}
