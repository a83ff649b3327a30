//! Asks the other server whether it takes readings of this one, without sending any.

use super::upstream::{Body, Trouble, Upstream};

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
    upstream
        .post(&Body::of(b"", 0))
        .await
        .map(drop)
        .map_err(|Trouble { reason, detail, .. }| Refusal { reason, detail })
}
