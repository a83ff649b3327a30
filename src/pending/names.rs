//! Metric names, each held once however many readings carry it.
//!
//! Names are kept in generations. A bucket refers to the generation in which it was opened, and a generation
//! lives as long as something refers to it. So unused names are freed without a search for them, and a query
//! resolves names without the lock of pending.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};

use foldhash::fast::FixedState;

use super::hash_index::HashIndex;
use super::slots::{Key, Slots};
use crate::log::batch::Name;
use crate::model::Metric;

/// The smallest number of names that a generation holds before the next one begins.
const NAMES_MIN: usize = 10_000;

/// The memory of a name besides its text: its entries in the table and in the index, and its allocation.
const NAME_BYTES: usize = 64;

/// One generation: gives each metric name an id.
#[derive(Debug)]
pub(super) struct Names {
    table: RwLock<Table>,
    /// The memory of this generation, in bytes; estimated.
    bytes: AtomicU64,
    /// The memory of all generations that something refers to.
    held: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Table {
    by_id: Slots<Metric>,
    ids: HashIndex,
    /// The ids that share their text with another id.
    with_other_measurements: HashSet<Key, FixedState>,
}

impl Names {
    fn new(held: &Arc<AtomicU64>) -> Arc<Self> {
        Arc::new(Self { table: RwLock::default(), bytes: AtomicU64::default(), held: Arc::clone(held) })
    }

    /// Returns the id of a name.
    ///
    /// Two devices may split one name differently: `a_b_c` is measurement `a`, field `b_c` for one, and
    /// `a_b`, `c` for the other. So the text and the length of the measurement together are the key.
    pub(super) fn id(&self, Name { text, measurement_bytes }: Name<'_>) -> Key {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let Table { by_id, ids, with_other_measurements } = &mut *table;
        let hash = ids.hash(text.as_bytes());
        let length_of = |id: Key| by_id[id].measurement().map_or(0, str::len);
        let is_it = |id| &*by_id[id] == text && length_of(id) == usize::from(measurement_bytes);
        if let Some(id) = ids.find(hash, is_it) {
            return id;
        }
        let other = ids.find(hash, |id| &*by_id[id] == text);
        let id = by_id.insert(Metric::of_measurement(text, measurement_bytes));
        with_other_measurements.extend(other.into_iter().flat_map(|other| [other, id]));
        ids.insert(hash, id);
        let bytes = (text.len() + NAME_BYTES) as u64;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.held.fetch_add(bytes, Ordering::Relaxed);
        id
    }

    /// Returns the name of an id that [`Self::id`] returned, and whether another id has the same text.
    pub(super) fn name(&self, id: Key) -> (Metric, bool) {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        (table.by_id[id].clone(), table.with_other_measurements.contains(&id))
    }

    pub(super) fn len(&self) -> usize {
        self.table.read().unwrap_or_else(PoisonError::into_inner).by_id.len()
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

/// The generation for new buckets, and the older ones that may be in use.
#[derive(Debug)]
pub(super) struct Generations {
    current: Arc<Names>,
    older: Vec<Weak<Names>>,
    /// The next generation begins when the current one has more names than this.
    max_names: usize,
    /// The next generation begins when the current one takes more bytes than this, and more than twice the
    /// bytes of the older ones.
    max_bytes: u64,
    /// The memory of all generations that something refers to.
    held: Arc<AtomicU64>,
}

impl Generations {
    /// Begins without names.
    ///
    /// A generation grows to `max_bytes` even if no older one is in use.
    pub(super) fn new(max_bytes: u64) -> Self {
        let held = Arc::default();
        Self { current: Names::new(&held), older: Vec::new(), max_names: NAMES_MIN, max_bytes, held }
    }

    /// The memory of the names, in bytes; estimated.
    ///
    /// A name counts once for each generation that has it.
    pub(super) fn bytes(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    pub(super) const fn current(&self) -> &Arc<Names> {
        &self.current
    }

    /// Begins a new generation if the current one is large, and returns the current one in that case.
    ///
    /// The more names of older generations are in use, the larger a generation grows. The caller drops the
    /// returned one without the lock of pending.
    pub(super) fn advance(&mut self) -> Option<Arc<Names>> {
        let (names, bytes) = (self.current.len(), self.current.bytes());
        let bytes_of_older = self.bytes().saturating_sub(bytes);
        if names <= self.max_names && bytes <= self.max_bytes.max(bytes_of_older.saturating_mul(2)) {
            return None;
        }
        self.older.retain(|older| older.strong_count() > 0);
        let in_use: usize = self.older.iter().filter_map(Weak::upgrade).map(|older| older.len()).sum();
        self.max_names = NAMES_MIN.max(2 * in_use);
        let old = std::mem::replace(&mut self.current, Names::new(&self.held));
        self.older.push(Arc::downgrade(&old));
        Some(old)
    }

    /// Begins a new generation, and returns the current one, if it has names and nothing else refers to it.
    ///
    /// The caller drops the returned one without the lock of pending.
    pub(super) fn take_unused(&mut self) -> Option<Arc<Names>> {
        let is_unused = Arc::strong_count(&self.current) == 1 && self.current.bytes() > 0;
        is_unused.then(|| std::mem::replace(&mut self.current, Names::new(&self.held)))
    }

    /// Returns the number of names in all generations.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.current.len() + self.older.iter().filter_map(Weak::upgrade).map(|older| older.len()).sum::<usize>()
    }
}
