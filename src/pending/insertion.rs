//! Inserting the readings of a record into the buckets, one turn at a time.
//!
//! [`Insertion::decode`] reads the steps of a turn. [`Insertion::apply`] finds or opens the bucket of each
//! reading, and pushes the reading into it. The readings of a bucket stay in the order of the log.

use std::hint::black_box;
use std::sync::Arc;

use super::bucket::OpenBucket;
use super::device_id::DeviceId;
use super::hours::Hours;
use super::names::Names;
use super::slots::Key;
use super::{Device, HourSlot, ITEMS_PER_BUCKET, ITEMS_PER_TURN, Pending};
use crate::log::Position;
use crate::log::batch::{BadPayload, BatchView, Name, Step, Steps, Text};
use crate::model::Hour;

/// With at most this many devices, they and their buckets are in the caches of the processor anyway. The
/// tests have few devices.
const DEVICES_IN_CACHE: usize = if cfg!(test) { 1 } else { 2_048 };

/// The insertion of one record.
///
/// Call [`Self::decode`] without the lock of pending and [`Self::apply`] with it, until nothing is left to
/// decode.
#[derive(Debug)]
pub struct Insertion<'a> {
    position: Position,
    names: Vec<Name<'a>>,
    steps: Steps<'a>,
    /// The steps that are decoded and not applied yet.
    turn: Vec<Step<'a>>,
    /// The groups of the steps in `turn`.
    groups: Vec<Group<'a>>,
    /// The ids of the batch's names, for each generation of names that the buckets use.
    tables: Vec<IdTable>,
    /// The group of the last step.
    group: Group<'a>,
    /// An old generation of names. It is dropped with the insertion, without the lock.
    old_names: Option<Arc<Names>>,
}

/// Consecutive readings of one device, and what was looked up about the device before their insertion.
#[derive(Debug, Clone, Copy)]
struct Group<'a> {
    device: Text<'a>,
    metadata: Option<&'a str>,
    /// The hour of the first reading.
    hour: Hour,
    /// The hash of the device ID in the index of devices.
    hash: u64,
    /// The device, if it is known.
    known: Option<Key>,
    /// The open bucket of the device and [`Self::hour`], if there is one.
    bucket: Option<Key>,
}

impl<'a> Insertion<'a> {
    /// Starts the insertion of the record at `position`.
    ///
    /// # Errors
    /// If the payload's table of names is not valid.
    pub fn new(payload: &'a [u8], position: Position) -> Result<Self, BadPayload> {
        let BatchView { names, steps } = BatchView::new(payload)?;
        Ok(Self {
            position,
            names,
            steps,
            turn: Vec::new(),
            groups: Vec::new(),
            tables: Vec::new(),
            group: Group::new(Text::default(), None),
            old_names: None,
        })
    }

    /// Decodes the steps of the next turn.
    ///
    /// Returns false when all steps have been applied.
    ///
    /// # Errors
    /// If the payload is not valid. Earlier turns may have been applied.
    pub fn decode(&mut self) -> Result<bool, BadPayload> {
        let (mut items, mut last) = (0, None);
        let mut metadata_items = self.group.metadata.map_or(0, items_of);
        while items < ITEMS_PER_TURN {
            let Some(step) = self.steps.next() else { break };
            let step = step?;
            items += match &step {
                Step::Group { device, metadata } => {
                    (metadata_items, last) = (metadata.map_or(0, items_of), None);
                    self.groups.push(Group::new(*device, *metadata));
                    1
                }
                Step::Reading { ts_ms, values } => {
                    let hour = Hour::of(*ts_ms);
                    let before = last.replace(hour);
                    if before.is_none()
                        && let Some(group) = self.groups.last_mut()
                    {
                        group.hour = hour;
                    }
                    let is_same = before == Some(hour);
                    values.len() + if is_same { 1 } else { ITEMS_PER_BUCKET + metadata_items }
                }
            };
            self.turn.push(step);
        }
        Ok(!self.turn.is_empty())
    }

    /// Inserts the decoded readings into the buckets, and returns their number.
    pub fn apply(&mut self, pending: &mut Pending, now_ms: u64) -> u64 {
        if self.tables.is_empty() {
            self.old_names = pending.names.advance();
        }
        let before = pending.readings();
        pending.find_groups(&mut self.groups);
        (self.group.known, self.group.bucket) = (None, None); // it may have been removed since the last turn
        let mut groups = self.groups.drain(..);
        // The bucket of the last reading, and the table of its names.
        let mut last: Option<(Hour, Key, usize)> = None;
        for step in self.turn.drain(..) {
            match step {
                Step::Group { .. } => (self.group, last) = (groups.next().expect("each group is in the list"), None),
                Step::Reading { ts_ms, values } => {
                    let hour = Hour::of(ts_ms);
                    let (bucket, table, metadata) = match last {
                        Some((of_last, bucket, table)) if of_last == hour => (bucket, table, None),
                        _ => {
                            let bucket = pending.bucket(&self.group, hour, self.position, now_ms);
                            let names = &pending.open[bucket].names;
                            (bucket, table_of(&mut self.tables, names, self.names.len()), self.group.metadata)
                        }
                    };
                    last = Some((hour, bucket, table));
                    let IdTable { generation, ids } = &mut self.tables[table];
                    let values = values.map(|(name, value)| {
                        let name = usize::from(name);
                        (*ids[name].get_or_insert_with(|| generation.id(self.names[name])), value)
                    });
                    pending.push(bucket, metadata, Hour::offset_of(ts_ms), values);
                }
            }
        }
        pending.readings() - before
    }

    /// Releases the names in use, so that they can be freed while the insertion waits.
    ///
    /// Call it without the lock of pending.
    pub fn release_names(&mut self) {
        self.tables.clear();
        self.old_names = None;
    }

    /// Returns whether all of the batch has been applied.
    pub fn is_over(&self) -> bool {
        self.turn.is_empty() && self.steps.is_over()
    }
}

impl Pending {
    /// Finds the devices and buckets of the groups, and brings them into the caches of the processor.
    ///
    /// Among many devices, each access to one is a cache miss. The accesses of a pass do not depend on each
    /// other, so the processor waits for many of them at once. The counts and sums only cause the accesses.
    fn find_groups(&self, groups: &mut [Group<'_>]) {
        for group in &mut *groups {
            group.hash = self.by_id.hash(group.device.as_bytes());
        }
        if self.devices.len() <= DEVICES_IN_CACHE {
            return;
        }
        for group in &mut *groups {
            group.known = self.by_id.find(group.hash, |_| true); // to be compared when it is in the caches
        }
        let devices = groups.iter().filter_map(|group| group.known);
        black_box(devices.filter(|&device| self.devices[device].hours.is_empty()).count());
        for group in &mut *groups {
            group.known = group.known.filter(|&device| self.devices[device].id.as_bytes() == group.device.as_bytes());
            let slot = group.known.and_then(|device| self.devices[device].hours.find(group.hour));
            group.bucket = slot.and_then(|slot| slot.open);
        }
        let buckets = || groups.iter().filter_map(|group| group.bucket).map(|bucket| &self.open[bucket]);
        black_box(buckets().map(OpenBucket::touch).sum::<usize>());
        black_box(buckets().map(OpenBucket::touch_values).sum::<usize>());
    }

    /// Returns the open bucket of a device and hour. Opens one if there is none.
    #[inline]
    fn bucket(&mut self, group: &Group<'_>, hour: Hour, position: Position, now_ms: u64) -> Key {
        if let Some(bucket) = group.bucket
            && hour == group.hour
        {
            return bucket;
        }
        let device = group.known.or_else(|| self.find_hashed(group.device.as_bytes(), group.hash));
        let device = device.unwrap_or_else(|| self.add_device(group.device.as_str(), group.hash));
        let hours = &mut self.devices[device].hours;
        match hours.find(hour).and_then(|slot| slot.open) {
            Some(bucket) => bucket,
            None => self.open_bucket(device, hour, position, now_ms),
        }
    }

    #[cold]
    fn add_device(&mut self, id: &str, hash: u64) -> Key {
        let id = DeviceId::from(id);
        self.bytes += id.allocated_bytes();
        let device = self.devices.insert(Device { id, hours: Hours::EMPTY });
        self.by_id.insert(hash, device);
        self.sorted.insert(device, |device| self.devices[device].id.as_bytes());
        device
    }

    #[cold]
    fn open_bucket(&mut self, device: Key, hour: Hour, position: Position, now_ms: u64) -> Key {
        let is_deleting = self.is_deleting(device, hour);
        let hours = &mut self.devices[device].hours;
        // A slot without an open bucket has a write in flight.
        let slot = hours.find_mut(hour);
        let is_blocked = slot.is_some() || is_deleting;
        let names = Arc::clone(self.names.current());
        let mut bucket = OpenBucket::new(device, hour, names, position, now_ms, is_blocked);
        bucket.is_late = hour <= self.ended;
        self.bytes += bucket.bytes();
        let bucket = self.open.insert(bucket);
        if let Some(slot) = slot {
            slot.open = Some(bucket);
        } else {
            hours.insert(HourSlot { hour, open: Some(bucket), in_flight: None });
            if !is_blocked {
                self.by_age.append(&mut self.open, bucket);
            }
        }
        bucket
    }

    /// Pushes a reading into a bucket, which may then be full.
    #[inline]
    fn push(&mut self, bucket: Key, metadata: Option<&str>, offset: u32, values: impl Iterator<Item = (Key, f64)>) {
        let open = &mut self.open[bucket];
        self.bytes = self.bytes.wrapping_add_signed(open.push(metadata, offset, values));
        self.readings += 1;
        if open.accepted == self.limits.max_readings || open.values() >= self.max_values {
            self.note_size(bucket);
        }
    }

    /// Notes that a bucket has the readings of a full one, or is crowded.
    #[cold]
    fn note_size(&mut self, bucket: Key) {
        if self.crowded.contains(&bucket) {
            return; // it is in the queue, or gets there when it is unblocked
        }
        let open = &self.open[bucket];
        if open.values() >= self.max_values {
            self.crowded.push(bucket);
        }
        // A bucket with more readings got into the queue before.
        if !open.is_blocked && open.accepted <= self.limits.max_readings {
            self.full.push_back(bucket);
        }
    }

    /// Inserts the record at `position`, all turns in a row.
    ///
    /// # Errors
    /// If the payload is not valid.
    #[cfg(any(test, fuzzing, feature = "bench"))]
    pub fn insert(&mut self, payload: &[u8], position: Position, now_ms: u64) -> Result<(), BadPayload> {
        let mut insertion = Insertion::new(payload, position)?;
        while insertion.decode()? {
            insertion.apply(self, now_ms);
        }
        Ok(())
    }
}

impl<'a> Group<'a> {
    fn new(device: Text<'a>, metadata: Option<&'a str>) -> Self {
        Self { device, metadata, hour: Hour(0), hash: 0, known: None, bucket: None }
    }
}

#[derive(Debug)]
struct IdTable {
    generation: Arc<Names>,
    /// The id of each name of the batch. `None`: not looked up yet.
    ids: Vec<Option<Key>>,
}

/// Returns the index of the table of a generation. There is nearly always only one.
#[inline]
fn table_of(tables: &mut Vec<IdTable>, generation: &Arc<Names>, names: usize) -> usize {
    tables.iter().position(|table| Arc::ptr_eq(&table.generation, generation)).unwrap_or_else(|| {
        tables.push(IdTable { generation: Arc::clone(generation), ids: vec![None; names] });
        tables.len() - 1
    })
}

/// The work of comparing or copying metadata, in the unit of [`ITEMS_PER_TURN`].
const fn items_of(metadata: &str) -> usize {
    metadata.len() / 64
}
