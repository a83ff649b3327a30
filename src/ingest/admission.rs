//! Judging readings one by one.

use std::borrow::Cow;
use std::time::Duration;

use crate::access::{DeviceScope, DeviceScopeError};
use crate::log::{Batch, BatchBuilder, PushError};
use crate::model::{DEVICE_ID_MAX_BYTES, DeviceIdCase, METRIC_MAX_BYTES, check_device_id, check_metric_name};
use crate::telemetry::RefusalEntry;
use crate::wire::{Code, Incoming, Limits, Protocol, Rejection, Sink, Source, work};

use super::Receipt;
use super::devices::Visit;
use super::receipt::ByCode;
use super::window::Window;
use crate::limits::Quota;

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
    /// What a reading may have.
    pub limits: Limits,
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

/// A request whose readings are judged. None of them is in the log yet.
#[derive(Debug)]
pub struct Admitted {
    pub(super) protocol: Protocol,
    pub(super) batch: Batch,
    pub(super) receipt: Receipt,
}

/// A device and its metadata that are good.
#[derive(Debug)]
struct Owner {
    /// See [`Incoming::owner`].
    number: u32,
    /// The id under which the device is kept.
    device: String,
}

/// A request under way: the parser's [`Sink`].
#[derive(Debug)]
pub struct Admission<'r> {
    rules: &'r Rules,
    scope: &'r DeviceScope,
    /// `None`: devices have no limits.
    visit: Option<Visit<'r>>,
    source: Source,
    window: Window,
    max_readings: usize,
    /// Whose the last reading was, if the parser has numbered it and it was good.
    owner: Option<Owner>,
    batch: BatchBuilder,
    line: Option<u64>,
    receipt: Receipt,
    /// The rejections of each code that were taken for the log.
    logged: ByCode,
}

impl<'r> Admission<'r> {
    pub(super) fn new(
        rules: &'r Rules,
        scope: &'r DeviceScope,
        visit: Option<Visit<'r>>,
        source: Source,
        now_ms: i64,
        max_readings: usize,
        max_payload_bytes: usize,
    ) -> Self {
        Self {
            rules,
            scope,
            visit,
            source,
            window: Window::new(now_ms, rules.max_age, rules.max_future),
            max_readings,
            owner: None,
            batch: BatchBuilder::new(max_payload_bytes),
            line: None,
            receipt: Receipt::default(),
            logged: ByCode::default(),
        }
    }

    /// Starts the next datagram of a batch: where its readings come from, and what its sender may do.
    pub fn set_sender(&mut self, source: Source, scope: &'r DeviceScope, quota: &'r Quota) {
        self.source = source;
        self.scope = scope;
        self.owner = None; // the next parser counts from 0 again
        self.batch.forget_owners();
        if let Some(visit) = &mut self.visit {
            visit.set_sender(quota);
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

    /// Ends the judging.
    #[must_use]
    pub fn end(self) -> Admitted {
        let protocol = self.source.into();
        let (batch, receipt) = self.finish();
        Admitted { protocol, batch, receipt }
    }

    pub(super) fn finish(self) -> (Batch, Receipt) {
        let retry_after = self.visit.and_then(Visit::end);
        (self.batch.finish(), Receipt { retry_after, ..self.receipt })
    }

    fn admit(&mut self, incoming: &Incoming<'_>) -> Result<(), Rejection> {
        let known = self.owner.as_ref().filter(|owner| incoming.owner == Some(owner.number));
        let found;
        let device = if let Some(owner) = known {
            owner.device.as_str()
        } else {
            found = judge_owner(self.rules, self.scope, incoming)?;
            &*found
        };
        judge_values(&self.rules.limits, incoming.values)?;
        let ts_ms = self.window.judge(incoming.ts_ms, self.source)?;
        if let Some(visit) = &mut self.visit {
            visit.judge(device, incoming.values)?;
        }
        let values = incoming.values.iter().map(|(name, value)| (&**name, *value));
        self.batch.push_of(incoming.owner, device, incoming.metadata, ts_ms, values).map_err(|error| {
            let code = match error {
                PushError::TooManyNames | PushError::TooLong => Code::TooManyMetrics,
                PushError::TooLarge(_) => Code::RequestTooLarge,
            };
            Rejection { code, detail: error.to_string() }
        })?;
        if known.is_none()
            && let Some(number) = incoming.owner
        {
            self.owner = Some(Owner { number, device: device.to_owned() });
        }
        Ok(())
    }
}

/// The id under which the device is kept. Lengths are checked before anything is copied.
fn judge_owner<'i>(rules: &Rules, scope: &DeviceScope, incoming: &Incoming<'i>) -> Result<Cow<'i, str>, Rejection> {
    check_device_id(incoming.device)
        .map_err(|error| Rejection { code: Code::InvalidDeviceId, detail: error.to_string() })?;
    work::count(incoming.device.len());
    let refuse = |error: DeviceScopeError| Rejection {
        code: match error {
            DeviceScopeError::Forbidden(_) => Code::DeviceForbidden,
            DeviceScopeError::TooLong(_) => Code::InvalidDeviceId,
        },
        detail: error.to_string(),
    };
    let device = match rules.device_id_case.apply(incoming.device) {
        Cow::Borrowed(device) => scope.to_stored_id(device).map_err(refuse)?,
        Cow::Owned(device) => Cow::Owned(scope.to_stored_id(&device).map_err(refuse)?.into_owned()),
    };
    rules.limits.check_metadata(incoming.metadata.map_or(0, str::len))?;
    Ok(device)
}

fn judge_values(limits: &Limits, values: &[(Cow<'_, str>, f64)]) -> Result<(), Rejection> {
    let refuse = |code, detail: String| Err(Rejection { code, detail });
    limits.check_metrics(values.len())?;
    for (name, value) in values {
        work::count(name.len().min(METRIC_MAX_BYTES));
        if let Err(error) = check_metric_name(name) {
            return refuse(Code::InvalidMetricName, error.to_string());
        }
        if !value.is_finite() {
            return refuse(Code::NonFiniteValue, format!("the value of \"{name}\" is not a finite number"));
        }
    }
    Ok(())
}

impl Sink for Admission<'_> {
    fn limits(&self) -> Limits {
        self.rules.limits
    }

    fn is_over(&self) -> bool {
        self.receipt.received as usize > self.max_readings
    }

    fn reading(&mut self, incoming: Incoming<'_>) {
        if self.receipt.received as usize >= self.max_readings {
            self.receipt.received += 1; // refused as a whole at the end, so nothing more is kept
            return;
        }
        match self.admit(&incoming) {
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
            let device = device.filter(|device| device.len() <= DEVICE_ID_MAX_BYTES).map(Into::into);
            self.receipt.listed.push(Listed { index, line: self.line, device, rejection });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Format;

    const NOW_MS: i64 = 1_776_693_610_000;
    const RULES: Rules = Rules {
        max_age: Some(Duration::from_secs(3600)),
        max_future: Duration::from_secs(600),
        max_readings: 1_000,
        limits: Limits { max_metrics: 2, max_metadata_bytes: 10 },
        device_id_case: DeviceIdCase::Preserve,
    };

    fn verdict(
        rules: &Rules,
        device: &str,
        metadata: Option<&str>,
        ts_ms: Option<i64>,
        values: &[(&str, f64)],
    ) -> Option<Code> {
        let values: Vec<_> = values.iter().map(|&(name, value)| (Cow::Borrowed(name), value)).collect();
        let mut admission = Admission::new(
            rules,
            DeviceScope::all(),
            None,
            Source::http(Format::Json),
            NOW_MS,
            rules.max_readings,
            1 << 20,
        );
        admission.reading(Incoming { device, metadata, owner: None, ts_ms, values: &values });
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
        let scope = DeviceScope::new("acme/".to_owned(), Some(vec!["light-*".parse().unwrap()]));
        let mut admission = Admission::new(&lower, &scope, None, Source::http(Format::Json), NOW_MS, 100, 1 << 20);
        let long = format!("light-{}", "x".repeat(118));
        for device in ["LIGHT-1", "light-2", "pump-1", "acme/light-1", "../light-1", "light 1", &long] {
            let values = [(Cow::Borrowed("x"), 1.0)];
            admission.reading(Incoming { device, metadata: None, owner: None, ts_ms: None, values: &values });
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
            let mut admission =
                Admission::new(&RULES, DeviceScope::all(), None, Source::http(Format::Json), now_ms, 1, 1 << 20);
            let values = [(Cow::Borrowed("x"), 1.0)];
            admission.reading(Incoming { device: "d", metadata: None, owner: None, ts_ms, values: &values });
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
        let mut admission = Admission::new(
            &RULES,
            DeviceScope::all(),
            None,
            Source::http(Format::Json),
            NOW_MS,
            RULES.max_readings,
            1 << 20,
        );
        admission.line(7);
        for _ in 0..150 {
            admission.reject(Rejection { code: Code::InvalidValue, detail: String::new() });
        }
        let (_, receipt) = admission.finish();
        assert_eq!((receipt.rejected, receipt.listed.len()), (150, 100));
        assert_eq!((receipt.listed[99].index, receipt.listed[99].line), (99, Some(7)));
    }
}
