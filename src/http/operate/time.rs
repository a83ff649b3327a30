//! `GET /v1/time`: the server's clock, for devices without one.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::common::clock::rfc3339;
use crate::http::App;
use crate::http::openapi::{Operation, Tag};

/// The time, in the two forms that readings may have.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::http) struct Now {
    /// The time as RFC 3339.
    #[schema(format = DateTime)]
    ts: String,
    /// The time in Unix milliseconds.
    unix_ms: i64,
}

/// Describes `GET /v1/time`.
pub(in crate::http) fn describe() -> Operation {
    Operation::get(Tag::Readings, "getTime", "The clock of the server").answers::<Now>(200, "The time.")
}

/// `GET /v1/time`: the clock that gives a time to readings without one.
pub(in crate::http) async fn time(State(app): State<Arc<App>>) -> Json<Now> {
    let unix_ms = app.clock.now_ms();
    Json(Now { ts: rfc3339(unix_ms), unix_ms })
}
