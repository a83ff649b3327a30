//! What a query sees of what is pending.

use std::ops::Range;
use std::sync::Arc;

use super::{HourSlot, Pending, key};
use crate::model::{BucketWrite, Contents, Hour};

/// What is pending of one bucket at one moment.
#[derive(Debug, Clone)]
pub struct PendingHour {
    /// The hour.
    pub hour: Hour,
    pub(super) flying: Option<Arc<BucketWrite>>,
    pub(super) open: Option<(Contents, Option<Arc<str>>)>,
}

impl PendingHour {
    /// The readings, those in flight included.
    pub fn contents(&self) -> Contents {
        match (&self.flying, &self.open) {
            (Some(write), Some((open, _))) => write.contents.merge(open),
            (Some(write), None) => write.contents.clone(),
            (None, Some((open, _))) => open.clone(),
            (None, None) => Contents::default(),
        }
    }

    /// The newest metadata that came with them.
    pub fn metadata(&self) -> Option<Arc<str>> {
        let open = self.open.as_ref().and_then(|(_, metadata)| metadata.clone());
        open.or_else(|| self.flying.as_ref().and_then(|write| write.metadata.clone()))
    }
}

impl Pending {
    /// What is pending of a device in a range of hours, ascending.
    pub fn hours(&self, device: &str, hours: Range<Hour>) -> Vec<PendingHour> {
        let Some(device) = self.find_device(device) else { return Vec::new() };
        let slots = &self.devices[device].hours;
        let from = slots.partition_point(|slot| slot.hour < hours.start);
        let slots = slots[from..].iter().take_while(|slot| slot.hour < hours.end);
        slots.map(|slot| self.snapshot(slot)).collect()
    }

    /// The last hour of a device that has something pending.
    pub fn last_hour(&self, device: &str) -> Option<Hour> {
        self.devices[self.find_device(device)?].hours.last().map(|slot| slot.hour)
    }

    pub(super) fn snapshot(&self, slot: &HourSlot) -> PendingHour {
        PendingHour {
            hour: slot.hour,
            flying: slot.flight.map(|flight| Arc::clone(&self.flights[key(flight)].write)),
            open: slot.open.map(|bucket| self.open[key(bucket)].contents(&self.names, self.keep)),
        }
    }
}
