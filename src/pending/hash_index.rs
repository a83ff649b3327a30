//! Finds keys by text, in hash tables so small that growing one of them takes microseconds.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::slots::Key;

/// Each table holds ten thousand of ten million keys.
const TABLES: usize = 1_024;

/// Keys by the text of each, which the caller keeps.
#[derive(Debug)]
pub(super) struct HashIndex {
    hasher: RandomState,
    tables: Vec<HashTable<Entry>>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// A part of the text's hash, so that a table grows without the texts.
    hash: u32,
    key: Key,
}

impl Default for HashIndex {
    fn default() -> Self {
        Self { hasher: RandomState::default(), tables: (0..TABLES).map(|_| HashTable::new()).collect() }
    }
}

impl HashIndex {
    #[inline]
    pub(super) fn find<'a>(&self, text: &str, text_of: impl Fn(Key) -> &'a str) -> Option<Key> {
        let (table, hash) = self.place_of(text);
        let is_it = |entry: &Entry| entry.hash == hash && text_of(entry.key) == text;
        self.tables[table].find(spread(hash), is_it).map(|entry| entry.key)
    }

    /// Adds a key whose text is not in the index.
    pub(super) fn insert(&mut self, text: &str, key: Key) {
        let (table, hash) = self.place_of(text);
        self.tables[table].insert_unique(spread(hash), Entry { hash, key }, |entry| spread(entry.hash));
    }

    pub(super) fn remove(&mut self, text: &str, key: Key) {
        let (table, hash) = self.place_of(text);
        if let Ok(entry) = self.tables[table].find_entry(spread(hash), |entry| entry.key == key) {
            entry.remove();
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.tables.iter().all(HashTable::is_empty)
    }

    /// The table of a text, and the part of its hash that the table uses.
    fn place_of(&self, text: &str) -> (usize, u32) {
        let hash = self.hasher.hash_one(text);
        ((hash >> 32) as usize % TABLES, hash as u32)
    }
}

/// A hash as [`HashTable`] wants it, which uses the lowest and the highest bits.
const fn spread(hash: u32) -> u64 {
    (hash as u64) << 32 | hash as u64
}
