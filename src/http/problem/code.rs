//! The codes of problems, with their status and title.

use axum::http::StatusCode;

/// The stable code of a problem, by which clients tell errors apart.
///
/// docs/http-api.md lists all codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[cfg_attr(test, derive(strum::EnumIter))]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(in crate::http) enum ProblemCode {
    BodyTimeout,
    BodyTooLarge,
    DeletionUnsupported,
    DeviceForbidden,
    DeviceIndexIncomplete,
    Forbidden,
    ForeignOrigin,
    ForwardLoop,
    HostNotAllowed,
    HttpVersionNotSupported,
    Internal,
    InvalidBody,
    InvalidHost,
    InvalidJson,
    InvalidMetadata,
    InvalidOtlp,
    InvalidParameter,
    InvalidRemoteRead,
    InvalidRemoteWrite,
    InvalidSenml,
    LengthRequired,
    LogFailed,
    MethodNotAllowed,
    NotAcceptable,
    NotFound,
    Overloaded,
    PartiallyRejected,
    PreconditionFailed,
    QueryTimeout,
    RangeTooLong,
    RateLimited,
    ReadingsExpired,
    Rejected,
    RequestTooLarge,
    StoreUnavailable,
    TooManyColumns,
    TooManyConnections,
    TooManyDevices,
    TooManyPoints,
    TooManyReadings,
    TooManyValues,
    Unauthorized,
    UnknownDevice,
    UnsupportedMediaType,
    UnsupportedSenml,
}

impl ProblemCode {
    /// Returns the code as clients read it, such as `body_too_large`.
    pub(in crate::http) const fn as_str(self) -> &'static str {
        self.into_str()
    }

    /// Returns the title as people read it, such as `Body too large`.
    pub(super) const fn title(self) -> &'static str {
        self.status_and_title().1
    }

    /// Returns the status of an answer with this code.
    pub(in crate::http) const fn status(self) -> StatusCode {
        self.status_and_title().0
    }

    const fn status_and_title(self) -> (StatusCode, &'static str) {
        match self {
            Self::InvalidBody => (StatusCode::BAD_REQUEST, "Invalid body"),
            Self::InvalidHost => (StatusCode::BAD_REQUEST, "Invalid host"),
            Self::InvalidJson => (StatusCode::BAD_REQUEST, "Invalid JSON"),
            Self::InvalidMetadata => (StatusCode::BAD_REQUEST, "Invalid metadata"),
            Self::InvalidOtlp => (StatusCode::BAD_REQUEST, "Invalid OTLP"),
            Self::InvalidParameter => (StatusCode::BAD_REQUEST, "Invalid parameter"),
            Self::InvalidRemoteRead => (StatusCode::BAD_REQUEST, "Invalid remote read"),
            Self::InvalidRemoteWrite => (StatusCode::BAD_REQUEST, "Invalid remote write"),
            Self::InvalidSenml | Self::UnsupportedSenml => (StatusCode::BAD_REQUEST, "Invalid SenML"),
            Self::PartiallyRejected | Self::Rejected => (StatusCode::BAD_REQUEST, "Readings rejected"),
            Self::RangeTooLong => (StatusCode::BAD_REQUEST, "Range too long"),
            Self::TooManyColumns => (StatusCode::BAD_REQUEST, "Too many columns"),
            Self::TooManyDevices => (StatusCode::BAD_REQUEST, "Too many devices"),
            Self::TooManyPoints => (StatusCode::BAD_REQUEST, "Too many points"),
            Self::TooManyValues => (StatusCode::BAD_REQUEST, "Too many values"),
            Self::ReadingsExpired => (StatusCode::BAD_REQUEST, "Readings expired"),
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "Unauthorized"),
            Self::DeviceForbidden => (StatusCode::FORBIDDEN, "Device forbidden"),
            Self::Forbidden => (StatusCode::FORBIDDEN, "Forbidden"),
            Self::ForeignOrigin => (StatusCode::FORBIDDEN, "Foreign origin"),
            Self::NotFound => (StatusCode::NOT_FOUND, "Nothing here"),
            Self::UnknownDevice => (StatusCode::NOT_FOUND, "Unknown device"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "Method not allowed"),
            Self::NotAcceptable => (StatusCode::NOT_ACCEPTABLE, "Not acceptable"),
            Self::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, "Body timeout"),
            Self::LengthRequired => (StatusCode::LENGTH_REQUIRED, "Length required"),
            Self::PreconditionFailed => (StatusCode::PRECONDITION_FAILED, "Precondition failed"),
            Self::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "Body too large"),
            Self::RequestTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "Request too large"),
            Self::TooManyReadings => (StatusCode::PAYLOAD_TOO_LARGE, "Too many readings"),
            Self::UnsupportedMediaType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "Unsupported media type"),
            Self::HostNotAllowed => (StatusCode::MISDIRECTED_REQUEST, "Host not allowed"),
            Self::RateLimited => (StatusCode::TOO_MANY_REQUESTS, "Rate limited"),
            Self::HttpVersionNotSupported => (StatusCode::HTTP_VERSION_NOT_SUPPORTED, "HTTP version not supported"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "Internal error"),
            Self::DeletionUnsupported => (StatusCode::NOT_IMPLEMENTED, "Deletion unsupported"),
            Self::DeviceIndexIncomplete => (StatusCode::SERVICE_UNAVAILABLE, "Device index incomplete"),
            Self::LogFailed => (StatusCode::SERVICE_UNAVAILABLE, "Log failed"),
            Self::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "Overloaded"),
            Self::QueryTimeout => (StatusCode::SERVICE_UNAVAILABLE, "Query timeout"),
            Self::StoreUnavailable => (StatusCode::SERVICE_UNAVAILABLE, "Store unavailable"),
            Self::TooManyConnections => (StatusCode::SERVICE_UNAVAILABLE, "Too many connections"),
            Self::ForwardLoop => (StatusCode::LOOP_DETECTED, "Forward loop"),
        }
    }
}
