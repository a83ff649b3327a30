//! The write paths: `POST /write`, `POST /api/v2/write` and `POST /api/v3/write_lp`.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use serde_json::json;

use super::errors::{ErrorV2, Version};
use crate::access::Grant;
use crate::http::App;
use crate::http::openapi::parameter::{ACCEPT_PARTIAL, PRECISION_1, PRECISION_2, PRECISION_3};
use crate::http::openapi::{Operation, Parameters, Tag};
use crate::http::problem::Problem;
use crate::http::request::params::Params;
use crate::http::write::receive::{IngestOutcome, IngestRequest, receive_readings};
use crate::ingest::Admission;
use crate::wire::Format;
use crate::wire::line_protocol::{self, Options, Precision};

/// The query parameters that have an effect in a version.
const fn parameters(version: Version) -> Parameters {
    match version {
        Version::V1 => &[&[&PRECISION_1]],
        Version::V2 => &[&[&PRECISION_2]],
        Version::V3 => &[&[&PRECISION_3, &ACCEPT_PARTIAL]],
    }
}

/// Describes the write path of one version.
pub(in crate::http) fn describe(version: Version) -> Operation {
    let (id, summary) = match version {
        Version::V1 => ("write1", "Write lines as clients of InfluxDB 1"),
        Version::V2 => ("write2", "Write lines as clients of InfluxDB 2"),
        Version::V3 => ("write3", "Write lines as clients of InfluxDB 3"),
    };
    let operation = Operation::post(Tag::Influxdb, id, summary)
        .description("Line protocol. The media type has no meaning.")
        .parameters(parameters(version))
        .body("text/plain", &json!({ "type": "string" }), &json!("climate,deviceId=lp-1 temp=22.5 1776693610000000000"))
        .may_have_no_body()
        .answers_nothing(204, "All lines are durable.")
        .takes_readings();
    match version {
        Version::V2 => operation.answers::<ErrorV2<'_>>(422, "Some lines are rejected, the others are durable."),
        Version::V1 | Version::V3 => operation,
    }
}

/// The handler of the write path of a version.
pub(in crate::http) fn write(version: Version) -> MethodRouter<Arc<App>> {
    post(
        async move |State(app): State<Arc<App>>,
                    Extension(grant): Extension<Arc<Grant>>,
                    uri: Uri,
                    headers: HeaderMap,
                    body: Body| { write_lines(version, &app, &grant, &uri, &headers, body).await },
    )
}

async fn write_lines(
    version: Version,
    app: &Arc<App>,
    grant: &Arc<Grant>,
    uri: &Uri,
    headers: &HeaderMap,
    body: Body,
) -> Response {
    let (precision, partial) = match read_parameters(version, uri) {
        Ok(params) => params,
        Err(problem) => return version.failed(&problem),
    };
    let parse = move |app: &App, bytes: &[u8], admission: &mut Admission<'_>| {
        if precision != Precision::Nanoseconds {
            admission.set_other_unit();
        }
        let options = Options { precision, device: None, mapping: &app.formats.line_protocol };
        line_protocol::parse(bytes, &options, admission);
        Ok(())
    };
    let request = IngestRequest { app, grant, format: Format::LineProtocol, headers, body, partial };
    match receive_readings(request, parse).await {
        Ok(IngestOutcome { receipt, .. }) if receipt.is_whole() => StatusCode::NO_CONTENT.into_response(),
        Ok(IngestOutcome { receipt, body, .. }) => version.rejected(&receipt, &body.bytes, partial),
        Err(problem) => version.failed(&problem),
    }
}

/// Reads the unit of times, and whether valid lines are accepted if others are not.
fn read_parameters(version: Version, uri: &Uri) -> Result<(Precision, bool), Problem> {
    let mut params = Params::of(uri, parameters(version));
    let (read, default, known): (fn(&str) -> Option<Precision>, _, _) = match version {
        Version::V1 => (Precision::from_v1, Precision::Nanoseconds, "n, u, ms, s, m or h"),
        Version::V2 => (Precision::from_v2, Precision::Nanoseconds, "ns, us, ms or s"),
        Version::V3 => (Precision::from_v3, Precision::Auto, "auto, second, millisecond, microsecond or nanosecond"),
    };
    let precision = match params.one("precision")?.as_deref() {
        None | Some("") => default,
        Some(name) => read(name)
            .ok_or_else(|| Problem::invalid_parameter("precision", format!("expected {known}, found \"{name}\"")))?,
    };
    let partial = version != Version::V3 || params.boolean("accept_partial", true)?;
    Ok((precision, partial))
}
