//! A search for the devices of a collection one after the other, until the device index has them.
//!
//! Readings may expire before their rollups, so the search runs in both collections at the same time.

use bson::{Bson, doc};

/// How many devices are summarized at the same time.
pub(super) const MAX_CONCURRENT_SUMMARIES: usize = 8;

/// Sorts after every character of a device ID, all of which are ASCII letters, digits or punctuation.
const AFTER_ALL: char = '\u{7F}';

/// The IDs that are still to be searched.
#[derive(Debug)]
pub struct Seek {
    prefix: String,
    after: Option<String>,
}

impl Seek {
    /// A search for the devices whose ID starts with `prefix` and is greater than `after`.
    pub(super) fn new(prefix: &str, after: Option<&str>) -> Self {
        Self { prefix: prefix.to_owned(), after: after.filter(|&after| after >= prefix).map(str::to_owned) }
    }

    /// Matches the IDs of the devices that are still to be found.
    pub(super) fn rest(&self) -> Bson {
        let from = || doc! { "$gte": &self.prefix };
        let mut rest = self.after.as_ref().map_or_else(from, |after| doc! { "$gt": after });
        rest.insert("$lt", self.end());
        rest.into()
    }

    /// The beginning of all IDs, and the ID after which the search continues.
    pub(super) fn prefix_and_after(&self) -> (&str, Option<&str>) {
        (&self.prefix, self.after.as_deref())
    }

    /// Sorts after the IDs of the search, and after all texts that begin with one of them.
    pub(super) fn end(&self) -> String {
        format!("{}{AFTER_ALL}", self.prefix)
    }

    /// The next device, given the next device with readings and the next device with rollups.
    pub(super) fn next(readings: Option<String>, rollups: Option<String>) -> Option<String> {
        readings.into_iter().chain(rollups).min()
    }

    /// Continues the search after the device that was found.
    pub(super) fn advance(&mut self, device: &str) {
        self.after = Some(device.to_owned());
    }
}
