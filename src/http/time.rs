//! `GET /v1/time`: the server's clock, for devices without one.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use super::App;
use crate::common::clock::rfc3339;

/// The time in both forms that a reading may have.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Now {
    ts: String,
    unix_ms: i64,
}

/// Answers with the clock that ages and readings without a time refer to.
pub(super) async fn time(State(app): State<Arc<App>>) -> Json<Now> {
    let unix_ms = app.clock.now_ms();
    Json(Now { ts: rfc3339(unix_ms), unix_ms })
}
