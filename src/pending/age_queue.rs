//! The queue of the open buckets that may be taken: by age, and by turn after the end of their hours.
//!
//! A bucket that a write in flight or a deletion blocks is not in the queue.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::Hour;
use super::bucket::OpenBucket;
use super::slots::{Key, Slots};
use crate::log::Position;

/// The buckets of one [`Line`], by the position of their first reading.
///
/// An intrusive doubly linked list: the buckets hold the links, so any of them leaves in constant time.
#[derive(Debug, Default, Clone, Copy)]
struct List {
    oldest: Option<Key>,
    newest: Option<Key>,
}

/// The key of a list: an hour, or `None` for the late buckets of all hours, which wait equally long.
type Line = Option<Hour>;

/// The range of all lines but that of the late buckets.
const OF_HOURS: (Bound<Line>, Bound<Line>) = (Bound::Excluded(None), Bound::Unbounded);

/// The buckets in two orders: by the position of their first reading, and by their turns.
#[derive(Debug, Default)]
pub(super) struct AgeQueue {
    /// The list of each line. Usually there are few hours.
    lines: BTreeMap<Line, List>,
    /// The position of the first reading in the oldest bucket of each line.
    ///
    /// The lowest of these positions leads to the oldest bucket of all lines.
    heads: BTreeSet<(Position, Line)>,
    /// Buckets that were blocked when they were opened, and that may be taken now.
    ///
    /// By age they belong into the middle of a list, so they are kept apart. Usually they are few.
    unblocked: BTreeSet<(Position, Key)>,
    /// The buckets of `unblocked`, by line.
    unblocked_by_line: BTreeSet<(Line, Position, Key)>,
}

fn line_of(bucket: &OpenBucket) -> Line {
    (!bucket.is_late).then_some(bucket.hour)
}

impl AgeQueue {
    /// Adds a bucket that has just been opened.
    pub(super) fn append(&mut self, open: &mut Slots<OpenBucket>, bucket: Key) {
        let (line, position) = (line_of(&open[bucket]), open[bucket].position);
        let list = self.lines.entry(line).or_default();
        let before = list.newest.replace(bucket);
        open[bucket].older = before;
        if let Some(before) = before {
            open[before].newer = Some(bucket);
        } else {
            list.oldest = Some(bucket);
            self.heads.insert((position, line));
        }
    }

    /// Adds a bucket that a write or a deletion blocked until now.
    pub(super) fn add_unblocked(&mut self, open: &OpenBucket, bucket: Key) {
        self.unblocked.insert((open.position, bucket));
        self.unblocked_by_line.insert((line_of(open), open.position, bucket));
    }

    pub(super) fn remove(&mut self, open: &mut Slots<OpenBucket>, bucket: Key) {
        let line = line_of(&open[bucket]);
        let OpenBucket { position, older, newer, .. } = open[bucket];
        if self.unblocked.remove(&(position, bucket)) {
            self.unblocked_by_line.remove(&(line, position, bucket));
            return;
        }
        let Some(list) = self.lines.get_mut(&line) else { return };
        match newer {
            Some(newer) => open[newer].older = older,
            None => list.newest = older,
        }
        if let Some(older) = older {
            open[older].newer = newer;
            return;
        }
        list.oldest = newer;
        self.heads.remove(&(position, line));
        match newer {
            Some(newer) => _ = self.heads.insert((open[newer].position, line)),
            None => _ = self.lines.remove(&line),
        }
    }

    /// The bucket with the oldest first reading.
    pub(super) fn oldest(&self) -> Option<Key> {
        let listed = self.heads.first().and_then(|&(position, line)| Some((position, self.lines.get(&line)?.oldest?)));
        listed.into_iter().chain(self.unblocked.first().copied()).min().map(|(_, bucket)| bucket)
    }

    /// The oldest bucket of the first hour, among the buckets that were opened before their hours had ended.
    pub(super) fn first_on_time(&self, open: &Slots<OpenBucket>) -> Option<(Hour, Key)> {
        let listed = self.lines.range(OF_HOURS).next();
        let listed = listed.and_then(|(&line, list)| Some((line, open[list.oldest?].position, list.oldest?)));
        let unblocked = self.unblocked_by_line.range((Some(Hour(i32::MIN)), Position(0), Key::MIN)..).next();
        let (line, _, bucket) = listed.into_iter().chain(unblocked.copied()).min()?;
        Some((line?, bucket))
    }

    /// The oldest bucket among those that were opened after their hours had ended.
    pub(super) fn first_late(&self, open: &Slots<OpenBucket>) -> Option<Key> {
        let listed = self.lines.get(&None).and_then(|list| Some((None, open[list.oldest?].position, list.oldest?)));
        let unblocked = self.unblocked_by_line.first().copied().filter(|(line, ..)| line.is_none());
        listed.into_iter().chain(unblocked).min().map(|(_, _, bucket)| bucket)
    }
}
