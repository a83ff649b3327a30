//! Which devices have something pending.

use std::sync::Arc;

use super::sorted::is_before;
use super::{Device, HourSlot, ITEMS_PER_TURN, Pending, PendingHour, key};
use crate::model::HourOffset;

/// How many hours before the newest one are searched for metadata.
const EARLIER_HOURS_MAX: usize = 24;

/// A device that has something pending.
#[derive(Debug, Clone)]
pub struct PendingDevice {
    /// The device id.
    pub device: Arc<str>,
    /// The first instant that is pending, in Unix milliseconds.
    pub first_ts_ms: i64,
    /// Its last hour that has something pending.
    pub newest: PendingHour,
    /// The newest metadata that is pending for one of the hours before that.
    pub earlier_metadata: Option<Arc<str>>,
}

impl Pending {
    /// The devices with something pending whose id starts with `prefix` and comes after `after`, ascending:
    /// up to `limit` of them, and no more than one turn allows. The flag says that the turn ended first: ask
    /// again behind the last one.
    pub fn devices(&self, prefix: &str, after: Option<&str>, limit: usize) -> (Vec<PendingDevice>, bool) {
        let id_of = |device: u32| &*self.devices[device as usize].id;
        let from = self.sorted.from(|device| is_before(id_of(device), prefix, after));
        let (mut found, mut items) = (Vec::new(), 0);
        for device in from.take_while(|&device| id_of(device).starts_with(prefix)).take(limit) {
            if items >= ITEMS_PER_TURN {
                return (found, true);
            }
            let device = &self.devices[device as usize];
            let [earlier @ .., newest] = &device.hours[..] else { continue };
            let (newest, touched) = self.snapshot(newest);
            items += touched;
            found.push(PendingDevice {
                device: device.id.as_ref().into(),
                first_ts_ms: self.first_ts_ms(device),
                newest,
                earlier_metadata: self.newest_metadata(earlier),
            });
        }
        (found, false)
    }

    /// The newest metadata of some hours, of which no more than a day is looked at.
    fn newest_metadata(&self, hours: &[HourSlot]) -> Option<Arc<str>> {
        hours.iter().rev().take(EARLIER_HOURS_MAX).find_map(|slot| {
            let open = slot.open.and_then(|bucket| self.open[key(bucket)].metadata.as_ref());
            let flying = slot.flight.and_then(|flight| self.flights[key(flight)].bucket.metadata.as_ref());
            open.or(flying).cloned()
        })
    }

    fn first_ts_ms(&self, device: &Device) -> i64 {
        let Some(first) = device.hours.first() else { return 0 };
        let open = first.open.map(|bucket| self.open[key(bucket)].span.0);
        let flying = first.flight.map(|flight| self.flights[key(flight)].bucket.span.0);
        let offset: Option<HourOffset> = open.into_iter().chain(flying).min();
        first.hour.instant_ms(offset.unwrap_or_default())
    }
}
