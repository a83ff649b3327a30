//! Taking buckets to write them.
//!
//! A bucket is due ([`Reason`]) when it is full (`flush.max_readings`, or `MAX_VALUES` values) or old
//! (`flush.max_age`). While memory or the log runs short, the oldest buckets are due. When the service stops,
//! or the disk or the log is full and stored readings make space, the scheduler takes all buckets. The size
//! of the writes adapts to the store: while a slow store keeps the scheduler busy, buckets grow.
//!
//! A bucket of an **ended hour** gets no more readings except late ones, so it is due too, in its **turn**:
//! the scheduler grants a number of turns in each window of `flush.gather`. So the buckets of all devices are
//! not written at the same moment. Buckets that were opened before their hours had ended use the turns in the
//! order of the hours, so neither the current hour nor a device whose clock is ahead holds them up. A *late*
//! bucket, which was opened after its hour had ended, waits a while (`Due::spread_ms`), because more readings
//! of the hour are likely. A bucket that has had no turn for twice that time needs none. The wall clock
//! decides only this; if it jumps, `flush.max_age` still holds.
//!
//! A bucket that was opened while a write of the same device and hour is in flight is *blocked*: it is in no
//! queue until that write has completed. A deletion blocks the buckets of its hours in the same way
//! (`deletions`).

use std::sync::Arc;

use super::bucket::BucketSnapshot;
use super::slots::Key;
use super::{HourSlot, Pending};
use crate::log::Position;
use crate::model::{BucketWrite, Hour};

/// An hour counts as ended this long after its end: the last readings of most devices have arrived by then.
const SETTLE_MS: i64 = 30_000;

/// Returns the newest hour that counts as ended.
fn newest_ended(wall_ms: i64) -> Hour {
    Hour(Hour::of(wall_ms.saturating_sub(SETTLE_MS)).0.saturating_sub(1))
}

/// Which buckets to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// The buckets that are due.
    Due(Due),
    /// All buckets, for this reason.
    All(Reason),
}

/// The conditions under which buckets are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// The time on the clock of the insertions, in milliseconds.
    pub now_ms: u64,
    /// The wall clock, in Unix milliseconds.
    pub wall_ms: i64,
    /// Buckets that reach `flush.max_age` by this time are due.
    ///
    /// It may be some time ahead, so that buckets are written together.
    pub horizon_ms: u64,
    /// The number of buckets of ended hours that may be taken.
    pub turns: usize,
    /// The shortest wait of a late bucket for its turn, from its first reading on.
    ///
    /// A late bucket needs no turn when it has waited twice as long. Any other bucket of an ended hour needs
    /// no turn when the hour ended twice as long ago.
    pub spread_ms: u64,
    /// Buckets with readings before this position are due, so that the log can be cut.
    pub log_before: Position,
}

/// Why a bucket was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::EnumIter, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Reason {
    /// The bucket had `flush.max_readings`, or `MAX_VALUES` values.
    Size,
    /// The bucket was as old as `flush.max_age`.
    Age,
    /// The hour of the bucket has ended.
    Hour,
    /// The memory of pending ran short.
    Memory,
    /// The log ran short of space, or was full.
    Log,
    /// The service was about to stop.
    Drain,
}

/// A bucket that was taken and is not stored yet.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) bucket: Arc<BucketSnapshot>,
    position: Position,
    since_ms: u64,
    bytes: u64,
    /// Whether no write is under way any more: the refused readings wait for the dead-letter file.
    pub(super) is_parked: bool,
}

/// A bucket that was taken, for the store.
#[derive(Debug)]
pub struct TakenBucket {
    device: Arc<str>,
    bucket: Arc<BucketSnapshot>,
    reason: Reason,
}

impl TakenBucket {
    /// The reason for which the bucket was taken.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

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
    /// Takes up to `max` buckets: full ones first, then by age.
    ///
    /// They are in flight until [`Self::complete`] is called with each of them.
    pub fn take(&mut self, mut which: Take, max: usize) -> Vec<TakenBucket> {
        if let Take::Due(due) = &which {
            self.note_wall_clock(due.wall_ms);
        }
        let mut taken = Vec::new();
        while taken.len() < max
            && let Some((bucket, reason)) = self.next_to_take(&which)
        {
            if let (Take::Due(due), Reason::Hour) = (&mut which, reason) {
                due.turns = due.turns.saturating_sub(1);
            }
            taken.push(self.take_bucket(bucket, reason));
        }
        taken
    }

    fn next_to_take(&mut self, which: &Take) -> Option<(Key, Reason)> {
        if let Some(bucket) = self.full.pop_front() {
            return Some((bucket, Reason::Size));
        }
        let oldest = self.by_age.oldest()?;
        match which {
            Take::All(reason) => Some((oldest, *reason)),
            Take::Due(due) => self.next_due(oldest, due),
        }
    }

    /// Returns the bucket that is due, and why: the oldest bucket, or a bucket of an ended hour in its turn.
    fn next_due(&self, oldest: Key, due: &Due) -> Option<(Key, Reason)> {
        let open = &self.open[oldest];
        if open.since_ms.saturating_add(self.max_age_ms()) <= due.horizon_ms {
            return Some((oldest, Reason::Age));
        }
        let of_hour = if due.turns > 0 { self.next_turn(due) } else { self.next_without_turn(due) };
        if let Some(bucket) = of_hour {
            return Some((bucket, Reason::Hour));
        }
        if open.position < due.log_before {
            return Some((oldest, Reason::Log));
        }
        self.is_short_of_memory().then_some((oldest, Reason::Memory))
    }

    /// Returns the bucket of an ended hour that may use the next turn.
    fn next_turn(&self, due: &Due) -> Option<Key> {
        self.first_of_ended(due, 0, due.spread_ms)
    }

    /// Returns a bucket of an ended hour that has had no turn for long.
    fn next_without_turn(&self, due: &Due) -> Option<Key> {
        let long_ms = due.spread_ms.saturating_mul(2);
        self.first_of_ended(due, long_ms, long_ms)
    }

    /// Returns the first bucket whose hour ended `on_time_ms` ago or earlier.
    ///
    /// If there is none, returns the first late bucket, if it is `late_ms` old.
    fn first_of_ended(&self, due: &Due, on_time_ms: u64, late_ms: u64) -> Option<Key> {
        let ended = newest_ended(due.wall_ms.saturating_sub_unsigned(on_time_ms));
        let on_time =
            self.by_age.first_on_time(&self.open).filter(|(hour, _)| *hour <= ended).map(|(_, bucket)| bucket);
        let is_old = |bucket: &Key| self.open[*bucket].since_ms.saturating_add(late_ms) <= due.now_ms;
        on_time.or_else(|| self.by_age.first_late(&self.open).filter(is_old))
    }

    fn take_bucket(&mut self, bucket: Key, reason: Reason) -> TakenBucket {
        self.by_age.remove(&mut self.open, bucket);
        self.crowded.retain(|crowded| *crowded != bucket);
        let open = self.open.remove(bucket);
        let device = &mut self.devices[open.device];
        let (hour, position, since_ms, bytes) = (open.hour, open.position, open.since_ms, open.bytes());
        let bucket = Arc::new(open.into_snapshot(self.keep));
        let in_flight = InFlight { bucket: Arc::clone(&bucket), position, since_ms, bytes, is_parked: false };
        let in_flight = self.in_flight.insert(in_flight);
        let slot = device.hours.find_mut(hour).expect("an open bucket has a slot");
        *slot = HourSlot { hour, open: None, in_flight: Some(in_flight) };
        TakenBucket { device: device.id.to_shared(), bucket, reason }
    }

    /// Notes that a bucket that was taken waits for the dead-letter file: no write of it is under way, and a
    /// deletion need not wait for it.
    pub fn park(&mut self, write: &BucketWrite) {
        self.taken_mut(write).is_parked = true;
    }

    /// A bucket that was taken and is not complete.
    pub(super) fn taken_mut(&mut self, write: &BucketWrite) -> &mut InFlight {
        let device = self.find_device(&write.device).expect("a device with a write in flight is known");
        let slot = self.devices[device].hours.find(write.hour).expect("a write in flight has a slot");
        let taken = slot.in_flight.expect("the write is in flight");
        &mut self.in_flight[taken]
    }

    /// Removes a bucket that was taken, once it is stored, dead-lettered or deleted.
    ///
    /// Returns memory to be dropped without the lock.
    pub fn complete(&mut self, write: &BucketWrite) -> impl Sized + use<> {
        let device = self.find_device(&write.device).expect("a device with a write in flight is known");
        let hours = &mut self.devices[device].hours;
        let slot = hours.find_mut(write.hour).expect("a write in flight has a slot");
        let taken = slot.in_flight.take().expect("the write is in flight");
        if let Some(bucket) = slot.open {
            self.unblock(bucket);
        } else {
            hours.remove(write.hour);
            if hours.is_empty() {
                self.remove_device(device);
            }
        }
        let taken = self.in_flight.remove(taken);
        self.bytes -= taken.bytes;
        self.readings -= u64::from(taken.bucket.accepted);
        taken.bucket
    }

    /// Unblocks a bucket after a write or a deletion, unless another deletion blocks it.
    pub(super) fn unblock(&mut self, bucket: Key) {
        if self.is_deleting(self.open[bucket].device, self.open[bucket].hour) {
            return;
        }
        let open = &mut self.open[bucket];
        open.is_blocked = false;
        self.by_age.add_unblocked(open, bucket);
        if open.accepted >= self.limits.max_readings || open.values() >= self.max_values {
            self.full.push_back(bucket);
        }
    }

    /// Notes which hours have ended.
    ///
    /// Buckets that are opened for these hours from now on are late.
    pub fn note_wall_clock(&mut self, wall_ms: i64) {
        self.ended = newest_ended(wall_ms);
    }

    /// Returns when the oldest reading or deletion was inserted.
    pub fn oldest_ms(&self) -> Option<u64> {
        // A bucket that a write blocks is younger than the write. A deletion is as old as the oldest bucket
        // that it blocks.
        let open = self.by_age.oldest().map(|bucket| self.open[bucket].since_ms);
        let in_flight = self.in_flight.iter().map(|taken| taken.since_ms);
        open.into_iter().chain(in_flight).chain(self.deletions_since_ms()).min()
    }

    /// Returns the position before which the log is no longer needed.
    ///
    /// `inserted` is the end of the records that were inserted.
    pub fn cut_position(&self, inserted: Position) -> Position {
        let open = self.by_age.oldest().map(|bucket| self.open[bucket].position);
        let in_flight = self.in_flight.iter().map(|taken| taken.position);
        open.into_iter().chain(in_flight).chain(self.deletion_positions()).fold(inserted, Position::min)
    }

    /// Returns whether a bucket may be due that [`Self::due_at_ms`] does not foresee: a bucket is full, or
    /// memory is short. All buckets may be blocked nevertheless.
    pub fn is_urgent(&self) -> bool {
        !self.full.is_empty() || self.is_short_of_memory()
    }

    /// Returns when the next bucket is due by age, not counting blocked ones.
    pub fn due_at_ms(&self) -> Option<u64> {
        let oldest = self.by_age.oldest()?;
        Some(self.open[oldest].since_ms.saturating_add(self.max_age_ms()))
    }

    /// Returns whether a bucket waits only for a turn.
    pub fn waits_for_turn(&self, due: &Due) -> bool {
        self.next_turn(due).is_some()
    }

    fn max_age_ms(&self) -> u64 {
        self.limits.max_age.as_millis() as u64
    }

    /// Returns whether more than three quarters of the memory are used.
    ///
    /// Buckets are then due before they are old, so that memory is rarely used up.
    fn is_short_of_memory(&self) -> bool {
        self.bytes() > self.limits.max_bytes / 4 * 3
    }
}
