//! A bounded cache that evicts many entries at once: an approximation of LRU.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

use foldhash::fast::RandomState;

/// A map of bounded weight that forgets entries that were not updated for long.
///
/// Entries are in two generations. New and updated entries go into the young generation. When it is full, it
/// becomes the old generation, and the entries of the former old generation are forgotten. So an entry
/// survives at least until one generation is filled after its last update, and eviction needs no list in
/// order of use.
#[derive(Debug)]
pub struct Generations<K, V> {
    young: HashMap<K, V, RandomState>,
    old: HashMap<K, V, RandomState>,
    /// The weight of the young generation.
    weight: usize,
    max_weight: usize,
    weigh: fn(&V) -> usize,
}

impl<K: Eq + Hash, V> Generations<K, V> {
    /// An empty cache. Each of its two generations weighs at most `max_weight`.
    ///
    /// The last entry of a generation may exceed this weight. `weigh` returns the weight of a value: 1 if
    /// only the number of entries matters.
    #[must_use]
    pub fn new(max_weight: usize, weigh: fn(&V) -> usize) -> Self {
        Self { young: HashMap::default(), old: HashMap::default(), weight: 0, max_weight, weigh }
    }

    /// Updates an entry and moves it to the young generation; `None` if it is missing.
    pub fn update<Q, T>(&mut self, key: &Q, update: impl FnOnce(&mut V) -> T) -> Option<T>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        if let Some(value) = self.young.get_mut(key) {
            let before = (self.weigh)(value);
            let result = update(value);
            self.weight = self.weight + (self.weigh)(value) - before;
            if self.weight > self.max_weight {
                self.rotate();
            }
            return Some(result);
        }
        let (key, mut value) = self.old.remove_entry(key)?;
        let result = update(&mut value);
        self.insert_young(key, value);
        Some(result)
    }

    /// Inserts an entry unless its key is known. Returns whether it was inserted.
    pub fn insert(&mut self, key: K, value: V) -> bool {
        let is_new = !self.young.contains_key(&key) && !self.old.contains_key(&key);
        if is_new {
            self.insert_young(key, value);
        }
        is_new
    }

    /// Forgets the old generation; the young one becomes the old one.
    pub fn rotate(&mut self) {
        self.old = std::mem::take(&mut self.young);
        self.weight = 0;
    }

    /// The number of entries in both generations.
    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    fn insert_young(&mut self, key: K, value: V) {
        if self.weight >= self.max_weight {
            self.rotate();
        }
        self.weight += (self.weigh)(&value);
        self.young.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_stay_in_use_survive_a_flood() {
        let mut cache = Generations::new(100, |_| 1);
        assert!(cache.insert(0, 7));
        for key in 1..10_000 {
            assert!(cache.insert(key, 0));
            assert_eq!(cache.update(&0, |value| *value), Some(7), "after {key}");
            assert!(cache.len() <= 200);
        }
        assert_eq!(cache.update(&9_999, |value| *value), Some(0));
        assert_eq!(cache.update(&1, |value| *value), None, "forgotten");
    }

    #[test]
    fn an_insert_leaves_an_entry_of_either_generation_alone() {
        let mut cache = Generations::new(10, |_| 1);
        assert!(cache.insert("a", 1) && !cache.insert("a", 2));
        cache.rotate();
        assert!(!cache.insert("a", 3));
        assert_eq!(cache.update("a", |value| *value), Some(1));
        assert_eq!(cache.len(), 1);
        cache.rotate();
        cache.rotate();
        assert!(cache.len() == 0 && cache.insert("a", 4));
    }

    #[test]
    fn entries_that_grow_fill_a_generation() {
        let mut cache = Generations::new(100, Vec::len);
        for key in 0..10 {
            cache.insert(key, vec![0; 10]);
        }
        assert_eq!(cache.len(), 10);
        cache.update(&9, |value| value.push(0)); // 101: the generation is full
        cache.insert(10, vec![0; 101]);
        assert_eq!(cache.len(), 11);
        cache.insert(11, vec![0; 10]);
        assert_eq!(cache.len(), 2, "the first ten are forgotten");
    }
}
