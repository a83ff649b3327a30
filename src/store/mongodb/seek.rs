//! Finds the devices of a collection one after the other, without an index of devices.
//!
//! An index that begins with the device id holds the devices in order. The first entry behind a device is the
//! next one's, whatever the number of entries in between, so that each device costs one seek. Readings may
//! expire before their rollups do, so that devices are looked for in both collections at the same time.

use bson::{Document, doc};

/// How many devices that were found are looked at at the same time.
pub(super) const MAX_CONCURRENT_SUMMARIES: usize = 8;

/// Comes after every character of a device id, all of which are ASCII letters, digits or punctuation.
const AFTER_ALL: char = '\u{7F}';

/// How far the search has come.
pub(super) struct Seek {
    from: Document,
    end: String,
}

impl Seek {
    /// Begins with the devices that begin with `prefix` and come after `after`.
    pub(super) fn new(prefix: &str, after: Option<&str>) -> Self {
        let after = after.filter(|&after| after >= prefix);
        let from = after.map_or_else(|| doc! { "$gte": prefix }, |after| doc! { "$gt": after });
        Self { from, end: format!("{prefix}{AFTER_ALL}") }
    }

    /// Matches the ids of the devices that are still to be found. The next one is the first of them.
    pub(super) fn rest(&self) -> Document {
        let mut bounds = self.from.clone();
        bounds.insert("$lt", &self.end);
        bounds
    }

    /// The next device, given the next one that has readings and the next one that has rollups.
    pub(super) fn next(readings: Option<&str>, rollups: Option<&str>) -> Option<String> {
        readings.into_iter().chain(rollups).min().map(str::to_owned)
    }

    /// Goes on behind the device that was found.
    pub(super) fn advance(&mut self, device: &str) {
        self.from = doc! { "$gt": device };
    }
}
