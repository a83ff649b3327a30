//! The devices in the order of their IDs.
//!
//! A sorted list of keys, cut into runs of bounded length. It takes four to eight bytes a device; a tree that
//! holds the IDs would take ten times as much.

use std::cmp::Ordering;

use super::slots::Key;

/// The longest run, in keys.
const RUN_MAX: usize = 512;

/// The number of devices that a step of a search compares.
const PROBES: usize = 7;

/// Keys of devices, sorted by device ID.
///
/// The caller keeps the IDs, and passes the same `id_of` each time.
#[derive(Debug, Default)]
pub(super) struct SortedDevices {
    /// The runs, none of which is empty.
    runs: Vec<Vec<Key>>,
}

impl SortedDevices {
    pub(super) fn insert<'a>(&mut self, device: Key, id_of: impl Fn(Key) -> &'a [u8]) {
        if self.runs.is_empty() {
            self.runs.push(vec![device]);
            return;
        }
        let (run, mut at) = self.place_of(|other| id_of(other) < id_of(device));
        let mut run = run.min(self.runs.len() - 1);
        if self.runs[run].len() == RUN_MAX {
            let half = self.runs[run].split_off(RUN_MAX / 2);
            self.runs.insert(run + 1, half);
            if at > RUN_MAX / 2 {
                (run, at) = (run + 1, at - RUN_MAX / 2);
            }
        }
        self.runs[run].insert(at, device);
    }

    pub(super) fn remove<'a>(&mut self, device: Key, id_of: impl Fn(Key) -> &'a [u8]) {
        let (run, at) = self.place_of(|other| id_of(other) < id_of(device));
        let Some(keys) = self.runs.get_mut(run).filter(|keys| keys.get(at) == Some(&device)) else {
            debug_assert!(false, "a device that is known is in the list");
            return;
        };
        keys.remove(at);
        if keys.is_empty() {
            self.runs.remove(run);
        } else if !self.join(run) && run > 0 {
            self.join(run - 1);
        }
    }

    /// Joins a run with the next one if both together are short.
    ///
    /// Returns whether it has joined them.
    fn join(&mut self, run: usize) -> bool {
        let are_short = self.runs.get(run + 1).is_some_and(|next| self.runs[run].len() + next.len() <= RUN_MAX / 2);
        if are_short {
            let next = self.runs.remove(run + 1);
            self.runs[run].extend(next);
        }
        are_short
    }

    /// Returns the devices from the first one on for which `is_before` is false, in order.
    ///
    /// `is_before` must be true for the devices up to a place in the order, and false for all after it.
    pub(super) fn from(&self, is_before: impl Fn(Key) -> bool) -> impl Iterator<Item = Key> {
        let (run, at) = self.place_of(is_before);
        self.runs[run..].iter().flatten().copied().skip(at)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the run and the place of the first device for which `is_before` is false, or the end of the
    /// last run.
    fn place_of(&self, is_before: impl Fn(Key) -> bool) -> (usize, usize) {
        let ends_before = |keys: &Vec<Key>| keys.last().is_some_and(|&last| is_before(last));
        let run = partition_point(&self.runs, ends_before);
        match self.runs.get(run) {
            Some(keys) => (run, partition_point(keys, |&key| is_before(key))),
            None => (run, self.runs.last().map_or(0, Vec::len)),
        }
    }
}

/// [`slice::partition_point`] with several probes at once.
///
/// They do not depend on each other, so the processor waits for their cache misses at the same time.
fn partition_point<T>(of: &[T], is_before: impl Fn(&T) -> bool) -> usize {
    let (mut start, mut end) = (0, of.len());
    while end - start >= PROBES {
        let step = (end - start) / (PROBES + 1) + 1;
        let probes = (start..end).skip(step - 1).step_by(step);
        let before = probes.filter(|&at| is_before(&of[at])).count();
        (start, end) = (start + before * step, end.min(start + (before + 1) * step - 1));
    }
    start + of[start..end].iter().filter(|entry| is_before(entry)).count()
}

/// Returns whether a device precedes all that start with `prefix` and follow `after`.
pub(super) fn is_before(id: &[u8], prefix: &str, after: Option<&str>) -> bool {
    match after {
        Some(after) if after.cmp(prefix) != Ordering::Less => id <= after.as_bytes(),
        _ => id < prefix.as_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn key(number: u32) -> Key {
        Key::MIN.saturating_add(number)
    }

    fn id_in<'a>(ids: &'a [String]) -> impl Fn(Key) -> &'a [u8] {
        |key| ids[key.get() as usize - 1].as_bytes()
    }

    proptest! {
        #[test]
        fn devices_stay_in_order_through_any_changes(
            changes in prop::collection::vec((0..3_000u32, any::<bool>()), 1..6_000), from in 0..3_000u32
        ) {
            let id = |number: u32| format!("{:08x}", number.wrapping_mul(2_654_435_761));
            let ids: Vec<String> = (0..3_000).map(id).collect();
            let (id_of, from) = (&id_in(&ids), key(from));
            let (mut sorted, mut model) = (SortedDevices::default(), BTreeSet::new());
            for (number, is_insert) in changes {
                let key = key(number);
                if is_insert && model.insert((id_of(key), key)) {
                    sorted.insert(key, id_of);
                } else if !is_insert && model.remove(&(id_of(key), key)) {
                    sorted.remove(key, id_of);
                }
            }
            prop_assert!(sorted.runs.iter().all(|keys| !keys.is_empty() && keys.len() <= RUN_MAX));
            let all: Vec<Key> = model.iter().map(|&(_, key)| key).collect();
            prop_assert_eq!(sorted.from(|_| false).collect::<Vec<_>>(), all);
            let rest: Vec<Key> = model.range((id_of(from), Key::MIN)..).map(|&(_, key)| key).collect();
            prop_assert_eq!(sorted.from(|key| id_of(key) < id_of(from)).collect::<Vec<_>>(), rest);
            for (id, key) in model {
                sorted.remove(key, id_of);
                prop_assert!(sorted.from(|other| id_of(other) < id).next() != Some(key));
            }
            prop_assert!(sorted.is_empty());
        }
    }

    #[test]
    fn a_search_finds_each_place() {
        for len in 0..200 {
            let all: Vec<usize> = (0..len).collect();
            for place in 0..=len {
                assert_eq!(partition_point(&all, |&at| at < place), place, "of {len}");
            }
        }
    }

    #[test]
    fn a_list_that_shrinks_gives_memory_back() {
        let ids: Vec<String> = (0..100_000).map(|key| format!("{key:06}")).collect();
        let id_of = &id_in(&ids);
        let mut sorted = SortedDevices::default();
        for number in 0..100_000 {
            sorted.insert(key(number), id_of);
        }
        for number in (0..100_000).filter(|number| number % 100 != 0) {
            sorted.remove(key(number), id_of);
        }
        assert_eq!(sorted.from(|_| false).count(), 1_000);
        assert!(sorted.runs.len() <= 20, "{} runs", sorted.runs.len());
    }
}
