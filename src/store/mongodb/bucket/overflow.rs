//! The buckets that have more than one part, as far as this instance knows: their flushes are appended to the
//! last part, and the slow path need not read the others. Of packed buckets, only those with more parts than
//! `packed/known_parts.rs` can count are here.
//!
//! An entry that is out of date does no harm: a part with a successor is marked full, and an append to a part
//! that does not exist any more does nothing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::model::Hour;

/// How many buckets are remembered. Most devices never have a second part.
const MAX: usize = 10_000;

/// The number of the last part of each bucket that has more than one.
#[derive(Debug, Default)]
pub(super) struct Overflowing {
    last_parts: Mutex<HashMap<(Arc<str>, Hour), i32>>,
    /// The number of entries. While it is 0, a look-up takes no lock.
    count: AtomicUsize,
}

impl Overflowing {
    /// The number of the last known part of a bucket; 0 if the bucket is not known.
    pub(super) fn last_part(&self, device: &Arc<str>, hour: Hour) -> i32 {
        if self.count.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let last_parts = self.last_parts.lock().unwrap_or_else(PoisonError::into_inner);
        last_parts.get(&(Arc::clone(device), hour)).copied().unwrap_or(0)
    }

    /// Remembers the last part of a bucket. If there are too many entries, it forgets those of the oldest
    /// hour.
    pub(super) fn note(&self, device: &Arc<str>, hour: Hour, last_part: i32) {
        if last_part == 0 {
            return;
        }
        let mut last_parts = self.last_parts.lock().unwrap_or_else(PoisonError::into_inner);
        last_parts.insert((Arc::clone(device), hour), last_part);
        while last_parts.len() > MAX {
            let oldest = last_parts.keys().map(|(_, hour)| *hour).min();
            last_parts.retain(|(_, hour), _| Some(*hour) != oldest);
        }
        self.count.store(last_parts.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_parts_are_remembered_and_the_oldest_hours_forgotten() {
        let overflowing = Overflowing::default();
        let device = Arc::from("d");
        assert_eq!(overflowing.last_part(&device, Hour(0)), 0);
        for hour in 0..=MAX as i32 {
            overflowing.note(&device, Hour(hour), hour + 1);
        }
        assert_eq!(overflowing.last_part(&device, Hour(0)), 0, "forgotten");
        assert_eq!(overflowing.last_part(&device, Hour(MAX as i32)), MAX as i32 + 1);
        assert_eq!(overflowing.last_part(&Arc::from("other"), Hour(1)), 0);
    }
}
