//! Errors as RFC 9457 problem documents, each with a stable code. All of them are made here.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::access::ReachError;
use crate::ingest::{Listed, Receipt, Refused};
use crate::query::QueryError;
use crate::telemetry::RequestRejection;

/// How long a client should wait before it tries again, in seconds.
const RETRY_AFTER_SECONDS: u32 = 1;

/// A problem document, and its status.
#[derive(Debug, Serialize)]
pub(super) struct Problem {
    #[serde(skip)]
    status: StatusCode,
    #[serde(skip)]
    retry: bool,
    #[serde(rename = "status")]
    status_number: u16,
    title: &'static str,
    code: &'static str,
    detail: String,
    #[serde(flatten)]
    counts: Option<Counts>,
}

#[derive(Debug, Serialize)]
struct Counts {
    accepted: u32,
    rejected: u32,
    errors: Vec<Error>,
}

#[derive(Debug, Serialize)]
struct Error {
    index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    code: &'static str,
    detail: String,
}

impl Problem {
    fn new(status: StatusCode, title: &'static str, code: &'static str, detail: impl Into<String>) -> Self {
        let retry = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        Self { status, retry, status_number: status.as_u16(), title, code, detail: detail.into(), counts: None }
    }

    /// Under which reason a request with this problem counts.
    pub(super) fn reason(&self) -> RequestRejection {
        match self.code {
            "body_too_large" => RequestRejection::BodyTooLarge,
            "overloaded" => RequestRejection::Overloaded,
            "unsupported_media_type" => RequestRejection::UnsupportedMediaType,
            _ => RequestRejection::InvalidBody,
        }
    }

    pub(super) const fn status(&self) -> StatusCode {
        self.status
    }

    #[cfg(test)]
    pub(super) const fn code(&self) -> &'static str {
        self.code
    }

    pub(super) fn detail(&self) -> &str {
        &self.detail
    }

    /// How long to wait before trying again, where that may help.
    pub(super) fn retry_after(&self) -> Option<HeaderValue> {
        self.retry.then(|| HeaderValue::from(RETRY_AFTER_SECONDS))
    }

    pub(super) fn not_found(path: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "Nothing here", "not_found", format!("there is nothing at {path}"))
    }

    pub(super) fn method_not_allowed() -> Self {
        let detail = "this path does not take that method; see the Allow header";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed", "method_not_allowed", detail)
    }

    pub(super) fn unauthorized(detail: String) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "unauthorized", detail)
    }

    pub(super) fn forbidden(detail: String) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", "forbidden", detail)
    }

    pub(super) fn unknown_device(device: &str) -> Self {
        let detail = format!("no reading of device \"{device}\" is known");
        Self::new(StatusCode::NOT_FOUND, "Unknown device", "unknown_device", detail)
    }

    pub(super) fn invalid_parameter(name: &str, why: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "Invalid parameter", "invalid_parameter", format!("{name}: {why}"))
    }

    pub(super) fn invalid_json(error: &crate::wire::json::SyntaxError) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "Invalid JSON", "invalid_json", error.to_string())
    }

    pub(super) fn invalid_senml(error: &crate::wire::senml::SenmlError) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "Invalid SenML", error.code().as_str(), error.to_string())
    }

    pub(super) fn body_broken(why: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "Invalid body", "invalid_body", why)
    }

    pub(super) fn body_timeout() -> Self {
        let detail = "the body did not arrive within http.body_timeout";
        Self::new(StatusCode::REQUEST_TIMEOUT, "Body timeout", "body_timeout", detail)
    }

    pub(super) fn body_too_large(max: usize) -> Self {
        let detail = format!("a body has at most {max} bytes, decompressed (http.max_body_bytes)");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "Body too large", "body_too_large", detail)
    }

    pub(super) fn too_many_bytes() -> Self {
        let detail = "the bodies of all requests together have reached http.max_bytes_in_flight; try again later";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "Overloaded", "overloaded", detail)
    }

    pub(super) fn unsupported_media_type(found: &str) -> Self {
        let detail = format!(
            "expected application/json, application/x-ndjson, application/senml+json or application/senml+cbor, found \"{found}\""
        );
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Unsupported media type", "unsupported_media_type", detail)
    }

    pub(super) fn unsupported_encoding(found: &str) -> Self {
        let detail = format!("expected Content-Encoding gzip, zstd or deflate, found \"{found}\"");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Unsupported encoding", "unsupported_media_type", detail)
    }

    pub(super) fn internal(why: &str) -> Self {
        tracing::error!(error = why, "a request failed");
        let detail = "the server failed; its log says more";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "Internal error", "internal", detail)
    }

    /// Some readings of a request are refused, or all.
    pub(super) fn rejected(receipt: Receipt, detail: String) -> Self {
        let error = |Listed { index, line, rejection }: Listed| Error {
            index,
            line,
            code: rejection.code.as_str(),
            detail: rejection.detail,
        };
        let errors = receipt.listed.into_iter().map(error).collect();
        let counts = Counts { accepted: receipt.accepted, rejected: receipt.rejected, errors };
        let problem = Self::new(StatusCode::BAD_REQUEST, "Readings rejected", "partially_rejected", detail);
        Self { counts: Some(counts), ..problem }
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        let detail = refused.to_string();
        match refused {
            Refused::TooManyReadings(_) => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "Too many readings", "too_many_readings", detail)
            }
            Refused::NotPartial(receipt) => Self::rejected(receipt, detail),
            Refused::Overloaded(_) => Self::new(StatusCode::SERVICE_UNAVAILABLE, "Overloaded", "overloaded", detail),
            Refused::Failed(_) => {
                let detail = "the log takes nothing any more: its disk has failed, or the service is stopping";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "Log failed", "log_failed", detail)
            }
        }
    }
}

impl From<QueryError> for Problem {
    fn from(error: QueryError) -> Self {
        let detail = error.to_string();
        match error {
            QueryError::RangeTooLong { .. } => {
                Self::new(StatusCode::BAD_REQUEST, "Range too long", "range_too_long", detail)
            }
            QueryError::TooManyPoints(_) => {
                Self::new(StatusCode::BAD_REQUEST, "Too many points", "too_many_points", detail)
            }
            QueryError::OutOfReach(ReachError::Forbidden(_)) => {
                Self::new(StatusCode::FORBIDDEN, "Device forbidden", "device_forbidden", detail)
            }
            QueryError::OutOfReach(ReachError::TooLong { .. }) => Self::invalid_parameter("device", detail),
            QueryError::TooManyDevices(_) => {
                Self::new(StatusCode::BAD_REQUEST, "Too many devices", "too_many_devices", detail)
            }
            QueryError::Store(_) => {
                tracing::warn!(error = detail, "a query was not answered"); // it names hosts, which are not for everybody
                let detail = "the store does not answer; try again later";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "Store unavailable", "store_unavailable", detail)
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let retry_after = self.retry_after();
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let content_type = (header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        let mut response = (self.status, [content_type], body).into_response();
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}
