//! The last parts of the buckets that this instance has written, or has looked up.
//!
//! A write relies on these entries. So each has the last instant of its part, and a long hash of its bucket
//! as its key. The readable layout needs a guess only, which takes a third of the memory
//! ([`RecentBuckets`](super::super::recent_buckets::RecentBuckets)).

use std::hash::BuildHasher;
use std::sync::{Mutex, PoisonError};

use foldhash::fast::RandomState;
use tokio::time::Instant;

use super::super::REMEMBERED;
use crate::common::generations::Generations;
use crate::model::{Hour, HourOffset};

/// The number of shards.
///
/// Each shard has its own lock, and a table that grows independently of the other tables.
const SHARDS: usize = 16;

/// How many buckets a generation of a shard remembers: 7/8 of a power of two, because a table would grow
/// after that. All generations of all shards take 570 MB; the pending readings of that many buckets take some
/// GB.
const MAX: usize = 7 << 17;

/// The bits of an offset into an hour.
const OFFSET_BITS: u32 = 22;

/// The highest number of a part that is remembered.
pub(in super::super) const PART_MAX: i32 = (1 << (32 - OFFSET_BITS)) - 1;

/// The last part of each bucket that was written to lately, and its last instant. The first write to a
/// forgotten bucket looks them up.
///
/// A bucket is known by 96 bits of two hashes. Another bucket with the same bits would be taken for it. Among
/// all remembered buckets, such a pair exists with a probability of 10^-14.
#[derive(Debug, Default)]
pub(in super::super) struct KnownParts {
    hashers: [RandomState; 2],
    shards: Box<[Mutex<Shard>; SHARDS]>,
}

type Key = [u32; 3];

#[derive(Debug)]
struct Shard {
    /// The number of the last part in the high bits, its last instant in the low ones.
    parts: Generations<Key, u32>,
    /// The start of the young generation of `parts`.
    since: Option<Instant>,
}

impl KnownParts {
    /// The number of a new part for readings from the offset `first` on.
    ///
    /// `None`: some of the readings may belong into a stored part, or the number would exceed [`PART_MAX`].
    pub(in super::super) fn next_part(&self, device: &str, hour: Hour, first: HourOffset) -> Option<i32> {
        let Some(known) = self.with_shard(device, hour, |shard, key| shard.parts.update(&key, |known| *known)) else {
            return Some(0);
        };
        let (part, last) = ((known >> OFFSET_BITS) as i32, known & ((1 << OFFSET_BITS) - 1));
        (first > last && part < PART_MAX).then_some(part + 1)
    }

    /// The number of the last known part of a bucket, at most [`PART_MAX`].
    pub(in super::super) fn last_part(&self, device: &str, hour: Hour) -> Option<i32> {
        self.with_shard(device, hour, |shard, key| shard.parts.update(&key, |known| (*known >> OFFSET_BITS) as i32))
    }

    /// Remembers the last part of a bucket, and its last instant.
    pub(in super::super) fn note(&self, device: &str, hour: Hour, part: i32, last: HourOffset) {
        let known = ((part.clamp(0, PART_MAX) as u32) << OFFSET_BITS) | last;
        self.with_shard(device, hour, |shard, key| {
            let now = Instant::now();
            if now - *shard.since.get_or_insert(now) >= REMEMBERED {
                shard.parts.rotate();
                shard.since = Some(now);
            }
            if shard.parts.update(&key, |stored| *stored = known).is_none() {
                shard.parts.insert(key, known);
            }
        });
    }

    /// Forgets all buckets.
    pub(in super::super) fn forget(&self) {
        for shard in &*self.shards {
            *shard.lock().unwrap_or_else(PoisonError::into_inner) = Shard::default();
        }
    }

    fn with_shard<T>(&self, device: &str, hour: Hour, then: impl FnOnce(&mut Shard, Key) -> T) -> T {
        let [one, other] = self.hashers.each_ref().map(|hasher| hasher.hash_one((device, hour)));
        let key = [one as u32, (one >> 32) as u32, other as u32];
        let mut shard = self.shards[(other >> 32) as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner);
        then(&mut shard, key)
    }
}

impl Default for Shard {
    fn default() -> Self {
        Self { parts: Generations::new(MAX, |_| 1), since: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_readings_are_the_next_part_and_others_are_not() {
        let known = KnownParts::default();
        assert_eq!(known.next_part("d", Hour(7), 0), Some(0));
        known.note("d", Hour(7), 0, 3_599_999);
        assert_eq!([3_599_998, 3_599_999].map(|first| known.next_part("d", Hour(7), first)), [None, None]);
        known.note("d", Hour(7), 4, 10);
        assert_eq!([9, 10, 11].map(|first| known.next_part("d", Hour(7), first)), [None, None, Some(5)]);
        assert_eq!(known.next_part("d", Hour(8), 0), Some(0), "another bucket");
        assert_eq!([7, 8].map(|hour| known.last_part("d", Hour(hour))), [Some(4), None]);
        known.note("d", Hour(7), PART_MAX + 5, 10);
        assert_eq!(known.next_part("d", Hour(7), 11), None, "a number that does not fit");
        known.forget();
        assert_eq!(known.next_part("d", Hour(7), 0), Some(0));
    }
}
