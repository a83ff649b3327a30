//! The requests that clients of `InfluxDB` send before they write.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Serialize;

use super::super::App;
use crate::access::Grant;
use crate::config::Scope;

/// The version of `InfluxDB` that answers report, for clients that adapt to it.
pub(in crate::http) const INFLUXDB_VERSION: &str = "1.8.10";

/// `GET /ping` and `HEAD /ping`: the server is reachable.
pub(in crate::http) async fn ping() -> Response {
    let headers = [
        (HeaderName::from_static("x-influxdb-version"), INFLUXDB_VERSION),
        (HeaderName::from_static("x-influxdb-build"), env!("CARGO_PKG_NAME")),
    ];
    (StatusCode::NO_CONTENT, headers).into_response()
}

#[derive(Debug, Serialize)]
pub(in crate::http) struct Health {
    name: &'static str,
    message: String,
    checks: [(); 0],
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'static str>,
}

/// `GET /health`: whether the process works, in the format of `InfluxDB`.
///
/// Only administrators see the reason of a failure and the version.
pub(in crate::http) async fn health(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
) -> (StatusCode, Json<Health>) {
    let is_admin = grant.allows(Scope::Admin);
    let health = |message, status| Health {
        name: env!("CARGO_PKG_NAME"),
        message,
        checks: [],
        status,
        version: is_admin.then_some(env!("CARGO_PKG_VERSION")),
    };
    match app.log.poisoned() {
        None => (StatusCode::OK, Json(health("ready for writes".to_owned(), "pass"))),
        Some(why) => {
            let message = if is_admin { why } else { "not ready for writes".to_owned() };
            (StatusCode::SERVICE_UNAVAILABLE, Json(health(message, "fail")))
        }
    }
}
