//! Judging readings one by one.

use std::borrow::Cow;
use std::time::Duration;

use crate::access::{Reach, ReachError};
use crate::log::{Batch, BatchBuilder};
use crate::model::{DeviceIdCase, check_device_id, check_metric_name};
use crate::telemetry::{Protocol, RefusalEntry};
use crate::wire::{Code, Incoming, Rejection, Sink};

use super::Receipt;
use super::devices::Visit;
use super::receipt::ByCode;
use super::window::Window;
use crate::limits::Allowance;

/// How many rejections are told one by one; the others are counted.
const MAX_LISTED: usize = 100;

/// What makes a reading acceptable.
#[derive(Debug, Clone)]
pub struct Rules {
    /// How far behind the server's clock an instant may lie. `None`: any time since year 0.
    pub max_age: Option<Duration>,
    /// How far ahead of the server's clock an instant may lie.
    pub max_future: Duration,
    /// How many readings a request may carry.
    pub max_readings: usize,
    /// How many metrics a reading may have.
    pub max_metrics: usize,
    /// How long the text of a device's metadata may be, in bytes.
    pub max_metadata_bytes: usize,
    /// What becomes of capitals in device ids.
    pub device_id_case: DeviceIdCase,
}

/// A rejected reading, as it is told to who sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Which reading of the request, counted from 0.
    pub index: u32,
    /// Which line of the body, counted from 1, where the format has lines.
    pub line: Option<u64>,
    /// Its device as the sender writes it, where it could be read.
    pub device: Option<Box<str>>,
    /// What is wrong.
    pub rejection: Rejection,
}

/// A request under way: the parser's [`Sink`].
#[derive(Debug)]
pub struct Admission<'r> {
    rules: &'r Rules,
    reach: &'r Reach,
    allowance: &'r Allowance,
    /// `None`: devices have no limits.
    visit: Option<Visit<'r>>,
    protocol: Protocol,
    window: Window,
    max_readings: usize,
    batch: BatchBuilder,
    line: Option<u64>,
    receipt: Receipt,
    /// The rejections of each code that were taken for the log.
    logged: ByCode,
}

impl<'r> Admission<'r> {
    pub(super) fn new(
        rules: &'r Rules,
        (reach, allowance): (&'r Reach, &'r Allowance),
        visit: Option<Visit<'r>>,
        protocol: Protocol,
        now_ms: i64,
        max_readings: usize,
    ) -> Self {
        Self {
            rules,
            reach,
            allowance,
            visit,
            protocol,
            window: Window::new(now_ms, rules.max_age, rules.max_future),
            max_readings,
            batch: BatchBuilder::default(),
            line: None,
            receipt: Receipt::default(),
            logged: ByCode::default(),
        }
    }

    /// From now on the readings are those of somebody with this reach and this allowance.
    pub fn set_sender(&mut self, reach: &'r Reach, allowance: &'r Allowance) {
        (self.reach, self.allowance) = (reach, allowance);
        if let Some(visit) = &mut self.visit {
            visit.set_sender(allowance);
        }
    }

    /// What the readings are judged by.
    #[must_use]
    pub const fn rules(&self) -> &'r Rules {
        self.rules
    }

    /// The clock by which the readings are judged, in Unix milliseconds.
    #[must_use]
    pub const fn now_ms(&self) -> i64 {
        self.window.now_ms()
    }

    /// How many readings came so far, acceptable or not.
    #[must_use]
    pub const fn received(&self) -> u32 {
        self.receipt.received
    }

    /// How many readings are acceptable so far.
    #[must_use]
    pub const fn accepted(&self) -> u32 {
        self.receipt.accepted
    }

    /// How many readings are rejected so far.
    #[must_use]
    pub const fn rejected(&self) -> u32 {
        self.receipt.rejected
    }

    /// What was rejected since this was called last, for the log. The list of rejections starts anew.
    pub fn take_refusals(&mut self) -> Vec<RefusalEntry> {
        let listed = std::mem::take(&mut self.receipt.listed);
        let logged = std::mem::replace(&mut self.logged, self.receipt.by_code);
        self.receipt.by_code.since(&logged).refusals(&listed)
    }

    /// The first hundred rejections so far.
    #[must_use]
    pub fn listed(&self) -> &[Listed] {
        &self.receipt.listed
    }

    pub(super) const fn protocol(&self) -> Protocol {
        self.protocol
    }

    pub(super) const fn allowance(&self) -> &'r Allowance {
        self.allowance
    }

    pub(super) fn finish(self) -> (Batch, Receipt) {
        let retry_after = self.visit.and_then(Visit::end);
        (self.batch.finish(), Receipt { retry_after, ..self.receipt })
    }

    /// The id under which the device is kept, and the instant.
    fn judge<'i>(&self, incoming: &Incoming<'i>) -> Result<(Cow<'i, str>, i64), Rejection> {
        let refuse = |code, detail: String| Err(Rejection { code, detail });
        if let Err(error) = check_device_id(incoming.device) {
            return refuse(Code::InvalidDeviceId, error.to_string());
        }
        let device = self.reach.kept(incoming.device).map_err(|error| Rejection {
            code: match error {
                ReachError::Forbidden(_) => Code::DeviceForbidden,
                ReachError::TooLong(_) => Code::InvalidDeviceId,
            },
            detail: error.to_string(),
        })?;
        let metadata_bytes = incoming.metadata.map_or(0, str::len);
        if metadata_bytes > self.rules.max_metadata_bytes {
            let limit = self.rules.max_metadata_bytes;
            return refuse(
                Code::MetadataTooLarge,
                format!("metadata has at most {limit} bytes, this has {metadata_bytes}"),
            );
        }
        if incoming.values.len() > self.rules.max_metrics {
            let limit = self.rules.max_metrics;
            return refuse(
                Code::TooManyMetrics,
                format!("a reading has at most {limit} metrics, this has {}", incoming.values.len()),
            );
        }
        for (name, value) in incoming.values {
            if let Err(error) = check_metric_name(name) {
                return refuse(Code::InvalidMetricName, error.to_string());
            }
            if !value.is_finite() {
                return refuse(Code::NonFiniteValue, format!("the value of \"{name}\" is not a finite number"));
            }
        }
        Ok((device, self.window.judge(incoming.ts_ms, self.protocol)?))
    }
}

impl Sink for Admission<'_> {
    fn reading(&mut self, incoming: Incoming<'_>) {
        if self.receipt.received as usize >= self.max_readings {
            self.receipt.received += 1; // refused as a whole at the end, so nothing more is kept
            return;
        }
        let device = self.rules.device_id_case.apply(incoming.device);
        let incoming = Incoming { device: &device, ..incoming };
        let values = incoming.values.iter().map(|(name, value)| (&**name, *value));
        let admitted = self.judge(&incoming).and_then(|(device, ts_ms)| {
            if let Some(visit) = &mut self.visit {
                visit.judge(&device, incoming.values)?;
            }
            let pushed = self.batch.push(&device, incoming.metadata, ts_ms, values);
            pushed.map_err(|error| Rejection { code: Code::TooManyMetrics, detail: error.to_string() })
        });
        match admitted {
            Ok(()) => {
                self.receipt.received += 1;
                self.receipt.accepted += 1;
            }
            Err(rejection) => self.reject_of(Some(incoming.device), rejection),
        }
    }

    fn reject(&mut self, rejection: Rejection) {
        self.reject_of(None, rejection);
    }

    fn line(&mut self, number: u64) {
        self.line = Some(number);
    }
}

impl Admission<'_> {
    fn reject_of(&mut self, device: Option<&str>, rejection: Rejection) {
        let index = self.receipt.received;
        self.receipt.received += 1;
        self.receipt.rejected += 1;
        self.receipt.by_code.count(rejection.code);
        if self.receipt.listed.len() < MAX_LISTED {
            let device = device.map(Into::into);
            self.receipt.listed.push(Listed { index, line: self.line, device, rejection });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: i64 = 1_776_693_610_000;
    const RULES: Rules = Rules {
        max_age: Some(Duration::from_secs(3600)),
        max_future: Duration::from_secs(600),
        max_readings: 1_000,
        max_metrics: 2,
        max_metadata_bytes: 10,
        device_id_case: DeviceIdCase::Preserve,
    };

    fn anybody() -> (&'static Reach, &'static Allowance) {
        (Reach::all(), Allowance::unlimited())
    }

    fn verdict(
        rules: &Rules,
        device: &str,
        metadata: Option<&str>,
        ts_ms: Option<i64>,
        values: &[(&str, f64)],
    ) -> Option<Code> {
        let values: Vec<_> = values.iter().map(|&(name, value)| (Cow::Borrowed(name), value)).collect();
        let mut admission = Admission::new(rules, anybody(), None, Protocol::Http, NOW_MS, rules.max_readings);
        admission.reading(Incoming { device, metadata, ts_ms, values: &values });
        let (batch, receipt) = admission.finish();
        assert_eq!(batch.readings(), receipt.accepted);
        assert_eq!(receipt.received, receipt.accepted + receipt.rejected);
        receipt.listed.first().map(|listed| listed.rejection.code)
    }

    #[test]
    fn each_rule_refuses_with_its_code() {
        let x = &[("x", 1.0)][..];
        assert_eq!(verdict(&RULES, "d", None, None, x), None);
        assert_eq!(verdict(&RULES, "d e", None, None, x), Some(Code::InvalidDeviceId));
        assert_eq!(verdict(&RULES, "d", Some("{\"a\":1234567}"), None, x), Some(Code::MetadataTooLarge));
        assert_eq!(verdict(&RULES, "d", None, None, &[("a", 1.0), ("b", 1.0), ("c", 1.0)]), Some(Code::TooManyMetrics));
        assert_eq!(verdict(&RULES, "d", None, None, &[("ts", 1.0)]), Some(Code::InvalidMetricName));
        assert_eq!(verdict(&RULES, "d", None, None, &[("x", f64::INFINITY)]), Some(Code::NonFiniteValue));
        assert_eq!(verdict(&RULES, "d", None, None, &[("x", f64::NAN)]), Some(Code::NonFiniteValue));
    }

    #[test]
    fn a_device_out_of_reach_is_refused_by_its_name_as_it_is_kept() {
        let lower = Rules { device_id_case: DeviceIdCase::Lower, ..RULES };
        let reach = Reach::new("acme/".to_owned(), Some(vec!["light-*".parse().unwrap()]));
        let mut admission = Admission::new(&lower, (&reach, Allowance::unlimited()), None, Protocol::Http, NOW_MS, 100);
        let long = format!("light-{}", "x".repeat(118));
        for device in ["LIGHT-1", "light-2", "pump-1", "acme/light-1", "../light-1", "light 1", &long] {
            let values = [(Cow::Borrowed("x"), 1.0)];
            admission.reading(Incoming { device, metadata: None, ts_ms: None, values: &values });
        }
        let (batch, receipt) = admission.finish();
        assert_eq!((batch.readings(), receipt.accepted), (2, 2));
        let codes: Vec<_> = receipt.listed.iter().map(|listed| (listed.index, listed.rejection.code)).collect();
        let (forbidden, invalid) = (Code::DeviceForbidden, Code::InvalidDeviceId);
        assert_eq!(codes, [(2, forbidden), (3, forbidden), (4, forbidden), (5, invalid), (6, invalid)]);
        let details: Vec<_> = receipt.listed.iter().map(|listed| listed.rejection.detail.as_str()).collect();
        assert!(details[0].contains("\"pump-1\"") && details[4].contains("too long: it has 124 bytes"), "{details:?}");
    }

    #[test]
    fn when_the_clock_of_the_server_jumps_each_request_is_judged_by_the_clock_it_came_at() {
        const DAY_MS: i64 = 86_400_000;
        let judged = |now_ms, ts_ms| {
            let mut admission = Admission::new(&RULES, anybody(), None, Protocol::Http, now_ms, 1);
            let values = [(Cow::Borrowed("x"), 1.0)];
            admission.reading(Incoming { device: "d", metadata: None, ts_ms, values: &values });
            let (batch, receipt) = admission.finish();
            (batch, receipt.listed.first().map(|listed| listed.rejection.code))
        };
        let of_now = |now_ms| {
            let mut batch = BatchBuilder::default();
            batch.push("d", None, now_ms, [("x", 1.0)].into_iter()).unwrap();
            batch.finish()
        };
        for now_ms in [NOW_MS, NOW_MS + DAY_MS, NOW_MS - DAY_MS, NOW_MS] {
            assert_eq!(judged(now_ms, Some(now_ms)).1, None);
            assert_eq!(judged(now_ms, None).0, of_now(now_ms), "without a time it is the clock of now");
        }
        assert_eq!(judged(NOW_MS + DAY_MS, Some(NOW_MS)).1, Some(Code::TimestampTooOld));
        assert_eq!(judged(NOW_MS - DAY_MS, Some(NOW_MS)).1, Some(Code::TimestampInFuture));
    }

    #[test]
    fn rejections_are_counted_beyond_those_listed() {
        let mut admission = Admission::new(&RULES, anybody(), None, Protocol::Http, NOW_MS, RULES.max_readings);
        admission.line(7);
        for _ in 0..150 {
            admission.reject(Rejection { code: Code::InvalidValue, detail: String::new() });
        }
        let (_, receipt) = admission.finish();
        assert_eq!((receipt.rejected, receipt.listed.len()), (150, 100));
        assert_eq!((receipt.listed[99].index, receipt.listed[99].line), (99, Some(7)));
    }
}
