//! Queries for the stats of several devices, and the table of their answers.

use std::collections::HashMap;
use std::sync::Arc;

use bson::{Bson, doc};

use super::decode::DecodeError;
use crate::store::HourStats;

/// The stats of several devices, in the order of the devices.
pub struct ByDevice<'a> {
    places: HashMap<&'a str, usize>,
    found: Vec<Vec<HourStats>>,
}

impl<'a> ByDevice<'a> {
    pub(super) fn new(devices: &'a [Arc<str>], found: Vec<Vec<HourStats>>) -> Self {
        Self { places: devices.iter().enumerate().map(|(at, device)| (&**device, at)).collect(), found }
    }

    /// The stats of a device, to add more to; an error if the query did not ask for the device.
    pub(super) fn of(&mut self, device: &str) -> Result<&mut Vec<HourStats>, DecodeError> {
        let at = self.places.get(device).ok_or_else(|| DecodeError("its device was not asked for".into()))?;
        Ok(&mut self.found[*at])
    }

    /// Adds stats of each device, in the order of the devices.
    pub(super) fn add(&mut self, stats: impl Iterator<Item = Vec<HourStats>>) {
        self.found.iter_mut().zip(stats).for_each(|(found, more)| found.extend(more));
    }

    /// The stats of each device, its hours ascending.
    pub(super) fn sorted(mut self) -> Vec<Vec<HourStats>> {
        self.found.iter_mut().for_each(|hours| hours.sort_unstable_by_key(|stats| stats.hour));
        self.found
    }
}

/// Matches documents of these devices. One device is matched by equality: a sharded cluster sends that query
/// to the device's shard alone.
pub(super) fn of_devices(devices: &[impl AsRef<str>]) -> Bson {
    match devices {
        [device] => device.as_ref().into(),
        several => doc! { "$in": several.iter().map(AsRef::as_ref).collect::<Vec<&str>>() }.into(),
    }
}
