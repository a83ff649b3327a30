//! Metric names, each held once however many readings carry it.
//!
//! Names come in generations. A bucket keeps the generation in which it was opened, and a generation lives as
//! long as anything refers to it. So names that are no longer in use are freed without a search for them, and
//! a query resolves names without the lock of pending.

use std::hash::BuildHasher;
use std::sync::{Arc, PoisonError, RwLock, Weak};

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::model::Metric;

/// A generation holds at least so many names before the next one begins.
const NAMES_MIN: usize = 10_000;

/// One generation: gives each metric name a number.
#[derive(Debug, Default)]
pub(super) struct Names(RwLock<Table>);

#[derive(Debug, Default)]
struct Table {
    by_id: Vec<Metric>,
    ids: HashTable<u32>,
    hasher: RandomState,
}

impl Names {
    /// The number of a name, a new one if need be.
    pub(super) fn id(&self, name: &str) -> u32 {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let Table { by_id, ids, hasher } = &mut *table;
        let hash = hasher.hash_one(name);
        if let Some(&id) = ids.find(hash, |&id| *by_id[id as usize] == *name) {
            return id;
        }
        let id = u32::try_from(by_id.len()).expect("memory ends far below 2^32 names");
        by_id.push(name.into());
        ids.insert_unique(hash, id, |&id| hasher.hash_one(&*by_id[id as usize]));
        id
    }

    /// The name with a number that [`Self::id`] gave.
    pub(super) fn name(&self, id: u32) -> Metric {
        self.0.read().unwrap_or_else(PoisonError::into_inner).by_id[id as usize].clone()
    }

    pub(super) fn len(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).by_id.len()
    }
}

/// The generation for new buckets, and what is known of those before it.
#[derive(Debug)]
pub(super) struct Generations {
    current: Arc<Names>,
    older: Vec<Weak<Names>>,
    /// The next generation begins when the current one has more names.
    max_names: usize,
}

impl Default for Generations {
    fn default() -> Self {
        Self { current: Arc::default(), older: Vec::new(), max_names: NAMES_MIN }
    }
}

impl Generations {
    pub(super) const fn current(&self) -> &Arc<Names> {
        &self.current
    }

    /// Begins a new generation if the current one is large: the larger, the more names of older ones are in
    /// use. Returns the one that was current. Drop it without the lock of pending.
    pub(super) fn advance(&mut self) -> Option<Arc<Names>> {
        if self.current.len() <= self.max_names {
            return None;
        }
        self.older.retain(|older| older.strong_count() > 0);
        let in_use: usize = self.older.iter().filter_map(Weak::upgrade).map(|older| older.len()).sum();
        self.max_names = NAMES_MIN.max(2 * in_use);
        let old = std::mem::take(&mut self.current);
        self.older.push(Arc::downgrade(&old));
        Some(old)
    }

    /// How many names are held.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.current.len() + self.older.iter().filter_map(Weak::upgrade).map(|older| older.len()).sum::<usize>()
    }
}
