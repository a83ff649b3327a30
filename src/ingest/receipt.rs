//! What became of a request, and its place in the metrics.

use std::sync::Arc;
use std::time::Duration;

use super::Listed;
use crate::log::{Ack, AppendError};
use crate::telemetry::{Limit, Metrics, Protocol, RequestRejection};
use crate::wire::Code;

/// What became of the readings of one request. `received = accepted + rejected`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Readings found.
    pub received: u32,
    /// Readings that are in the log.
    pub accepted: u32,
    /// Readings that are not.
    pub rejected: u32,
    /// The first hundred rejections.
    pub listed: Vec<Listed>,
    /// How long to wait until those may come that were refused for now, where there are any.
    pub retry_after: Option<Duration>,
    /// How many rejections there were of each [`Code`].
    pub(super) by_code: [u32; Code::ALL.len()],
}

/// Counts a request in the metrics, exactly once, whatever becomes of it.
pub(super) struct Accounts {
    metrics: Arc<Metrics>,
    protocol: Protocol,
    received: u32,
    accepted: u32,
    by_code: [u32; Code::ALL.len()],
}

impl Accounts {
    pub(super) fn new(metrics: Arc<Metrics>, protocol: Protocol, receipt: &Receipt) -> Self {
        Self { metrics, protocol, received: receipt.received, accepted: receipt.accepted, by_code: receipt.by_code }
    }

    /// The good readings are accepted, the bad ones rejected.
    pub(super) fn accept(&self) {
        self.metrics.readings_received_total.of(self.protocol).increment(self.received.into());
        self.metrics.readings_accepted_total.of(self.protocol).increment(self.accepted.into());
        self.count_bad();
    }

    /// The good readings are rejected too, for this reason.
    pub(super) fn refuse(&self, reason: RequestRejection) {
        let bad: u32 = self.by_code.iter().sum();
        self.metrics.readings_received_total.of(self.protocol).increment(self.received.into());
        self.metrics
            .readings_rejected_total
            .of(self.protocol)
            .of_request(reason)
            .increment((self.received - bad).into());
        self.count_bad();
    }

    fn count_bad(&self) {
        for (code, &count) in Code::ALL.iter().zip(&self.by_code).filter(|&(_, &count)| count > 0) {
            self.metrics.readings_rejected_total.of(self.protocol).of(*code).increment(count.into());
            if let Some(limit) = Limit::of(*code) {
                self.metrics.limited_total.of(limit).increment(count.into());
            }
        }
    }

    /// Waits for the append and counts by its outcome. If nobody waits any more, that is done in the background.
    pub(super) async fn follow(self, ack: Ack) -> Result<(), AppendError> {
        let mut followed = Followed { waiting: Some((self, ack)) };
        let outcome = match &mut followed.waiting {
            Some((_, ack)) => ack.durable().await,
            None => return Ok(()),
        };
        if let Some((accounts, _)) = followed.waiting.take() {
            accounts.settle(&outcome);
        }
        outcome
    }

    pub(super) fn settle(&self, outcome: &Result<(), AppendError>) {
        match outcome {
            Ok(()) => self.accept(),
            Err(_) => self.refuse(RequestRejection::Overloaded),
        }
    }
}

/// An append whose outcome is not counted yet. Dropped while it waits, it goes on waiting in a task of its own.
struct Followed {
    waiting: Option<(Accounts, Ack)>,
}

impl Drop for Followed {
    fn drop(&mut self) {
        let Some((accounts, mut ack)) = self.waiting.take() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { accounts.settle(&ack.durable().await) });
        }
    }
}
