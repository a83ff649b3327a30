//! The detection of readings that overwrite others of the same request.
//!
//! Two values of one request with the same device, instant and series are one value in the store: the later
//! one. That is rarely meant, so a reading that replaces another value of its request is counted, and the
//! first of them are named in the answer.
//!
//! A table has the hash of device and instant of each reading. Only readings that share both are compared
//! value by value. The hashes have 64 bits and a random seed, and stand for what they are made of.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashTable, hash_table::Entry};

use crate::log::BatchBuilder;

/// The most overwriting readings that an answer names.
const MAX_NAMED: usize = 10;

/// The readings of a request that overwrite others of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overwritten {
    /// The number of readings that replaced at least one other value of the request.
    pub readings: u32,
    /// The first of them.
    pub first: Vec<OverwrittenValue>,
}

/// A value that a later reading of the same request replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverwrittenValue {
    /// The position of the later reading in the request, counted from 0.
    pub index: u32,
    /// The client ID of the device.
    pub device: Box<str>,
    /// The instant, in Unix milliseconds.
    pub ts_ms: i64,
    /// The text of the series.
    pub metric: Box<str>,
}

/// The readings of a request or batch that were accepted so far.
#[derive(Debug, Default)]
pub(super) struct OverwriteCheck {
    hasher: RandomState,
    /// One entry for each device and instant.
    instants: HashTable<Instant>,
    /// The values of the instants that more than one reading has, by instant and name in the batch.
    values: HashMap<(u64, u16), u64, RandomState>,
    /// The number of the datagram: its readings overwrite no others.
    datagram: u64,
}

#[derive(Debug)]
struct Instant {
    /// The hash of the device and the instant.
    key: u64,
    /// The first reading, in the batch.
    first: u32,
    /// Whether the values of the first reading are in [`OverwriteCheck::values`].
    is_shared: bool,
}

impl OverwriteCheck {
    /// Starts the next datagram of a batch.
    pub(super) const fn start_datagram(&mut self) {
        self.datagram += 1;
    }

    /// Notes the last reading of `batch`, and returns the name of the first value that it replaces, if any.
    #[inline]
    pub(super) fn note<'b>(&mut self, device: &str, ts_ms: i64, batch: &'b BatchBuilder) -> Option<&'b str> {
        let key = self.hasher.hash_one((device, ts_ms, self.datagram));
        let reading = batch.last_reading();
        match self.instants.entry(key, |known| known.key == key, |known| known.key) {
            Entry::Vacant(vacant) => {
                vacant.insert(Instant { key, first: reading, is_shared: false });
                None
            }
            Entry::Occupied(occupied) => {
                let Instant { first, is_shared, .. } = occupied.into_mut();
                let first = (!std::mem::replace(is_shared, true)).then_some(*first);
                self.compare(key, first, reading, batch)
            }
        }
    }

    #[cold]
    fn compare<'b>(&mut self, key: u64, first: Option<u32>, reading: u32, batch: &'b BatchBuilder) -> Option<&'b str> {
        for (name, value) in first.into_iter().flat_map(|first| batch.values_of(first)) {
            self.values.insert((key, name), value.to_bits());
        }
        let mut replaced = None;
        for (name, value) in batch.values_of(reading) {
            let earlier = self.values.insert((key, name), value.to_bits());
            if earlier.is_some_and(|earlier| earlier != value.to_bits()) {
                replaced = replaced.or(Some(name));
            }
        }
        replaced.map(|name| batch.name(name))
    }
}

impl Overwritten {
    /// Counts a reading that replaced a value.
    #[cold]
    pub(super) fn add(&mut self, index: u32, device: &str, ts_ms: i64, metric: &str) {
        self.readings += 1;
        if self.first.len() < MAX_NAMED {
            self.first.push(OverwrittenValue { index, device: device.into(), ts_ms, metric: metric.into() });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// The indexes of the readings that replace a value of an earlier one.
    fn found(readings: &[(u8, i64, BTreeMap<u8, i8>)]) -> Vec<usize> {
        let (mut check, mut batch, mut found) = (OverwriteCheck::default(), BatchBuilder::default(), Vec::new());
        for (index, (device, ts_ms, values)) in readings.iter().enumerate() {
            let names: Vec<_> = values.iter().map(|(name, value)| (name.to_string(), f64::from(*value))).collect();
            let device = device.to_string();
            batch.push(&device, None, *ts_ms, names.iter().map(|(name, value)| (&**name, *value))).unwrap();
            if check.note(&device, *ts_ms, &batch).is_some() {
                found.push(index);
            }
        }
        found
    }

    proptest! {
        #[test]
        fn a_reading_overwrites_when_a_map_of_all_values_changes(
            readings in prop::collection::vec(
                (0u8..3, 0i64..3, prop::collection::btree_map(0u8..4, 0i8..2, 1..4)), 0..30,
            ),
        ) {
            let mut known = BTreeMap::new();
            let expected: Vec<_> = (0..readings.len()).filter(|&index| {
                let (device, ts_ms, values) = &readings[index];
                let changes = values.iter().filter(|(name, value)| {
                    known.insert((*device, *ts_ms, **name), **value).is_some_and(|earlier| earlier != **value)
                });
                changes.count() > 0
            }).collect();
            prop_assert_eq!(found(&readings), expected);
        }
    }

    #[test]
    fn the_readings_of_another_datagram_are_not_overwritten() {
        let (mut check, mut batch) = (OverwriteCheck::default(), BatchBuilder::default());
        for value in [1.0, 2.0] {
            batch.push("d", None, 5, [("m", value)].into_iter()).unwrap();
            check.start_datagram();
            assert_eq!(check.note("d", 5, &batch), None);
        }
    }
}
