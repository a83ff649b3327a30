//! The body and headers of each error, as its clients receive them.

use std::fmt::Write;

use axum::body::to_bytes;
use axum::http::header;
use strum::IntoEnumIterator;

use super::*;
use crate::access::{AuthError, DeviceScopeError};
use crate::flush::{ChangeError, DeletionError};
use crate::http::access::cross_site::CrossSiteError;
use crate::http::request::body::BodyError;
use crate::http::write::influx::Version;
use crate::ingest::{IngestError, Listed, RateLimitedError, Receipt};
use crate::limits::Exhausted;
use crate::log::AppendError;
use crate::model::check_device_id;
use crate::query::QueryError;
use crate::store::{Cause, StoreError};
use crate::wire::remote_read::RemoteReadError;
use crate::wire::{Code, ProtobufError, Rejection};

/// The receipt of a request with one rejected reading.
///
/// With `wait`, a rate has rejected it.
fn receipt(accepted: u32, wait: Option<Duration>) -> Receipt {
    let (code, detail) = match wait {
        Some(_) => (Code::DeviceRateLimited, "device \"S1\" sends too fast"),
        None => (Code::InvalidValue, "expected a number, found a string"),
    };
    let rejection = Rejection { code, detail: detail.to_owned() };
    let mut receipt = Receipt::default();
    (receipt.received, receipt.accepted, receipt.rejected) = (accepted + 1, accepted, 1);
    receipt.listed =
        vec![Listed { is_value: false, index: accepted, line: Some(2), device: Some("S1".into()), rejection }];
    receipt.retry_after = wait;
    receipt
}

/// Returns the problems that only queries for rollups have.
fn of_rollups(code: ProblemCode) -> Vec<Problem> {
    let [hour, after] = ["2026-04-20T18:00:00.000Z", "2026-04-20T19:00:00.000Z"].map(str::to_owned);
    let expired = |increases| QueryError::ReadingsExpired { hour: hour.clone(), after: after.clone(), increases };
    let errors = match code {
        ProblemCode::TooManyPoints => vec![
            QueryError::TooManyPoints { max: 100_000, found: 100_001, fits: ", such as 2h".into() },
            QueryError::TooManySteps { max: 100_000, found: 129_600, step: "1m".into(), hours: 1_666 },
        ],
        ProblemCode::TooManyValues => vec![QueryError::TooManyValues { max: 5_000_000, found: 10_000_000, hours: 360 }],
        _ => vec![expired(false), expired(true)],
    };
    errors.into_iter().map(Into::into).collect()
}

/// Returns the problems that only the protocols of Prometheus have.
fn of_prometheus(code: ProblemCode) -> Vec<Problem> {
    vec![match code {
        ProblemCode::InvalidRemoteRead => Problem::invalid_remote_read(&RemoteReadError::Types),
        _ => Problem::invalid_remote_write(&RemoteWriteError::Protobuf(ProtobufError::Truncated)),
    }]
}

fn range_too_long() -> Problem {
    QueryError::RangeTooLong { max: 8_784, asked: 9_000, is_compared: false }.into()
}

/// Returns the problems that only changes of metadata have.
fn of_metadata(code: ProblemCode) -> Vec<Problem> {
    match code {
        ProblemCode::PreconditionFailed => vec![Problem::precondition_failed("the metadata has changed")],
        _ => vec![Problem::invalid_metadata("a key of metadata must not be empty").in_line(2)],
    }
}

/// Returns problems with this code: one for each text that is made of an error.
fn examples(code: ProblemCode) -> Vec<Problem> {
    let seconds = Duration::from_secs;
    let overloaded = |error, is_store_away| Problem::refused(IngestError::Overloaded(error), is_store_away);
    match code {
        ProblemCode::BodyTimeout => vec![BodyError::Timeout.into()],
        ProblemCode::BodyTooLarge => vec![BodyError::TooLarge(16_777_216).into()],
        ProblemCode::DeletionUnsupported => {
            vec![Problem::deletion_unsupported("this store deletes whole devices only")]
        }
        ProblemCode::DeviceForbidden => {
            vec![QueryError::OutOfReach(DeviceScopeError::Forbidden("S1".to_owned())).into()]
        }
        ProblemCode::Forbidden => vec![Problem::forbidden("the token lacks the scope \"query\"".to_owned())],
        ProblemCode::ForeignOrigin => vec![(&CrossSiteError::ForeignOrigin).into()],
        ProblemCode::ForwardLoop => vec![Problem::forward_loop()],
        ProblemCode::HostNotAllowed => vec![(&CrossSiteError::UnknownHost("example.org".to_owned())).into()],
        ProblemCode::Internal => vec![Problem::internal("a test")],
        ProblemCode::InvalidBody => vec![
            BodyError::Broken(axum::Error::new("connection reset")).into(),
            BodyError::NotDecompressed(std::io::Error::other("invalid gzip header")).into(),
        ],
        ProblemCode::InvalidHost => vec![(&CrossSiteError::InvalidHost).into()],
        ProblemCode::InvalidJson => {
            vec![Problem::invalid_json(&SyntaxError { offset: 1, detail: "expected a key".to_owned() })]
        }
        ProblemCode::InvalidMetadata | ProblemCode::PreconditionFailed => of_metadata(code),
        ProblemCode::InvalidOtlp => {
            vec![Problem::invalid_otlp(&SyntaxError { offset: 1, detail: "expected a key".to_owned() }.into())]
        }
        ProblemCode::InvalidParameter => vec![
            Problem::invalid_parameter("limit", "expected a number from 1 to 10000"),
            QueryError::OutOfReach(DeviceScopeError::TooLong(201)).into(),
            QueryError::OutOfReach(check_device_id("").unwrap_err().into()).into(),
        ],
        ProblemCode::InvalidRemoteRead | ProblemCode::InvalidRemoteWrite => of_prometheus(code),
        ProblemCode::InvalidSenml => {
            vec![Problem::invalid_senml(&SenmlError::Invalid("expected an array of records".to_owned()))]
        }
        ProblemCode::LengthRequired => vec![BodyError::LengthRequired.into()],
        ProblemCode::LogFailed => [AppendError::Poisoned("no such device".to_owned()), AppendError::Closed]
            .map(|error| Problem::refused(IngestError::Failed(error), false))
            .into(),
        ProblemCode::MethodNotAllowed => vec![Problem::method_not_allowed()],
        ProblemCode::HttpVersionNotSupported => vec![Problem::file_over_http_1_0()],
        ProblemCode::NotAcceptable => vec![Problem::not_acceptable(&["text/csv"], "image/png")],
        ProblemCode::TooManyColumns => vec![QueryError::TooManyColumns { max: 1_000 }.into()],
        ProblemCode::NotFound => ["/v2", "/api/v2/query"].map(Problem::not_found).into(),
        ProblemCode::DeviceIndexIncomplete => vec![QueryError::DeviceIndexIncomplete.into()],
        ProblemCode::Overloaded => vec![
            BodyError::NoMemory(Exhausted::All).into(),
            overloaded(AppendError::Full(4 << 30), false),
            overloaded(AppendError::Full(4 << 30), true),
            overloaded(AppendError::DiskFull, false),
            overloaded(AppendError::OutOfFiles, false),
            Problem::too_many_waiting(&DeletionError::TooMany),
            Problem::too_many_waiting(&ChangeError::TooMany),
            Problem::too_many_queries(Limit::Queries),
            Problem::too_many_queries(Limit::QueryBytes),
            QueryError::Lagging.into(),
        ],
        ProblemCode::PartiallyRejected => vec![Problem::rejected(receipt(2, None), true)],
        ProblemCode::Rejected => vec![
            Problem::rejected(receipt(0, None), true),
            Problem::refused(IngestError::NotPartial(Box::new(receipt(0, None))), false),
        ],
        ProblemCode::QueryTimeout => vec![QueryError::Timeout(seconds(30)).into()],
        ProblemCode::RangeTooLong => vec![range_too_long()],
        ProblemCode::RateLimited => vec![
            BodyError::NoMemory(Exhausted::Token).into(),
            Problem::rate_limited(Limit::TokenRequests, Duration::from_millis(1_500)),
            Problem::rate_limited(Limit::TokenQueries, MOMENT),
            Problem::refused(IngestError::RateLimited(RateLimitedError { retry_after: seconds(7) }), false),
            Problem::rejected(receipt(2, Some(seconds(3))), true),
        ],
        ProblemCode::RequestTooLarge => vec![Problem::refused(IngestError::TooLarge(1 << 24), false)],
        ProblemCode::StoreUnavailable => vec![
            QueryError::Store(StoreError::new(Cause::Network, "db-1.internal: connection refused")).into(),
            QueryError::StoreAway { seconds: 7, why: "db-1.internal: connection refused".to_owned() }.into(),
        ],
        ProblemCode::TooManyConnections => vec![Problem::too_many_connections(1_024)],
        ProblemCode::TooManyDevices => vec![QueryError::TooManyDevices(100_000).into()],
        ProblemCode::TooManyPoints | ProblemCode::TooManyValues | ProblemCode::ReadingsExpired => of_rollups(code),
        ProblemCode::TooManyReadings => vec![Problem::refused(IngestError::TooManyReadings(100_000), false)],
        ProblemCode::Unauthorized => [
            AuthError::NoToken,
            AuthError::UnknownToken,
            AuthError::ExpiredToken,
            AuthError::NoTokenNorCertificate,
            AuthError::NamelessCertificate,
            AuthError::ExpiredCertificate,
        ]
        .map(|error| Problem::unauthorized(error.to_string()))
        .into(),
        ProblemCode::UnknownDevice => vec![Problem::unknown_device("S1")],
        ProblemCode::UnsupportedMediaType => {
            vec![Problem::unsupported_media_type("text/plain"), BodyError::UnsupportedEncoding("br".to_owned()).into()]
        }
        ProblemCode::UnsupportedSenml => {
            vec![Problem::invalid_senml(&SenmlError::Unsupported("bver 99 is unknown".to_owned()))]
        }
    }
}

/// Returns the status, the headers and the body of an answer as text.
async fn text(response: Response) -> String {
    let mut text = format!("{}\n", response.status());
    for (name, value) in response.headers() {
        writeln!(text, "{name}: {}", value.to_str().unwrap()).unwrap();
    }
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    text + &serde_json::to_string_pretty(&body).unwrap() + "\n"
}

async fn texts(responses: impl IntoIterator<Item = Response>) -> String {
    let mut all = Vec::new();
    for response in responses {
        all.push(text(response).await);
    }
    all.join("\n")
}

#[tokio::test]
async fn each_problem_is_a_contract() {
    for code in ProblemCode::iter() {
        let problems = examples(code);
        assert!(!problems.is_empty() && problems.iter().all(|problem| problem.code() == code), "{code:?}");
        let text = texts(problems.into_iter().map(Problem::into_response)).await;
        insta::assert_snapshot!(code.as_str(), text);
    }
}

#[tokio::test]
async fn each_error_in_a_dialect_of_influxdb_is_a_contract() {
    for (name, version) in [("influx_v1", Version::V1), ("influx_v2", Version::V2), ("influx_v3", Version::V3)] {
        let failed = ProblemCode::iter().flat_map(examples).map(|problem| version.failed(&problem));
        let receipts = [(receipt(0, None), true), (receipt(2, None), true), (receipt(2, None), false)];
        let late = (receipt(2, Some(Duration::from_secs(3))), true);
        let rejected = receipts.into_iter().chain([late]);
        let rejected =
            rejected.map(|(receipt, partial)| version.rejected(&receipt, b"good v=1\nbad v=\"x\"\ngood v=2", partial));
        insta::assert_snapshot!(name, texts(failed.chain(rejected)).await);
    }
}

/// Telegraf drops the lines after an error of version 1 with one of these texts, whatever the status is.
#[tokio::test]
async fn lines_that_version_1_refuses_for_now_are_sent_again() {
    let dropping = [
        "partial write",
        "unable to parse",
        "points beyond retention policy",
        "hinted handoff queue not empty",
        "retention policy not found",
    ];
    let failed = ProblemCode::iter().flat_map(examples).map(|problem| Version::V1.failed(&problem));
    let late = Version::V1.rejected(&receipt(2, Some(Duration::from_secs(3))), b"", true);
    assert_eq!(late.status(), StatusCode::SERVICE_UNAVAILABLE);
    for response in failed.chain([late]).filter(|response| response.status().is_server_error()) {
        let answer = text(response).await;
        assert!(!dropping.iter().any(|words| answer.contains(words)), "{answer}");
    }
}

#[test]
fn a_wait_is_rounded_up_to_whole_seconds() {
    for (millis, seconds) in [(0, "1"), (1, "1"), (1_000, "1"), (1_001, "2"), (86_400_000, "86400")] {
        let mut response = Response::default();
        set_retry_after(&mut response, Some(Duration::from_millis(millis)));
        assert_eq!(response.headers()[header::RETRY_AFTER], seconds, "{millis} ms");
    }
}
