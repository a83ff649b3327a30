//! Guesses whether a flush is the first of its bucket.
//!
//! It guesses yes if this instance remembers no flush of the bucket. An instance remembers the first flush of
//! a bucket for one to two hours, or less if there are many buckets.
//!
//! An insert of a document costs the server a sixth of an upsert that has to create the document from
//! operators. A guess may be wrong: another instance may have written to the bucket, or this one has
//! forgotten it. The insert then finds the document and does nothing. Or two buckets have one hash: then the
//! upsert creates the document. So a short hash is enough here, in a third of the memory of
//! [`KnownParts`](super::packed::KnownParts), on which a write of the packed layout relies.

use std::hash::BuildHasher;
use std::sync::{Mutex, PoisonError};

use foldhash::fast::RandomState;
use tokio::time::Instant;

use super::REMEMBERED;
use crate::common::generations::Generations;
use crate::model::Hour;

/// The number of shards.
///
/// Each shard has its own lock, and a table that grows independently of the other tables.
const SHARDS: usize = 16;

/// How many buckets a generation of a shard remembers: 7/8 of a power of two, because a table would grow
/// after that. All generations of all shards take 170 MB; the pending readings of that many buckets take some
/// GB.
const MAX: usize = 7 << 17;

/// The buckets that were first written to lately, as hashes.
#[derive(Debug, Default)]
pub(super) struct RecentBuckets {
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Debug)]
struct Shard {
    buckets: Generations<u32, ()>,
    /// The start of the young generation.
    since: Option<Instant>,
}

impl RecentBuckets {
    /// Returns whether this is probably the first write of a bucket, and remembers the bucket.
    pub(super) fn is_first(&self, device: &str, hour: Hour) -> bool {
        let hash = self.hasher.hash_one((device, hour));
        let shard = &self.shards[(hash >> 32) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner).insert(hash as u32, Instant::now())
    }
}

impl Default for Shard {
    fn default() -> Self {
        Self { buckets: Generations::new(MAX, |()| 1), since: None }
    }
}

impl Shard {
    /// Remembers a hash, and returns whether it is new.
    fn insert(&mut self, hash: u32, now: Instant) -> bool {
        if now - *self.since.get_or_insert(now) >= REMEMBERED {
            self.buckets.rotate();
            self.since = Some(now);
        }
        self.buckets.insert(hash, ())
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
        assert!(shard.insert(1, start));
        assert!(!shard.insert(1, start + REMEMBERED), "the generation before");
        assert!(shard.insert(1, start + 2 * REMEMBERED));
    }
}
