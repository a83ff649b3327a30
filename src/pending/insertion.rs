//! Inserting the readings of a record into the buckets, one turn at a time.

use std::hint::black_box;
use std::sync::Arc;

use super::bucket::OpenBucket;
use super::names::Names;
use super::slots::Key;
use super::{ITEMS_PER_BUCKET, ITEMS_PER_TURN, Pending};
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
    /// The groups of these steps.
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
pub(super) struct Group<'a> {
    pub(super) device: Text<'a>,
    metadata: Option<&'a str>,
    /// The hour of the first reading.
    pub(super) hour: Hour,
    /// The hash of the device ID in the index of devices.
    pub(super) hash: u64,
    /// The device, if it is known.
    pub(super) known: Option<Key>,
    /// The open bucket of the device and [`Self::hour`], if there is one.
    pub(super) bucket: Option<Key>,
}

#[derive(Debug)]
struct IdTable {
    generation: Arc<Names>,
    /// The id of each name of the batch. `None`: not looked up yet.
    ids: Vec<Option<Key>>,
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

    /// Decodes the steps of the next turn. Returns false when all steps have been applied.
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

    /// Returns whether all of the batch has been applied.
    pub fn is_over(&self) -> bool {
        self.turn.is_empty() && self.steps.is_over()
    }
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

impl<'a> Group<'a> {
    fn new(device: Text<'a>, metadata: Option<&'a str>) -> Self {
        Self { device, metadata, hour: Hour(0), hash: 0, known: None, bucket: None }
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
