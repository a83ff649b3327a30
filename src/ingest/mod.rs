//! Admission: the one way into the log.
//!
//! Readings of every transport and format pass the same rules here (names, limits, the clock). Admitted
//! readings are encoded as a batch, and the batch is appended to the log. The receipt says how many readings
//! were accepted and why the others were rejected. Each token, key and device has limits of its own, so that
//! none starves the others ([`devices`]).
//!
//! Each request and each datagram takes the same steps: [`Ingest::begin`] charges its first reading and
//! refuses senders in debt, [`Admission`] checks the readings, [`Admission::end`] charges the rest, and
//! [`Ingest::finish`] appends. A caller waits for the [`Submission`] or leaves that for later.
//!
//! Promises:
//! - Readings are accepted when their record is durable, not before.
//! - received = accepted + rejected, in the metrics too, even if the client has disconnected meanwhile.
//! - A request is one record: all of its accepted readings survive a crash, or none was acknowledged.
//! - A repeated reading ([`Repetition`]) replaces nothing that was accepted after it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use strum::IntoEnumIterator;

use crate::access::DeviceScope;
use crate::common::clock::Clock;
use crate::limits::Quota;
use crate::log::{Ack, AppendError, Batch, Log};
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
mod submission;
#[cfg(test)]
mod tests;
mod window;

pub use admission::{Admission, Admitted, Listed, Rules};
pub use overwritten::{Overwritten, OverwrittenValue};
pub use receipt::{IgnoredFields, Receipt};
pub use refusal_reason::RefusalReason;
pub use repetition::{Known, KnownValues, Repetition};
pub use submission::Submission;

use admission::Kind;
use devices::Devices;
use receipt::Accounts;
use repetition::Watches;
use submission::Append;

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
    /// The log is full, and may have space again later.
    #[error("{0}")]
    Overloaded(AppendError),
    /// The log accepts no more records.
    #[error("{0}")]
    Failed(AppendError),
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
            let codes = Code::iter().filter(|code| code.format().is_none_or(|format| protocol.carries(format)));
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

    /// Whether the log refuses appends at the moment, because it or its disk is full.
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
    /// When the sender's rate has no room. The request or datagram is then counted as one refused reading.
    pub fn begin(&self, source: Source, quota: &Quota) -> Result<Permit, RateLimitedError> {
        let charged = quota.readings.as_ref().map_or(Ok(()), |limiter| limiter.take(Instant::now()));
        charged.map(|()| Permit { source }).map_err(|retry_after| {
            self.count_refused_request(source.into(), RefusalReason::RateLimited);
            self.metrics.limited_total.of(Limit::TokenReadings).increment(1);
            RateLimitedError { retry_after }
        })
    }

    /// Admits devices that operators describe before the devices send. `devices` are stored IDs.
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

    /// Starts the admission of a batch of datagrams or messages, each with [`Ingest::begin_datagram`].
    ///
    /// The caller keeps the batch small: the limit of readings per request does not apply to it.
    pub fn admission_of_batch(&self) -> Admission<'_> {
        let source = Source::udp(Format::LineProtocol); // a placeholder until the first datagram
        self.start(source, (DeviceScope::all(), Quota::unlimited()), Kind::Batch)
    }

    /// Charges the other readings of the last datagram or message of a batch, and begins the next datagram.
    ///
    /// # Errors
    /// See [`Ingest::begin`].
    pub fn begin_datagram<'a>(
        &self,
        batch: &mut Admission<'a>,
        source: Source,
        scope: &'a DeviceScope,
        quota: &'a Quota,
    ) -> Result<(), RateLimitedError> {
        batch.end_datagram();
        batch.start_datagram(self.begin(source, quota)?, scope, quota);
        Ok(())
    }

    fn start<'a>(&'a self, source: Source, sender: (&'a DeviceScope, &'a Quota), kind: Kind) -> Admission<'a> {
        let now_ms = self.clock.now_ms();
        let check = self.devices.as_ref().map(|devices| devices.check_request(sender.1, Instant::now(), now_ms));
        Admission::new(&self.rules, kind, source, sender, check, now_ms, self.log.max_payload_bytes())
    }

    /// Ends a request or a batch, and appends its admitted readings without waiting for the disk. With
    /// `partial` unset, one rejected reading refuses the request.
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
        if !receipt.is_whole() && !partial {
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

    fn count_one_reading(&self, protocol: Protocol, why: &'static str) {
        self.metrics.readings_received_total.of(protocol).increment(1);
        self.metrics.readings_rejected_total.of(protocol).with(why).increment(1);
    }
}
