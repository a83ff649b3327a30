//! The requests that clients of `InfluxDB` send before they write.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Serialize;
use serde_json::json;

use super::super::App;
use super::super::body::{self, Received};
use super::super::params::Params;
use super::super::problem::Problem;
use super::answer::{Version, v1};
use crate::access::Grant;
use crate::config::Scope;
use crate::wire::Format;

/// The version of `InfluxDB` that `/ping` reports, for clients that adapt to it.
const INFLUXDB_VERSION: &str = "1.8.10";

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

/// `GET /query` and `POST /query`: `CREATE DATABASE` succeeds without effect, all else is refused.
pub(in crate::http) async fn query(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Response {
    match statement(&app, &grant, &uri, &headers, body).await {
        Ok(statement) if is_create_database(&statement) => {
            Json(json!({ "results": [{ "statement_id": 0 }] })).into_response()
        }
        Ok(_) => {
            let error = "InfluxQL is not supported, except for CREATE DATABASE, which has no effect because there \
                         are no databases. Query GET /v1/devices/{deviceId}/rollups or .../readings";
            v1(StatusCode::BAD_REQUEST, error)
        }
        Err(problem) => Version::V1.failed(&problem),
    }
}

/// The parameter `q` of the query string or of a form.
async fn statement(app: &App, grant: &Grant, uri: &Uri, headers: &HeaderMap, body: Body) -> Result<String, Problem> {
    if let Some(statement) = Params::of(uri).one("q")? {
        return Ok(statement.into_owned());
    }
    let Received { bytes, .. } = body::receive(app, &grant.quota, Format::LineProtocol, headers, body).await?;
    let statement = form_urlencoded::parse(&bytes).find(|(name, _)| name == "q").map(|(_, value)| value.into_owned());
    statement.ok_or_else(|| Problem::invalid_parameter("q", "is missing"))
}

fn is_create_database(statement: &str) -> bool {
    let statement = statement.trim_end().trim_end_matches(';');
    let mut words = statement.split_ascii_whitespace();
    let mut next_is = |keyword: &str| words.next().is_some_and(|word| word.eq_ignore_ascii_case(keyword));
    next_is("create") && next_is("database") && !statement.contains(';')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn create_database_is_the_only_known_statement() {
        for statement in
            ["CREATE DATABASE telegraf", "create database \"my db\" WITH DURATION 1d;", " CREATE\nDATABASE x; "]
        {
            assert!(is_create_database(statement), "{statement}");
        }
        for statement in ["", "CREATE", "CREATE USER x", "DROP DATABASE x", "CREATE DATABASE x; DROP DATABASE x"] {
            assert!(!is_create_database(statement), "{statement}");
        }
    }
}
