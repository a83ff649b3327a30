//! Messages that never arrived, as devices that number their messages make it known.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use foldhash::fast::RandomState;
use metrics::Counter;

use crate::access::DeviceScope;
use crate::model::{DeviceIdCase, check_device_id};

/// The number of the last message of each device, for as many devices as are remembered.
///
/// A number that is more than one above the last leaves a gap, which counts as many as are missing. A number
/// that is not above the last (the device has restarted, or a message came twice or late) leaves none, and
/// counting goes on from there.
#[derive(Debug)]
pub(super) struct Sequences {
    max_devices: usize,
    last: Mutex<Last>,
    gaps: Counter,
}

/// Two generations, of which the older is forgotten when the younger is full, so that devices which went
/// silent go first.
#[derive(Debug, Default)]
struct Last {
    young: HashMap<Box<str>, u64, RandomState>,
    old: HashMap<Box<str>, u64, RandomState>,
}

impl Sequences {
    /// Remembers up to `max_devices`, and at least the last half of as many.
    pub(super) fn new(max_devices: usize, gaps: Counter) -> Self {
        Self { max_devices, last: Mutex::default(), gaps }
    }

    /// Takes note of a message of a device, by the id under which it is kept.
    fn saw(&self, device: &str, number: u64) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let last = last.replace(device, number, self.max_devices.div_ceil(2));
        self.gaps.increment(last.map_or(0, |last| missing(last, number)));
    }
}

/// The numbers in a datagram, from somebody with this reach.
#[derive(Debug, Clone, Copy)]
pub(super) struct Numbering<'a> {
    pub(super) sequences: &'a Sequences,
    pub(super) scope: &'a DeviceScope,
    pub(super) case: DeviceIdCase,
}

impl Numbering<'_> {
    /// Takes note of a message, unless its device is out of reach: nobody counts gaps of somebody else's
    /// devices.
    pub(super) fn saw(self, device: &str, number: u64) {
        if self.sequences.max_devices == 0 || check_device_id(device).is_err() {
            return;
        }
        let device = self.case.apply(device);
        if let Ok(kept) = self.scope.to_stored_id(&device) {
            self.sequences.saw(&kept, number);
        }
    }
}

/// How many numbers stand between. A jump that no device lives to make is another way of counting.
fn missing(last: u64, number: u64) -> u64 {
    let missing = number.saturating_sub(last).saturating_sub(1);
    if missing > u64::from(u32::MAX) { 0 } else { missing }
}

impl Last {
    fn replace(&mut self, device: &str, number: u64, generation: usize) -> Option<u64> {
        if let Some(last) = self.young.get_mut(device) {
            return Some(std::mem::replace(last, number));
        }
        let (device, last) = match self.old.remove_entry(device) {
            Some((device, last)) => (device, Some(last)),
            None => (device.into(), None),
        };
        if self.young.len() >= generation {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(device, number);
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is missing before each of the messages of one device.
    fn gaps(numbers: &[u64]) -> Vec<u64> {
        let mut last = Last::default();
        let gap = |&number| last.replace("d", number, 1).map_or(0, |last| missing(last, number));
        numbers.iter().map(gap).collect()
    }

    #[test]
    fn a_gap_counts_what_is_missing() {
        assert_eq!(gaps(&[7, 8, 9, 11, 20]), [0, 0, 0, 1, 8]);
    }

    #[test]
    fn a_restart_a_repetition_and_a_late_message_leave_no_gap() {
        assert_eq!(gaps(&[500, 0, 1, 1, 2]), [0, 0, 0, 0, 0]);
        assert_eq!(gaps(&[1, 3, 2, 3]), [0, 1, 0, 0]);
        assert_eq!(gaps(&[0, u64::MAX, 0]), [0, 0, 0]);
    }

    #[test]
    fn devices_are_told_apart_as_they_are_kept_and_those_out_of_reach_are_not_watched() {
        let sequences = Sequences::new(8, Counter::noop());
        let acme = DeviceScope::new("acme/".to_owned(), Some(vec!["pump-*".parse().unwrap()]));
        let numbering = Numbering { sequences: &sequences, scope: &acme, case: DeviceIdCase::Lower };
        for device in ["PUMP-1", "pump-1", "light-1", "pump 1", ""] {
            numbering.saw(device, 1);
        }
        Numbering { scope: DeviceScope::all(), ..numbering }.saw("pump-1", 1);
        let last = sequences.last.into_inner().unwrap();
        let mut devices: Vec<_> = last.young.keys().map(|device| &**device).collect();
        devices.sort_unstable();
        assert_eq!(devices, ["acme/pump-1", "pump-1"]);
    }

    #[test]
    fn devices_that_went_silent_are_forgotten_first() {
        let mut last = Last::default();
        for device in 0..10_u64 {
            last.replace("steady", device, 4);
            last.replace(&device.to_string(), 1, 4);
            assert!(last.young.len() + last.old.len() <= 8);
        }
        assert_eq!(last.replace("steady", 0, 4), Some(9));
        assert_eq!(last.replace("9", 2, 4), Some(1));
        assert_eq!(last.replace("0", 2, 4), None, "forgotten");
    }
}
