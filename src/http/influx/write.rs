//! `POST /write`, `/api/v2/write`, `/api/v3/write_lp`.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};

use super::super::App;
use super::super::intake::{Taken, take};
use super::super::params::Params;
use super::super::problem::Problem;
use super::answer::Version;
use crate::access::Grant;
use crate::ingest::Admission;
use crate::wire::Format;
use crate::wire::line_protocol::{self, Options, Precision};

/// `POST /write` of `InfluxDB` 1.
pub(in crate::http) async fn write_v1(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Response {
    write(&app, &grant, Version::V1, &uri, &headers, body).await
}

/// `POST /api/v2/write` of `InfluxDB` 2.
pub(in crate::http) async fn write_v2(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Response {
    write(&app, &grant, Version::V2, &uri, &headers, body).await
}

/// `POST /api/v3/write_lp` of `InfluxDB` 3.
pub(in crate::http) async fn write_v3(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Response {
    write(&app, &grant, Version::V3, &uri, &headers, body).await
}

async fn write(
    app: &Arc<App>,
    grant: &Arc<Grant>,
    version: Version,
    uri: &Uri,
    headers: &HeaderMap,
    body: Body,
) -> Response {
    let asked = match Asked::of(version, uri) {
        Ok(asked) => asked,
        Err(problem) => return version.failed(&problem),
    };
    let Asked { precision, partial } = asked;
    let parse = move |app: &App, bytes: &[u8], admission: &mut Admission<'_>| {
        let options = Options { precision, device_tags: &app.formats.device_tags };
        line_protocol::parse(bytes, &options, admission);
        Ok(())
    };
    match take(app, grant, Format::LineProtocol, headers, body, partial, parse).await {
        Ok(Taken { receipt, .. }) if receipt.rejected == 0 => StatusCode::NO_CONTENT.into_response(),
        Ok(Taken { receipt, body }) => version.rejected(&receipt, &body.bytes, partial),
        Err(problem) => version.failed(&problem),
    }
}

/// The parameters that mean something here.
struct Asked {
    precision: Precision,
    /// Whether good lines are kept where others are bad.
    partial: bool,
}

impl Asked {
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
