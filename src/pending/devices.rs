//! The list of devices that have pending readings.

use std::sync::Arc;

use super::slots::Key;
use super::sorted::is_before;
use super::{HourSlot, ITEMS_PER_TURN, Pending, PendingHour};
use crate::model::HourOffset;

/// A device that has pending readings.
#[derive(Debug, Clone)]
pub struct PendingDevice {
    /// The stored ID of the device.
    pub device: Arc<str>,
    /// The first pending instant, in Unix milliseconds.
    pub first_ts_ms: i64,
    /// The newest pending hour of the device.
    pub newest: PendingHour,
    /// Whether the device has pending hours before the newest.
    pub has_earlier: bool,
}

impl Pending {
    /// Returns the pending devices whose ID starts with `prefix` and follows `after`, ascending.
    ///
    /// Returns at most `limit` devices, and no more than one turn allows. The flag is true if the turn ended
    /// first: the caller then goes on after the last device.
    pub fn devices(&self, prefix: &str, after: Option<&str>, limit: usize) -> (Vec<PendingDevice>, bool) {
        let id_of = |device: Key| self.devices[device].id.as_bytes();
        let from = self.sorted.from(|device| is_before(id_of(device), prefix, after));
        let (mut found, mut items) = (Vec::new(), 0);
        for device in from.take_while(|&device| id_of(device).starts_with(prefix.as_bytes())).take(limit) {
            if items >= ITEMS_PER_TURN {
                return (found, true);
            }
            let device = &self.devices[device];
            let (Some(first), Some(last)) = (device.hours.first(), device.hours.last()) else { continue };
            let has_earlier = first.hour < last.hour;
            let (newest, touched) = self.snapshot(last);
            items += touched;
            found.push(PendingDevice {
                device: device.id.to_shared(),
                first_ts_ms: self.first_ts_ms(first),
                newest,
                has_earlier,
            });
        }
        (found, false)
    }

    fn first_ts_ms(&self, first: &HourSlot) -> i64 {
        let open = first.open.map(|bucket| self.open[bucket].span.0);
        let in_flight = first.in_flight.map(|taken| self.in_flight[taken].bucket.span.0);
        let offset: Option<HourOffset> = open.into_iter().chain(in_flight).min();
        first.hour.instant_ms(offset.unwrap_or_default())
    }
}
