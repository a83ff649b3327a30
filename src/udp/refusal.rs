//! Why a datagram is not read.

use crate::access::Unverified;
use crate::telemetry::RequestRejection;

/// Why a datagram is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// It is not signed as it should be.
    #[error(transparent)]
    Unverified(#[from] Unverified),
    /// More is signed with its key than the key's rate allows.
    #[error("more comes with the key than its rate allows")]
    RateLimited,
    /// It has more bytes than `udp.max_datagram_bytes`.
    #[error("it has {0} bytes, more than udp.max_datagram_bytes")]
    TooLarge(usize),
}

impl Refusal {
    /// The reason as it counts; `None` where nothing of it counts as a reading.
    pub(super) const fn reason(self) -> Option<RequestRejection> {
        Some(match self {
            Self::Unverified(Unverified::Unsigned) => RequestRejection::SignatureRequired,
            Self::Unverified(Unverified::BadSignature) => RequestRejection::BadSignature,
            Self::Unverified(Unverified::UnknownKey) => RequestRejection::UnknownKey,
            Self::Unverified(Unverified::ExpiredKey) => RequestRejection::ExpiredKey,
            Self::RateLimited => RequestRejection::RateLimited,
            Self::TooLarge(_) => return None,
        })
    }

    /// The code as the log has it.
    pub(super) fn code(self) -> &'static str {
        self.reason().map_or("truncated", RequestRejection::as_str)
    }
}
