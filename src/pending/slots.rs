//! A slab whose entries never move: growing it costs one chunk, however many entries it has.

use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

/// The place of an entry. Small, because there are millions of them.
pub(super) type Key = NonZeroU32;

/// The number of keys that belong to a chunk.
const CHUNK_SLOTS: usize = 1_024;

/// The number of slots in a chunk: one fewer than its keys.
///
/// With the alignment to a cache line, 1,024 slots of 64 bytes would not fit into a block of 64 KiB, and the
/// allocator's next size is a quarter larger.
const CHUNK_CAPACITY: usize = CHUNK_SLOTS - 1;

/// Entries by [`Key`]. The keys of removed entries are used again.
#[derive(Debug)]
pub(super) struct Slots<T> {
    /// The chunks, all of which are full except the last.
    chunks: Vec<Vec<Slot<T>>>,
    /// The first slot of the list of vacant slots.
    vacant: Option<Key>,
    len: usize,
}

#[derive(Debug)]
enum Slot<T> {
    Occupied(T),
    /// Holds the next vacant slot.
    Vacant(Option<Key>),
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), vacant: None, len: 0 }
    }
}

impl<T> Slots<T> {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    #[cfg(test)]
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten().filter_map(|slot| match slot {
            Slot::Occupied(entry) => Some(entry),
            Slot::Vacant(_) => None,
        })
    }

    pub(super) fn insert(&mut self, entry: T) -> Key {
        self.len += 1;
        if let Some(key) = self.vacant {
            let slot = self.slot_mut(key);
            if let Slot::Vacant(next) = *slot {
                *slot = Slot::Occupied(entry);
                self.vacant = next;
                return key;
            }
            unreachable!("the list of vacant slots names vacant slots");
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK_CAPACITY) {
            self.chunks.push(Vec::with_capacity(CHUNK_CAPACITY));
        }
        let at = self.chunks.len() - 1;
        let chunk = &mut self.chunks[at];
        let number = at * CHUNK_SLOTS + chunk.len();
        chunk.push(Slot::Occupied(entry));
        Key::MIN.saturating_add(u32::try_from(number).expect("memory ends far below 2^32 entries"))
    }

    pub(super) fn remove(&mut self, key: Key) -> T {
        let next = self.vacant;
        match std::mem::replace(self.slot_mut(key), Slot::Vacant(next)) {
            Slot::Occupied(entry) => {
                (self.vacant, self.len) = (Some(key), self.len - 1);
                entry
            }
            Slot::Vacant(_) => unreachable!("{NO_ENTRY}"),
        }
    }

    fn slot_mut(&mut self, key: Key) -> &mut Slot<T> {
        let (chunk, at) = place_of(key);
        &mut self.chunks[chunk][at]
    }
}

const NO_ENTRY: &str = "a key names an entry";

const fn place_of(key: Key) -> (usize, usize) {
    let number = key.get() as usize - 1;
    (number / CHUNK_SLOTS, number % CHUNK_SLOTS)
}

impl<T> Index<Key> for Slots<T> {
    type Output = T;

    fn index(&self, key: Key) -> &T {
        let (chunk, at) = place_of(key);
        match &self.chunks[chunk][at] {
            Slot::Occupied(entry) => entry,
            Slot::Vacant(_) => unreachable!("{NO_ENTRY}"),
        }
    }
}

impl<T> IndexMut<Key> for Slots<T> {
    fn index_mut(&mut self, key: Key) -> &mut T {
        match self.slot_mut(key) {
            Slot::Occupied(entry) => entry,
            Slot::Vacant(_) => unreachable!("{NO_ENTRY}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_slot_is_no_larger_than_its_entry() {
        assert_eq!(size_of::<Slot<(Box<str>, u32)>>(), size_of::<(Box<str>, u32)>());
    }

    proptest! {
        #[test]
        fn entries_stay_under_their_keys(
            changes in prop::collection::vec(any::<Option<prop::sample::Index>>(), 1..4_000)
        ) {
            let (mut slots, mut model, mut keys) = (Slots::default(), BTreeMap::new(), Vec::new());
            for (number, change) in changes.into_iter().enumerate() {
                match change {
                    Some(which) if keys.len() > 1_500 => {
                        let key = keys.swap_remove(which.index(keys.len()));
                        prop_assert_eq!(slots.remove(key), model.remove(&key).unwrap());
                    }
                    _ => {
                        let key = slots.insert(Box::new(number));
                        prop_assert_eq!(model.insert(key, Box::new(number)), None);
                        keys.push(key);
                    }
                }
            }
            prop_assert!(model.iter().all(|(&key, entry)| slots[key] == *entry));
            prop_assert_eq!((slots.len(), slots.iter().count()), (model.len(), model.len()));
        }
    }
}
