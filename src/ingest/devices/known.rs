//! The devices that sent lately, within bounds.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::common::generations::Generations;

/// The number of tables that devices are spread over, each with a lock of its own.
const SHARDS: usize = 64;

/// A device takes as much memory as this many of its metrics.
const DEVICE_WEIGHT: usize = 16;

/// The devices that sent lately, by the hash of their IDs.
///
/// Each shard forgets the devices that were silent for longest. The metrics of a device count towards the
/// weight of its shard.
#[derive(Debug)]
pub(super) struct KnownDevices(Box<[Mutex<Shard>]>);

type Shard = Generations<u64, Known>;

/// What is known of a device.
#[derive(Debug, Default)]
pub(super) struct Known {
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
    /// Knows no device. Each generation holds about `max` devices.
    pub(super) fn new(max: usize) -> Self {
        let max_weight = (max * DEVICE_WEIGHT).div_ceil(SHARDS);
        Self((0..SHARDS).map(|_| Mutex::new(Generations::new(max_weight, Known::weight))).collect())
    }

    /// Looks at a device, if it is known.
    pub(super) fn look<T>(&self, id: u64, look: impl FnOnce(&mut Known) -> T) -> Option<T> {
        self.shard(id).update(&id, look)
    }

    /// Adds a device, unless it is known.
    pub(super) fn insert(&self, id: u64) {
        self.shard(id).insert(id, Known::default());
    }

    /// The number of known devices.
    pub(super) fn count(&self) -> usize {
        self.0.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }

    fn shard(&self, id: u64) -> MutexGuard<'_, Shard> {
        self.0[id as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
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
