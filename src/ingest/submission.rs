//! Appends that nobody waits for an answer to.

use super::receipt::Accounts;
use crate::log::{Ack, AppendError};

/// A batch on its way into the log. It counts in the metrics when it is settled.
#[must_use = "only what is settled is counted"]
pub struct Submission {
    accounts: Accounts,
    /// `None` when there was nothing to append.
    appended: Option<Result<Ack, AppendError>>,
}

impl Submission {
    pub(super) const fn new(accounts: Accounts, appended: Option<Result<Ack, AppendError>>) -> Self {
        Self { accounts, appended }
    }

    /// Waits until the batch is durable. Blocks the thread, which must not be one of a runtime.
    ///
    /// # Errors
    /// When its readings are not in the log: they count as rejected.
    pub fn settle(self) -> Result<(), AppendError> {
        let outcome = self.appended.map_or(Ok(()), |appended| appended?.wait());
        self.accounts.settle(&outcome);
        outcome
    }
}
