//! `POST /v1/readings`: takes readings as JSON, NDJSON or `SenML`.
//!
//! A page of any site can make a browser send `text/plain`, or a body without a type, without a CORS
//! preflight. `access` refuses the requests of other sites' pages before they reach this handler.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::{Extension, Json};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::receipt_notes::ReceiptNotes;
use super::receive::{IngestRequest, UnreadableBody, receive_readings};
use crate::access::Grant;
use crate::http::openapi::parameter::PARTIAL;
use crate::http::openapi::{Operation, Parameters, Tag, body_of_readings};
use crate::http::problem::{Problem, ProblemCode};
use crate::http::request::body::media_type;
use crate::http::request::params::Params;
use crate::http::{App, Formats};
use crate::ingest::{Admission, Receipt, RefusalReason};
use crate::wire::{Code, Format, Protocol, json, senml};

/// The answer to a request whose readings were all accepted.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct Accepted {
    /// The number of accepted readings.
    accepted: u32,
    #[serde(flatten)]
    notes: ReceiptNotes,
}

const PARAMETERS: Parameters = &[&[&PARTIAL]];

/// Describes `POST /v1/readings`.
pub(in crate::http) fn describe() -> Operation {
    let readings = json!([
        { "ts": "2026-04-20T14:00:10.000Z", "values": { "temp": 22.4, "hum": 40 } },
        { "ts": "2026-04-20T14:00:20.000Z", "values": { "temp": 22.6 } },
    ]);
    let of_device = json!({ "deviceId": "S1", "metadata": { "floor": 2 }, "readings": readings });
    let lines = "{\"deviceId\":\"S2\",\"value\":22.4}\n{\"deviceId\":\"S3\",\"value\":-0.5}\n";
    let senml = json!([{ "bn": "urn:dev:ow:10e2073a01080063:", "n": "temp", "u": "Cel", "v": 23.1 }]);
    let records = json!({ "type": "array", "items": { "type": "object" } });
    Operation::post(Tag::Readings, "postReadings", "Write readings")
        .description(
            "The answer is sent when all accepted readings are durable. A reading is identified by device, time and \
             series, so the same request may be sent again. NDJSON has a value of the JSON form on each line.",
        )
        .parameters(PARAMETERS)
        .body("application/json", &body_of_readings(), &of_device)
        .body("application/x-ndjson", &json!({ "type": "string" }), &json!(lines))
        .body("application/senml+json", &records, &senml)
        .binary_body("application/senml+cbor")
        .answers::<Accepted>(200, "All readings are durable.")
        .takes_readings()
        .problems(&[ProblemCode::InvalidJson, ProblemCode::InvalidSenml, ProblemCode::UnsupportedSenml])
}

/// `POST /v1/readings`: stores readings.
pub(in crate::http) async fn readings(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Accepted>, Problem> {
    let mut params = Params::of(&uri, PARAMETERS);
    let partial = params.boolean("partial", true)?;
    params.end()?;
    let media_type = MediaType::of(&headers).inspect_err(|_| {
        app.ingest.count_refused_request(Protocol::Http, RefusalReason::UnsupportedMediaType);
    })?;
    let parse =
        move |app: &App, bytes: &[u8], admission: &mut Admission<'_>| media_type.parse(bytes, &app.formats, admission);
    let format = media_type.format();
    let request = IngestRequest { app: &app, grant: &grant, format, headers: &headers, body, partial };
    answer(receive_readings(request, parse).await?.receipt, partial)
}

/// Answers with the number of readings, or with a problem if one is rejected.
pub(super) fn answer(receipt: Receipt, partial: bool) -> Result<Json<Accepted>, Problem> {
    if receipt.is_whole() {
        return Ok(Json(Accepted { accepted: receipt.accepted, notes: ReceiptNotes::of(&receipt) }));
    }
    Err(Problem::rejected(receipt, partial))
}

/// Refuses a body whose media type is not NDJSON.
pub(super) fn check_lines(headers: &HeaderMap) -> Result<(), Problem> {
    match MediaType::of(headers)? {
        MediaType::Lines => Ok(()),
        _ => Err(Problem::expected_media_type("application/x-ndjson", media_type(headers).1)),
    }
}

/// The format of a request by its media type; JSON if that is unknown.
pub(in crate::http) fn format_of(headers: &HeaderMap) -> Format {
    MediaType::of(headers).map_or(Format::Json, MediaType::format)
}

#[derive(Debug, Clone, Copy)]
enum MediaType {
    Json,
    Lines,
    SenmlJson,
    SenmlCbor,
}

impl MediaType {
    /// The known media types. Small clients send JSON as plain text or without a type.
    const ALL: [(&str, Self); 9] = [
        ("application/json", Self::Json),
        ("", Self::Json),
        ("text/json", Self::Json),
        ("text/plain", Self::Json),
        ("application/x-ndjson", Self::Lines),
        ("application/ndjson", Self::Lines),
        ("application/jsonl", Self::Lines),
        ("application/senml+json", Self::SenmlJson),
        ("application/senml+cbor", Self::SenmlCbor),
    ];

    fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        let (essence, value) = media_type(headers);
        let known = Self::ALL.iter().find(|(name, _)| essence.eq_ignore_ascii_case(name));
        known.map(|&(_, media_type)| media_type).ok_or_else(|| Problem::unsupported_media_type(value))
    }

    const fn format(self) -> Format {
        match self {
            Self::Json | Self::Lines => Format::Json,
            Self::SenmlJson | Self::SenmlCbor => Format::Senml,
        }
    }

    fn parse(self, body: &[u8], formats: &Formats, admission: &mut Admission<'_>) -> Result<(), UnreadableBody> {
        let unreadable = |error: senml::SenmlError| (error.code(), Problem::invalid_senml(&error));
        match self {
            Self::Json => json::parse(body, &formats.json.at(admission.now_ms()), admission)
                .map_err(|error| (Code::InvalidJson, Problem::invalid_json(&error))),
            Self::Lines => {
                json::parse_lines(body, &formats.json.at(admission.now_ms()), admission);
                Ok(())
            }
            Self::SenmlJson => {
                senml::parse_json(body, &senml_options(formats, admission), admission).map_err(unreadable)
            }
            Self::SenmlCbor => {
                senml::parse_cbor(body, &senml_options(formats, admission), admission).map_err(unreadable)
            }
        }
    }
}

fn senml_options(formats: &Formats, admission: &Admission<'_>) -> senml::Options<'static> {
    let rules = admission.rules();
    senml::Options {
        device: None,
        split: formats.senml_names,
        now_ms: admission.now_ms(),
        max_readings: rules.max_readings,
        max_metrics: rules.limits.max_metrics,
        max_metadata_bytes: rules.limits.max_metadata_bytes,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderValue, header};

    use super::*;

    #[test]
    fn a_refused_media_type_of_lines_is_named() {
        let headers: HeaderMap = [(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"))].into_iter().collect();
        let refused = check_lines(&headers).unwrap_err();
        assert_eq!(refused.detail(), "expected application/x-ndjson, found \"text/plain\"");
    }
}
