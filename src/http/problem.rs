//! Errors as RFC 9457 problem documents, each with a stable code.
//!
//! This room makes all of them: the problems of errors of other rooms in `of_error`, all others here.

use std::fmt::Display;
use std::num::NonZeroU32;
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::serve::client_disconnect::GRACE;
use super::write::receipt_notes::ReceiptNotes;
use crate::telemetry::{Limit, RefusalEntry, What};
use crate::wire::json::SyntaxError;
use crate::wire::otlp::OtlpError;
use crate::wire::remote_write::RemoteWriteError;
use crate::wire::senml::SenmlError;

mod code;
mod of_error;
#[cfg(test)]
mod tests;

pub(super) use code::ProblemCode;

/// The `Retry-After` of a shortage that ends within moments.
///
/// Examples are memory for bodies, connections, and a store that is slow to answer.
pub(super) const MOMENT: Duration = Duration::from_secs(1);

/// The `Retry-After` of a refusal that lasts until the store is back.
const STORE_AWAY: Duration = Duration::from_secs(10);

/// A problem: the document, and notes for headers, metrics and the log.
#[derive(Debug)]
pub(super) struct Problem {
    code: ProblemCode,
    detail: String,
    /// The counts of accepted and rejected readings, if some were rejected.
    counts: Option<Box<Counts>>,
    /// The `Retry-After`, if a later try may succeed.
    retry_after: Option<Duration>,
    /// The limit that the request has reached, which the metrics count.
    limit: Option<Limit>,
    /// The refusals for the log; `None`: one refusal, with the code and the detail.
    refusals: Option<Box<Refusals>>,
    /// Why the server failed, for the log.
    internal: Option<Box<str>>,
}

/// Why a request is refused (RFC 9457).
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub(super) struct Document<'a> {
    /// The status of the answer.
    status: u16,
    /// The code as people read it.
    title: &'static str,
    /// The reason, which does not change.
    code: &'static str,
    /// The reason in words, with the limit and the way out.
    detail: &'a str,
    #[serde(flatten)]
    #[schema(ignore)]
    counts: Option<&'a Counts>,
}

/// The refusals of one answer, for the log.
#[derive(Debug, Clone)]
pub(super) struct Refusals(pub(super) Vec<RefusalEntry>);

/// Why the server failed, for the log. The client does not see it.
#[derive(Debug, Clone)]
pub(super) struct InternalError(pub(super) Box<str>);

/// The accepted and rejected readings of a request of which some are rejected.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Counts {
    /// The accepted readings.
    accepted: u32,
    /// The rejected readings.
    rejected: u32,
    /// The values that are rejected alone.
    #[serde(rename = "rejectedValues", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u32)]
    rejected_values: Option<NonZeroU32>,
    #[serde(flatten)]
    notes: ReceiptNotes,
    /// The first rejected readings and values.
    errors: Vec<Error>,
}

/// Why a reading or a value is rejected.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Rejection)]
struct Error {
    /// The place of the reading in the request, from 0.
    index: u32,
    /// The line in NDJSON, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    line: Option<u64>,
    /// The reason, which does not change.
    code: &'static str,
    /// The reason in words, with the place.
    detail: String,
}

impl Problem {
    fn new(code: ProblemCode, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self { code, detail, counts: None, retry_after: None, limit: None, refusals: None, internal: None }
    }

    fn after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }

    fn at(self, limit: Limit) -> Self {
        Self { limit: Some(limit), ..self }
    }

    pub(super) const fn status(&self) -> StatusCode {
        self.code.status()
    }

    #[cfg(test)]
    pub(super) const fn code(&self) -> ProblemCode {
        self.code
    }

    pub(super) fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns the problem document as JSON.
    pub(super) fn to_json(&self) -> Vec<u8> {
        let Self { code, detail, counts, .. } = self;
        let (status, title) = (code.status().as_u16(), code.title());
        let document = Document { status, title, code: code.as_str(), detail, counts: counts.as_deref() };
        serde_json::to_vec(&document).unwrap_or_default()
    }

    /// Adds to `response` its `Retry-After`, and notes for metrics and log.
    ///
    /// The middleware of metrics and log finds the limit, the refusals and the error of the server in the
    /// extensions of the response.
    pub(super) fn mark(&self, response: &mut Response) {
        set_retry_after(response, self.retry_after);
        if self.code == ProblemCode::LengthRequired {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let of_request = || {
            let (code, example) = (self.code.as_str(), self.detail.clone());
            Refusals(vec![RefusalEntry { what: What::Requests, code, count: 1, example }])
        };
        response.extensions_mut().insert(self.code);
        response.extensions_mut().insert(self.refusals.as_deref().cloned().unwrap_or_else(of_request));
        if let Some(limit) = self.limit {
            response.extensions_mut().insert(limit);
        }
        if let Some(error) = &self.internal {
            response.extensions_mut().insert(InternalError(error.clone()));
        }
    }

    /// Refuses a sender that has reached a limit of its token.
    pub(super) fn rate_limited(limit: Limit, wait: Duration) -> Self {
        let detail = format!("more was sent with this token than {} allows; try again later", limit.key());
        Self::new(ProblemCode::RateLimited, detail).after(wait).at(limit)
    }

    /// Refuses a sender that has reached its rate of readings.
    ///
    /// Admission has counted this limit already.
    pub(super) fn readings_rate_limited(retry_after: Duration) -> Self {
        Self { limit: None, ..Self::rate_limited(Limit::TokenReadings, retry_after) }
    }

    pub(super) fn not_found(path: &str) -> Self {
        let detail = match path {
            "/api/v2/query" => "tidegauge does not speak Flux; it answers InfluxQL at /query".to_owned(),
            _ => format!("there is nothing at {path}"),
        };
        Self::new(ProblemCode::NotFound, detail)
    }

    pub(super) fn method_not_allowed() -> Self {
        let detail = "this path does not take that method; see the Allow header";
        Self::new(ProblemCode::MethodNotAllowed, detail)
    }

    pub(super) fn unauthorized(detail: impl Into<String>) -> Self {
        Self::new(ProblemCode::Unauthorized, detail)
    }

    pub(super) fn forbidden(detail: String) -> Self {
        Self::new(ProblemCode::Forbidden, detail)
    }

    pub(super) fn forward_loop() -> Self {
        let detail = "this server has sent the request itself, so its forward.url leads back to it; name the other \
                      server, and restart";
        Self::new(ProblemCode::ForwardLoop, detail)
    }

    pub(super) fn client_left() -> Self {
        let detail = format!("the client has closed its side for {GRACE:?}; leave it open until the answer");
        Self::new(ProblemCode::QueryTimeout, detail).after(MOMENT)
    }

    pub(super) fn unknown_device(device: &str) -> Self {
        Self::new(ProblemCode::UnknownDevice, format!("no reading of device \"{device}\" is known"))
    }

    /// Refuses a deletion or a change of metadata because too many wait for the store.
    pub(super) fn too_many_waiting(error: &impl Display) -> Self {
        Self::new(ProblemCode::Overloaded, error.to_string()).after(STORE_AWAY)
    }

    pub(super) fn invalid_metadata(why: impl Into<String>) -> Self {
        Self::new(ProblemCode::InvalidMetadata, why)
    }

    /// Adds the line of the body in which the problem is.
    pub(super) fn in_line(self, line: usize) -> Self {
        Self { detail: format!("line {line}: {}", self.detail), ..self }
    }

    pub(super) fn precondition_failed(why: &str) -> Self {
        Self::new(ProblemCode::PreconditionFailed, why)
    }

    pub(super) fn deletion_unsupported(why: &str) -> Self {
        Self::new(ProblemCode::DeletionUnsupported, why)
    }

    pub(super) fn invalid_parameter(name: &str, why: impl Display) -> Self {
        Self::new(ProblemCode::InvalidParameter, format!("{name}: {why}"))
    }

    pub(super) fn invalid_json(error: &SyntaxError) -> Self {
        Self::new(ProblemCode::InvalidJson, error.to_string())
    }

    pub(super) fn invalid_senml(error: &SenmlError) -> Self {
        let code = match error {
            SenmlError::Invalid(_) => ProblemCode::InvalidSenml,
            SenmlError::Unsupported(_) => ProblemCode::UnsupportedSenml,
        };
        Self::new(code, error.to_string())
    }

    pub(super) fn invalid_remote_read(why: &impl Display) -> Self {
        Self::new(ProblemCode::InvalidRemoteRead, why.to_string())
    }

    pub(super) fn invalid_remote_write(error: &RemoteWriteError) -> Self {
        Self::new(ProblemCode::InvalidRemoteWrite, error.to_string())
    }

    pub(super) fn invalid_otlp(error: &OtlpError) -> Self {
        Self::new(ProblemCode::InvalidOtlp, error.to_string())
    }

    pub(super) fn too_many_connections(max: usize) -> Self {
        let detail = format!("{max} connections are open (http.max_connections); try again later");
        Self::new(ProblemCode::TooManyConnections, detail).after(MOMENT)
    }

    /// Refuses a query because all running queries together have reached `limit`.
    pub(super) fn too_many_queries(limit: Limit) -> Self {
        let detail = format!("the running queries have reached {}; try again later", limit.key());
        Self::new(ProblemCode::Overloaded, detail).after(MOMENT).at(limit)
    }

    /// Refuses a query because the queries of its token use their share of `limit`.
    pub(super) fn share_is_used(limit: Limit) -> Self {
        let detail = format!(
            "the running queries of this token have reached their share, three quarters of {}; try again later",
            limit.key()
        );
        Self::new(ProblemCode::RateLimited, detail).after(MOMENT).at(limit)
    }

    pub(super) fn unsupported_media_type(found: &str) -> Self {
        let is_form = found.starts_with("application/x-www-form-urlencoded");
        let hint = if is_form { " (curl -d sends this type; curl --json sends JSON)" } else { "" };
        let detail = format!(
            "expected application/json, application/x-ndjson, application/senml+json or application/senml+cbor, \
             found \"{found}\"{hint}"
        );
        Self::new(ProblemCode::UnsupportedMediaType, detail)
    }

    /// Refuses a client that accepts none of the media types that the path offers.
    pub(super) fn not_acceptable(offered: &[&str], accepted: &str) -> Self {
        let detail = format!("this path answers with {}, the request accepts \"{accepted}\"", offered.join(", "));
        Self::new(ProblemCode::NotAcceptable, detail)
    }

    /// Refuses to send a file to a client of HTTP/1.0.
    pub(super) fn file_over_http_1_0() -> Self {
        let detail = "a file needs HTTP/1.1, because HTTP/1.0 cannot show that an answer was interrupted; a proxy \
                      must use HTTP/1.1 too (nginx: proxy_http_version 1.1)";
        Self::new(ProblemCode::HttpVersionNotSupported, detail)
    }

    /// Refuses a body whose content type the path does not take.
    pub(super) fn expected_media_type(expected: &str, found: &str) -> Self {
        Self::new(ProblemCode::UnsupportedMediaType, format!("expected {expected}, found \"{found}\""))
    }

    pub(super) fn internal(why: impl Display) -> Self {
        let detail = "the server failed; its log has the reason, with the ID in the header x-request-id";
        Self { internal: Some(why.to_string().into()), ..Self::new(ProblemCode::Internal, detail) }
    }
}

/// Sets `Retry-After` to whole seconds: rounded up, and at least 1.
pub(super) fn set_retry_after(response: &mut Response, wait: Option<Duration>) {
    if let Some(wait) = wait {
        let seconds = wait.as_nanos().div_ceil(1_000_000_000).max(1);
        let seconds = HeaderValue::from(u64::try_from(seconds).unwrap_or(u64::MAX));
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let content_type = (header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        let mut response = (self.status(), [content_type], self.to_json()).into_response();
        self.mark(&mut response);
        response
    }
}
