//! Which devices have something pending.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Pending, PendingHour};

/// A device that has something pending.
#[derive(Debug, Clone)]
pub struct PendingDevice {
    /// The device id.
    pub device: Arc<str>,
    /// Its first and its last hour that have something pending.
    pub hours: (PendingHour, PendingHour),
}

impl Pending {
    /// Up to `limit` devices with something pending whose id starts with `prefix` and comes after `after`, ascending.
    pub fn devices(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<PendingDevice> {
        let mut smallest: BTreeSet<(&str, usize)> = BTreeSet::new();
        for (key, device) in &self.devices {
            let id = &*device.id;
            if !id.starts_with(prefix) || after.is_some_and(|after| id <= after) {
                continue;
            }
            if smallest.len() < limit || smallest.last().is_some_and(|&(largest, _)| id < largest) {
                smallest.insert((id, key));
                if smallest.len() > limit {
                    smallest.pop_last();
                }
            }
        }
        smallest
            .into_iter()
            .filter_map(|(id, key)| {
                let slots = &self.devices[key].hours;
                let hours = (self.snapshot(slots.first()?), self.snapshot(slots.last()?));
                Some(PendingDevice { device: id.into(), hours })
            })
            .collect()
    }
}
