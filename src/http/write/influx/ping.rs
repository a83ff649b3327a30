//! The requests that clients of `InfluxDB` send before they write.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderName, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use crate::access::Grant;
use crate::config::Scope;
use crate::http::App;
use crate::http::openapi::parameter::VERBOSE;
use crate::http::openapi::{Operation, Parameters, Tag};
use crate::http::request::params::Params;

/// The version of `InfluxDB` that answers report, for clients that adapt to it.
pub(in crate::http) const INFLUXDB_VERSION: &str = "1.8.10";

/// The query parameters of `/ping`. Others are ignored.
const OF_PING: Parameters = &[&[&VERBOSE]];

/// Describes `GET /ping`.
pub(in crate::http) fn describe_ping() -> Operation {
    let version = json!({ "type": "string", "description": "The version of InfluxDB that clients find." });
    let body = json!({ "type": "object", "properties": { "version": version }, "required": ["version"] });
    Operation::get(Tag::Influxdb, "ping", "Whether the server is reachable")
        .description("`HEAD` too.")
        .parameters(OF_PING)
        .answers_as(200, "It is, and `verbose` asked for a body.", "application/json", &body)
        .answers_nothing(204, "It is.")
}

/// `GET /ping` and `HEAD /ping`: the server is reachable.
///
/// With `verbose`, the status is 200, for which some clients wait.
pub(in crate::http) async fn ping(uri: Uri) -> Response {
    let headers = [
        (HeaderName::from_static("x-influxdb-version"), INFLUXDB_VERSION),
        (HeaderName::from_static("x-influxdb-build"), env!("CARGO_PKG_NAME")),
    ];
    let verbose = Params::of(&uri, OF_PING).all("verbose");
    match verbose.first().map(|value| &**value) {
        None | Some("" | "0" | "false") => (StatusCode::NO_CONTENT, headers).into_response(),
        Some(_) => (headers, Json(json!({ "version": INFLUXDB_VERSION }))).into_response(),
    }
}

/// Whether the process works, in the format of `InfluxDB`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InfluxHealth)]
pub(in crate::http) struct Health {
    /// The name of the program.
    name: &'static str,
    /// The state in words.
    message: String,
    /// Always empty. `InfluxDB` lists its own checks there.
    #[schema(value_type = Vec<Object>)]
    checks: [(); 0],
    /// `pass` or `fail`.
    status: &'static str,
    /// The version of the program. Only administrators see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    version: Option<&'static str>,
}

/// Describes `GET /health`.
pub(in crate::http) fn describe_health() -> Operation {
    Operation::get(Tag::Influxdb, "getInfluxHealth", "Whether the process works, for clients of InfluxDB 2")
        .answers::<Health>(200, "The process works.")
        .answers::<Health>(503, "The log has failed.")
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
