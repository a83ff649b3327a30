//! Errors as RFC 9457 problem documents, each with a stable code. All of them are made here.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::browser::BrowserError;
use super::budget::Exhausted;
use crate::access::DeviceScopeError;
use crate::ingest::{IngestError, Listed, Receipt, RefusalReason};
use crate::log::AppendError;
use crate::query::QueryError;
use crate::telemetry::{Limit, RefusalEntry, What};

/// How long a client should wait where something is in short supply that comes back within moments: memory
/// for bodies, connections, a store that is there.
pub(super) const MOMENT: Duration = Duration::from_secs(1);

/// How long it should wait where nothing gets better before the store is back. It is not known when that will
/// be.
const STORE_AWAY: Duration = Duration::from_secs(10);

/// A problem document, and its status.
#[derive(Debug, Serialize)]
pub(super) struct Problem {
    #[serde(skip)]
    status: StatusCode,
    /// How long to wait before trying again, where that may help.
    #[serde(skip)]
    retry_after: Option<Duration>,
    /// The limit that was reached, if it was one that requests count towards.
    #[serde(skip)]
    limit: Option<Limit>,
    /// What the log has about it in place of code and detail.
    #[serde(skip)]
    refusals: Option<Box<Refusals>>,
    #[serde(rename = "status")]
    status_number: u16,
    title: &'static str,
    code: &'static str,
    detail: String,
    #[serde(flatten)]
    counts: Option<Box<Counts>>,
}

/// What was refused with an answer, for the log.
#[derive(Debug, Clone)]
pub(super) struct Refusals(pub(super) Vec<RefusalEntry>);

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
        let (status_number, detail) = (status.as_u16(), detail.into());
        Self {
            status,
            retry_after: None,
            limit: None,
            refusals: None,
            status_number,
            title,
            code,
            detail,
            counts: None,
        }
    }

    /// Something is not to be had for now.
    fn unavailable(title: &'static str, code: &'static str, detail: impl Into<String>, retry_after: Duration) -> Self {
        let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, title, code, detail);
        Self { retry_after: Some(retry_after), ..problem }
    }

    fn at(self, limit: Limit) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// Under which reason a request with this problem counts.
    pub(super) fn reason(&self) -> RefusalReason {
        match self.code {
            "body_too_large" => RefusalReason::BodyTooLarge,
            "overloaded" => RefusalReason::Overloaded,
            "rate_limited" => RefusalReason::RateLimited,
            "unsupported_media_type" => RefusalReason::UnsupportedMediaType,
            _ => RefusalReason::InvalidBody,
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

    /// What an answer with this problem has beside its body: when to try again, for the metrics which limit
    /// was reached, and for the log what was refused.
    pub(super) fn mark(&self, response: &mut Response) {
        set_retry_after(response, self.retry_after);
        if self.status == StatusCode::LENGTH_REQUIRED {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let of_request = || {
            let (code, example) = (self.code, self.detail.clone());
            Refusals(vec![RefusalEntry { what: What::Requests, code, count: 1, example }])
        };
        response.extensions_mut().insert(self.refusals.as_deref().cloned().unwrap_or_else(of_request));
        if let Some(limit) = self.limit {
            response.extensions_mut().insert(limit);
        }
    }

    /// More was sent with a token than it may send.
    pub(super) fn rate_limited(limit: Limit, retry_after: Duration) -> Self {
        let detail = format!("more was sent with this token than {} allows; try again later", limit.key());
        let problem = Self::new(StatusCode::TOO_MANY_REQUESTS, "Rate limited", "rate_limited", detail);
        Self { retry_after: Some(retry_after), ..problem }.at(limit)
    }

    /// The token has reached its rate of readings, which admission has counted.
    pub(super) fn readings_rate_limited(retry_after: Duration) -> Self {
        Self { limit: None, ..Self::rate_limited(Limit::TokenReadings, retry_after) }
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

    /// Nothing tells where the body ends. The connection is closed behind the answer.
    pub(super) fn length_required() -> Self {
        let detail = "the request has no body: it has neither Content-Length nor Transfer-Encoding: chunked";
        Self::new(StatusCode::LENGTH_REQUIRED, "Length required", "length_required", detail)
    }

    pub(super) fn body_timeout() -> Self {
        let detail = "the body did not arrive within http.body_timeout";
        Self::new(StatusCode::REQUEST_TIMEOUT, "Body timeout", "body_timeout", detail)
    }

    pub(super) fn body_too_large(max: usize) -> Self {
        let detail = format!("a body has at most {max} bytes, decompressed (http.max_body_bytes)");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "Body too large", "body_too_large", detail).at(Limit::BodyBytes)
    }

    pub(super) fn too_many_bytes(exhausted: Exhausted) -> Self {
        if exhausted == Exhausted::Token {
            return Self::rate_limited(Limit::TokenBytesInFlight, MOMENT);
        }
        let detail = "the bodies of all requests together have reached http.max_bytes_in_flight; try again later";
        Self::unavailable("Overloaded", "overloaded", detail, MOMENT).at(Limit::BytesInFlight)
    }

    pub(super) fn too_many_connections(max: usize) -> Self {
        let detail = format!("{max} connections are open (http.max_connections); try again later");
        Self::unavailable("Too many connections", "too_many_connections", detail, MOMENT)
    }

    /// The queries that are running have used up a limit of all queries.
    pub(super) fn too_many_queries(limit: Limit) -> Self {
        let detail = format!("the queries that are running have reached {}; try again later", limit.key());
        Self::unavailable("Overloaded", "overloaded", detail, MOMENT).at(limit)
    }

    fn query_timeout(limit: Duration) -> Self {
        let detail = format!("the query took longer than {limit:?} (query.timeout); ask for less, or try again later");
        Self::unavailable("Query timeout", "query_timeout", detail, MOMENT)
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

    /// Some readings of a request are refused, or all. Where some of them may come later, so should the
    /// request: what is accepted of it is not stored twice.
    pub(super) fn rejected(receipt: Receipt, partial: bool) -> Self {
        let refusals = Some(Box::new(Refusals(receipt.refusals())));
        let (rejected, received) = (receipt.rejected, receipt.received);
        let detail = match (receipt.accepted, partial) {
            (0, true) if received == 1 => "the reading is rejected".to_owned(),
            (0, true) => format!("all {received} readings are rejected"),
            (_, true) => format!("{rejected} of {received} readings are rejected; the others are accepted"),
            (_, false) => {
                format!("{rejected} of {received} readings are rejected; the request asked for all or nothing")
            }
        };
        let problem = if receipt.retry_after.is_some() {
            let for_now = receipt.listed.iter().find(|listed| listed.rejection.code.is_for_now());
            let why = for_now.map_or("some of them may come later", |listed| &listed.rejection.detail);
            let detail = format!("{detail}; send all of it again later: {why}");
            Self::new(StatusCode::TOO_MANY_REQUESTS, "Rate limited", "rate_limited", detail)
        } else {
            Self::new(StatusCode::BAD_REQUEST, "Readings rejected", "partially_rejected", detail)
        };
        let error = |Listed { index, line, rejection, .. }: Listed| Error {
            index,
            line,
            code: rejection.code.as_str(),
            detail: rejection.detail,
        };
        let errors = receipt.listed.into_iter().map(error).collect();
        let counts = Counts { accepted: receipt.accepted, rejected: receipt.rejected, errors };
        Self { counts: Some(Box::new(counts)), retry_after: receipt.retry_after, refusals, ..problem }
    }

    /// Nothing of a request was accepted. A log that is full gets emptier only when the store is there.
    pub(super) fn refused(error: IngestError, is_store_away: bool) -> Self {
        let detail = error.to_string();
        match error {
            IngestError::TooManyReadings(_) => {
                let problem =
                    Self::new(StatusCode::PAYLOAD_TOO_LARGE, "Too many readings", "too_many_readings", detail);
                problem.at(Limit::ReadingsPerRequest)
            }
            IngestError::TooLarge(_) => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "Request too large", "request_too_large", detail)
            }
            IngestError::NotPartial(receipt) => Self::rejected(*receipt, false),
            IngestError::RateLimited(error) => Self::readings_rate_limited(error.retry_after),
            IngestError::Overloaded(error) => {
                let wait = if is_store_away { STORE_AWAY } else { MOMENT };
                let problem = Self::unavailable("Overloaded", "overloaded", detail, wait);
                match error {
                    AppendError::DiskFull => problem.at(Limit::LogMinFree),
                    AppendError::OutOfFiles => problem,
                    _ => problem.at(Limit::LogBytes),
                }
            }
            IngestError::Failed(_) => {
                let detail = "the log takes nothing any more: its disk has failed, or the service is stopping";
                Self::unavailable("Log failed", "log_failed", detail, MOMENT)
            }
        }
    }
}

/// Whole seconds, at least one, and never less than there are.
pub(super) fn set_retry_after(response: &mut Response, wait: Option<Duration>) {
    if let Some(wait) = wait {
        let seconds = wait.as_nanos().div_ceil(1_000_000_000).max(1);
        let seconds = HeaderValue::from(u64::try_from(seconds).unwrap_or(u64::MAX));
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
}

impl From<&BrowserError> for Problem {
    fn from(error: &BrowserError) -> Self {
        let detail = error.to_string();
        match error {
            BrowserError::ForeignOrigin => Self::new(StatusCode::FORBIDDEN, "Foreign origin", "foreign_origin", detail),
            BrowserError::UnknownHost(_) => {
                Self::new(StatusCode::MISDIRECTED_REQUEST, "Host not allowed", "host_not_allowed", detail)
            }
            BrowserError::InvalidHost => Self::new(StatusCode::BAD_REQUEST, "Invalid host", "invalid_host", detail),
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
            QueryError::TooManyPoints { .. } => {
                Self::new(StatusCode::BAD_REQUEST, "Too many points", "too_many_points", detail)
            }
            QueryError::OutOfReach(DeviceScopeError::Forbidden(_)) => {
                Self::new(StatusCode::FORBIDDEN, "Device forbidden", "device_forbidden", detail)
            }
            QueryError::OutOfReach(DeviceScopeError::Invalid(_) | DeviceScopeError::TooLong(_)) => {
                Self::invalid_parameter("device", detail)
            }
            QueryError::TooManyDevices(_) => {
                Self::new(StatusCode::BAD_REQUEST, "Too many devices", "too_many_devices", detail)
            }
            QueryError::Timeout(limit) => Self::query_timeout(limit),
            QueryError::Store(_) | QueryError::StoreAway { .. } => {
                // What is wrong names hosts, which are not for everybody.
                let (code, told) = ("store_unavailable", "the store does not answer; try again later");
                let refusal = RefusalEntry { what: What::Queries, code, count: 1, example: detail };
                let problem = Self::unavailable("Store unavailable", code, told, MOMENT);
                Self { refusals: Some(Box::new(Refusals(vec![refusal]))), ..problem }
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let content_type = (header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        let mut response = (self.status, [content_type], body).into_response();
        self.mark(&mut response);
        response
    }
}
