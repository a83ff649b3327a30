//! Metric names, each held once however many readings carry it.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::bucket::OpenBucket;
use crate::model::Metric;

/// Below so many names, nobody minds those that are not in use any more.
const SWEEP_FROM: usize = 10_000;

/// Gives each metric name a number. Numbers of names that no open bucket uses are given again, after a sweep.
#[derive(Debug, Default)]
pub(super) struct Names {
    by_id: Vec<Option<Metric>>,
    free: Vec<u32>,
    table: HashTable<u32>,
    hasher: RandomState,
    used_after_sweep: usize,
}

impl Names {
    pub(super) fn name(&self, id: u32) -> &Metric {
        self.by_id[id as usize].as_ref().expect("an id in use has a name")
    }

    pub(super) fn id(&mut self, name: &str) -> u32 {
        let hash = self.hasher.hash_one(name);
        if let Some(&id) = self.table.find(hash, |&id| **self.name(id) == *name) {
            return id;
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.by_id.push(None);
            u32::try_from(self.by_id.len() - 1).expect("memory ends far below 2^32 names")
        });
        self.by_id[id as usize] = Some(name.into());
        let (by_id, hasher) = (&self.by_id, &self.hasher);
        let rehash = |&id: &u32| hasher.hash_one(by_id[id as usize].as_deref().unwrap_or_default());
        self.table.insert_unique(hash, id, rehash);
        id
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether the names have doubled since the last sweep, so that another one pays.
    pub(super) fn wants_sweep(&self) -> bool {
        self.table.len() > SWEEP_FROM.max(2 * self.used_after_sweep)
    }

    /// Forgets the names that none of the buckets uses.
    pub(super) fn sweep<'a>(&mut self, buckets: impl Iterator<Item = &'a OpenBucket>) {
        let mut used = vec![false; self.by_id.len()];
        for id in buckets.flat_map(OpenBucket::metric_ids) {
            used[id as usize] = true;
        }
        self.table.retain(|&mut id| used[id as usize]);
        for (id, name) in self.by_id.iter_mut().enumerate() {
            if !used[id] && name.take().is_some() {
                self.free.push(u32::try_from(id).expect("an id is 32 bits"));
            }
        }
        self.used_after_sweep = self.table.len();
    }
}
