//! The open buckets by age.

use std::collections::BTreeSet;

use super::bucket::OpenBucket;
use super::slots::{Key, Slots};
use crate::log::Position;

/// The open buckets that no write in flight blocks, by the position of their first reading.
///
/// A linked list through the buckets themselves: a bucket leaves it in constant time, wherever it stands.
#[derive(Debug, Default)]
pub(super) struct AgeQueue {
    /// The ends of the list.
    oldest: Option<Key>,
    newest: Option<Key>,
    /// Buckets that a write blocked when they were opened, and that have their places inside the list.
    unblocked: BTreeSet<(Position, Key)>,
}

impl AgeQueue {
    /// Adds a bucket that has just been opened.
    pub(super) fn append(&mut self, open: &mut Slots<OpenBucket>, bucket: Key) {
        let before = self.newest.replace(bucket);
        open[bucket].older = before;
        match before {
            Some(before) => open[before].newer = Some(bucket),
            None => self.oldest = Some(bucket),
        }
    }

    /// Adds a bucket that a write blocked until now.
    pub(super) fn add_unblocked(&mut self, position: Position, bucket: Key) {
        self.unblocked.insert((position, bucket));
    }

    pub(super) fn remove(&mut self, open: &mut Slots<OpenBucket>, bucket: Key) {
        let OpenBucket { position, older, newer, .. } = open[bucket];
        if self.unblocked.remove(&(position, bucket)) {
            return;
        }
        match older {
            Some(older) => open[older].newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => open[newer].older = older,
            None => self.newest = older,
        }
    }

    pub(super) fn oldest(&self, open: &Slots<OpenBucket>) -> Option<Key> {
        let listed = self.oldest.map(|bucket| (open[bucket].position, bucket));
        listed.into_iter().chain(self.unblocked.first().copied()).min().map(|(_, bucket)| bucket)
    }
}
