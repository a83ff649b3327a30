//! Refused readings by reason.

use std::sync::OnceLock;

use metrics::Counter;

use super::instrument::{Instrument, Kind, Protocol, Site};
use crate::wire::Code;

/// Why all readings of a request are refused, whatever they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalReason {
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
    /// A browser sent it for a page of another site.
    ForeignOrigin,
    /// It asks under a name that is not one of this server's.
    HostNotAllowed,
    /// It has no header `Host`, or more than one.
    InvalidHost,
    /// No token was shown that is good.
    Unauthorized,
    /// The token that was shown does not allow to write.
    Forbidden,
    /// More was sent with the token than it may send in that time, or than it may have in memory.
    RateLimited,
    /// The datagram has to be signed and is not.
    SignatureRequired,
    /// The signature of the datagram is not that of its content.
    BadSignature,
    /// The key that the datagram is signed with is not known.
    UnknownKey,
    /// The key that the datagram is signed with was good once.
    ExpiredKey,
}

impl RefusalReason {
    /// All reasons, so that each has its metric from the start.
    pub const ALL: [Self; 16] = [
        Self::BodyTooLarge,
        Self::UnsupportedMediaType,
        Self::InvalidBody,
        Self::Overloaded,
        Self::TooManyReadings,
        Self::NotPartial,
        Self::ForeignOrigin,
        Self::HostNotAllowed,
        Self::InvalidHost,
        Self::Unauthorized,
        Self::Forbidden,
        Self::RateLimited,
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
            Self::ForeignOrigin => "foreign_origin",
            Self::HostNotAllowed => "host_not_allowed",
            Self::InvalidHost => "invalid_host",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::RateLimited => "rate_limited",
            Self::SignatureRequired => "signature_required",
            Self::BadSignature => "bad_signature",
            Self::UnknownKey => "unknown_key",
            Self::ExpiredKey => "expired_key",
        }
    }
}

/// The refused readings of each way in.
#[derive(Debug)]
pub struct Rejections([ByReason; Protocol::ALL.len()]);

/// A counter per reason, found without a lookup. Those that can occur with the protocol are exported from the
/// start.
#[derive(Debug)]
pub struct ByReason {
    site: Site,
    by_code: [OnceLock<Counter>; Code::ALL.len()],
    by_request: [OnceLock<Counter>; RefusalReason::ALL.len()],
}

impl Rejections {
    /// The refused readings of a way in.
    pub const fn of(&self, protocol: Protocol) -> &ByReason {
        &self.0[protocol as usize]
    }
}

impl ByReason {
    /// Readings that are bad by themselves.
    pub fn of(&self, code: Code) -> &Counter {
        self.by_code[code as usize].get_or_init(|| Counter::at(self.site.with(code.as_str())))
    }

    /// Readings of a request that is refused as a whole.
    pub fn of_request(&self, reason: RefusalReason) -> &Counter {
        self.by_request[reason as usize].get_or_init(|| Counter::at(self.site.with(reason.as_str())))
    }

    fn at(site: Site, protocol: Protocol) -> Self {
        let all = Self {
            site,
            by_code: [const { OnceLock::new() }; Code::ALL.len()],
            by_request: [const { OnceLock::new() }; RefusalReason::ALL.len()],
        };
        for code in Code::ALL.into_iter().filter(|&code| has_code(protocol, code)) {
            all.of(code);
        }
        for reason in RefusalReason::ALL.into_iter().filter(|&reason| has_reason(protocol, reason)) {
            all.of_request(reason);
        }
        all
    }
}

/// Whether what comes in that way can be bad in this way.
const fn has_code(protocol: Protocol, code: Code) -> bool {
    match code {
        Code::InvalidJson => matches!(protocol, Protocol::Http | Protocol::Udp),
        Code::InvalidLine => matches!(protocol, Protocol::Influx | Protocol::Udp),
        Code::InvalidSenml | Code::UnsupportedSenml => matches!(protocol, Protocol::Senml),
        _ => true,
    }
}

/// Whether what comes in that way can be refused as a whole for this reason.
const fn has_reason(protocol: Protocol, reason: RefusalReason) -> bool {
    let is_udp = matches!(protocol, Protocol::Udp);
    match reason {
        RefusalReason::Overloaded => true,
        RefusalReason::SignatureRequired
        | RefusalReason::BadSignature
        | RefusalReason::UnknownKey
        | RefusalReason::ExpiredKey => is_udp,
        _ => !is_udp,
    }
}

impl Instrument for Rejections {
    const KIND: Kind = Kind::Counter;

    fn at(site: Site) -> Self {
        Self(Protocol::ALL.map(|protocol| ByReason::at(site.with(protocol.as_str()), protocol)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Metrics, Protocol};
    use super::*;

    #[test]
    fn a_way_in_starts_with_the_reasons_that_it_can_have() {
        let (_metrics, exposition) = Metrics::new();
        let text = exposition.render();
        for (protocol, reason, is_there) in [
            ("http", "invalid_json", true),
            ("http", "invalid_line", false),
            ("http", "not_partial", true),
            ("influx", "invalid_line", true),
            ("influx", "bad_signature", false),
            ("senml", "unsupported_senml", true),
            ("senml", "invalid_json", false),
            ("udp", "bad_signature", true),
            ("udp", "not_partial", false),
            ("udp", "overloaded", true),
        ] {
            let line = format!("tidegauge_readings_rejected_total{{protocol=\"{protocol}\",reason=\"{reason}\"}} 0\n");
            assert_eq!(text.contains(&line), is_there, "{line} in\n{text}");
        }
    }

    #[test]
    fn each_reason_counts_under_its_own_name() {
        let (metrics, exposition) = Metrics::new();
        let rejected = metrics.readings_rejected_total.of(Protocol::Http);
        let mut expected = Vec::new();
        for (count, code) in (1..).zip(Code::ALL) {
            rejected.of(code).increment(count);
            expected.push((code.as_str(), count));
        }
        for (count, reason) in (100..).zip(RefusalReason::ALL) {
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
