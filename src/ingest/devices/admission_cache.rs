//! A cache of devices and metrics that were admitted, so that the next reading skips the full check.

use std::sync::atomic::{AtomicU32, Ordering};

/// The slots of a set. A set is in one cache line, and a device with the same metrics is always in the same
/// set.
const WAYS: usize = 8;

/// The lowest bits of a tag, which tell the hour from those before it, and a slot in use from an empty one.
const HOUR_BITS: u32 = 2;

/// The devices that were admitted in this hour with the same metrics, one number each: a set-associative
/// cache.
///
/// It takes eight bytes a device, so a reading of a known device costs one cache miss. False positives occur
/// with probability 2^-27; one admits at most one reading past a limit.
#[derive(Debug)]
pub(super) struct AdmissionCache(Box<[Set]>);

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
        let tag = (mixed >> 32) as u32 >> HOUR_BITS << HOUR_BITS | (hour % 3 + 1);
        Self { hash: (mixed ^ (mixed >> 32)) as u32, tag }
    }

    /// Whether the tag in a slot is of this hour.
    const fn is_of_hour(self, other: u32) -> bool {
        (self.tag ^ other).is_multiple_of(1 << HOUR_BITS)
    }
}

impl AdmissionCache {
    /// An empty cache with at least two slots for each of `devices`.
    pub(super) fn new(devices: usize) -> Self {
        let sets = (2 * devices).div_ceil(WAYS).next_power_of_two();
        Self((0..sets).map(|_| Set::default()).collect())
    }

    pub(super) fn has(&self, key: CacheKey) -> bool {
        let Set(slots) = self.set(key);
        slots.iter().fold(false, |has, slot| has | (slot.load(Ordering::Relaxed) == key.tag))
    }

    /// Adds a key. It replaces one of another hour, or any one if the set has none.
    pub(super) fn insert(&self, key: CacheKey) {
        let Set(slots) = self.set(key);
        let replaced = slots.iter().find(|slot| !key.is_of_hour(slot.load(Ordering::Relaxed)));
        let any = &slots[(key.tag >> HOUR_BITS) as usize % WAYS];
        replaced.unwrap_or(any).store(key.tag, Ordering::Relaxed);
    }

    fn set(&self, key: CacheKey) -> &Set {
        &self.0[key.hash as usize & (self.0.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_its_device_metrics_and_hour() {
        let cache = AdmissionCache::new(1_000);
        let key = CacheKey::of(1, 2, 3);
        assert!(!cache.has(key));
        cache.insert(key);
        assert!(cache.has(key));
        for other in [CacheKey::of(2, 2, 3), CacheKey::of(1, 3, 3), CacheKey::of(1, 2, 4), CacheKey::of(2, 1, 3)] {
            assert!(!cache.has(other), "{other:?}");
        }
    }

    #[test]
    fn nearly_all_keys_of_the_hour_are_found() {
        let cache = AdmissionCache::new(1 << 14);
        for hour in 1..6 {
            let keys: Vec<CacheKey> =
                (0..1 << 14).map(|id: u64| CacheKey::of(id.wrapping_mul(0xd134_2543_de82_ef95), 7, hour)).collect();
            for &key in &keys {
                cache.insert(key);
            }
            let found = keys.iter().filter(|&&key| cache.has(key)).count();
            assert!(found > keys.len() * 97 / 100, "{found} in hour {hour}");
        }
    }
}
