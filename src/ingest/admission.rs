//! The check of each reading of a request or batch.
//!
//! An [`Admission`] is the sink of a parser. It checks device ID and metadata, names and values, the time,
//! and the limits of the device, in this order. The first broken rule rejects the reading. A valid reading
//! is pushed into the batch.
//!
//! A bad value is left out of its reading. It rejects the reading only if no other value is left.

use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;

use crate::access::{DeviceScope, DeviceScopeError};
use crate::common::work;
use crate::log::{Batch, BatchBuilder, PushError};
use crate::model::{DEVICE_ID_MAX_BYTES, Keep, series};
use crate::telemetry::RefusalEntry;
use crate::wire::{Code, Ignored, Incoming, Limits, Protocol, Rejection, Sink, Source};

use super::devices::RequestCheck;
use super::overwritten::OverwriteCheck;
use super::receipt::ByCode;
use super::window::Window;
use super::{Ingest, RateLimitedError, Receipt};
use crate::limits::Quota;

/// The most rejections that an answer lists; the others are only counted.
const MAX_LISTED: usize = 100;

/// The rules that a reading must meet.
#[derive(Debug, Clone)]
pub struct Rules {
    /// How far an instant may be behind the server's clock.
    ///
    /// `None`: any time since year 0, but none of January 1970 that is plausible in a larger unit.
    pub max_age: Option<Duration>,
    /// How far an instant may be ahead of the server's clock.
    pub max_future: Duration,
    /// The most readings of a request.
    pub max_readings: usize,
    /// The limits of one reading.
    pub limits: Limits,
    /// Which of several values of one identity the store keeps.
    pub keep: Keep,
}

#[cfg(test)]
impl Rules {
    /// Rules with small limits, for tests.
    pub(crate) const OF_TEST: Self = Self {
        max_age: None,
        max_future: Duration::from_secs(600),
        max_readings: 10,
        limits: Limits { max_metrics: 2, max_metadata_bytes: 10 },
        keep: Keep::Last,
    };
}

/// A rejected reading or value, as the answer lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Whether only one value was rejected, and the reading was accepted without it.
    pub is_value: bool,
    /// The position of the reading in the request, counted from 0.
    pub index: u32,
    /// The line of the body, counted from 1, if the format has lines.
    pub line: Option<u64>,
    /// The client ID of the device, if the parser found it.
    pub device: Option<Box<str>>,
    /// The code and the text of the reason.
    pub rejection: Rejection,
}

/// Whether an admission is for a request or for a batch of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// One request.
    Request,
    /// Several datagrams, which share a record of the log and nothing else.
    Batch,
}

/// The rates that an earlier admission of a message has charged, although its readings are not in the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Charged {
    /// None.
    #[default]
    Nothing,
    /// The rate of its sender.
    Sender,
    /// The rates of its sender and of its devices.
    SenderAndDevices,
}

/// A request or batch after admission. None of its readings is in the log yet.
#[derive(Debug)]
pub struct Admitted {
    pub(super) kind: Kind,
    pub(super) protocol: Protocol,
    pub(super) batch: Batch,
    pub(super) receipt: Receipt,
    /// Whether the sender's rate admits the readings of a request after the first one.
    pub(super) charged: Result<(), RateLimitedError>,
}

/// A device whose ID and metadata are valid.
#[derive(Debug)]
struct Owner {
    /// See [`Incoming::owner`].
    number: u32,
    /// The stored ID.
    device: String,
}

/// Checks and encodes the readings of a request or batch.
///
/// It is the [`Sink`] of the parser.
#[derive(Debug)]
pub struct Admission<'r> {
    rules: &'r Rules,
    kind: Kind,
    scope: &'r DeviceScope,
    quota: &'r Quota,
    /// The rates that the current datagram was charged to by an earlier admission.
    charged: Charged,
    /// How many readings of the batch were received before the current datagram.
    received_before: u32,
    /// The check of the limits per device; `None` if devices have no limits.
    device_check: Option<RequestCheck<'r>>,
    source: Source,
    window: Window,
    max_readings: usize,
    /// The owner of the last accepted reading; `None` if the parser does not number owners. If readings that
    /// follow each other have the same owner, its ID and metadata are checked once.
    owner: Option<Owner>,
    batch: BatchBuilder,
    overwrite_check: OverwriteCheck,
    /// Hashes device IDs if devices have no limits.
    hasher: RandomState,
    line: Option<u64>,
    receipt: Receipt,
    /// The rejected values of the reading that is being parsed, which may be rejected as a whole.
    rejected_values: RejectedValues,
    /// The number of rejections that [`Self::take_refusals`] has returned, by code.
    logged: ByCode,
}

/// Rejected values of one reading.
#[derive(Debug, Default)]
struct RejectedValues {
    by_code: ByCode,
    /// The first rejections, up to [`MAX_LISTED`].
    first: Vec<Rejection>,
}

impl Kind {
    /// The most readings of an admission. A batch has no limit.
    pub(super) const fn max_readings(self, rules: &Rules) -> usize {
        match self {
            Self::Request => rules.max_readings,
            Self::Batch => usize::MAX,
        }
    }
}

impl<'r> Admission<'r> {
    pub(super) fn new(
        rules: &'r Rules,
        kind: Kind,
        source: Source,
        (scope, quota): (&'r DeviceScope, &'r Quota),
        device_check: Option<RequestCheck<'r>>,
        now_ms: i64,
        max_payload_bytes: usize,
    ) -> Self {
        Self {
            rules,
            kind,
            scope,
            quota,
            charged: Charged::Nothing,
            received_before: 0,
            device_check,
            source,
            window: Window::new(now_ms, rules.max_age, rules.max_future),
            max_readings: kind.max_readings(rules),
            owner: None,
            batch: BatchBuilder::new(max_payload_bytes),
            overwrite_check: OverwriteCheck::default(),
            hasher: RandomState::default(),
            line: None,
            receipt: Receipt::default(),
            rejected_values: RejectedValues::default(),
            logged: ByCode::default(),
        }
    }

    /// Charges the other readings of the last datagram or message of a batch, and begins the next datagram.
    ///
    /// `waited` is the time since the arrival of the next datagram. `charged` are the rates that it was
    /// charged to before: they neither count nor refuse its readings again.
    ///
    /// # Errors
    /// When the sender has used up its rate. The caller keeps the datagram, and begins it again later, or
    /// counts it ([`Ingest::count_rate_limited`]).
    pub fn begin_datagram(
        &mut self,
        source: Source,
        (scope, quota): (&'r DeviceScope, &'r Quota),
        waited: Duration,
        charged: Charged,
    ) -> Result<(), RateLimitedError> {
        self.end_datagram();
        self.source = match charged {
            Charged::Nothing => Ingest::charge_first(source, quota)?.source,
            Charged::Sender | Charged::SenderAndDevices => source,
        };
        (self.scope, self.quota, self.charged) = (scope, quota, charged);
        self.window.set_waited(waited);
        self.overwrite_check.start_datagram();
        self.rejected_values = RejectedValues::default(); // of a retained reading that was left out
        (self.owner, self.line) = (None, None); // the next parser numbers owners and lines from the start
        self.batch.forget_owners();
        if let Some(check) = &mut self.device_check {
            check.set_sender(quota);
            check.set_charged(charged == Charged::SenderAndDevices);
        }
        Ok(())
    }

    /// Learns that the times of lines over HTTP are not taken for nanoseconds.
    ///
    /// The hints about times in a wrong unit then name no parameter.
    pub const fn set_other_unit(&mut self) {
        self.window.set_other_unit();
    }

    /// The rules that the readings must meet.
    #[must_use]
    pub const fn rules(&self) -> &'r Rules {
        self.rules
    }

    /// The arrival of the request, datagram or message, in Unix milliseconds.
    ///
    /// Readings without a time get it, and ages count from it.
    #[must_use]
    pub const fn now_ms(&self) -> i64 {
        self.window.arrival_ms()
    }

    /// The number of readings that were accepted so far.
    #[must_use]
    pub const fn accepted(&self) -> u32 {
        self.receipt.accepted
    }

    /// The number of readings that were rejected so far.
    #[must_use]
    pub const fn rejected(&self) -> u32 {
        self.receipt.rejected
    }

    /// Returns the rejections since the last call, for log lines, and clears the list of rejections.
    pub fn take_refusals(&mut self) -> Vec<RefusalEntry> {
        let listed = std::mem::take(&mut self.receipt.listed);
        let all = self.receipt.all_by_code();
        let logged = std::mem::replace(&mut self.logged, all);
        all.since(&logged).refusals(&listed)
    }

    /// The first hundred rejections since the last [`Self::take_refusals`].
    #[must_use]
    pub fn listed(&self) -> &[Listed] {
        &self.receipt.listed
    }

    /// Ends the admission, and charges the readings after the first to the sender's rate.
    #[must_use]
    pub fn end(mut self) -> Admitted {
        let (kind, protocol) = (self.kind, self.source.into());
        let charged = match kind {
            Kind::Request => self.charge_request(),
            Kind::Batch => {
                self.end_datagram();
                Ok(())
            }
        };
        let (batch, receipt) = self.finish();
        Admitted { kind, protocol, batch, receipt, charged }
    }

    /// Charges a request, unless other requests of its sender have used up the rate since it began.
    fn charge_request(&self) -> Result<(), RateLimitedError> {
        let Some(limiter) = &self.quota.readings else { return Ok(()) };
        let charged = limiter.take_more(self.received_after_first(), Instant::now());
        charged.map_err(|retry_after| RateLimitedError { retry_after })
    }

    /// Ends the current datagram of a batch, and charges its readings after the first.
    ///
    /// They are in the batch already, so the charge cannot refuse them.
    fn end_datagram(&mut self) {
        if self.charged == Charged::Nothing
            && let Some(limiter) = &self.quota.readings
        {
            limiter.owe(self.received_after_first(), Instant::now());
        }
        self.received_before = self.receipt.received;
    }

    fn received_after_first(&self) -> u64 {
        (self.receipt.received - self.received_before).saturating_sub(1).into()
    }

    pub(super) fn finish(self) -> (Batch, Receipt) {
        let retry_after = self.device_check.and_then(RequestCheck::end);
        let batch = self.batch.finish();
        let overwritten = self.overwrite_check.end(&batch, self.scope, self.rules.keep);
        (batch, Receipt { overwritten, retry_after, ..self.receipt })
    }
}

impl Sink for Admission<'_> {
    fn limits(&self) -> Limits {
        self.rules.limits
    }

    fn is_over(&self) -> bool {
        self.receipt.received as usize > self.max_readings
    }

    #[inline]
    fn expect(&mut self, device: &str) {
        if let Some(check) = &self.device_check
            && self.scope.is_all()
        {
            check.expect(device);
        }
    }

    fn reading(&mut self, incoming: Incoming<'_>) {
        if self.receipt.received as usize >= self.max_readings {
            self.receipt.received += 1; // the request is refused at the end, so its readings are not kept
            return;
        }
        match self.admit(&incoming) {
            Ok(()) => {
                if !self.rejected_values.first.is_empty() {
                    self.list_rejected_values(incoming.device);
                }
                self.receipt.received += 1;
                self.receipt.accepted += 1;
            }
            Err(rejection) => self.reject_of(Some(incoming.device), rejection),
        }
    }

    fn reject(&mut self, rejection: Rejection) {
        self.reject_of(None, rejection);
    }

    fn reject_value(&mut self, rejection: Rejection) {
        self.rejected_values.add(rejection);
    }

    fn ignore(&mut self, what: Ignored, name: &str) {
        self.receipt.ignored.add(what, name);
    }

    fn line(&mut self, number: u64) {
        self.line = Some(number);
    }
}

impl Admission<'_> {
    fn admit(&mut self, incoming: &Incoming<'_>) -> Result<(), Rejection> {
        let known = self.owner.as_ref().filter(|owner| incoming.owner == Some(owner.number));
        let found;
        let device = if let Some(owner) = known {
            owner.device.as_str()
        } else {
            found = check_owner(self.rules, self.scope, incoming)?;
            &*found
        };
        self.rules.limits.check_metrics(incoming.values.len())?;
        let valid_values;
        let values = if incoming.values.iter().all(is_usual) {
            incoming.values
        } else {
            valid_values = valid(incoming.values, &mut self.rejected_values)?;
            &*valid_values
        };
        let ts_ms = self.window.check(incoming.ts_ms, self.source)?;
        let device_hash = match &mut self.device_check {
            Some(check) => {
                let hash = check.hash(device);
                check.check(hash, device, values)?;
                hash
            }
            None => self.hasher.hash_one(device),
        };
        let values = values.iter().map(|(name, value)| (&**name, *value));
        let (owner, measurement_bytes) = (incoming.owner, incoming.measurement_bytes);
        self.batch.push_of(owner, device, incoming.metadata, ts_ms, measurement_bytes, values).map_err(|error| {
            let code = match error {
                PushError::TooManyNames | PushError::TooLong => Code::TooManyMetrics,
                PushError::TooLarge(_) => Code::RequestTooLarge,
            };
            Rejection { code, detail: error.to_string() }
        })?;
        self.overwrite_check.note(device_hash, ts_ms);
        if known.is_none()
            && let Some(number) = incoming.owner
        {
            self.owner = Some(Owner { number, device: device.to_owned() });
        }
        Ok(())
    }

    /// Lists the rejected values of a reading that is accepted without them.
    #[cold]
    fn list_rejected_values(&mut self, device: &str) {
        let RejectedValues { by_code, first } = std::mem::take(&mut self.rejected_values);
        self.receipt.values_by_code.add(&by_code);
        for rejection in first {
            self.list(Some(device), rejection, true);
        }
    }

    fn list(&mut self, device: Option<&str>, rejection: Rejection, is_value: bool) {
        if self.receipt.listed.len() < MAX_LISTED {
            let device = device.filter(|device| device.len() <= DEVICE_ID_MAX_BYTES).map(Into::into);
            let (index, line) = (self.receipt.received, self.line);
            self.receipt.listed.push(Listed { is_value, index, line, device, rejection });
        }
    }

    fn reject_of(&mut self, device: Option<&str>, rejection: Rejection) {
        self.rejected_values = RejectedValues::default(); // the whole reading is rejected
        self.receipt.by_code.count(rejection.code);
        self.list(device, rejection, false);
        self.receipt.received += 1;
        self.receipt.rejected += 1;
    }
}

/// Checks device ID and metadata, before anything is copied. Returns the stored ID.
fn check_owner<'i>(rules: &Rules, scope: &DeviceScope, incoming: &Incoming<'i>) -> Result<Cow<'i, str>, Rejection> {
    work::count(incoming.device.len().min(DEVICE_ID_MAX_BYTES));
    let device = scope.to_stored_id(incoming.device).map_err(|error| Rejection {
        code: match error {
            DeviceScopeError::Forbidden(_) => Code::DeviceForbidden,
            DeviceScopeError::Invalid(_) | DeviceScopeError::TooLong(_) => Code::InvalidDeviceId,
        },
        detail: error.to_string(),
    })?;
    rules.limits.check_metadata(incoming.metadata.map_or(0, str::len))?;
    Ok(device)
}

/// Whether a value is finite, and its series has a usual text.
#[inline]
fn is_usual((name, value): &(Cow<'_, str>, f64)) -> bool {
    work::count(name.len().min(series::SERIES_MAX_BYTES));
    value.is_finite() && series::is_usual(name)
}

/// Returns the valid values of a reading, with the canonical texts of their series. Adds the others to
/// `rejected`.
///
/// The reading is rejected if no value is valid, with the first of these rejections, or if a series occurs
/// twice.
fn valid<'v>(
    values: &'v [(Cow<'_, str>, f64)],
    rejected: &mut RejectedValues,
) -> Result<Vec<(Cow<'v, str>, f64)>, Rejection> {
    let mut valid = Vec::with_capacity(values.len());
    for (name, value) in values {
        work::count(name.len().min(series::SERIES_MAX_BYTES));
        match series::canonical(name) {
            Ok(name) if value.is_finite() => valid.push((name, *value)),
            Ok(name) => {
                let detail = format!("the value of \"{name}\" is not a finite number");
                rejected.add(Rejection { code: Code::NonFiniteValue, detail });
            }
            Err(error) => rejected.add(error.into()),
        }
    }
    if valid.is_empty() {
        return Err(rejected.first.swap_remove(0));
    }
    let mut names = HashSet::with_capacity(valid.len());
    match valid.iter().find(|(name, _)| !names.insert(&**name)) {
        Some((name, _)) => {
            Err(Rejection { code: Code::DuplicateKey, detail: format!("the series \"{name}\" is duplicated") })
        }
        None => Ok(valid),
    }
}

impl RejectedValues {
    fn add(&mut self, rejection: Rejection) {
        self.by_code.count(rejection.code);
        if self.first.len() < MAX_LISTED {
            self.first.push(rejection);
        }
    }
}

#[cfg(test)]
mod tests;
