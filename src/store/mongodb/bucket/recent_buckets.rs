//! Which flushes are taken to be the first of their buckets: those of buckets that this instance has not
//! written to lately.
//!
//! A document costs the server a sixth when it is inserted of what it costs when an upsert finds none and
//! makes it from operators. A guess may be wrong: after a restart, with another instance, when a bucket was
//! forgotten. The insert then finds the document there and does nothing, for less than a quarter of what the
//! append costs that follows.

use std::collections::HashSet;
use std::hash::BuildHasher;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::time::Instant;

use crate::model::Hour;

/// For how long a bucket is remembered, at least, after its first write. Most are written to within their
/// hour only.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// One lock each, and one table that grows.
const SHARDS: usize = 16;

/// How many buckets a generation of a shard remembers: 7/8 of a power of two, as that is when a table would
/// grow. All of them take 300 MB, and what is pending of so many buckets takes some GB.
const MAX: usize = 7 << 17;

/// The buckets that were written to lately, as hashes.
#[derive(Debug, Default)]
pub(super) struct RecentBuckets {
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
}

/// Two generations: what is in neither is forgotten.
#[derive(Debug, Default)]
struct Shard {
    young: HashSet<u64, RandomState>,
    old: HashSet<u64, RandomState>,
    /// Since when there is the young one.
    since: Option<Instant>,
}

impl RecentBuckets {
    /// Whether this is, as far as is known, the first write of a bucket. From now on it is not.
    pub(super) fn is_first(&self, device: &str, hour: Hour) -> bool {
        let hash = self.hasher.hash_one((device, hour));
        let shard = &self.shards[hash as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner).note(hash, Instant::now())
    }
}

impl Shard {
    /// Whether the hash is new.
    fn note(&mut self, hash: u64, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        if now - since >= REMEMBERED {
            self.age(now);
        }
        if self.young.contains(&hash) || self.old.contains(&hash) {
            return false;
        }
        if self.young.len() >= MAX {
            self.age(now);
        }
        self.young.insert(hash)
    }

    fn age(&mut self, now: Instant) {
        self.old = std::mem::take(&mut self.young);
        self.since = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_new_once() {
        let recent = RecentBuckets::default();
        for hour in [Hour(1), Hour(2), Hour(1_000)] {
            assert!(recent.is_first("d", hour) && recent.is_first("e", hour));
            assert!(!recent.is_first("d", hour) && !recent.is_first("e", hour));
        }
    }

    #[test]
    fn a_bucket_is_remembered_for_an_hour_and_forgotten_after_two() {
        let (mut shard, start) = (Shard::default(), Instant::now());
        assert!(shard.note(1, start));
        assert!(!shard.note(1, start + REMEMBERED), "the generation before");
        assert!(shard.note(1, start + 2 * REMEMBERED));
    }

    #[test]
    fn only_so_many_are_remembered() {
        let (mut shard, now) = (Shard::default(), Instant::now());
        let most = 2 * MAX as u64;
        assert!((0..most).all(|hash| shard.note(hash, now)));
        assert!(!shard.note(0, now), "all of them are");
        assert!(shard.note(most, now) && shard.note(0, now), "and one more makes it forget the first");
        assert!(shard.young.len() + shard.old.len() <= 2 * MAX);
    }
}
