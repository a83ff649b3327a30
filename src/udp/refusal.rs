//! Why a datagram is not read.

use crate::access::SignatureError;
use crate::ingest::RefusalReason;

/// Why a datagram is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// It is not signed as it should be.
    #[error(transparent)]
    SignatureError(#[from] SignatureError),
    /// More is signed with its key than the key's rate allows.
    #[error("more comes with the key than its rate allows")]
    RateLimited,
    /// It has more bytes than `udp.max_datagram_bytes`.
    #[error("it has {0} bytes, more than udp.max_datagram_bytes")]
    TooLarge(usize),
}

impl Refusal {
    /// The reason as it counts; `None` where nothing of it counts as a reading.
    pub(super) const fn reason(self) -> Option<RefusalReason> {
        Some(match self {
            Self::SignatureError(SignatureError::Unsigned) => RefusalReason::SignatureRequired,
            Self::SignatureError(SignatureError::BadSignature) => RefusalReason::BadSignature,
            Self::SignatureError(SignatureError::UnknownKey) => RefusalReason::UnknownKey,
            Self::SignatureError(SignatureError::ExpiredKey) => RefusalReason::ExpiredKey,
            Self::RateLimited => RefusalReason::RateLimited,
            Self::TooLarge(_) => return None,
        })
    }

    /// The code as the log has it.
    pub(super) fn code(self) -> &'static str {
        self.reason().map_or("truncated", RefusalReason::as_str)
    }
}
