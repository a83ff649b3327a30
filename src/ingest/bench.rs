//! Admission by itself, for `benches`.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use super::admission::{Admission, Kind, Rules};
use super::devices::{DeviceLimits, Devices};
use crate::access::DeviceScope;
use crate::config::LineProtocol;
use crate::limits::{Quota, Rate};
use crate::log::{Batch, MAX_PAYLOAD_BYTES};
use crate::model::Keep;
use crate::wire::line_protocol::{self, Options, Precision};
use crate::wire::{Format, Incoming, Limits, Sink as _, Source};

/// The default limits of devices.
static DEVICES: LazyLock<Arc<Devices>> = LazyLock::new(|| {
    let limits = DeviceLimits {
        readings: None,
        metrics_per_hour: Some(2_000),
        new_devices: Rate::new(10_000, Duration::from_secs(60), Duration::from_secs(600)),
        start_grace: Duration::from_secs(86_400),
        max_known: 1_000_000,
    };
    Devices::new(limits).expect("there are limits").0
});

/// Admits readings at `now_ms` and encodes them. All of them must be accepted.
pub fn admit<'a>(now_ms: i64, readings: impl ExactSizeIterator<Item = Incoming<'a>>) -> Batch {
    let count = readings.len();
    admit_all(now_ms, count, |admission| readings.for_each(|incoming| admission.reading(incoming)))
}

/// Admits a body in line protocol with a reading in each line, and encodes it. All readings must be accepted.
#[must_use]
pub fn admit_lines(now_ms: i64, body: &str) -> Batch {
    let (mapping, count) = (LineProtocol::default(), body.lines().count());
    let options = Options { precision: Precision::Nanoseconds, device: None, mapping: &mapping };
    admit_all(now_ms, count, |admission| line_protocol::parse(body.as_bytes(), &options, admission))
}

fn admit_all(now_ms: i64, count: usize, parse: impl FnOnce(&mut Admission<'_>)) -> Batch {
    let rules = Rules {
        max_age: Some(Duration::from_secs(90 * 86_400)),
        max_future: Duration::from_secs(600),
        max_readings: count,
        limits: Limits { max_metrics: 100, max_metadata_bytes: 4_096 },
        keep: Keep::Last,
    };
    let check = Some(DEVICES.check_request(Quota::unlimited(), Instant::now(), now_ms));
    let sender = (DeviceScope::all(), Quota::unlimited());
    let source = Source::http(Format::Json);
    let mut admission = Admission::new(&rules, Kind::Request, source, sender, check, now_ms, MAX_PAYLOAD_BYTES);
    parse(&mut admission);
    let (batch, receipt) = admission.finish();
    assert_eq!(receipt.accepted as usize, count);
    batch
}
