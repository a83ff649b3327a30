//! Paths for operators: metrics, health, version.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Serialize;

use super::App;
use crate::access::Grant;
use crate::config::Scope;
use crate::telemetry::Exposition;

/// `GET /metrics`
pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let status = app.flush.status();
    let metrics = &app.metrics;
    metrics.readings_pending.set(status.pending_readings as f64);
    metrics.pending_bytes.set(status.pending_bytes as f64);
    metrics.pending_limit_bytes.set(app.pending_max_bytes as f64);
    metrics.pending_buckets.set(status.pending_buckets as f64);
    metrics.oldest_pending_seconds.set(status.oldest_pending.as_secs_f64());
    metrics.log_bytes.set(app.log.usage().bytes as f64);
    metrics.log_limit_bytes.set(app.log_max_bytes as f64);
    metrics.http_bytes_in_flight.set(app.budget.in_flight() as f64);
    ([(header::CONTENT_TYPE, Exposition::CONTENT_TYPE)], app.exposition.render()).into_response()
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Health {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Health {
    /// Reasons name paths and hosts, so they are for administrators.
    fn told_to(grant: &Grant, status: &'static str, reason: Option<String>) -> Json<Self> {
        Json(Self { status, reason: reason.filter(|_| grant.allows(Scope::Admin)) })
    }
}

/// `GET /healthz`: the process works.
pub(super) async fn healthz(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
) -> (StatusCode, Json<Health>) {
    match app.log.poisoned() {
        None => (StatusCode::OK, Health::told_to(&grant, "ok", None)),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, Health::told_to(&grant, "failed", Some(why))),
    }
}

/// From how full a log on the service is not ready for more.
const NEARLY_FULL: f64 = 0.95;

/// `GET /readyz`: readings are taken. A store that is away does not change that until the log is nearly full.
pub(super) async fn readyz(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
) -> (StatusCode, Json<Health>) {
    let tell = |status, reason| Health::told_to(&grant, status, reason);
    if let Some(why) = app.log.poisoned() {
        return (StatusCode::SERVICE_UNAVAILABLE, tell("failed", Some(why)));
    }
    if app.log.usage().bytes as f64 > app.log_max_bytes as f64 * NEARLY_FULL {
        return (StatusCode::SERVICE_UNAVAILABLE, tell("overloaded", Some("the log is nearly full".to_owned())));
    }
    match app.flush.store_away() {
        None => (StatusCode::OK, tell("ok", None)),
        Some(why) => (StatusCode::OK, tell("degraded", Some(why))),
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Version {
    name: &'static str,
    version: &'static str,
}

/// `GET /version`
pub(super) async fn version() -> Json<Version> {
    Json(Version { name: env!("CARGO_PKG_NAME"), version: env!("CARGO_PKG_VERSION") })
}
