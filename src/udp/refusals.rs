//! Datagrams that are not read: for their signatures, for having none, or for how many there are. Told, but not each.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

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
}

/// How often at most the operator is told.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// Tells of refusals, for all threads together. What is told is true of one of them; the metrics have all.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<Untold>);

#[derive(Debug, Default)]
struct Untold {
    datagrams: u64,
    told_at: Option<Instant>,
}

impl Refusals {
    /// Some were refused, the last one from there and for that.
    pub(super) fn saw(&self, datagrams: u64, from: Option<SocketAddr>, why: Refusal) {
        let mut untold = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(datagrams) = untold.add(datagrams, Instant::now()) {
            let from = from.map(tracing::field::display);
            tracing::warn!(datagrams, from, %why, "datagrams are refused; this is the last one of them");
        }
    }
}

impl Untold {
    /// How many to tell of now; `None` when it was told of others lately.
    fn add(&mut self, datagrams: u64, now: Instant) -> Option<u64> {
        self.datagrams += datagrams;
        if self.told_at.is_some_and(|told_at| now.duration_since(told_at) < WARN_INTERVAL) {
            return None;
        }
        self.told_at = Some(now);
        Some(std::mem::take(&mut self.datagrams))
    }
}

impl Refusal {
    /// The reason as it counts.
    pub(super) const fn reason(self) -> RequestRejection {
        match self {
            Self::Unverified(Unverified::Unsigned) => RequestRejection::SignatureRequired,
            Self::Unverified(Unverified::BadSignature) => RequestRejection::BadSignature,
            Self::Unverified(Unverified::UnknownKey) => RequestRejection::UnknownKey,
            Self::Unverified(Unverified::ExpiredKey) => RequestRejection::ExpiredKey,
            Self::RateLimited => RequestRejection::RateLimited,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_told_once_a_minute_with_all_that_came_since() {
        let (mut untold, start) = (Untold::default(), Instant::now());
        assert_eq!(untold.add(1, start), Some(1));
        for ms in 1..60_000 {
            assert_eq!(untold.add(2, start + Duration::from_millis(ms)), None);
        }
        assert_eq!(untold.add(3, start + WARN_INTERVAL), Some(2 * 59_999 + 3));
        assert_eq!(untold.add(1, start + WARN_INTERVAL), None);
    }
}
