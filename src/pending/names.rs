//! Metric names, each held once however many readings carry it.
//!
//! Names are kept in generations. A bucket refers to the generation in which it was opened, and a generation
//! lives as long as something refers to it. So unused names are freed without a search for them, and a query
//! resolves names without the lock of pending.

use std::sync::{Arc, PoisonError, RwLock, Weak};

use super::hash_index::HashIndex;
use super::slots::{Key, Slots};
use crate::log::batch_view::Name;
use crate::model::Metric;

/// The smallest number of names that a generation holds before the next one begins.
const NAMES_MIN: usize = 10_000;

/// One generation: gives each metric name an id.
#[derive(Debug, Default)]
pub(super) struct Names(RwLock<Table>);

#[derive(Debug, Default)]
struct Table {
    by_id: Slots<Metric>,
    ids: HashIndex,
}

impl Names {
    /// Returns the id of a name. A new name gets a new id; a known one keeps its measurement.
    pub(super) fn id(&self, Name { text, measurement_bytes }: Name<'_>) -> Key {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let Table { by_id, ids } = &mut *table;
        let hash = ids.hash(text.as_bytes());
        if let Some(id) = ids.find(hash, |id| &*by_id[id] == text) {
            return id;
        }
        let id = by_id.insert(Metric::of_measurement(text, measurement_bytes));
        ids.insert(hash, id);
        id
    }

    /// Returns the name of an id that [`Self::id`] returned.
    pub(super) fn name(&self, id: Key) -> Metric {
        self.0.read().unwrap_or_else(PoisonError::into_inner).by_id[id].clone()
    }

    pub(super) fn len(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).by_id.len()
    }
}

/// The generation for new buckets, and the older ones that may be in use.
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

    /// Begins a new generation if the current one is large, and returns the current one in that case.
    ///
    /// The more names of older generations are in use, the larger a generation grows. The caller drops the
    /// returned one without the lock of pending.
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

    /// Returns the number of names in all generations.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.current.len() + self.older.iter().filter_map(Weak::upgrade).map(|older| older.len()).sum::<usize>()
    }
}
