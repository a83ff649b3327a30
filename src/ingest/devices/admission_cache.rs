//! A cache of devices and metrics that were admitted, so that the next reading skips the full check.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::common::prefetch::prefetch;

/// The number of slots of a set, which is in one cache line.
///
/// A key is only in the set that its hash selects.
const WAYS: usize = 8;

/// The number of bits of a tag that hold its hour: the lowest ones.
///
/// Hours count from 1 to [`HOURS`], and then from 1 again. So the bits are never all 0, and no tag equals an
/// empty slot.
const HOUR_BITS: u32 = 3;
const HOURS: u32 = (1 << HOUR_BITS) - 1;

/// The slots for each device of [`max_known`](super::DeviceLimits::max_known): in the first table, and in the
/// largest.
///
/// The largest is that large because far more devices may send than are known. A slot takes a fraction of the
/// memory of a known device.
const FIRST_SLOTS: usize = 2;
const MAX_SLOTS: usize = 32;

/// A cache of the devices that were admitted in this hour, each with its metrics.
///
/// The first table is small. If a table is too small for the devices that send, an empty table of twice the
/// size replaces it. A request in progress keeps the table that it began with.
#[derive(Debug)]
pub(super) struct AdmissionCache {
    admitted: RwLock<Arc<Admitted>>,
    max_sets: usize,
}

/// A set-associative table of tags, one for each admitted device and its metrics.
///
/// A slot takes four bytes. A lookup costs one cache miss, or none after a prefetch. A lookup finds a key
/// that was not inserted with probability 2^-26; this lets at most one reading past a limit.
#[derive(Debug)]
pub(super) struct Admitted {
    sets: Box<[Set]>,
    /// The number of insertions since [`Self::is_crowded`] last reset it.
    inserted: AtomicU32,
    /// How many of these insertions replaced a key of the same hour.
    replaced: AtomicU32,
}

#[derive(Debug, Default)]
#[repr(align(32))]
struct Set([AtomicU32; WAYS]);

/// A hash of the device, the metrics of its reading, and the hour.
#[derive(Debug, Clone, Copy)]
pub(super) struct CacheKey {
    hash: u32,
    tag: u32,
}

impl CacheKey {
    pub(super) const fn of(id: u64, metric_set_hash: u64, hour: u32) -> Self {
        let mixed =
            (id ^ metric_set_hash.rotate_left(32)).wrapping_add(hour as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let tag = (mixed >> 32) as u32 >> HOUR_BITS << HOUR_BITS | (hour % HOURS + 1);
        Self { hash: (mixed ^ (mixed >> 32)) as u32, tag }
    }

    /// Whether `other`, the tag in a slot, is of the same hour as this key.
    const fn is_of_hour(self, other: u32) -> bool {
        (self.tag ^ other).is_multiple_of(1 << HOUR_BITS)
    }
}

impl AdmissionCache {
    /// An empty cache for at least this many devices.
    pub(super) fn new(devices: usize) -> Self {
        let sets = |slots: usize| (slots * devices).div_ceil(WAYS).next_power_of_two();
        Self { admitted: RwLock::new(Arc::new(Admitted::of(sets(FIRST_SLOTS)))), max_sets: sets(MAX_SLOTS) }
    }

    /// The table for a request.
    pub(super) fn admitted(&self) -> Arc<Admitted> {
        Arc::clone(&self.admitted.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the table by one of twice the size, if `used`, the table of a request, is too small.
    pub(super) fn fit(&self, used: &Arc<Admitted>) {
        let sets = used.sets.len();
        if sets >= self.max_sets || !used.is_crowded() {
            return;
        }
        let mut admitted = self.admitted.write().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&admitted, used) {
            *admitted = Arc::new(Admitted::of(2 * sets));
        }
    }
}

impl Admitted {
    fn of(sets: usize) -> Self {
        let sets = (0..sets).map(|_| Set::default()).collect();
        Self { sets, inserted: AtomicU32::new(0), replaced: AtomicU32::new(0) }
    }

    /// Prefetches the set of a key, which [`Self::has`] reads.
    #[inline]
    pub(super) fn prefetch(&self, key: CacheKey) {
        prefetch(self.set(key));
    }

    pub(super) fn has(&self, key: CacheKey) -> bool {
        let Set(slots) = self.set(key);
        slots.iter().fold(false, |has, slot| has | (slot.load(Ordering::Relaxed) == key.tag))
    }

    /// Adds a key in place of a key of another hour.
    ///
    /// If all keys in the set are of this hour, it replaces one of them.
    pub(super) fn insert(&self, key: CacheKey) {
        let Set(slots) = self.set(key);
        self.inserted.fetch_add(1, Ordering::Relaxed);
        // The search begins at a slot that depends on the key, so that no slot keeps a tag until the same
        // hour bits return.
        let first = (key.tag >> HOUR_BITS) as usize % WAYS;
        let mut all = (0..WAYS).map(|way| &slots[(first + way) % WAYS]);
        let slot = all.find(|slot| !key.is_of_hour(slot.load(Ordering::Relaxed))).unwrap_or_else(|| {
            self.replaced.fetch_add(1, Ordering::Relaxed);
            &slots[first]
        });
        slot.store(key.tag, Ordering::Relaxed);
    }

    /// Whether at least a quarter of the insertions replaced keys of the same hour.
    ///
    /// Returns false until there are as many insertions as sets. Then it decides, and resets the counts.
    fn is_crowded(&self) -> bool {
        if (self.inserted.load(Ordering::Relaxed) as usize) < self.sets.len() {
            return false;
        }
        self.replaced.swap(0, Ordering::Relaxed) >= self.inserted.swap(0, Ordering::Relaxed) / 4
    }

    fn set(&self, key: CacheKey) -> &Set {
        &self.sets[key.hash as usize & (self.sets.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(devices: u64, hour: u32) -> Vec<CacheKey> {
        (0..devices).map(|id| CacheKey::of(id.wrapping_mul(0xd134_2543_de82_ef95), 7, hour)).collect()
    }

    /// Inserts the keys, in requests of 100, and returns how many are found afterwards.
    fn insert(cache: &AdmissionCache, keys: &[CacheKey]) -> usize {
        for request in keys.chunks(100) {
            let admitted = cache.admitted();
            for &key in request {
                admitted.insert(key);
            }
            cache.fit(&admitted);
        }
        let admitted = cache.admitted();
        keys.iter().filter(|&&key| admitted.has(key)).count()
    }

    #[test]
    fn a_key_is_its_device_metrics_and_hour() {
        let admitted = AdmissionCache::new(1_000).admitted();
        let key = CacheKey::of(1, 2, 3);
        assert!(!admitted.has(key));
        admitted.insert(key);
        assert!(admitted.has(key));
        for other in [CacheKey::of(2, 2, 3), CacheKey::of(1, 3, 3), CacheKey::of(1, 2, 4), CacheKey::of(2, 1, 3)] {
            assert!(!admitted.has(other), "{other:?}");
        }
    }

    #[test]
    fn nearly_all_keys_of_the_hour_are_found_and_the_cache_does_not_grow() {
        let cache = AdmissionCache::new(1 << 14);
        let sets = cache.admitted().sets.len();
        for hour in 1..20 {
            let found = insert(&cache, &keys(1 << 14, hour));
            assert!(found > (1 << 14) * 97 / 100, "{found} in hour {hour}");
        }
        assert_eq!(cache.admitted().sets.len(), sets);
    }

    #[test]
    fn ten_times_the_devices_find_room_within_the_bound() {
        let cache = AdmissionCache::new(1 << 10);
        let keys = keys(10 << 10, 1);
        let found = (0..6).map(|_| insert(&cache, &keys)).last().unwrap_or_default();
        assert!(found > keys.len() * 9 / 10, "{found} of {}", keys.len());
        for hour in 0..3 {
            insert(&cache, &self::keys(100 << 10, hour));
        }
        assert_eq!(cache.admitted().sets.len() * WAYS, MAX_SLOTS << 10);
    }
}
