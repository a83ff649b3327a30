//! Why datagrams are refused.

use crate::access::SignatureError;
use crate::ingest::{RateLimitedError, RefusalReason};

/// Why a datagram is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum DatagramError {
    /// The signature of the datagram is missing or invalid.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// The key of the datagram has reached its rate limit.
    #[error(transparent)]
    RateLimited(#[from] RateLimitedError),
    /// The datagram has more bytes than `udp.max_datagram_bytes`.
    #[error("the datagram has {0} bytes, more than udp.max_datagram_bytes")]
    TooLarge(usize),
}

impl DatagramError {
    /// The code in log lines.
    pub(super) fn code(self) -> &'static str {
        match self {
            Self::Signature(error) => reason(error).as_str(),
            Self::RateLimited(_) => RefusalReason::RateLimited.as_str(),
            Self::TooLarge(_) => "truncated",
        }
    }

    /// The reason with which the caller must count the datagram as a rejected reading.
    ///
    /// `None` if the datagram is counted already, or if it is too large: its readings are unknown.
    pub(super) const fn uncounted_reason(self) -> Option<RefusalReason> {
        match self {
            Self::Signature(error) => Some(reason(error)),
            Self::RateLimited(_) | Self::TooLarge(_) => None,
        }
    }
}

const fn reason(error: SignatureError) -> RefusalReason {
    match error {
        SignatureError::Unsigned => RefusalReason::SignatureRequired,
        SignatureError::BadSignature => RefusalReason::BadSignature,
        SignatureError::UnknownKey => RefusalReason::UnknownKey,
        SignatureError::ExpiredKey => RefusalReason::ExpiredKey,
    }
}
