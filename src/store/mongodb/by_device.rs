//! The stats of several devices: which documents to ask for, and where what is found belongs.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bson::{Bson, DateTime, Document, doc};

use super::decode::DecodeError;
use crate::model::Hour;
use crate::store::HourStats;

/// The stats of several devices, while they are being read.
pub struct ByDevice<'a> {
    places: HashMap<&'a str, usize>,
    found: Vec<Vec<HourStats>>,
}

impl<'a> ByDevice<'a> {
    pub(super) fn new(devices: &'a [Arc<str>], found: Vec<Vec<HourStats>>) -> Self {
        Self { places: devices.iter().enumerate().map(|(at, device)| (&**device, at)).collect(), found }
    }

    pub(super) fn of(&mut self, device: &str) -> Result<&mut Vec<HourStats>, DecodeError> {
        let at = self.places.get(device).ok_or_else(|| DecodeError("a device that nobody asked for".into()))?;
        Ok(&mut self.found[*at])
    }

    /// The stats of each device, its hours ascending.
    pub(super) fn sorted(mut self) -> Vec<Vec<HourStats>> {
        self.found.iter_mut().for_each(|hours| hours.sort_unstable_by_key(|stats| stats.hour));
        self.found
    }
}

/// Matches documents of these devices. One is asked for by equality, which a sharded cluster sends to its
/// shard alone.
pub(super) fn of_devices(devices: &[impl AsRef<str>]) -> Bson {
    match devices {
        [device] => device.as_ref().into(),
        several => doc! { "$in": several.iter().map(AsRef::as_ref).collect::<Vec<&str>>() }.into(),
    }
}

/// Matches instants from the start of one hour to before that of another.
pub(super) fn within(hours: &Range<Hour>) -> Document {
    let [from, to] = [hours.start, hours.end].map(|hour| DateTime::from_millis(hour.start_ms()));
    doc! { "$gte": from, "$lt": to }
}
