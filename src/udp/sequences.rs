//! Gaps in the sequence numbers of devices: messages that never arrived.

use std::sync::{Mutex, PoisonError};

use metrics::Counter;

use crate::access::DeviceScope;
use crate::common::generations::Generations;

/// The last sequence number of each device, for a bounded number of devices.
///
/// A number that is more than one above the last leaves a gap, and the missing numbers are counted. A number
/// that is not above the last (the device has restarted, or a message arrived twice or late) leaves no gap,
/// and counting goes on from it.
#[derive(Debug)]
pub(super) struct Sequences {
    /// `None`: no device is remembered.
    last: Option<Mutex<Last>>,
    gaps: Counter,
}

type Last = Generations<Box<str>, u64>;

impl Sequences {
    /// Remembers up to `max_devices`, and at least the last half of as many.
    pub(super) fn new(max_devices: usize, gaps: Counter) -> Self {
        let last = || Mutex::new(Last::new(max_devices.div_ceil(2), |_| 1));
        Self { last: (max_devices > 0).then(last), gaps }
    }
}

/// The sequence numbers of a datagram, and the scope of its sender.
#[derive(Debug, Clone, Copy)]
pub(super) struct Numbering<'a> {
    pub(super) sequences: &'a Sequences,
    pub(super) scope: &'a DeviceScope,
}

impl Numbering<'_> {
    /// Records the number of a message, unless the scope does not cover its device: a sender must not count
    /// gaps of the devices of others.
    pub(super) fn record(self, device: &str, number: u64) {
        let Some(last) = &self.sequences.last else { return };
        if let Ok(device) = self.scope.to_stored_id(device) {
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            self.sequences.gaps.increment(missing_before(&mut last, &device, number));
        }
    }
}

/// Replaces the last number of a device. Returns how many numbers are missing between the two.
fn missing_before(last: &mut Last, device: &str, number: u64) -> u64 {
    let Some(last) = last.update(device, |last| std::mem::replace(last, number)) else {
        last.insert(device.into(), number);
        return 0;
    };
    let missing = number.saturating_sub(last).saturating_sub(1);
    // A larger jump is not a gap: the device has changed its numbering.
    if missing > u64::from(u32::MAX) { 0 } else { missing }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::DeviceIdCase;

    /// The missing numbers before each message of one device.
    fn gaps(numbers: &[u64]) -> Vec<u64> {
        let mut last = Last::new(1, |_| 1);
        numbers.iter().map(|&number| missing_before(&mut last, "d", number)).collect()
    }

    #[test]
    fn a_gap_counts_the_missing_numbers() {
        assert_eq!(gaps(&[7, 8, 9, 11, 20]), [0, 0, 0, 1, 8]);
    }

    #[test]
    fn a_restart_a_repetition_and_a_late_message_leave_no_gap() {
        assert_eq!(gaps(&[500, 0, 1, 1, 2]), [0, 0, 0, 0, 0]);
        assert_eq!(gaps(&[1, 3, 2, 3]), [0, 1, 0, 0]);
        assert_eq!(gaps(&[0, u64::MAX, 0]), [0, 0, 0]);
    }

    #[test]
    fn numbers_are_kept_by_stored_id_within_the_scope_only() {
        let sequences = Sequences::new(8, Counter::noop());
        let patterns = vec!["pump-*".parse().unwrap()];
        let acme = DeviceScope::new(DeviceIdCase::Lower, "acme/".to_owned(), Some(patterns));
        let numbering = Numbering { sequences: &sequences, scope: &acme };
        for device in ["PUMP-1", "pump-1", "light-1", "pump 1", ""] {
            numbering.record(device, 1);
        }
        Numbering { scope: DeviceScope::all(), ..numbering }.record("pump-1", 1);
        let mut last = sequences.last.expect("devices are remembered").into_inner().unwrap();
        assert_eq!(last.len(), 2);
        for device in ["acme/pump-1", "pump-1"] {
            assert_eq!(last.update(device, |number| *number), Some(1), "{device}");
        }
    }
}
