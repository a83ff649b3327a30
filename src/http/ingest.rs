//! `POST /v1/readings`.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Uri, header};
use serde::Serialize;

use super::App;
use super::body::{self, Received};
use super::params::Params;
use super::problem::Problem;
use crate::ingest::Admission;
use crate::telemetry::{Protocol, RequestRejection};
use crate::wire::{Code, json};

/// All readings were accepted.
#[derive(Debug, Serialize)]
pub(super) struct Accepted {
    accepted: u32,
}

/// Takes readings as JSON or NDJSON.
pub(super) async fn readings(
    State(app): State<Arc<App>>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Accepted>, Problem> {
    let mut params = Params::of(&uri);
    let partial = params.boolean("partial", true)?;
    params.end()?;
    let format = Format::of(&headers).inspect_err(|_| {
        app.ingest.count_refused_request(Protocol::Http, RequestRejection::UnsupportedMediaType);
    })?;
    let Received { bytes, reservation } = body::receive(&app, &headers, body).await.inspect_err(|problem| {
        app.ingest.count_refused_request(Protocol::Http, problem.reason());
    })?;
    let mut admission = app.ingest.admission(Protocol::Http);
    format
        .parse(&bytes, &mut admission)
        .inspect_err(|_| app.ingest.count_unreadable_request(Protocol::Http, Code::InvalidJson))?;
    let receipt = app.ingest.commit(admission, partial).await?;
    drop(reservation); // its bytes count as in flight until the log has taken them
    if receipt.rejected > 0 {
        let detail =
            format!("{} of {} readings are rejected; the others are accepted", receipt.rejected, receipt.received);
        return Err(Problem::rejected(receipt, detail));
    }
    Ok(Json(Accepted { accepted: receipt.accepted }))
}

#[derive(Debug, Clone, Copy)]
enum Format {
    Json,
    Lines,
}

impl Format {
    fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        let value = headers.get(header::CONTENT_TYPE).map_or("", |value| value.to_str().unwrap_or_default());
        let essence = value.split(';').next().unwrap_or_default().trim();
        if essence.eq_ignore_ascii_case("application/json") {
            Ok(Self::Json)
        } else if ["application/x-ndjson", "application/ndjson", "application/jsonl"]
            .iter()
            .any(|known| essence.eq_ignore_ascii_case(known))
        {
            Ok(Self::Lines)
        } else {
            Err(Problem::unsupported_media_type(value))
        }
    }

    fn parse(self, body: &[u8], admission: &mut Admission<'_>) -> Result<(), Problem> {
        match self {
            Self::Json => json::parse(body, admission).map_err(|error| Problem::invalid_json(&error)),
            Self::Lines => {
                json::parse_lines(body, admission);
                Ok(())
            }
        }
    }
}
