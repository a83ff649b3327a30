//! Finds the devices of a collection one after the other, until the device index has them.
//!
//! An index that begins with the device ID has the devices in order. A seek past all entries of a device
//! finds the first entry of the next one, so each device costs one seek (a loose index scan). Readings may
//! expire before their rollups, so the search runs in both collections at the same time.

use bson::{Bson, Document, doc};

/// How many devices are summarized at the same time.
pub(super) const MAX_CONCURRENT_SUMMARIES: usize = 8;

/// Sorts after every character of a device ID, all of which are ASCII letters, digits or punctuation.
const AFTER_ALL: char = '\u{7F}';

/// The IDs that are still to be searched.
pub(super) struct Seek {
    /// Matches these IDs. The next device is the first of them.
    rest: Bson,
    end: String,
}

impl Seek {
    /// A search for the devices whose ID starts with `prefix` and is greater than `after`.
    pub(super) fn new(prefix: &str, after: Option<&str>) -> Self {
        let after = after.filter(|&after| after >= prefix);
        let from = after.map_or_else(|| doc! { "$gte": prefix }, |after| doc! { "$gt": after });
        Self::from(from, format!("{prefix}{AFTER_ALL}"))
    }

    /// A search for one device, by equality: a sharded cluster sends it to the device's shard alone.
    pub(super) fn one(device: &str) -> Self {
        Self { rest: device.into(), end: format!("{device}{AFTER_ALL}") }
    }

    fn from(mut bounds: Document, end: String) -> Self {
        bounds.insert("$lt", &end);
        Self { rest: bounds.into(), end }
    }

    /// Matches the IDs of the devices that are still to be found.
    pub(super) fn rest(&self) -> Bson {
        self.rest.clone()
    }

    /// The next device, given the next device with readings and the next device with rollups.
    pub(super) fn next(readings: Option<&str>, rollups: Option<&str>) -> Option<String> {
        readings.into_iter().chain(rollups).min().map(str::to_owned)
    }

    /// Continues the search after the device that was found.
    pub(super) fn advance(&mut self, device: &str) {
        *self = Self::from(doc! { "$gt": device }, std::mem::take(&mut self.end));
    }
}
