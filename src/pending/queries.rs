//! The parts of pending that queries read: the hours of a device, and the list of devices.
//!
//! Each call takes snapshots for one turn ([`ITEMS_PER_TURN`]) under the lock, and the caller goes on where
//! the turn ended. The snapshots are sorted and merged without the lock.

use std::ops::Range;
use std::sync::Arc;

use super::bucket::{BucketSnapshot, OpenBucket};
use super::slots::Key;
use super::sorted::is_before;
use super::{HourSlot, ITEMS_PER_BUCKET, ITEMS_PER_TURN, Pending};
use crate::model::{Contents, Hour, Metric};

impl Pending {
    /// Returns the pending hours of a device in a range, ascending: as many as one turn allows, at least one.
    ///
    /// If the turn ended before all hours were read, the second value is the hour from which the caller goes
    /// on.
    pub fn hours(&self, device: &str, hours: Range<Hour>) -> (Vec<PendingHour>, Option<Hour>) {
        let Some(device) = self.find_device(device) else { return (Vec::new(), None) };
        let slots = &self.devices[device].hours;
        let (mut found, mut items) = (Vec::new(), 0);
        for slot in slots.from(hours.start).take_while(|slot| slot.hour < hours.end) {
            if items >= ITEMS_PER_TURN {
                return (found, Some(slot.hour));
            }
            let (hour, touched) = self.snapshot(slot);
            items += touched;
            found.push(hour);
        }
        (found, None)
    }

    /// Returns whether a device has pending readings in a range.
    pub fn has_hours(&self, device: &str, hours: &Range<Hour>) -> bool {
        let Some(device) = self.find_device(device) else { return false };
        let slots = &self.devices[device].hours;
        slots.from(hours.start).next().is_some_and(|slot| slot.hour < hours.end)
    }

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

    fn first_ts_ms(&self, slot: &HourSlot) -> i64 {
        let open = slot.open.map(|bucket| self.open[bucket].span.0);
        let in_flight = slot.in_flight.map(|taken| self.in_flight[taken].bucket.span.0);
        slot.hour.instant_ms(open.into_iter().chain(in_flight).min().unwrap_or_default())
    }

    /// Takes a snapshot of an hour, and returns it with the work that it took.
    pub(super) fn snapshot(&self, slot: &HourSlot) -> (PendingHour, usize) {
        let open = slot.open.map(|bucket| &self.open[bucket]);
        let hour = PendingHour {
            hour: slot.hour,
            in_flight: slot.in_flight.map(|taken| Arc::clone(&self.in_flight[taken].bucket)),
            open: open.map(|bucket| Arc::new(bucket.snapshot(self.keep))),
        };
        (hour, ITEMS_PER_BUCKET + open.map_or(0, OpenBucket::snapshot_items))
    }
}

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

/// The pending readings of one device and hour at one moment.
#[derive(Debug, Clone)]
pub struct PendingHour {
    /// The hour of the readings.
    pub hour: Hour,
    /// The readings of the write in flight.
    pub(super) in_flight: Option<Arc<BucketSnapshot>>,
    /// The readings that were accepted after those in flight.
    pub(super) open: Option<Arc<BucketSnapshot>>,
}

impl PendingHour {
    /// The number of values, repetitions included.
    #[must_use]
    pub fn values(&self) -> usize {
        self.parts().map(BucketSnapshot::values).sum()
    }

    /// Returns the readings, those in flight included, each identity once.
    #[must_use]
    pub fn contents(&self) -> Contents {
        match (&self.in_flight, &self.open) {
            (Some(in_flight), Some(open)) => in_flight.contents().merge(&open.contents()),
            (Some(only), None) | (None, Some(only)) => only.contents(),
            (None, None) => Contents::default(),
        }
    }

    /// Returns the metrics that have values, sorted by name.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        let mut metrics: Vec<Metric> = self.parts().flat_map(BucketSnapshot::metrics).collect();
        metrics.sort_unstable_by(|a, b| a.cmp(b).then_with(|| b.measurement().cmp(&a.measurement())));
        metrics.dedup(); // keeps the first metric of each text: the one with a measurement
        metrics
    }

    /// The first and the last instant, in Unix milliseconds.
    #[must_use]
    pub fn span_ms(&self) -> (i64, i64) {
        let first = self.parts().map(|part| part.span.0).min().unwrap_or_default();
        let last = self.parts().map(|part| part.span.1).max().unwrap_or_default();
        (self.hour.instant_ms(first), self.hour.instant_ms(last))
    }

    /// Returns the metadata that was accepted last.
    #[must_use]
    pub fn metadata(&self) -> Option<&Arc<str>> {
        self.parts().filter_map(|part| part.metadata.as_ref()).last()
    }

    fn parts(&self) -> impl Iterator<Item = &BucketSnapshot> {
        self.in_flight.iter().chain(&self.open).map(|part| &**part)
    }
}
