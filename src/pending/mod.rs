//! Pending readings: accepted, in the log, not stored yet; in memory as the buckets they will be.
//!
//! The log is read into [`Pending`] in order; the flush takes buckets out when they are **due**: full
//! (`flush.max_readings`), old (`flush.max_age`), or simply the oldest while memory runs short. Nothing else
//! decides when to write, so batching adapts by itself: while a slow store keeps the flush busy, buckets go
//! on growing.
//!
//! Promises:
//! - At most one write of a bucket is in flight; what arrives meanwhile waits in a new one behind it.
//! - What is in flight stays visible to queries until it is stored.
//! - [`Pending::cut_position`] never passes a reading that is not stored.
//! - It is used behind a lock, so no call touches more than a bounded number of values, whatever clients have
//!   sent: long work comes in turns of [`ITEMS_PER_TURN`], and what is handed out ([`BucketSnapshot`]) shares
//!   the memory of the values, to be resolved and merged without the lock.
//!
//! Pure: no io, no locks, and the clock is an argument, in milliseconds of any monotonic clock.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use slab::Slab;
use smallvec::SmallVec;

use crate::log::Position;
use crate::model::{BucketWrite, Hour, Keep};

mod bucket;
mod devices;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod insertion;
mod names;
mod snapshot;
mod sorted;
#[cfg(test)]
mod tests;

pub use devices::PendingDevice;
pub use insertion::Insertion;
pub use snapshot::{BucketSnapshot, PendingHour};

use bucket::OpenBucket;
use names::{Generations, Names};
use sorted::SortedDevices;

/// About how many values are touched in one turn, after which the lock is given to others: well below a
/// millisecond.
pub const ITEMS_PER_TURN: usize = 4_096;

/// When buckets are due, and how much may wait.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Memory that pending readings may take, in bytes; estimated.
    pub max_bytes: u64,
    /// A bucket with so many readings is due.
    pub max_readings: u32,
    /// A bucket whose first reading has waited so long is due.
    pub max_age: Duration,
}

/// What may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// What is due.
    Due,
    /// Everything: the service is about to stop.
    All,
}

/// All pending readings.
#[derive(Debug)]
pub struct Pending {
    limits: Limits,
    keep: Keep,
    names: Generations,
    devices: Slab<Device>,
    by_id: HashTable<u32>,
    sorted: SortedDevices,
    hasher: RandomState,
    open: Slab<OpenBucket>,
    flights: Slab<Flight>,
    /// Every open bucket, by the position of its first reading, which is also by age. An entry whose bucket
    /// has been taken is stale and passed over.
    order: VecDeque<Entry>,
    /// Open buckets that have become full.
    full: VecDeque<Entry>,
    next_serial: u32,
    bytes: u64,
    readings: u64,
}

/// A device that has something pending.
#[derive(Debug)]
struct Device {
    id: Box<str>,
    /// Ascending by hour; never empty.
    hours: SmallVec<[HourSlot; 1]>,
}

/// What is pending of one bucket: indices into `open` and `flights`, at least one of them.
#[derive(Debug, Clone, Copy)]
struct HourSlot {
    hour: Hour,
    open: Option<Index>,
    flight: Option<Index>,
}

/// An index into a slab, small because there are millions of them.
type Index = std::num::NonZeroU32;

fn index(key: usize) -> Index {
    Index::MIN.saturating_add(u32::try_from(key).expect("memory ends far below 2^32 buckets"))
}

fn key(index: Index) -> usize {
    index.get() as usize - 1
}

/// A write that was taken and is not stored yet.
#[derive(Debug)]
struct Flight {
    bucket: Arc<BucketSnapshot>,
    position: Position,
    since_ms: u64,
    bytes: u64,
}

/// A bucket that was taken to be written.
#[derive(Debug, Clone)]
pub struct Taken {
    device: Arc<str>,
    bucket: Arc<BucketSnapshot>,
}

impl Taken {
    /// How many values there are, repetitions included.
    #[must_use]
    pub fn values(&self) -> usize {
        self.bucket.values()
    }

    /// The write to be done. This takes a while, for it sorts the readings.
    #[must_use]
    pub fn to_write(&self) -> BucketWrite {
        self.bucket.to_write(Arc::clone(&self.device))
    }
}

/// An open bucket as it was when it was entered into a queue.
#[derive(Debug, Clone, Copy)]
struct Entry {
    bucket: Index,
    serial: u32,
}

impl Pending {
    /// Nothing pending.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            keep: Keep::default(),
            names: Generations::default(),
            devices: Slab::new(),
            by_id: HashTable::new(),
            sorted: SortedDevices::default(),
            hasher: RandomState::default(),
            open: Slab::new(),
            flights: Slab::new(),
            order: VecDeque::new(),
            full: VecDeque::new(),
            next_serial: 0,
            bytes: 0,
            readings: 0,
        }
    }

    /// Says which of several values of one identity stays: as the store has it, so that answers are the same
    /// before and after a flush.
    #[must_use]
    pub fn keeping(self, keep: Keep) -> Self {
        Self { keep, ..self }
    }

    /// Whether memory is used up: nothing should be inserted until something is stored.
    pub const fn is_full(&self) -> bool {
        self.bytes >= self.limits.max_bytes
    }

    /// Whether no more than half of the memory is used.
    pub const fn is_half_free(&self) -> bool {
        self.bytes <= self.limits.max_bytes / 2
    }

    /// Memory in use, in bytes; estimated.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Readings that were inserted and are not stored, repetitions included.
    pub const fn readings(&self) -> u64 {
        self.readings
    }

    /// Buckets, those in flight included.
    pub fn buckets(&self) -> usize {
        self.open.len() + self.flights.len()
    }

    /// Since when the oldest reading has been waiting.
    pub fn oldest_ms(&self) -> Option<u64> {
        let open = self.live_order().next().map(|(_, bucket)| bucket.since_ms);
        open.into_iter().chain(self.flights.iter().map(|(_, flight)| flight.since_ms)).min()
    }

    /// Up to where the log is not needed any more, given that it was inserted up to `inserted`.
    pub fn cut_position(&self, inserted: Position) -> Position {
        let open = self.live_order().next().map(|(_, bucket)| bucket.position);
        let flying = self.flights.iter().map(|(_, flight)| flight.position).min();
        open.into_iter().chain(flying).fold(inserted, Position::min)
    }

    /// Whether there is something to [`take`](Self::take), unless all of it waits for a flight to end.
    pub fn is_due(&self, now_ms: u64) -> bool {
        !self.full.is_empty() || self.is_short_of_memory() || self.due_at_ms().is_some_and(|due_ms| due_ms <= now_ms)
    }

    /// When the next bucket is due by age, not counting those that wait for a flight to end. `None` when
    /// there is none.
    pub fn due_at_ms(&self) -> Option<u64> {
        let (_, next) = self.live_order().find(|(entry, _)| !self.is_blocked(entry.bucket))?;
        Some(next.since_ms.saturating_add(self.max_age_ms()))
    }

    /// Takes up to `max` buckets to write, oldest first among those due. They are in flight until
    /// [`Self::complete`] is called with each of them.
    pub fn take(&mut self, which: Take, now_ms: u64, max: usize) -> Vec<Taken> {
        let mut taken = Vec::new();
        while taken.len() < max {
            let Some(entry) = self.full.pop_front() else { break };
            if self.is_live(entry) && !self.is_blocked(entry.bucket) {
                taken.push(self.take_bucket(entry.bucket));
            }
        }
        while self.order.front().is_some_and(|&entry| !self.is_live(entry)) {
            self.order.pop_front();
        }
        let mut at = 0;
        while taken.len() < max && at < self.order.len() {
            let entry = self.order[at];
            at += 1;
            if !self.is_live(entry) {
                continue;
            }
            let age_ms = now_ms.saturating_sub(self.open[key(entry.bucket)].since_ms);
            if which == Take::Due && age_ms < self.max_age_ms() && !self.is_short_of_memory() {
                break;
            }
            if !self.is_blocked(entry.bucket) {
                taken.push(self.take_bucket(entry.bucket));
            }
        }
        taken
    }

    /// Forgets a write that was taken: it is stored, or dead-lettered. Returns what was held of it, which may
    /// be large: drop it without the lock.
    pub fn complete(&mut self, write: &BucketWrite) -> Arc<BucketSnapshot> {
        let device = self.find_device(&write.device).expect("in flight, so known");
        let hours = &mut self.devices[device].hours;
        let at = hours.binary_search_by_key(&write.hour, |slot| slot.hour).expect("in flight, so there");
        let flight = hours[at].flight.take().expect("in flight");
        let open = hours[at].open;
        if let Some(bucket) = open {
            self.enter_if_full(bucket);
        } else {
            hours.remove(at);
            if hours.is_empty() {
                self.forget_device(device);
            }
        }
        let flight = self.flights.remove(key(flight));
        self.bytes -= flight.bytes;
        self.readings -= u64::from(flight.bucket.accepted);
        flight.bucket
    }

    fn max_age_ms(&self) -> u64 {
        self.limits.max_age.as_millis() as u64
    }

    /// From three quarters on, buckets go before they are due, so that the last quarter is rarely needed.
    const fn is_short_of_memory(&self) -> bool {
        self.bytes > self.limits.max_bytes / 4 * 3
    }

    fn is_live(&self, entry: Entry) -> bool {
        self.open.get(key(entry.bucket)).is_some_and(|bucket| bucket.serial == entry.serial)
    }

    /// Whether a write of the same bucket is in flight.
    fn is_blocked(&self, bucket: Index) -> bool {
        self.slot_of(bucket).flight.is_some()
    }

    fn slot_of(&self, bucket: Index) -> &HourSlot {
        let bucket = &self.open[key(bucket)];
        let hours = &self.devices[key(bucket.device)].hours;
        let at = hours.binary_search_by_key(&bucket.hour, |slot| slot.hour).expect("an open bucket has a slot");
        &hours[at]
    }

    fn live_order(&self) -> impl Iterator<Item = (Entry, &OpenBucket)> {
        let live = self.order.iter().filter(|&&entry| self.is_live(entry));
        live.map(|&entry| (entry, &self.open[key(entry.bucket)]))
    }

    fn find_device(&self, id: &str) -> Option<usize> {
        let hash = self.hasher.hash_one(id);
        self.by_id.find(hash, |&device| *self.devices[device as usize].id == *id).map(|&device| device as usize)
    }

    fn forget_device(&mut self, device: usize) {
        let devices = &self.devices;
        self.sorted.remove(device as u32, |key| &*devices[key as usize].id);
        let gone = self.devices.remove(device);
        let hash = self.hasher.hash_one(&*gone.id);
        if let Ok(entry) = self.by_id.find_entry(hash, |&known| known as usize == device) {
            entry.remove();
        }
    }

    /// The open bucket of a device and hour, opened if need be.
    fn bucket(&mut self, id: &str, hour: Hour, position: Position, now_ms: u64) -> Index {
        let device = self.find_device(id).unwrap_or_else(|| self.add_device(id));
        let hours = &mut self.devices[device].hours;
        let at = match hours.binary_search_by_key(&hour, |slot| slot.hour) {
            Ok(at) => at,
            Err(at) => {
                hours.insert(at, HourSlot { hour, open: None, flight: None });
                at
            }
        };
        if let Some(bucket) = hours[at].open {
            return bucket;
        }
        let serial = self.next_serial;
        self.next_serial = serial.wrapping_add(1);
        let names = Arc::clone(self.names.current());
        let bucket = OpenBucket::new(index(device), hour, names, position, now_ms, serial);
        self.bytes += bucket.bytes();
        let bucket = index(self.open.insert(bucket));
        hours[at].open = Some(bucket);
        self.order.push_back(Entry { bucket, serial });
        bucket
    }

    fn add_device(&mut self, id: &str) -> usize {
        let device = self.devices.insert(Device { id: id.into(), hours: SmallVec::new() });
        let (devices, hasher) = (&self.devices, &self.hasher);
        let rehash = |&known: &u32| hasher.hash_one(&*devices[known as usize].id);
        let number = u32::try_from(device).expect("memory ends far below 2^32 devices");
        self.by_id.insert_unique(hasher.hash_one(id), number, rehash);
        self.sorted.insert(number, |key| &*devices[key as usize].id);
        device
    }

    /// The names that the values of an open bucket refer to.
    fn names_of(&self, bucket: Index) -> &Arc<Names> {
        &self.open[key(bucket)].names
    }

    fn push(&mut self, bucket: Index, metadata: Option<&str>, offset: u32, values: impl Iterator<Item = (u32, f64)>) {
        let open = &mut self.open[key(bucket)];
        let before = open.bytes();
        open.push(metadata, offset, values);
        self.bytes = self.bytes + open.bytes() - before;
        self.readings += 1;
        if open.accepted == self.limits.max_readings {
            self.enter_if_full(bucket);
        }
    }

    fn enter_if_full(&mut self, bucket: Index) {
        let open = &self.open[key(bucket)];
        if open.accepted >= self.limits.max_readings {
            self.full.push_back(Entry { bucket, serial: open.serial });
        }
    }

    fn take_bucket(&mut self, bucket: Index) -> Taken {
        let open = self.open.remove(key(bucket));
        let device = &mut self.devices[key(open.device)];
        let (hour, position, since_ms, bytes) = (open.hour, open.position, open.since_ms, open.bytes());
        let bucket = Arc::new(open.into_snapshot(self.keep));
        let flight = Flight { bucket: Arc::clone(&bucket), position, since_ms, bytes };
        let at = device.hours.binary_search_by_key(&hour, |slot| slot.hour).expect("an open bucket has a slot");
        device.hours[at] = HourSlot { hour, open: None, flight: Some(index(self.flights.insert(flight))) };
        Taken { device: device.id.as_ref().into(), bucket }
    }
}
