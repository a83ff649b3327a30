//! Admission: the one way into the log.
//!
//! Whatever a reading came in, it is judged here by the same rules (names, limits, the clock), encoded as
//! part of a batch, and the batch is appended to the log. What comes back is how many readings were accepted
//! and what was wrong with the others. What one token sends and what one device sends has limits of its own,
//! so that there is enough for the others ([`devices`]).
//!
//! Promises:
//! - Readings are accepted when their record is durable, not before.
//! - received = accepted + rejected, in the metrics too, even when whoever sent them went away meanwhile.
//! - A request is one record: all of its accepted readings survive a crash, or none was acked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use strum::IntoEnumIterator;

use crate::access::DeviceScope;
use crate::common::clock::Clock;
use crate::limits::Quota;
use crate::log::{AppendError, Log};
use crate::telemetry::Metrics;
use crate::wire::{Code, Format, Protocol, Source};

mod admission;
#[cfg(any(test, feature = "bench"))]
#[doc(hidden)]
pub mod bench;
pub mod devices;
mod receipt;
mod refusal_reason;
#[cfg(test)]
mod stretch;
mod submission;
#[cfg(test)]
mod tests;
mod window;

pub use admission::{Admission, Admitted, Listed, Rules};
pub use receipt::Receipt;
pub use refusal_reason::RefusalReason;
pub use submission::Submission;

use devices::Devices;

/// Takes admitted readings into the log.
#[derive(Debug, Clone)]
pub struct Ingest {
    log: Arc<Log>,
    rules: Rules,
    devices: Option<Arc<Devices>>,
    metrics: Arc<Metrics>,
    clock: Clock,
}

/// Nothing of a request was accepted.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It has more readings than one request may have.
    #[error("a request carries at most {0} readings")]
    TooManyReadings(usize),
    /// Its readings take more room than a record of the log has.
    #[error("the readings of a request take at most {0} bytes in the log; split the request")]
    TooLarge(usize),
    /// It asked for all or nothing, and some readings are bad.
    #[error("{} of {} readings are refused, and the request asked for all or nothing", .0.rejected, .0.received)]
    NotPartial(Receipt),
    /// More was sent with the token than it may send in that time. So long it takes until there is room.
    #[error("more readings were sent with this token than it may send (limits.token_readings_per_second)")]
    RateLimited(Duration),
    /// The log is full: try again later.
    #[error("{0}")]
    Overloaded(AppendError),
    /// The log takes nothing any more.
    #[error("{0}")]
    Failed(AppendError),
}

impl Ingest {
    /// Admits by `rules`, and where there are some the limits of `devices`, into `log`.
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
        }
        Self { log, rules, devices, metrics, clock }
    }

    /// How many devices are known without asking the store.
    #[must_use]
    pub fn known_devices(&self) -> usize {
        self.devices.as_ref().map_or(0, |devices| devices.count())
    }

    /// Starts the admission of a request: the sink for a parser.
    pub fn admission<'a>(&'a self, source: Source, scope: &'a DeviceScope, quota: &'a Quota) -> Admission<'a> {
        self.start(source, (scope, quota), self.rules.max_readings)
    }

    /// Starts the admission of a batch of datagrams, each from a sender of its own
    /// ([`Admission::set_sender`]). The caller keeps the batch small: the limit of readings per request does
    /// not apply to it.
    pub fn admission_of_batch(&self) -> Admission<'_> {
        let source = Source::udp(Format::LineProtocol); // until the first sender is set
        self.start(source, (DeviceScope::all(), Quota::unlimited()), usize::MAX)
    }

    fn start<'a>(&'a self, source: Source, who: (&'a DeviceScope, &'a Quota), max_readings: usize) -> Admission<'a> {
        let now_ms = self.clock.now_ms();
        let visit = self.devices.as_ref().map(|devices| devices.visit(who.1, Instant::now(), now_ms));
        let max_payload_bytes = self.log.max_payload_bytes();
        Admission::new(&self.rules, who.0, visit, source, now_ms, max_readings, max_payload_bytes)
    }

    /// Ends a request from somebody with this allowance: appends what was admitted and waits until it is
    /// durable. With `partial` unset, one bad reading refuses them all.
    ///
    /// The append happens even if this future is dropped while it waits. For the first reading the request
    /// was let in, the others are taken from the token's rate here.
    ///
    /// # Errors
    /// When nothing was accepted.
    pub async fn commit(&self, admitted: Admitted, quota: &Quota, partial: bool) -> Result<Receipt, Refused> {
        let Admitted { protocol, batch, mut receipt } = admitted;
        let is_too_large = receipt.has(Code::RequestTooLarge);
        if is_too_large {
            receipt.reject_accepted(Code::RequestTooLarge);
        }
        let accounts = receipt::Accounts::new(Arc::clone(&self.metrics), protocol, &receipt);
        if let Some(limiter) = &quota.readings
            && let Err(wait) = limiter.take_more(receipt.received.saturating_sub(1).into(), Instant::now())
        {
            accounts.refuse(RefusalReason::RateLimited);
            return Err(Refused::RateLimited(wait));
        }
        if receipt.received as usize > self.rules.max_readings {
            accounts.refuse(RefusalReason::TooManyReadings);
            return Err(Refused::TooManyReadings(self.rules.max_readings));
        }
        if is_too_large {
            accounts.accept();
            return Err(Refused::TooLarge(self.log.max_payload_bytes()));
        }
        if receipt.rejected > 0 && !partial {
            accounts.refuse(RefusalReason::NotPartial);
            return Err(Refused::NotPartial(Receipt { accepted: 0, rejected: receipt.received, ..receipt }));
        }
        if receipt.accepted == 0 {
            accounts.accept();
            return Ok(receipt);
        }
        let durable = match self.log.append(batch) {
            Ok(ack) => accounts.follow(ack).await,
            Err(error) => {
                accounts.refuse(RefusalReason::Overloaded);
                Err(error)
            }
        };
        match durable {
            Ok(()) => Ok(receipt),
            Err(error @ (AppendError::Full(_) | AppendError::DiskFull | AppendError::OutOfFiles)) => {
                Err(Refused::Overloaded(error))
            }
            Err(error @ (AppendError::Poisoned(_) | AppendError::Closed)) => Err(Refused::Failed(error)),
        }
    }

    /// Ends a batch: appends what was admitted and does not wait. Bad readings are rejected, the others go
    /// their way.
    pub fn submit(&self, admission: Admission<'_>) -> Submission {
        let Admitted { protocol, batch, receipt } = admission.end();
        let accounts = receipt::Accounts::new(Arc::clone(&self.metrics), protocol, &receipt);
        let appended = (receipt.accepted > 0).then(|| self.log.append(batch));
        Submission::new(accounts, appended)
    }

    /// Counts a request whose body is not in the format it claims, as one reading.
    pub fn count_unreadable_request(&self, protocol: Protocol, code: Code) {
        self.metrics.readings_received_total.of(protocol).increment(1);
        self.metrics.readings_rejected_total.of(protocol).with(code.into()).increment(1);
    }

    /// Counts a request that was refused before its readings could be told apart, as one reading.
    pub fn count_refused_request(&self, protocol: Protocol, reason: RefusalReason) {
        self.metrics.readings_received_total.of(protocol).increment(1);
        self.metrics.readings_rejected_total.of(protocol).with(reason.into()).increment(1);
    }
}
