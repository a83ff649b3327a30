//! Gaps in the sequence numbers of devices: messages that never arrived.

use std::sync::{Mutex, PoisonError};

use metrics::Counter;

use crate::access::DeviceScope;
use crate::common::generations::Generations;

/// The last sequence numbers of each device, for a bounded number of devices.
///
/// A number counts as missing if it has not arrived before a number that is at least [`WINDOW`] higher. So
/// messages may arrive out of order within the window. A number that is [`WINDOW`] or more below the last
/// number, or more than 2^32 - 1 above it, begins a new run: the device has restarted, or an old message has
/// come again. A number near the end of the previous run continues that run.
#[derive(Debug)]
pub(super) struct Sequences {
    /// `None`: no device is remembered.
    seen: Option<Mutex<Devices>>,
    gaps: Counter,
}

/// How many sequence numbers of a device are remembered.
const WINDOW: u64 = 64;

type Devices = Generations<Box<str>, Seen>;

/// The numbers of a device that have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    current: Run,
    /// The run before the current one.
    previous: Option<Run>,
}

/// Numbers that rise from message to message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    /// The highest number of the run.
    last: u64,
    /// Bit `n` says whether `last - n` has arrived.
    ///
    /// Numbers before the first number of the run count as arrived.
    window: u64,
}

impl Sequences {
    /// Remembers up to `max_devices` devices.
    ///
    /// It always remembers the half of these devices that sent last.
    pub(super) fn new(max_devices: usize, gaps: Counter) -> Self {
        let seen = || Mutex::new(Devices::new(max_devices.div_ceil(2), |_| 1));
        Self { seen: (max_devices > 0).then(seen), gaps }
    }
}

/// The sequence numbers of a datagram, and the scope of its sender.
#[derive(Debug, Clone, Copy)]
pub(super) struct Numbering<'a> {
    pub(super) sequences: &'a Sequences,
    pub(super) scope: &'a DeviceScope,
}

impl Numbering<'_> {
    /// Records the number of a message, unless the device is outside of the scope: a sender must not count
    /// gaps of devices that are not its own.
    pub(super) fn record(self, device: &str, number: u64) {
        let Some(seen) = &self.sequences.seen else { return };
        if let Ok(device) = self.scope.to_stored_id(device) {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            self.sequences.gaps.increment(missing_after(&mut seen, &device, number));
        }
    }
}

/// Notes a number of a device.
///
/// Returns how many more numbers are known to be missing now.
fn missing_after(devices: &mut Devices, device: &str, number: u64) -> u64 {
    let missing = devices.update(device, |seen| seen.note(number));
    missing.unwrap_or_else(|| {
        devices.insert(device.into(), Seen::first(number));
        0
    })
}

impl Seen {
    const fn first(number: u64) -> Self {
        Self { current: Run::first(number), previous: None }
    }

    /// Notes a number. Returns how many more numbers are known to be missing now.
    fn note(&mut self, number: u64) -> u64 {
        if !self.current.is_near(number)
            && let Some(previous) = self.previous.filter(|previous| previous.is_near(number))
        {
            let missing = self.current.end();
            self.previous = Some(std::mem::replace(&mut self.current, previous));
            return missing + self.current.note(number);
        }
        if self.current.continues_with(number) {
            return self.current.note(number);
        }
        let missing = self.current.end();
        self.previous = Some(std::mem::replace(&mut self.current, Run::first(number)));
        missing
    }
}

impl Run {
    const fn first(number: u64) -> Self {
        Self { last: number, window: u64::MAX }
    }

    const fn is_near(&self, number: u64) -> bool {
        self.last.abs_diff(number) < WINDOW
    }

    const fn continues_with(&self, number: u64) -> bool {
        self.is_near(number) || (number > self.last && number - self.last <= u32::MAX as u64)
    }

    /// Notes a number that continues the run.
    ///
    /// Returns how many missing numbers have left the window.
    const fn note(&mut self, number: u64) -> u64 {
        if number <= self.last {
            self.window |= 1 << (self.last - number);
            return 0;
        }
        let ahead = number - self.last;
        let leaving = if ahead < WINDOW { self.window >> (WINDOW - ahead) } else { self.window };
        let bits = if ahead < WINDOW { ahead } else { WINDOW };
        let skipped = ahead.saturating_sub(WINDOW);
        self.window = if ahead < WINDOW { self.window << ahead | 1 } else { 1 };
        self.last = number;
        bits - leaving.count_ones() as u64 + skipped
    }

    /// Ends the run.
    ///
    /// Returns how many numbers are missing in its window. A second call returns 0.
    const fn end(&mut self) -> u64 {
        let missing = self.window.count_zeros() as u64;
        self.window = u64::MAX;
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::DeviceIdCase;

    /// The missing numbers of one device that each message makes known.
    fn missing(numbers: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut devices = Devices::new(1, |_| 1);
        numbers.into_iter().map(|number| missing_after(&mut devices, "d", number)).collect()
    }

    fn sum(numbers: impl IntoIterator<Item = u64>) -> u64 {
        missing(numbers).iter().sum()
    }

    #[test]
    fn numbers_that_do_not_arrive_within_the_window_are_missing() {
        assert_eq!(sum((7..100).filter(|number| ![11, 20, 21].contains(number))), 3);
        assert_eq!(sum([7, 8, 70, 71]), 0, "they may still arrive");
        assert_eq!(missing([7, 8, 72, 73]), [0, 0, 0, 1]);
        assert_eq!(missing([1, 1_000]), [0, 999 - WINDOW]);
        assert_eq!(missing([1, 1_000, 1_000 + WINDOW]), [0, 999 - WINDOW, WINDOW - 1]);
    }

    #[test]
    fn reordered_and_repeated_messages_leave_no_gap() {
        let shuffled = |number: u64| number ^ 0b10_1101; // within 64 numbers
        assert_eq!(sum((0..64_000).map(shuffled)), 0);
        assert_eq!(sum((0..64_000).flat_map(|number| [number, number])), 0);
        assert_eq!(sum((0..64_064).map(shuffled).filter(|number| number % 100 != 50)), 640);
    }

    #[test]
    fn a_restart_leaves_the_gap_before_it_and_none_of_its_own() {
        assert_eq!(missing([500, 0, 1, 1, 2]), [0; 5]);
        assert_eq!(missing([500, 502, 0, 1]), [0, 0, 1, 0]);
        assert_eq!(missing([0, u64::MAX, 0]), [0; 3]);
    }

    #[test]
    fn old_messages_that_come_again_leave_no_gap() {
        assert_eq!(sum((1..=1_000).chain([5]).chain(1_001..1_100)), 0);
        assert_eq!(sum((1..=1_000).flat_map(|number| [number, 7 + number % 30])), 0);
        assert_eq!(sum((1..=1_000).chain([5, 6, 7]).chain(1_002..1_100)), 1);
        assert_eq!(sum((1..=1_000).chain(0..2_000)), 0, "the device has restarted");
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
        let mut seen = sequences.seen.expect("devices are remembered").into_inner().unwrap();
        assert_eq!(seen.len(), 2);
        for device in ["acme/pump-1", "pump-1"] {
            assert_eq!(seen.update(device, |seen| seen.current.last), Some(1), "{device}");
        }
    }
}
