//! `POST /write`, `/api/v2/write`, `/api/v3/write_lp`.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};

use super::super::App;
use super::super::intake::{IngestOutcome, IngestRequest, receive_readings};
use super::super::params::Params;
use super::super::problem::Problem;
use super::answer::Version;
use crate::access::Grant;
use crate::ingest::Admission;
use crate::wire::Format;
use crate::wire::line_protocol::{self, Options, Precision};

/// The write path of one version of `InfluxDB`.
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
    let WriteParams { precision, partial } = match WriteParams::of(version, uri) {
        Ok(params) => params,
        Err(problem) => return version.failed(&problem),
    };
    let parse = move |app: &App, bytes: &[u8], admission: &mut Admission<'_>| {
        let options = Options { precision, mapping: &app.formats.line_protocol };
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

/// The parameters of a write request that have an effect.
struct WriteParams {
    precision: Precision,
    /// Whether valid lines are accepted beside rejected ones.
    partial: bool,
}

impl WriteParams {
    fn of(version: Version, uri: &Uri) -> Result<Self, Problem> {
        let mut params = Params::of(uri);
        let (read, default, known): (fn(&str) -> Option<Precision>, _, _) = match version {
            Version::V1 => (Precision::from_v1, Precision::Nanoseconds, "n, u, ms, s, m or h"),
            Version::V2 => (Precision::from_v2, Precision::Nanoseconds, "ns, us, ms or s"),
            Version::V3 => {
                (Precision::from_v3, Precision::Auto, "auto, second, millisecond, microsecond or nanosecond")
            }
        };
        let precision = match params.one("precision")?.as_deref() {
            None | Some("") => default,
            Some(name) => read(name).ok_or_else(|| {
                Problem::invalid_parameter("precision", format!("expected {known}, found \"{name}\""))
            })?,
        };
        let partial = version != Version::V3 || params.boolean("accept_partial", true)?;
        Ok(Self { precision, partial })
    }
}
