//! What became of a request, and its place in the metrics.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use strum::{EnumCount, IntoEnumIterator};

use super::{Listed, RefusalReason};
use crate::log::{Ack, AppendError};
use crate::telemetry::{Limit, Metrics, RefusalEntry, What};
use crate::wire::{Code, Protocol};

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
    pub(super) by_code: ByCode,
}

/// How many rejections there are of each [`Code`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ByCode([u32; Code::COUNT]);

impl Receipt {
    /// What was rejected, for the log.
    #[must_use]
    pub fn refusals(&self) -> Vec<RefusalEntry> {
        self.by_code.refusals(&self.listed)
    }

    /// Whether a reading was rejected with this code.
    pub(super) const fn has(&self, code: Code) -> bool {
        self.by_code.0[code as usize] > 0
    }

    /// The good readings are rejected too, with this code.
    pub(super) fn reject_accepted(&mut self, code: Code) {
        let accepted = std::mem::take(&mut self.accepted);
        self.rejected += accepted;
        self.by_code.0[code as usize] += accepted;
    }
}

impl ByCode {
    pub(super) const fn count(&mut self, code: Code) {
        self.0[code as usize] += 1;
    }

    pub(super) fn since(&self, earlier: &Self) -> Self {
        Self(std::array::from_fn(|code| self.0[code] - earlier.0[code]))
    }

    fn sum(&self) -> u32 {
        self.0.iter().sum()
    }

    fn counted(&self) -> impl Iterator<Item = (Code, u32)> {
        Code::iter().zip(self.0).filter(|&(_, count)| count > 0)
    }

    /// One refusal for each code, with the first that is listed as example.
    pub(super) fn refusals(&self, listed: &[Listed]) -> Vec<RefusalEntry> {
        let refusal = |(code, count): (Code, u32)| {
            let example = listed.iter().find(|listed| listed.rejection.code == code).map(Listed::to_string);
            let (code, example) = (code.as_str(), example.unwrap_or_default());
            RefusalEntry { what: What::Readings, code, count: count.into(), example }
        };
        self.counted().map(refusal).collect()
    }
}

/// As the log has it.
impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}")?,
            None => write!(f, "index {}", self.index)?,
        }
        if let Some(device) = &self.device {
            write!(f, ", device {device}")?;
        }
        write!(f, ": {}", self.rejection.detail)
    }
}

/// Counts a request in the metrics, exactly once, whatever becomes of it.
pub(super) struct Accounts {
    metrics: Arc<Metrics>,
    protocol: Protocol,
    received: u32,
    accepted: u32,
    by_code: ByCode,
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
    pub(super) fn refuse(&self, reason: RefusalReason) {
        let bad = self.by_code.sum();
        self.metrics.readings_received_total.of(self.protocol).increment(self.received.into());
        let rejected = self.metrics.readings_rejected_total.of(self.protocol);
        rejected.with(reason.into()).increment((self.received - bad).into());
        self.count_bad();
    }

    fn count_bad(&self) {
        let rejected = self.metrics.readings_rejected_total.of(self.protocol);
        for (code, count) in self.by_code.counted() {
            rejected.with(code.into()).increment(count.into());
            if let Some(limit) = Limit::of(code) {
                self.metrics.limited_total.of(limit).increment(count.into());
            }
        }
    }

    /// Waits for the append and counts by its outcome. If nobody waits any more, that is done in the
    /// background.
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
            Err(_) => self.refuse(RefusalReason::Overloaded),
        }
    }
}

/// An append whose outcome is not counted yet. Dropped while it waits, it goes on waiting in a task of its
/// own.
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
