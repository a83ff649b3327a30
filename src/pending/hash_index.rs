//! Finds keys by text, in hash tables so small that growing one of them takes microseconds.

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::slots::Key;

/// The number of tables. With ten million keys, each has about ten thousand.
const TABLES: usize = 1_024;

/// An index of keys by text. The caller keeps the texts.
#[derive(Debug)]
pub(super) struct HashIndex {
    hasher: RandomState,
    tables: Vec<HashTable<Entry>>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// A part of the text's hash, so that a table can grow without reading the texts.
    hash: u32,
    key: Key,
}

impl Default for HashIndex {
    fn default() -> Self {
        Self { hasher: RandomState::default(), tables: (0..TABLES).map(|_| HashTable::new()).collect() }
    }
}

impl HashIndex {
    /// Hashes a text for the other methods.
    #[inline]
    pub(super) fn hash(&self, text: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(text);
        hasher.finish()
    }

    /// Returns the key with this hash for which `is_it` is true.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(Key) -> bool) -> Option<Key> {
        let (table, hash) = place_of(hash);
        self.tables[table].find(spread(hash), |entry| entry.hash == hash && is_it(entry.key)).map(|entry| entry.key)
    }

    /// Adds a key whose text is not in the index.
    pub(super) fn insert(&mut self, hash: u64, key: Key) {
        let (table, hash) = place_of(hash);
        self.tables[table].insert_unique(spread(hash), Entry { hash, key }, |entry| spread(entry.hash));
    }

    pub(super) fn remove(&mut self, hash: u64, key: Key) {
        let (table, hash) = place_of(hash);
        if let Ok(entry) = self.tables[table].find_entry(spread(hash), |entry| entry.key == key) {
            entry.remove();
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.tables.iter().all(HashTable::is_empty)
    }
}

/// The table of a text, and the part of its hash that the table uses.
const fn place_of(hash: u64) -> (usize, u32) {
    ((hash >> 32) as usize % TABLES, hash as u32)
}

/// A hash as [`HashTable`] wants it, which uses the lowest and the highest bits.
const fn spread(hash: u32) -> u64 {
    (hash as u64) << 32 | hash as u64
}
