//! Admission by itself, to be measured.

use std::time::Duration;

use super::admission::{Admission, Rules};
use crate::access::Reach;
use crate::log::Batch;
use crate::model::DeviceIdCase;
use crate::telemetry::Protocol;
use crate::wire::{Incoming, Sink as _};

/// Judges readings at `now_ms` and encodes them. All of them pass.
pub fn admit<'a>(now_ms: i64, readings: impl ExactSizeIterator<Item = Incoming<'a>>) -> Batch {
    let rules = Rules {
        max_age: Some(Duration::from_secs(90 * 86_400)),
        max_future: Duration::from_secs(600),
        max_readings: readings.len(),
        max_metrics: 100,
        max_metadata_bytes: 4_096,
        device_id_case: DeviceIdCase::Preserve,
    };
    let count = readings.len();
    let mut admission = Admission::new(&rules, Reach::all(), Protocol::Http, now_ms, count);
    readings.for_each(|incoming| admission.reading(incoming));
    let (batch, receipt) = admission.finish();
    assert_eq!(receipt.accepted as usize, count);
    batch
}
