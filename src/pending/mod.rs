//! Pending readings: accepted and in the log, not in the store yet.
//!
//! They are kept in memory as the buckets in which they will be stored. The feeder reads the log into
//! [`Pending`] in order; the scheduler takes buckets out when they are **due** (`taking`).
//!
//! Promises:
//! - At most one write of a bucket is in flight. Readings that arrive meanwhile wait in a new bucket.
//! - Queries see the readings of a write in flight until the store has them.
//! - [`Pending::cut_position`] never passes a reading that is not stored, or a deletion that the store has
//!   not executed.
//! - An open bucket has little more than `MAX_VALUES` values, because a write or a query decodes them all at
//!   once. Pending is full until a bucket with that many is taken.
//! - Pending is used behind a lock. No call touches more than a bounded number of values, whatever clients
//!   send: long work is done in turns of `ITEMS_PER_TURN`, and queries and writes get snapshots, which
//!   share the memory of most values and are read without the lock. Tables grow piece by piece.
//!
//! An open bucket is a stream of bytes (`stream`). A reading takes one to three bytes. An hour of a sensor
//! that sends each minute takes some 420 bytes, including its entries in all tables.
//!
//! A reading touches an entry of the hash index, its device, its bucket and the end of its stream. Each is in
//! one or two cache lines, and none of them moves. With many devices these are cache misses. So a turn first
//! finds all its devices and buckets together, which overlaps the misses, and then inserts the readings
//! (`insertion`).
//!
//! Pure: no io, no locks, and the clock is an argument, in milliseconds of any monotonic clock.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::log::Position;
use crate::model::{Hour, Keep};

mod age_queue;
mod bucket;
mod deletions;
mod device_id;
#[cfg(test)]
mod due_tests;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod hash_index;
mod hours;
mod insertion;
mod names;
mod queries;
mod slots;
mod sorted;
mod stream;
mod taking;
#[cfg(test)]
mod tests;

pub use deletions::{DeletionStep, Erased, HourErasure, NextDeletion};
pub use insertion::Insertion;
pub use queries::{PendingDevice, PendingHour};
pub use taking::{Due, Reason, Take, TakenBucket};

use age_queue::AgeQueue;
use bucket::OpenBucket;
use deletions::PendingDeletion;
use device_id::DeviceId;
use hash_index::HashIndex;
use hours::Hours;
use names::Generations;
use slots::{Key, Slots};
use sorted::SortedDevices;
use taking::InFlight;

/// The work of one turn, in values that are inserted or copied: some ten to some hundred microseconds.
const ITEMS_PER_TURN: usize = 4_096;

/// Names that no bucket uses any more may take [`Limits::max_bytes`] divided by this.
const NAMES_SHARE: u64 = 8;

/// The number of values, repetitions included, with which an open bucket is crowded.
///
/// It is then due, and nothing should be inserted until it is taken. A value may take one byte in a bucket,
/// but takes some 50 while a write or a query sorts the bucket. A gateway that sends a thousand series each
/// second has fewer values in an hour.
const MAX_VALUES: u32 = 1 << 22;

/// The work of finding or opening a bucket, in the unit of [`ITEMS_PER_TURN`].
const ITEMS_PER_BUCKET: usize = 32;

/// When buckets are due, and how much memory they may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Memory that pending readings may take, in bytes; estimated.
    pub max_bytes: u64,
    /// A bucket with this many readings is due.
    pub max_readings: u32,
    /// A bucket is due when its first reading has waited this long.
    pub max_age: Duration,
}

/// All pending readings.
#[derive(Debug)]
pub struct Pending {
    limits: Limits,
    keep: Keep,
    names: Generations,
    devices: Slots<Device>,
    by_id: HashIndex,
    sorted: SortedDevices,
    open: Slots<OpenBucket>,
    in_flight: Slots<InFlight>,
    /// The open buckets that neither a write nor a deletion blocks.
    by_age: AgeQueue,
    /// The full buckets among those of `by_age`.
    full: VecDeque<Key>,
    /// The crowded buckets, blocked or not. Usually there is none.
    crowded: Vec<Key>,
    /// [`MAX_VALUES`], or less in tests.
    pub(crate) max_values: u32,
    /// The newest ended hour, as far as it is known.
    ended: Hour,
    /// The deletions that the store has not executed, in the order of the log.
    deletions: VecDeque<PendingDeletion>,
    /// An earlier process may have sent the readings before this position to the store.
    replay_end: Position,
    /// The memory of the buckets and the device IDs, in bytes; estimated.
    bytes: u64,
    readings: u64,
}

/// A device that has pending readings. It fills a cache line.
#[derive(Debug)]
#[repr(align(64))]
struct Device {
    id: DeviceId,
    /// The pending hours of the device: at least one.
    hours: Hours,
}

/// The buckets of one device and hour: an open one, one in flight, or both.
#[derive(Debug, Clone, Copy)]
struct HourSlot {
    hour: Hour,
    open: Option<Key>,
    in_flight: Option<Key>,
}

impl Pending {
    /// Makes a `Pending` without readings.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            keep: Keep::default(),
            names: Generations::new(limits.max_bytes / NAMES_SHARE),
            devices: Slots::default(),
            by_id: HashIndex::default(),
            sorted: SortedDevices::default(),
            open: Slots::default(),
            in_flight: Slots::default(),
            by_age: AgeQueue::default(),
            full: VecDeque::new(),
            crowded: Vec::new(),
            max_values: MAX_VALUES,
            ended: Hour(i32::MIN), // not known yet
            deletions: VecDeque::new(),
            replay_end: Position::default(),
            bytes: 0,
            readings: 0,
        }
    }

    /// Sets which of several values of one identity is kept.
    ///
    /// The store must keep the same one, so that answers are the same before and after a flush.
    #[must_use]
    pub fn keeping(self, keep: Keep) -> Self {
        Self { keep, ..self }
    }

    /// Sets the end of the log that an earlier process has left.
    #[must_use]
    pub fn replaying_until(self, replay_end: Position) -> Self {
        Self { replay_end, ..self }
    }

    /// Returns whether the memory is used up, or an open bucket is crowded.
    ///
    /// Nothing should be inserted until a bucket is stored, the crowded one is taken, or
    /// [`Self::take_unused_names`] has freed enough.
    ///
    /// Without a bucket it is never full: names that remain are freed when more readings are inserted.
    pub fn is_full(&self) -> bool {
        self.buckets() > 0 && (self.bytes() >= self.limits.max_bytes || !self.crowded.is_empty())
    }

    /// Takes the names that only new buckets would use: they must not keep pending full. Returns memory to be
    /// dropped without the lock.
    ///
    /// An insertion uses names too, until [`Insertion::release_names`].
    pub fn take_unused_names(&mut self) -> Option<impl Sized + use<>> {
        self.names.take_unused()
    }

    /// Returns the device and the hour of a crowded bucket.
    pub fn crowded(&self) -> Option<(Arc<str>, Hour)> {
        let open = &self.open[*self.crowded.first()?];
        Some((self.devices[open.device].id.to_shared(), open.hour))
    }

    /// Returns whether at most half of the memory is used.
    pub fn is_half_free(&self) -> bool {
        self.buckets() == 0 || self.bytes() <= self.limits.max_bytes / 2
    }

    /// The memory in use, names included, in bytes; estimated.
    pub fn bytes(&self) -> u64 {
        self.bytes + self.names.bytes()
    }

    /// The part of [`Self::bytes`] that grows with the buckets, and not with their readings.
    pub const fn fixed_bytes(&self) -> u64 {
        self.buckets() as u64 * bucket::FIXED_BYTES
    }

    /// The number of readings that were inserted and are not stored, repetitions included.
    pub const fn readings(&self) -> u64 {
        self.readings
    }

    /// The number of buckets, those in flight included.
    pub const fn buckets(&self) -> usize {
        self.open.len() + self.in_flight.len()
    }

    #[inline]
    fn find_device(&self, id: &str) -> Option<Key> {
        self.find_hashed(id.as_bytes(), self.by_id.hash(id.as_bytes()))
    }

    #[inline]
    fn find_hashed(&self, id: &[u8], hash: u64) -> Option<Key> {
        self.by_id.find(hash, |device| self.devices[device].id.as_bytes() == id)
    }

    fn remove_device(&mut self, device: Key) {
        self.sorted.remove(device, |device| self.devices[device].id.as_bytes());
        let hash = self.by_id.hash(self.devices[device].id.as_bytes());
        self.by_id.remove(hash, device);
        self.bytes -= self.devices.remove(device).id.allocated_bytes();
    }
}
