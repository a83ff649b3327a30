//! The known devices: the last instant at which readings of each may be stored, and its metadata.
//!
//! Every reading of a known device that is stored, or that this instance has sent, is at `last_ms` or before.
//! Later readings are new, and the store need not read first. A write raises `last_ms` before it sends
//! anything. So a second attempt reads first, whatever the outcome of the first.
//!
//! The table is bounded. A device that was forgotten is read again. A device with a running write is never
//! forgotten, because a read of the store might miss the readings that are on their way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The devices of which this instance knows what may be stored.
#[derive(Debug)]
pub(super) struct KnownDevices {
    table: Mutex<Table>,
    max: usize,
}

#[derive(Debug, Default)]
struct Table {
    devices: HashMap<Arc<str>, Device>,
    /// Counts how often devices were forgotten.
    generation: u32,
}

#[derive(Debug)]
struct Device {
    /// The last instant at which readings may be stored; `None`: not read yet.
    last_ms: Option<i64>,
    metadata: Option<Arc<str>>,
    /// The number of running writes of the device.
    writes: u32,
    /// The generation of the table at the last write of the device.
    used: u32,
}

/// The newest stored instant of a device, and its metadata.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LatestKnown {
    pub(super) last_ms: i64,
    pub(super) metadata: Option<Arc<str>>,
}

/// A running write: its device is not forgotten until the guard is dropped.
#[derive(Debug)]
pub(super) struct WriteGuard<'a> {
    known: &'a KnownDevices,
    device: Arc<str>,
}

impl KnownDevices {
    pub(super) fn new(max: usize) -> Self {
        Self { table: Mutex::default(), max: max.max(1) }
    }

    /// Begins a write of a device.
    pub(super) fn begin_write(&self, device: &Arc<str>) -> WriteGuard<'_> {
        let mut table = self.lock();
        if table.devices.len() >= self.max && !table.devices.contains_key(device) {
            table.forget_some();
        }
        let generation = table.generation;
        let known = table.devices.entry(Arc::clone(device)).or_insert_with(|| Device {
            last_ms: None,
            metadata: None,
            writes: 0,
            used: generation,
        });
        known.writes += 1;
        known.used = generation;
        WriteGuard { known: self, device: Arc::clone(device) }
    }

    /// Forgets a device, unless a write of the device is running.
    pub(super) fn forget(&self, device: &str) {
        let mut table = self.lock();
        if table.devices.get(device).is_some_and(|known| known.writes == 0) {
            table.devices.remove(device);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Forgets the devices without a write since the last call or, if there are none, all devices without a
    /// running write.
    fn forget_some(&mut self) {
        let (before, generation) = (self.devices.len(), self.generation);
        self.devices.retain(|_, device| device.writes > 0 || device.used == generation);
        if self.devices.len() == before {
            self.devices.retain(|_, device| device.writes > 0);
        }
        self.generation = self.generation.wrapping_add(1);
    }
}

impl WriteGuard<'_> {
    /// Whether the device has not been read yet.
    pub(super) fn is_unknown(&self) -> bool {
        self.with(|device| device.last_ms.is_none())
    }

    /// Records the result of a read; `None`: nothing is stored.
    pub(super) fn learn(&self, newest: Option<LatestKnown>) {
        self.with(|device| {
            let found = newest.as_ref().map_or(i64::MIN, |newest| newest.last_ms);
            device.last_ms = Some(device.last_ms.map_or(found, |last_ms| last_ms.max(found)));
            device.metadata = device.metadata.take().or_else(|| newest.and_then(|newest| newest.metadata));
        });
    }

    /// Records that readings up to `last_ms` are about to be sent, and returns whether all of them, from
    /// `first_ms` on, are surely new.
    pub(super) fn advance(&self, first_ms: i64, last_ms: i64) -> bool {
        self.with(|device| {
            let is_new = device.last_ms.is_some_and(|known| first_ms > known);
            device.last_ms = Some(device.last_ms.map_or(last_ms, |known| known.max(last_ms)));
            is_new
        })
    }

    /// The metadata with which readings are stored.
    ///
    /// `newer`, if there is one, replaces it first.
    pub(super) fn metadata(&self, newer: Option<&Arc<str>>) -> Option<Arc<str>> {
        self.with(|device| {
            if let Some(newer) = newer {
                device.metadata = Some(Arc::clone(newer));
            }
            device.metadata.clone()
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Device) -> T) -> T {
        work(self.known.lock().devices.get_mut(&self.device).expect("a device with a running write is not forgotten"))
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        self.with(|device| device.writes -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn newest(last_ms: i64) -> LatestKnown {
        LatestKnown { last_ms, metadata: None }
    }

    #[test]
    fn only_readings_later_than_all_known_ones_are_surely_new() {
        let known = KnownDevices::new(10);
        let write = known.begin_write(&"a".into());
        assert!(write.is_unknown());
        write.learn(Some(newest(100)));
        assert!(!write.advance(100, 150) && !write.advance(150, 150) && write.advance(151, 200));
        assert!(!known.begin_write(&"a".into()).is_unknown());
        let other = known.begin_write(&"b".into());
        other.learn(None);
        assert!(other.advance(i64::MIN + 1, 0), "it has no stored readings");
    }

    #[test]
    fn a_read_does_not_lower_the_instant_that_was_sent_meanwhile() {
        let known = KnownDevices::new(10);
        let (one, two) = (known.begin_write(&"a".into()), known.begin_write(&"a".into()));
        one.learn(Some(newest(10)));
        one.advance(20, 30);
        two.learn(Some(newest(10)));
        assert!(!two.advance(25, 26));
    }

    #[test]
    fn a_device_with_a_running_write_is_not_forgotten() {
        let known = KnownDevices::new(2);
        let write = known.begin_write(&"a".into());
        write.learn(Some(newest(10)));
        for other in ["b", "c", "d", "e"] {
            known.begin_write(&other.into()).learn(Some(newest(1)));
        }
        assert!(known.lock().devices.len() <= 3);
        assert!(!known.begin_write(&"a".into()).is_unknown());
        assert!(known.begin_write(&"b".into()).is_unknown(), "forgotten");
    }

    #[test]
    fn metadata_stays_until_there_is_newer() {
        let known = KnownDevices::new(2);
        let write = known.begin_write(&"a".into());
        let floor = |floor: u32| Some(Arc::from(format!("{{\"floor\":{floor}}}")));
        write.learn(Some(LatestKnown { last_ms: 1, metadata: floor(1) }));
        assert_eq!(write.metadata(None), floor(1));
        assert_eq!(write.metadata(floor(2).as_ref()), floor(2));
        assert_eq!(write.metadata(None), floor(2));
    }
}
