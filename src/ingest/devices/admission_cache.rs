//! A cache of devices and metrics that were admitted, so that the next reading skips the full check.

use std::sync::atomic::{AtomicU32, Ordering};

/// The devices that were admitted in this hour with the same metrics, one number each.
///
/// The table fits into the caches of the processor, which the devices themselves do not. Each slot holds the
/// key that was inserted last. False positives occur with probability 2^-32; one admits at most one reading
/// past a limit.
#[derive(Debug)]
pub(super) struct AdmissionCache(Box<[AtomicU32]>);

/// A hash of the device, the metrics of its reading, and the hour.
#[derive(Debug, Clone, Copy)]
pub(super) struct CacheKey(u64);

impl CacheKey {
    pub(super) const fn of(id: u64, metric_set_hash: u64, hour: u32) -> Self {
        let mixed =
            (id ^ metric_set_hash.rotate_left(32)).wrapping_add(hour as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self(mixed ^ (mixed >> 32))
    }

    const fn tag(self) -> u32 {
        (self.0 >> 32) as u32 | 1 // differs from an empty slot
    }
}

impl AdmissionCache {
    /// An empty cache with at least one slot for each of `devices`.
    pub(super) fn new(devices: usize) -> Self {
        Self((0..devices.next_power_of_two()).map(|_| AtomicU32::new(0)).collect())
    }

    pub(super) fn has(&self, key: CacheKey) -> bool {
        self.slot(key).load(Ordering::Relaxed) == key.tag()
    }

    pub(super) fn insert(&self, key: CacheKey) {
        self.slot(key).store(key.tag(), Ordering::Relaxed);
    }

    fn slot(&self, key: CacheKey) -> &AtomicU32 {
        &self.0[key.0 as usize & (self.0.len() - 1)]
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
    fn most_keys_are_found_while_there_are_as_many_slots() {
        let cache = AdmissionCache::new(1 << 16);
        let keys: Vec<CacheKey> =
            (0..1 << 14).map(|id: u64| CacheKey::of(id.wrapping_mul(0xd134_2543_de82_ef95), 7, 1)).collect();
        for &key in &keys {
            cache.insert(key);
        }
        let found = keys.iter().filter(|&&key| cache.has(key)).count();
        assert!(found > keys.len() * 8 / 10, "{found}");
    }
}
