//! The devices that sent lately, in bounded memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::common::generations::Generations;
use crate::common::interner::Interner;

/// The number of tables that devices are spread over, each with a lock of its own.
const SHARDS: usize = 64;

/// A device takes as much memory as this many of its metrics.
const DEVICE_WEIGHT: usize = 16;

/// The most metrics that devices share. Each addition to shared metrics copies them.
const SHARED_MAX: usize = 16;

/// The devices that sent lately, by the hash of their IDs.
///
/// Each shard forgets the devices that were silent for longest. The metrics of a device count towards the
/// weight of its shard.
#[derive(Debug)]
pub(super) struct KnownDevices(Box<[Mutex<Shard>]>);

type Shard = Generations<u64, Known>;

/// A known device, and what it has used of its limits.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The state of its rate (see [`Rate`](crate::limits::Rate)).
    pub(super) used_ns: u64,
    /// The metrics of the last hour in which it sent. Most devices share them with others.
    metrics: Option<Arc<HourMetrics>>,
}

/// The metrics of a device that arrived in one hour.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
pub(super) struct HourMetrics {
    hour: u32,
    /// A part of the hash of the metric set of the last reading that added metrics. The next reading usually
    /// has the same set.
    last_set: u32,
    /// Hashes of metric names, ascending.
    names: SmallVec<[u32; 4]>,
}

impl KnownDevices {
    /// Begins without devices. Each generation holds about `max` devices.
    pub(super) fn new(max: usize) -> Self {
        let max_weight = (max * DEVICE_WEIGHT).div_ceil(SHARDS);
        Self((0..SHARDS).map(|_| Mutex::new(Generations::new(max_weight, Known::weight))).collect())
    }

    /// Updates a device; `None` if it is not known.
    pub(super) fn update<T>(&self, id: u64, update: impl FnOnce(&mut Known) -> T) -> Option<T> {
        self.shard(id).update(&id, update)
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
        DEVICE_WEIGHT + self.metrics.as_ref().map_or(0, |metrics| metrics.names.len())
    }

    /// Adds the metrics of a reading, and returns true.
    ///
    /// If the device would then have more than `max` metrics in this hour, adds nothing and returns false.
    /// `set` is a hash of all `names`.
    pub(super) fn add_metrics(
        &mut self,
        shared: &Interner<HourMetrics>,
        (hour, set): (u32, u64),
        names: impl Iterator<Item = u32> + Clone,
        max: usize,
    ) -> bool {
        let metrics = self.metrics.get_or_insert_default();
        if metrics.hour != hour {
            *metrics = Arc::new(HourMetrics { hour, ..HourMetrics::default() });
        }
        if metrics.last_set == set as u32 && !metrics.names.is_empty() {
            return true;
        }
        let is_new = |name: &u32| metrics.names.binary_search(name).is_err();
        match names.clone().filter(is_new).count() {
            0 => return true,
            added if metrics.names.len() + added > max => return false,
            _ => {}
        }
        let changed = Arc::make_mut(metrics);
        for name in names {
            if let Err(at) = changed.names.binary_search(&name) {
                changed.names.insert(at, name);
            }
        }
        changed.last_set = set as u32;
        if changed.names.len() <= SHARED_MAX {
            shared.share(metrics);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::counting::counted;

    /// An ID whose bits are well distributed.
    fn id(nth: u64) -> u64 {
        nth.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn a_flood_of_ids_is_bounded_and_evicts_no_active_device() {
        let known = KnownDevices::new(10_000);
        (0..100).for_each(|nth| known.insert(id(nth)));
        for nth in 100..125_000 {
            known.insert(id(nth));
            if nth % 50 == 0 {
                assert!(known.update(id(nth / 50 % 100), |_| ()).is_some(), "after {nth}");
            }
        }
        assert!(known.count() <= 2 * 10_000, "{}", known.count());
        assert!(known.count() > 9_000, "{}", known.count());
        assert!(known.update(id(101), |_| ()).is_none());
    }

    #[test]
    fn metrics_count_towards_the_weight() {
        let (known, shared) = (KnownDevices::new(1_000), Interner::default());
        for nth in 0..1_000 {
            known.insert(id(nth));
            known.update(id(nth), |known| known.add_metrics(&shared, (1, nth + 1), 0..500, 500));
        }
        assert!(known.count() < 200, "{}", known.count());
        known.insert(id(1 << 40));
        assert_eq!(known.update(id(1 << 40), |known| known.used_ns), Some(0));
    }

    #[test]
    fn a_device_keeps_its_state_through_the_generations() {
        let known = KnownDevices::new(1_000);
        known.insert(7);
        known.update(7, |known| known.used_ns = 5);
        for nth in 0..10_000 {
            known.insert(id(nth));
            known.insert(7); // leaves it alone
            assert_eq!(known.update(7, |known| known.used_ns), Some(5));
        }
    }

    #[test]
    fn different_metrics_of_an_hour_are_limited() {
        let (mut known, shared) = (Known::default(), Interner::default());
        let mut add = |hour, set, names: &[u32]| known.add_metrics(&shared, (hour, set), names.iter().copied(), 3);
        assert!(add(1, 10, &[1, 2]) && add(1, 10, &[1, 2]));
        assert!(!add(1, 11, &[3, 4]), "four are too many");
        assert!(add(1, 12, &[3]), "a rejected reading adds nothing");
        assert!(add(1, 10, &[2, 1]) && !add(1, 13, &[4]));
        assert!(add(2, 13, &[4]), "the next hour");
        assert!(!add(2, 0, &[5, 6, 7]));
    }

    #[test]
    fn devices_share_metrics_until_one_of_them_sends_others() {
        let (mut one, mut other, shared) = (Known::default(), Known::default(), Interner::default());
        assert!(one.add_metrics(&shared, (1, 10), 1..=2, 9) && other.add_metrics(&shared, (1, 10), 1..=2, 9));
        assert!(Arc::ptr_eq(one.metrics.as_ref().unwrap(), other.metrics.as_ref().unwrap()));
        assert!(one.add_metrics(&shared, (1, 11), 3..=9, 9));
        assert_eq!([one.metrics, other.metrics].map(|metrics| metrics.unwrap().names.len()), [9, 2]);
    }

    #[test]
    fn a_device_of_a_fleet_takes_at_most_45_bytes() {
        let (known, allocated) = counted(|| {
            let (known, shared) = (KnownDevices::new(1_000_000), Interner::default());
            for nth in 0..20_000 {
                known.insert(id(nth));
                known.update(id(nth), |known| known.add_metrics(&shared, (1, 10), 1..=4, 9));
            }
            known
        });
        assert_eq!(known.count(), 20_000);
        assert!(allocated.kept / 20_000 <= 45, "{} bytes", allocated.kept / 20_000);
    }
}
