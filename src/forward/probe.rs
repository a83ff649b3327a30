//! Asks the other server whether it takes readings of this one, without sending any.

use super::verdict::{Answer, Verdict, send};
use crate::client::{Body, Client};

/// Why the other server takes no readings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The reason, as in `tidegauge_forward_errors_total`.
    pub reason: &'static str,
    /// The error, or the answer.
    pub detail: String,
}

/// Sends an empty batch with the token, once. It changes nothing at the other server.
///
/// # Errors
/// When the other server does not answer as it would to a batch that it accepts.
pub async fn probe(client: &Client) -> Result<(), Refusal> {
    match send(client, &Body::of(b"", Some(0))).await {
        Ok(Answer { verdict: Verdict::Judged(_), .. }) => Ok(()),
        Ok(Answer { verdict: Verdict::TooLarge(why), .. }) => {
            Err(Refusal { reason: "unexpected", detail: format!("it refuses an empty batch as too large: {why}") })
        }
        Err(trouble) => Err(Refusal { reason: trouble.reason, detail: trouble.detail() }),
    }
}
