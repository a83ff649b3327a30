//! Asks the other server whether it takes readings of this one, without sending any.

use super::answer::Verdict;
use super::upstream::{Answer, Body, Trouble, Upstream};

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
pub async fn probe(upstream: &Upstream) -> Result<(), Refusal> {
    match upstream.post(&Body::of(b"", 0)).await {
        Ok(Answer { verdict: Verdict::Judged(_), .. }) => Ok(()),
        Ok(Answer { verdict: Verdict::TooLarge(why), .. }) => {
            Err(Refusal { reason: "unexpected", detail: format!("it refuses an empty batch as too large: {why}") })
        }
        Err(Trouble { reason, detail, .. }) => Err(Refusal { reason, detail }),
    }
}
