//! `POST /api/v1/write`: Prometheus remote write, versions 1.0 and 2.0.
//!
//! Senders repeat a request after a status of 5xx and drop it after 4xx. They repeat it after 429 only if
//! configured so. A request with rejected samples gets 400: its other samples are stored, and the sender does
//! not repeat the rejected ones forever. Answers are plain text, which senders log.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};

use super::receive::{IngestOutcome, IngestRequest, receive_readings};
use super::samples::{self, SampleCounter, SampleCounts, described};
use crate::access::Grant;
use crate::config::RemoteWrite;
use crate::http::App;
use crate::http::openapi::{Operation, Tag};
use crate::http::problem::{Problem, ProblemCode, Refusals, set_retry_after};
use crate::http::request::body::media_type;
use crate::http::request::params::Params;
use crate::ingest::{Admission, Receipt, RefusalReason};
use crate::wire::remote_write::{self, Options, Version};
use crate::wire::{Code, Format, Protocol};

/// Headers of version 2.0: the numbers of stored samples, histograms, exemplars.
const WRITTEN: [HeaderName; 3] = [
    HeaderName::from_static("x-prometheus-remote-write-samples-written"),
    HeaderName::from_static("x-prometheus-remote-write-histograms-written"),
    HeaderName::from_static("x-prometheus-remote-write-exemplars-written"),
];

/// Describes `POST /api/v1/write`.
pub(in crate::http) fn describe() -> Operation {
    Operation::post(Tag::Protocols, "remoteWrite", "Write samples with Prometheus remote write")
        .description("Versions 1.0 and 2.0, compressed with snappy.")
        .binary_body("application/x-protobuf")
        .answers_nothing(204, "All samples are durable.")
        .takes_readings()
        .problems(&[ProblemCode::InvalidRemoteWrite])
}

/// `POST /api/v1/write`: stores samples.
pub(in crate::http) async fn write(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let version = match Params::of(&uri, &[]).end().and_then(|()| version_of(&headers)) {
        Ok(version) => version,
        Err(problem) => {
            if problem.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE {
                app.ingest.count_refused_request(Protocol::RemoteWrite, RefusalReason::UnsupportedMediaType);
            }
            return failed(&problem);
        }
    };
    let parse = move |app: &App, bytes: &[u8], admission: &mut Admission<'_>| {
        let RemoteWrite { device_labels, metadata_labels } = &app.formats.remote_write;
        let mut counter = SampleCounter::new(admission);
        remote_write::parse(bytes, &Options { version, device_labels, metadata_labels }, &mut counter)
            .map(|()| counter.counts)
            .map_err(|error| (Code::InvalidRemoteWrite, Problem::invalid_remote_write(&error)))
    };
    let request =
        IngestRequest { app: &app, grant: &grant, format: Format::RemoteWrite, headers: &headers, body, partial: true };
    let (mut response, written) = match receive_readings(request, parse).await {
        Ok(IngestOutcome { parsed, .. }) if parsed.rejected == 0 => (StatusCode::NO_CONTENT.into_response(), parsed),
        Ok(IngestOutcome { receipt, parsed, .. }) => (rejected(&receipt, parsed), parsed),
        Err(problem) => (failed(&problem), SampleCounts::default()),
    };
    if version == Version::V2 {
        let SampleCounts { accepted, histograms, .. } = written;
        for (name, count) in WRITTEN.into_iter().zip([accepted - histograms, histograms, 0]) {
            response.headers_mut().insert(name, HeaderValue::from(count));
        }
    }
    response
}

/// Reads the version of the protobuf message from the content type.
fn version_of(headers: &HeaderMap) -> Result<Version, Problem> {
    const EXPECTED: &str = "application/x-protobuf, or application/x-protobuf;proto=io.prometheus.write.v2.Request";
    let (essence, value) = media_type(headers);
    let is_protobuf = essence.eq_ignore_ascii_case("application/x-protobuf");
    let proto = value.split(';').find_map(|part| {
        let (name, proto) = part.split_once('=')?;
        name.trim().eq_ignore_ascii_case("proto").then_some(proto.trim().trim_matches('"'))
    });
    let versions = [Version::V1, Version::V2];
    let named = |proto: &str| versions.into_iter().find(|version| version.message() == proto);
    let version = if is_protobuf { proto.map_or(Some(Version::V1), named) } else { None };
    version.ok_or_else(|| Problem::expected_media_type(EXPECTED, value))
}

/// The answer to a refused request.
pub(in crate::http) fn failed(problem: &Problem) -> Response {
    samples::failed(problem, |status, detail| (status, format!("{detail}\n")).into_response())
}

/// The answer to a request with rejected samples; the others are stored.
fn rejected(receipt: &Receipt, counts: SampleCounts) -> Response {
    let is_for_now = receipt.retry_after.is_some();
    let status = if is_for_now { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::BAD_REQUEST };
    let mut response = (status, format!("{}\n", described(receipt, counts))).into_response();
    set_retry_after(&mut response, receipt.retry_after);
    response.extensions_mut().insert(Refusals(receipt.refusals()));
    response
}

#[cfg(test)]
mod tests {
    use axum::http::header;

    use super::*;

    #[test]
    fn the_content_type_names_the_message() {
        let version =
            |value| version_of(&[(header::CONTENT_TYPE, HeaderValue::from_static(value))].into_iter().collect());
        for value in [
            "application/x-protobuf",
            "Application/X-Protobuf; charset=utf-8",
            "application/x-protobuf;proto=prometheus.WriteRequest",
        ] {
            assert_eq!(version(value).expect(value), Version::V1);
        }
        for value in [
            "application/x-protobuf;proto=io.prometheus.write.v2.Request",
            "application/x-protobuf; proto=\"io.prometheus.write.v2.Request\"",
        ] {
            assert_eq!(version(value).expect(value), Version::V2);
        }
        for value in ["", "application/json", "application/x-protobuf;proto=io.prometheus.write.v3.Request"] {
            assert_eq!(version(value).expect_err(value).status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
        }
    }
}
