//! Why whole requests and datagrams are refused.

use strum::{EnumIter, IntoStaticStr};

use crate::wire::Transport;

/// Why a request or a datagram is refused with all of its readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum RefusalReason {
    /// A parameter of the request is unknown or invalid.
    InvalidParameter,
    /// The body is larger than `http.max_body_bytes`.
    BodyTooLarge,
    /// The server does not know the type or the encoding of the body.
    UnsupportedMediaType,
    /// The body ended early, has no stated length, or could not be decompressed.
    InvalidBody,
    /// The body was not complete within `http.body_timeout`.
    BodyTimeout,
    /// The server failed while it handled the request.
    Internal,
    /// The log or the memory for bodies is full.
    Overloaded,
    /// The request has more readings than `ingest.max_readings_per_request`.
    TooManyReadings,
    /// The request asked for all or nothing, and some of its readings are rejected.
    NotPartial,
    /// A browser sent the request for a page of another site.
    ForeignOrigin,
    /// The host name in the request is not one of this server's.
    HostNotAllowed,
    /// The request has no header `Host`, or more than one.
    InvalidHost,
    /// The request has no valid token or certificate.
    Unauthorized,
    /// The token does not allow writing.
    Forbidden,
    /// This server has sent the request itself: `forward.url` leads back to it.
    ForwardLoop,
    /// The token or key has reached its rate, or the token its share of memory.
    RateLimited,
    /// The datagram must be signed and is not.
    SignatureRequired,
    /// The signature does not match the content of the datagram.
    BadSignature,
    /// The datagram is signed with an unknown key.
    UnknownKey,
    /// The datagram is signed with an expired key.
    ExpiredKey,
}

impl RefusalReason {
    /// The reason as metrics and log lines have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether a request or datagram that arrives by this transport may be refused for this reason.
    pub(super) const fn occurs_over(self, transport: Transport) -> bool {
        match self {
            Self::Overloaded | Self::RateLimited => true,
            Self::SignatureRequired | Self::BadSignature | Self::UnknownKey | Self::ExpiredKey => {
                matches!(transport, Transport::Udp)
            }
            _ => matches!(transport, Transport::Http),
        }
    }
}
