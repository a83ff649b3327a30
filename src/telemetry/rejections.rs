//! Refused readings by reason.

use metrics::Counter;

use super::instrument::{Instrument, Kind, Site};
use crate::wire::Code;

/// Why all readings of a request are refused, whatever they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestRejection {
    /// The body is larger than `http.max_body_bytes`.
    BodyTooLarge,
    /// The body is of a type or an encoding that is not known.
    UnsupportedMediaType,
    /// The body broke off, came too slowly, or could not be decompressed.
    InvalidBody,
    /// The log or the memory for bodies is full.
    Overloaded,
    /// There are more readings than `ingest.max_readings_per_request`.
    TooManyReadings,
    /// The readings are good, but others of the request are not and it asked for all or nothing.
    NotPartial,
    /// No token was shown that is good.
    Unauthorized,
    /// The token that was shown does not allow to write.
    Forbidden,
    /// The datagram has to be signed and is not.
    SignatureRequired,
    /// The signature of the datagram is not that of its content.
    BadSignature,
    /// The key that the datagram is signed with is not known.
    UnknownKey,
    /// The key that the datagram is signed with was good once.
    ExpiredKey,
}

impl RequestRejection {
    /// All reasons, so that each has its metric from the start.
    pub const ALL: [Self; 12] = [
        Self::BodyTooLarge,
        Self::UnsupportedMediaType,
        Self::InvalidBody,
        Self::Overloaded,
        Self::TooManyReadings,
        Self::NotPartial,
        Self::Unauthorized,
        Self::Forbidden,
        Self::SignatureRequired,
        Self::BadSignature,
        Self::UnknownKey,
        Self::ExpiredKey,
    ];

    /// The reason as it is written in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BodyTooLarge => "body_too_large",
            Self::UnsupportedMediaType => "unsupported_media_type",
            Self::InvalidBody => "invalid_body",
            Self::Overloaded => "overloaded",
            Self::TooManyReadings => "too_many_readings",
            Self::NotPartial => "not_partial",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::SignatureRequired => "signature_required",
            Self::BadSignature => "bad_signature",
            Self::UnknownKey => "unknown_key",
            Self::ExpiredKey => "expired_key",
        }
    }
}

/// A counter per reason, found without a lookup.
#[derive(Debug)]
pub struct Rejections {
    by_code: [Counter; Code::ALL.len()],
    by_request: [Counter; RequestRejection::ALL.len()],
}

impl Rejections {
    /// Readings that are bad by themselves.
    pub const fn of(&self, code: Code) -> &Counter {
        &self.by_code[code as usize]
    }

    /// Readings of a request that is refused as a whole.
    pub const fn of_request(&self, reason: RequestRejection) -> &Counter {
        &self.by_request[reason as usize]
    }
}

impl Instrument for Rejections {
    const KIND: Kind = Kind::Counter;

    fn at(site: Site) -> Self {
        Self {
            by_code: Code::ALL.map(|code| Counter::at(site.with(code.as_str()))),
            by_request: RequestRejection::ALL.map(|reason| Counter::at(site.with(reason.as_str()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Metrics, Protocol};
    use super::*;

    #[test]
    fn each_reason_counts_under_its_own_name() {
        let (metrics, exposition) = Metrics::new();
        let rejected = metrics.readings_rejected_total.of(Protocol::Http);
        let mut expected = Vec::new();
        for (count, code) in (1..).zip(Code::ALL) {
            rejected.of(code).increment(count);
            expected.push((code.as_str(), count));
        }
        for (count, reason) in (100..).zip(RequestRejection::ALL) {
            rejected.of_request(reason).increment(count);
            expected.push((reason.as_str(), count));
        }
        let text = exposition.render();
        for (reason, count) in expected {
            let line = format!("tidegauge_readings_rejected_total{{protocol=\"http\",reason=\"{reason}\"}} {count}\n");
            assert!(text.contains(&line), "{line} in\n{text}");
        }
    }
}
