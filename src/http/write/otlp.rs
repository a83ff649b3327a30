//! `POST /v1/metrics`: OTLP over HTTP.
//!
//! Answers have the encoding of the request: an `ExportMetricsServiceResponse`, or a `google.rpc.Status` for
//! a refused request. OTLP clients repeat a request only after 429, 502, 503 and 504.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::receive::{IngestOutcome, IngestRequest, receive_readings};
use super::samples::{self, SampleCounter, SampleCounts, described};
use crate::access::Grant;
use crate::http::App;
use crate::http::openapi::{Operation, Tag};
use crate::http::problem::{Problem, ProblemCode, Refusals, set_retry_after};
use crate::http::request::body::media_type;
use crate::http::request::params::Params;
use crate::ingest::{Admission, Receipt, RefusalReason};
use crate::wire::otlp::{self, Options, answer};
use crate::wire::{Code, Format, Protocol};

/// The encoding of a request and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Encoding {
    Protobuf,
    Json,
}

/// A `google.rpc.Status` in JSON.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OtlpStatus)]
pub(in crate::http) struct Status<'a> {
    /// The `google.rpc.Code`, such as 8 for a rate limit.
    code: u8,
    /// The reason in words.
    message: &'a str,
}

/// An `ExportMetricsServiceResponse` in JSON.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = OtlpExported)]
struct Exported<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    partial_success: Option<PartialSuccess<'a>>,
}

/// The data points that are not stored.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = OtlpPartialSuccess)]
struct PartialSuccess<'a> {
    /// The number of rejected data points, as text: so protobuf writes it in JSON.
    rejected_data_points: String,
    /// Why the data points are rejected.
    error_message: &'a str,
}

/// Describes `POST /v1/metrics`.
pub(in crate::http) fn describe() -> Operation {
    let point = json!({ "timeUnixNano": "1776693610000000000", "asDouble": 22.5 });
    let metric = json!({ "name": "temp", "gauge": { "dataPoints": [point] } });
    let attribute = json!({ "key": "device.id", "value": { "stringValue": "otlp-1" } });
    let of_resource = json!({ "resource": { "attributes": [attribute] }, "scopeMetrics": [{ "metrics": [metric] }] });
    let schema = json!({
        "type": "object",
        "properties": { "resourceMetrics": { "type": ["array", "null"], "items": { "type": "object" } } },
    });
    Operation::post(Tag::Protocols, "exportMetrics", "Write data points with OTLP")
        .description("An `ExportMetricsServiceRequest` of OpenTelemetry.")
        .body("application/json", &schema, &json!({ "resourceMetrics": [of_resource] }))
        .binary_body("application/x-protobuf")
        .answers::<Exported<'_>>(200, "The data points are durable, except those that the answer names.")
        .answers_binary(200, "application/x-protobuf")
        .takes_readings()
        .problems(&[ProblemCode::InvalidOtlp])
}

/// `POST /v1/metrics`: stores data points.
pub(in crate::http) async fn metrics(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let encoding = match Params::of(&uri, &[]).end().and_then(|()| Encoding::expect(&headers)) {
        Ok(encoding) => encoding,
        Err(problem) => {
            if problem.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE {
                app.ingest.count_refused_request(Protocol::Otlp, RefusalReason::UnsupportedMediaType);
            }
            return Encoding::of(&headers).failed(&problem);
        }
    };
    let parse = move |app: &App, bytes: &[u8], admission: &mut Admission<'_>| {
        let options = Options { device_attributes: &app.formats.otlp.device_attributes };
        let mut counter = SampleCounter::new(admission);
        let parsed = match encoding {
            Encoding::Protobuf => otlp::parse_protobuf(bytes, &options, &mut counter),
            Encoding::Json => otlp::parse_json(bytes, &options, &mut counter),
        };
        parsed.map(|()| counter.counts).map_err(|error| (Code::InvalidOtlp, Problem::invalid_otlp(&error)))
    };
    let request =
        IngestRequest { app: &app, grant: &grant, format: Format::Otlp, headers: &headers, body, partial: true };
    match receive_readings(request, parse).await {
        Ok(IngestOutcome { receipt, parsed, .. }) => encoding.exported(&receipt, parsed),
        Err(problem) => encoding.failed(&problem),
    }
}

impl Encoding {
    /// The encoding of the answer: the request's, or protobuf if that is unknown.
    pub(in crate::http) fn of(headers: &HeaderMap) -> Self {
        Self::expect(headers).unwrap_or(Self::Protobuf)
    }

    fn expect(headers: &HeaderMap) -> Result<Self, Problem> {
        const ALL: [Encoding; 2] = [Encoding::Protobuf, Encoding::Json];
        let (essence, value) = media_type(headers);
        let known = ALL.into_iter().find(|encoding| essence.eq_ignore_ascii_case(encoding.media_type()));
        known.ok_or_else(|| Problem::expected_media_type("application/x-protobuf or application/json", value))
    }

    const fn media_type(self) -> &'static str {
        match self {
            Self::Protobuf => "application/x-protobuf",
            Self::Json => "application/json",
        }
    }

    /// Answers a request whose body was parsed.
    ///
    /// The status is 429 at a rate limit, 400 if all data points are rejected, else 200.
    fn exported(self, receipt: &Receipt, counts: SampleCounts) -> Response {
        let message = if counts.rejected > 0 { described(receipt, counts) } else { String::new() };
        let mut response = if receipt.retry_after.is_some() {
            self.status(StatusCode::TOO_MANY_REQUESTS, &message)
        } else if receipt.accepted == 0 && counts.rejected > 0 {
            self.status(StatusCode::BAD_REQUEST, &message)
        } else {
            self.success(counts.rejected, &message)
        };
        set_retry_after(&mut response, receipt.retry_after);
        if counts.rejected > 0 {
            response.extensions_mut().insert(Refusals(receipt.refusals()));
        }
        response
    }

    /// The answer to a refused request.
    pub(in crate::http) fn failed(self, problem: &Problem) -> Response {
        samples::failed(problem, |status, message| self.status(status, message))
    }

    fn success(self, rejected: u64, message: &str) -> Response {
        let body = match self {
            Self::Protobuf => answer::success(rejected, message),
            Self::Json => {
                let partial_success = (rejected > 0)
                    .then(|| PartialSuccess { rejected_data_points: rejected.to_string(), error_message: message });
                serde_json::to_vec(&Exported { partial_success }).unwrap_or_default()
            }
        };
        self.response(StatusCode::OK, body)
    }

    fn status(self, status: StatusCode, message: &str) -> Response {
        let code = code_of(status);
        let body = match self {
            Self::Protobuf => answer::status(code, message),
            Self::Json => serde_json::to_vec(&Status { code, message }).unwrap_or_default(),
        };
        self.response(status, body)
    }

    fn response(self, status: StatusCode, body: Vec<u8>) -> Response {
        let content_type = (header::CONTENT_TYPE, HeaderValue::from_static(self.media_type()));
        (status, [content_type], body).into_response()
    }
}

/// Translates a status of HTTP to a `google.rpc.Code`.
const fn code_of(status: StatusCode) -> u8 {
    match status {
        StatusCode::UNAUTHORIZED => 16,
        StatusCode::FORBIDDEN | StatusCode::MISDIRECTED_REQUEST => 7,
        StatusCode::NOT_FOUND => 5,
        StatusCode::TOO_MANY_REQUESTS => 8,
        StatusCode::SERVICE_UNAVAILABLE => 14,
        StatusCode::INTERNAL_SERVER_ERROR => 13,
        _ => 3,
    }
}
