//! The devices that were heard of lately, within bounds.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;

/// Devices are spread over so many tables with a lock each.
const SHARDS: usize = 64;

/// A device takes as much memory as so many metrics of one.
const DEVICE_WEIGHT: usize = 16;

/// The devices that were heard of lately, by the hash of their ids.
///
/// They stand in two generations. Who is heard of is moved to the young one; when that is full, it becomes
/// the old one, and the old one is forgotten. So what is forgotten was not heard of for the longest time,
/// nothing has to be searched for, and there are never more than two generations. The metrics that a device
/// has count towards what is full.
#[derive(Debug)]
pub(super) struct KnownDevices {
    shards: Box<[Mutex<Shard>]>,
    /// How heavy a generation of a shard gets.
    max_weight: usize,
}

#[derive(Debug, Default)]
struct Shard {
    young: HashTable<Known>,
    old: HashTable<Known>,
    /// Of the young ones.
    weight: usize,
}

/// What is known of a device.
#[derive(Debug, Default)]
pub(super) struct Known {
    id: u64,
    /// Up to when its rate is used.
    pub(super) used_ns: u64,
    pub(super) metrics: Metrics,
}

/// The metrics of a device that arrived in one hour.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    hour: u32,
    /// Those of the last reading: mostly the next one has the same.
    shape: u64,
    /// Hashes, ascending.
    names: Vec<u32>,
}

impl KnownDevices {
    /// Knows nobody. Each generation has room for about `max`.
    pub(super) fn new(max: usize) -> Self {
        let max_weight = (max * DEVICE_WEIGHT).div_ceil(SHARDS);
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), max_weight }
    }

    /// Looks at a device, if it is known.
    pub(super) fn look<T>(&self, id: u64, look: impl FnOnce(&mut Known) -> T) -> Option<T> {
        let mut shard = self.shard(id);
        let shard = &mut *shard;
        if let Some(known) = shard.young.find_mut(id, |known| known.id == id) {
            let before = known.weight();
            let seen = look(known);
            let after = known.weight();
            shard.weigh(before, after, self.max_weight);
            return Some(seen);
        }
        let (mut known, _) = shard.old.find_entry(id, |known| known.id == id).ok()?.remove();
        let seen = look(&mut known);
        shard.enter(known, self.max_weight);
        Some(seen)
    }

    /// Knows a device from now on.
    pub(super) fn insert(&self, id: u64) {
        let mut shard = self.shard(id);
        let is_known = [&shard.young, &shard.old].iter().any(|table| table.find(id, |known| known.id == id).is_some());
        if !is_known {
            shard.enter(Known { id, ..Known::default() }, self.max_weight);
        }
    }

    /// How many are known.
    pub(super) fn count(&self) -> usize {
        let count = |shard: &Mutex<Shard>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.young.len() + shard.old.len()
        };
        self.shards.iter().map(count).sum()
    }

    fn shard(&self, id: u64) -> MutexGuard<'_, Shard> {
        // The tables go by the lowest and the highest bits.
        let shard = &self.shards[(id >> 40) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    fn enter(&mut self, known: Known, max_weight: usize) {
        let weight = known.weight();
        self.young.insert_unique(known.id, known, |known| known.id);
        self.weigh(0, weight, max_weight);
    }

    fn weigh(&mut self, before: usize, after: usize, max_weight: usize) {
        self.weight = self.weight + after - before;
        if self.weight > max_weight {
            self.old = std::mem::take(&mut self.young);
            self.weight = 0;
        }
    }
}

impl Known {
    fn weight(&self) -> usize {
        DEVICE_WEIGHT + self.metrics.names.len()
    }
}

impl Metrics {
    /// Takes the metrics of a reading of this hour, unless there would be more than `max`.
    pub(super) fn take(&mut self, hour: u32, shape: u64, names: impl Iterator<Item = u32> + Clone, max: usize) -> bool {
        if self.hour != hour {
            *self = Self { hour, ..Self::default() };
        }
        if self.shape == shape && !self.names.is_empty() {
            return true;
        }
        let is_new = |name: &u32| self.names.binary_search(name).is_err();
        if self.names.len() + names.clone().filter(is_new).count() > max {
            return false;
        }
        for name in names {
            if let Err(at) = self.names.binary_search(&name) {
                self.names.insert(at, name);
            }
        }
        self.shape = shape;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Well spread.
    fn id(nth: u64) -> u64 {
        nth.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn a_flood_does_not_grow_the_table_and_does_not_push_out_who_goes_on_sending() {
        let known = KnownDevices::new(10_000);
        (0..100).for_each(|nth| known.insert(id(nth)));
        for nth in 100..1_000_000 {
            known.insert(id(nth));
            if nth % 50 == 0 {
                assert!(known.look(id(nth / 50 % 100), |_| ()).is_some(), "after {nth}");
            }
        }
        assert!(known.count() <= 2 * 10_000, "{}", known.count());
        assert!(known.count() > 9_000, "{}", known.count());
        assert!(known.look(id(101), |_| ()).is_none());
    }

    #[test]
    fn metrics_take_room_too() {
        let known = KnownDevices::new(1_000);
        for nth in 0..10_000 {
            known.insert(id(nth));
            known.look(id(nth), |known| known.metrics.take(1, nth + 1, 0..500, 500));
        }
        assert!(known.count() < 200, "{}", known.count());
        known.insert(id(1 << 40));
        assert_eq!(known.look(id(1 << 40), |known| known.used_ns), Some(0));
    }

    #[test]
    fn what_is_known_of_a_device_stays_with_it_through_the_generations() {
        let known = KnownDevices::new(1_000);
        known.insert(7);
        known.look(7, |known| known.used_ns = 5);
        for nth in 0..100_000 {
            known.insert(id(nth));
            known.insert(7); // does not make it a new one
            assert_eq!(known.look(7, |known| known.used_ns), Some(5));
        }
    }

    #[test]
    fn metrics_are_different_ones_of_an_hour() {
        let mut metrics = Metrics::default();
        assert!(metrics.take(1, 10, [1, 2].into_iter(), 3) && metrics.take(1, 10, [1, 2].into_iter(), 3));
        assert!(!metrics.take(1, 11, [3, 4].into_iter(), 3), "four are too many");
        assert!(metrics.take(1, 12, [3].into_iter(), 3), "a reading that was refused leaves nothing");
        assert!(metrics.take(1, 10, [2, 1].into_iter(), 3) && !metrics.take(1, 13, [4].into_iter(), 3));
        assert!(metrics.take(2, 13, [4].into_iter(), 3), "the next hour");
        assert!(!metrics.take(2, 0, [5, 6, 7].into_iter(), 3));
    }
}
