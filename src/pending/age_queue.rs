//! The open buckets by age.

use std::collections::BTreeSet;

use super::bucket::OpenBucket;
use super::slots::{Key, Slots};
use crate::log::Position;

/// The open buckets that no write in flight blocks, by the position of their first reading.
///
/// A linked list through the buckets themselves: a bucket leaves it in constant time, wherever it stands. Few
/// buckets are in the sets beside it, as a rule.
#[derive(Debug, Default)]
pub(super) struct AgeQueue {
    /// The ends of the list.
    oldest: Option<Key>,
    newest: Option<Key>,
    /// Buckets that a write blocked when they were opened, and that have their places inside the list.
    unblocked: BTreeSet<(Position, Key)>,
    /// Buckets that were opened before their hours began. They wait longer for the ends of their hours than
    /// the buckets around them, and must not hold up the turns of those.
    ahead: BTreeSet<(Position, Key)>,
}

impl AgeQueue {
    /// Adds a bucket that has just been opened.
    pub(super) fn append(&mut self, open: &mut Slots<OpenBucket>, bucket: Key) {
        if open[bucket].is_ahead {
            self.ahead.insert((open[bucket].position, bucket));
            return;
        }
        let before = self.newest.replace(bucket);
        open[bucket].older = before;
        match before {
            Some(before) => open[before].newer = Some(bucket),
            None => self.oldest = Some(bucket),
        }
    }

    /// Adds a bucket that a write blocked until now.
    pub(super) fn add_unblocked(&mut self, open: &OpenBucket, bucket: Key) {
        let set = if open.is_ahead { &mut self.ahead } else { &mut self.unblocked };
        set.insert((open.position, bucket));
    }

    pub(super) fn remove(&mut self, open: &mut Slots<OpenBucket>, bucket: Key) {
        let OpenBucket { position, older, newer, .. } = open[bucket];
        if self.unblocked.remove(&(position, bucket)) || self.ahead.remove(&(position, bucket)) {
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
        self.next_in_turn(open).into_iter().chain(self.ahead.first().copied()).min().map(|(_, bucket)| bucket)
    }

    /// The buckets that may use the next turn: the oldest one, and the oldest of those that were opened
    /// before their hours began.
    pub(super) fn candidates(&self, open: &Slots<OpenBucket>) -> impl Iterator<Item = Key> {
        self.next_in_turn(open).into_iter().chain(self.ahead.first().copied()).map(|(_, bucket)| bucket)
    }

    /// The oldest bucket that was opened in its hour or later.
    fn next_in_turn(&self, open: &Slots<OpenBucket>) -> Option<(Position, Key)> {
        let listed = self.oldest.map(|bucket| (open[bucket].position, bucket));
        listed.into_iter().chain(self.unblocked.first().copied()).min()
    }
}
