//! Submissions: finished requests and batches whose outcome is not known yet.

use super::receipt::Accounts;
use super::{IngestError, Receipt};
use crate::log::{Ack, AppendError};

/// A finished request or batch, on its way into the log.
///
/// The metrics count its readings when the outcome is known.
#[must_use = "its readings are counted when the outcome is known"]
pub struct Submission(pub(super) Result<Append, IngestError>);

/// The append of admitted readings.
pub(super) struct Append {
    pub(super) accounts: Accounts,
    pub(super) receipt: Receipt,
    /// `None` if no reading was admitted.
    pub(super) appended: Option<Result<Ack, AppendError>>,
}

impl Submission {
    /// Counts nothing if the log refuses the readings: their sender keeps them, and submits them again.
    pub fn kept_by_sender(mut self) -> Self {
        if let Ok(append) = &mut self.0 {
            append.accounts.keep();
        }
        self
    }

    /// Waits until the readings are durable. They are counted even if the caller stops waiting.
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

    /// Waits until the readings are durable. Blocks the thread, which must not be one of a runtime.
    ///
    /// # Errors
    /// When the request was refused, or the readings are not in the log.
    pub fn wait(self) -> Result<Receipt, IngestError> {
        let Append { accounts, receipt, appended } = self.0?;
        accounts.settle(appended.map_or(Ok(()), |appended| appended?.wait()))?;
        Ok(receipt)
    }
}

impl From<AppendError> for IngestError {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Full(_) | AppendError::DiskFull | AppendError::OutOfFiles => Self::Overloaded(error),
            AppendError::Poisoned(_) | AppendError::Closed => Self::Failed(error),
        }
    }
}
