//! Admission: the one way into the log.
//!
//! Readings of every transport and format pass the same rules here (names, limits, the clock). Admitted
//! readings are encoded as a batch, and the batch is appended to the log. The receipt says how many readings
//! were accepted and why the others were rejected. Each token, key and device has limits of its own, so that
//! none starves the others ([`devices`]).
//!
//! Each request and each datagram takes the same steps: [`Ingest::begin`] charges its first reading and
//! refuses senders in debt, [`Admission`] checks the readings, [`Admission::end`] charges the rest, and
//! [`Ingest::finish`] appends. A caller waits for the [`Submission`] or leaves that for later. `Accounts`
//! counts the readings in the metrics when the outcome is known. A message that waits for the log is admitted
//! more than once, and charged once ([`Charged`]).
//!
//! Promises:
//! - Readings are accepted when their record is durable, not before.
//! - received = accepted + rejected, in the metrics too, even if the client has disconnected meanwhile.
//! - A request is one record: all of its accepted readings survive a crash, or none was acknowledged.
//! - A repeated reading ([`Repetition`]) replaces nothing that was accepted after it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use strum::{EnumCount, IntoEnumIterator};

use crate::access::DeviceScope;
use crate::common::clock::Clock;
use crate::limits::Quota;
use crate::log::{Ack, AppendError, Batch, Log};
use crate::model::Keep;
use crate::telemetry::{Limit, Metrics};
use crate::wire::{Code, Format, Ignored, Protocol, Source};

mod admission;
#[cfg(any(test, feature = "bench"))]
#[doc(hidden)]
pub mod bench;
pub mod devices;
mod overwritten;
mod receipt;
mod refusal_reason;
mod repetition;
#[cfg(test)]
mod stretch;
#[cfg(test)]
mod tests;
mod window;

pub use admission::{Admission, Admitted, Charged, Listed, Rules};
pub use overwritten::{Overwritten, OverwrittenValue};
pub use receipt::{IgnoredFields, Receipt};
pub use refusal_reason::RefusalReason;
pub use repetition::{Known, KnownValues, Repetition};

use admission::Kind;
use devices::Devices;
use receipt::ByCode;
use repetition::Watches;

/// Admits readings, and appends them to the log.
#[derive(Debug, Clone)]
pub struct Ingest {
    log: Arc<Log>,
    rules: Rules,
    devices: Option<Arc<Devices>>,
    metrics: Arc<Metrics>,
    clock: Clock,
    watches: Arc<Watches>,
}

/// The permission to read one request or datagram.
///
/// [`Ingest::begin`] gives it after it has charged the first reading to the sender's rate. The end of the
/// request or datagram charges the others.
#[derive(Debug)]
#[must_use = "its first reading is charged"]
pub struct Permit {
    source: Source,
}

/// The sender has reached its rate of readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the token or key has reached its rate of readings (limits.token_readings_per_second)")]
pub struct RateLimitedError {
    /// The time until the rate admits a request again.
    pub retry_after: Duration,
}

/// Why no reading of a request was accepted.
#[derive(Debug, thiserror::Error)]
pub enum IngestError {
    /// The request has more readings than `ingest.max_readings_per_request`.
    #[error("a request carries at most {0} readings (ingest.max_readings_per_request)")]
    TooManyReadings(usize),
    /// The readings of the request do not fit into one record of the log.
    #[error("the readings of a request take at most {0} bytes in the log; split the request")]
    TooLarge(usize),
    /// The request asked for all or nothing, and some readings are rejected.
    #[error("{} of {} readings are rejected, and the request asked for all or nothing", .0.rejected, .0.received)]
    NotPartial(Box<Receipt>),
    /// The sender has reached its rate of readings.
    #[error(transparent)]
    RateLimited(#[from] RateLimitedError),
    /// The log or its disk is full, or no file can be opened. The log may accept readings again later.
    #[error("{0}")]
    Overloaded(AppendError),
    /// The log accepts no more records.
    #[error("{0}")]
    Failed(AppendError),
}

impl From<AppendError> for IngestError {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Full(_) | AppendError::DiskFull | AppendError::OutOfFiles => Self::Overloaded(error),
            AppendError::Poisoned(_) | AppendError::Closed => Self::Failed(error),
        }
    }
}

impl Ingest {
    /// The rules of admission.
    #[must_use]
    pub const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Admits readings into `log` by `rules`, and by the limits of `devices` if there are any.
    ///
    /// Each reason for a rejection that can occur is exported from now on, at zero.
    pub fn new(
        log: Arc<Log>,
        rules: Rules,
        devices: Option<Arc<Devices>>,
        metrics: Arc<Metrics>,
        clock: Clock,
    ) -> Self {
        for protocol in Protocol::iter() {
            let codes = Code::iter().filter(|code| protocol.may_reject(*code));
            let reasons = RefusalReason::iter().filter(|reason| reason.occurs_over(protocol.transport()));
            let all: Vec<_> = codes.map(Code::as_str).chain(reasons.map(RefusalReason::as_str)).collect();
            metrics.readings_rejected_total.of(protocol).start_with(&all);
            let of_value: Vec<_> = Code::iter().filter(|code| code.is_of_value()).map(Code::as_str).collect();
            metrics.values_rejected_total.of(protocol).start_with(&of_value);
            let ignored = Ignored::iter().filter(|what| protocol.may_ignore(*what));
            let ignored: Vec<_> = ignored.map(<&str>::from).collect();
            metrics.fields_ignored_total.of(protocol).start_with(&ignored);
        }
        Self { log, rules, devices, metrics, clock, watches: Arc::default() }
    }

    /// The number of devices that are known without asking the store.
    #[must_use]
    pub fn known_devices(&self) -> usize {
        self.devices.as_ref().map_or(0, |devices| devices.count())
    }

    /// Whether the log refuses appends at the moment.
    ///
    /// The log or its disk is full, or the last write found no file descriptors.
    #[must_use]
    pub fn is_log_refusing(&self) -> bool {
        let usage = self.log.usage();
        usage.is_full || usage.is_disk_full
    }

    /// The size of the largest record of the log.
    #[must_use]
    pub fn max_record_bytes(&self) -> usize {
        self.log.max_payload_bytes()
    }

    /// Charges the first reading of a request or datagram to its sender, before anything of it is parsed.
    ///
    /// # Errors
    /// When the sender has used up its rate. The request or datagram is then counted as one refused reading.
    pub fn begin(&self, source: Source, quota: &Quota) -> Result<Permit, RateLimitedError> {
        Self::charge_first(source, quota).inspect_err(|_| self.count_rate_limited(source.into()))
    }

    fn charge_first(source: Source, quota: &Quota) -> Result<Permit, RateLimitedError> {
        let charged = quota.readings.as_ref().map_or(Ok(()), |limiter| limiter.take(Instant::now()));
        charged.map(|()| Permit { source }).map_err(|retry_after| RateLimitedError { retry_after })
    }

    /// Admits devices that operators describe before the devices send.
    ///
    /// `devices` are stored IDs.
    ///
    /// # Errors
    /// The time until the sender may make another device known (`limits.new_devices_per_minute`).
    pub fn admit_new_devices(&self, sender: &Quota, devices: &[Arc<str>]) -> Result<(), Duration> {
        self.devices.as_ref().map_or(Ok(()), |known| known.admit_named(sender, devices, Instant::now()))
    }

    /// Starts the admission of a request: the sink for a parser.
    pub fn admission<'a>(
        &'a self,
        Permit { source }: Permit,
        scope: &'a DeviceScope,
        quota: &'a Quota,
    ) -> Admission<'a> {
        self.start(source, (scope, quota), Kind::Request)
    }

    /// Starts the admission of a batch of datagrams or messages.
    ///
    /// [`Admission::begin_datagram`] begins each of them.
    ///
    /// The caller keeps the batch small: the limit of readings per request does not apply to it.
    pub fn admission_of_batch(&self) -> Admission<'_> {
        let source = Source::udp(Format::LineProtocol); // a placeholder until the first datagram
        self.start(source, (DeviceScope::all(), Quota::unlimited()), Kind::Batch)
    }

    fn start<'a>(&'a self, source: Source, sender: (&'a DeviceScope, &'a Quota), kind: Kind) -> Admission<'a> {
        let now_ms = self.clock.now_ms();
        let check = self.devices.as_ref().map(|devices| devices.check_request(sender.1, Instant::now(), now_ms));
        Admission::new(&self.rules, kind, source, sender, check, now_ms, self.log.max_payload_bytes())
    }

    /// Ends a request or a batch, and appends its admitted readings without waiting for the disk.
    ///
    /// Unless `partial` is set, one rejected reading or value refuses the request.
    pub fn finish(&self, admitted: Admitted, partial: bool) -> Submission {
        Submission(self.append(admitted, partial, |batch| self.watches.append(&self.log, batch)))
    }

    fn append(
        &self,
        admitted: Admitted,
        partial: bool,
        append: impl FnOnce(Batch) -> Result<Ack, AppendError>,
    ) -> Result<Append, IngestError> {
        let Admitted { kind, protocol, batch, mut receipt, charged } = admitted;
        let is_too_large = kind == Kind::Request && receipt.has(Code::RequestTooLarge);
        if is_too_large {
            receipt.reject_accepted(Code::RequestTooLarge);
        }
        let is_refused = !receipt.is_whole() && !partial;
        if self.rules.keep == Keep::First && !is_refused {
            receipt.ignore_later_values();
        }
        let accounts = Accounts::new(Arc::clone(&self.metrics), protocol, &receipt);
        if let Err(error) = charged {
            accounts.refuse(RefusalReason::RateLimited);
            self.metrics.limited_total.of(Limit::TokenReadings).increment(1);
            return Err(error.into());
        }
        if receipt.received as usize > kind.max_readings(&self.rules) {
            accounts.refuse(RefusalReason::TooManyReadings);
            return Err(IngestError::TooManyReadings(self.rules.max_readings));
        }
        if is_too_large {
            accounts.accept();
            return Err(IngestError::TooLarge(self.log.max_payload_bytes()));
        }
        if is_refused {
            accounts.refuse(RefusalReason::NotPartial);
            let overwritten = Overwritten::default();
            receipt = Receipt { accepted: 0, rejected: receipt.received, overwritten, ..receipt };
            return Err(IngestError::NotPartial(receipt.into()));
        }
        let appended = (receipt.accepted > 0).then(|| append(batch));
        Ok(Append { accounts, receipt, appended })
    }

    /// Counts a request whose body is not in the format that it claims, as one reading.
    pub fn count_unreadable_request(&self, protocol: Protocol, code: Code) {
        self.count_one_reading(protocol, code.into());
    }

    /// Counts a request or datagram that was refused before its readings were parsed, as one reading.
    pub fn count_refused_request(&self, protocol: Protocol, reason: RefusalReason) {
        self.count_one_reading(protocol, reason.into());
    }

    /// Counts a request, datagram or message that was refused for the rate of its sender, as one reading.
    pub fn count_rate_limited(&self, protocol: Protocol) {
        self.count_refused_request(protocol, RefusalReason::RateLimited);
        self.metrics.limited_total.of(Limit::TokenReadings).increment(1);
    }

    fn count_one_reading(&self, protocol: Protocol, why: &'static str) {
        self.metrics.readings_received_total.of(protocol).increment(1);
        self.metrics.readings_rejected_total.of(protocol).with(why).increment(1);
    }
}

/// A finished request or batch, on its way into the log.
///
/// The metrics count its readings when the outcome is known.
#[must_use = "its readings are counted when the outcome is known"]
pub struct Submission(Result<Append, IngestError>);

/// The append of admitted readings.
struct Append {
    accounts: Accounts,
    receipt: Receipt,
    /// `None` if no reading was admitted.
    appended: Option<Result<Ack, AppendError>>,
}

impl Submission {
    /// Counts nothing if the log refuses the readings: their sender keeps them, and submits them again.
    pub fn kept_by_sender(mut self) -> Self {
        if let Ok(append) = &mut self.0 {
            append.accounts.is_kept_by_sender = true;
        }
        self
    }

    /// Waits until the readings are durable.
    ///
    /// They are counted even if the caller stops waiting.
    ///
    /// # Errors
    /// When the request was refused, or the readings are not in the log.
    pub async fn durable(self) -> Result<Receipt, IngestError> {
        let Append { accounts, receipt, appended } = self.0?;
        match appended {
            Some(Ok(ack)) => accounts.follow(ack).await?,
            none_or_failed => accounts.settle(none_or_failed.map_or(Ok(()), |appended| appended.map(drop)))?,
        }
        Ok(receipt)
    }

    /// Waits until the readings are durable.
    ///
    /// Blocks the thread, which must not be one of a runtime.
    ///
    /// # Errors
    /// When the request was refused, or the readings are not in the log.
    pub fn wait(self) -> Result<Receipt, IngestError> {
        let Append { accounts, receipt, appended } = self.0?;
        accounts.settle(appended.map_or(Ok(()), |appended| appended?.wait()))?;
        Ok(receipt)
    }
}

/// Counts a request or batch in the metrics exactly once, whatever its outcome.
struct Accounts {
    metrics: Arc<Metrics>,
    protocol: Protocol,
    received: u32,
    accepted: u32,
    by_code: ByCode,
    values_by_code: ByCode,
    ignored: [u32; Ignored::COUNT],
    overwritten: u32,
    /// Whether readings that the log refuses are not counted, because their sender keeps them.
    is_kept_by_sender: bool,
}

impl Accounts {
    fn new(metrics: Arc<Metrics>, protocol: Protocol, receipt: &Receipt) -> Self {
        let Receipt { received, accepted, by_code, values_by_code, .. } = *receipt;
        let (ignored, overwritten) = (receipt.ignored.counts, receipt.overwritten.readings);
        Self {
            metrics,
            protocol,
            received,
            accepted,
            by_code,
            values_by_code,
            ignored,
            overwritten,
            is_kept_by_sender: false,
        }
    }

    /// Counts the admitted readings as accepted.
    fn accept(&self) {
        self.metrics.readings_received_total.of(self.protocol).increment(self.received.into());
        self.metrics.readings_accepted_total.of(self.protocol).increment(self.accepted.into());
        self.metrics.readings_overwritten_total.of(self.protocol).increment(self.overwritten.into());
        self.count_rejections();
        for (code, count) in self.values_by_code.counted() {
            let rejected = self.metrics.values_rejected_total.of(self.protocol);
            rejected.with(code.into()).increment(count.into());
        }
        for (what, count) in Ignored::iter().zip(self.ignored).filter(|&(_, count)| count > 0) {
            debug_assert!(self.protocol.may_ignore(what), "{what:?} over {:?} is not exported at zero", self.protocol);
            self.metrics.fields_ignored_total.of(self.protocol).with(what.into()).increment(count.into());
        }
    }

    /// Counts the admitted readings as rejected for this reason.
    fn refuse(&self, reason: RefusalReason) {
        let bad = self.by_code.sum();
        self.metrics.readings_received_total.of(self.protocol).increment(self.received.into());
        let rejected = self.metrics.readings_rejected_total.of(self.protocol);
        rejected.with(reason.into()).increment((self.received - bad).into());
        self.count_rejections();
    }

    fn count_rejections(&self) {
        let rejected = self.metrics.readings_rejected_total.of(self.protocol);
        for (code, count) in self.by_code.counted() {
            rejected.with(code.into()).increment(count.into());
            if let Some(limit) = Limit::of(code) {
                self.metrics.limited_total.of(limit).increment(count.into());
            }
        }
    }

    /// Waits for the append, and counts its outcome.
    ///
    /// If the caller drops this future, a background task does both.
    async fn follow(self, ack: Ack) -> Result<(), AppendError> {
        let mut followed = Followed { waiting: Some((self, ack)) };
        let outcome = match &mut followed.waiting {
            Some((_, ack)) => ack.durable().await,
            None => return Ok(()),
        };
        match followed.waiting.take() {
            Some((accounts, _)) => accounts.settle(outcome),
            None => outcome,
        }
    }

    /// Counts the outcome of the append, and returns it.
    fn settle(&self, outcome: Result<(), AppendError>) -> Result<(), AppendError> {
        match outcome {
            Ok(()) => self.accept(),
            Err(_) if self.is_kept_by_sender => {}
            Err(_) => self.refuse(RefusalReason::Overloaded),
        }
        outcome
    }
}

/// An append whose outcome is not counted yet.
///
/// If it is dropped, a background task continues to wait, and counts the outcome.
struct Followed {
    waiting: Option<(Accounts, Ack)>,
}

impl Drop for Followed {
    fn drop(&mut self) {
        let Some((accounts, mut ack)) = self.waiting.take() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { accounts.settle(ack.durable().await) });
        }
    }
}
