//! Invariants fuzzed on the payloads of records.

use std::time::Duration;

use super::{Limits, Pending, Reason, Take};
use crate::log::Position;

/// Inserts a payload, takes it and completes it, as the feeder and the scheduler do.
pub fn payload(bytes: &[u8]) {
    let limits = Limits { max_bytes: 1 << 20, max_readings: 100, max_age: Duration::from_secs(60) };
    let mut pending = Pending::new(limits);
    if pending.insert(bytes, Position(0), 0).is_err() {
        return; // the feeder ends, and with it the process
    }
    let memory = pending.bytes();
    assert!(memory <= 300 * bytes.len() as u64, "{memory} bytes for a payload of {}", bytes.len());
    let mut accepted = 0;
    for taken in pending.take(Take::All(Reason::Drain), usize::MAX) {
        let write = taken.to_write();
        accepted += u64::from(write.accepted);
        assert!(write.contents.samples().iter().all(|sample| sample.offset < 3_600_000), "inside the hour");
        pending.complete(&write);
    }
    assert_eq!((pending.readings(), pending.bytes, pending.buckets()), (0, 0, 0), "{accepted} readings were taken");
}
