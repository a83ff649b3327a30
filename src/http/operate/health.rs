//! `GET /healthz`: does the process work? `GET /readyz`: does it accept readings?

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::Serialize;
use utoipa::ToSchema;

use crate::access::Grant;
use crate::config::Scope;
use crate::http::App;
use crate::http::openapi::{Operation, Tag};

/// Whether the process works.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::http) struct Health {
    /// `ok` or `failed`.
    status: &'static str,
    /// Why it failed. Only administrators see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<String>,
}

impl Health {
    /// Makes the answer. Only administrators see the reason: it names paths and hosts.
    fn visible_to(grant: &Grant, status: &'static str, reason: Option<String>) -> Json<Self> {
        Json(Self { status, reason: reason.filter(|_| grant.allows(Scope::Admin)) })
    }
}

/// Describes `GET /healthz`.
pub(in crate::http) fn describe_healthz() -> Operation {
    Operation::get(Tag::Operation, "getHealth", "Whether the process works")
        .answers::<Health>(200, "The process works.")
        .answers::<Health>(503, "The log has failed.")
}

/// `GET /healthz`: whether the process works.
pub(in crate::http) async fn healthz(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
) -> (StatusCode, Json<Health>) {
    match app.log.poisoned() {
        None => (StatusCode::OK, Health::visible_to(&grant, "ok", None)),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, Health::visible_to(&grant, "failed", Some(why))),
    }
}

/// The share of the log in use above which the service is not ready.
const NEARLY_FULL: f64 = 0.95;

/// The readiness of the service.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct Readiness {
    /// `ok`, `degraded`, `overloaded` or `failed`.
    ///
    /// `degraded`: the store is away, and readings wait in the log. `overloaded`: the log is full or nearly
    /// full.
    status: &'static str,
    #[serde(flatten)]
    #[schema(value_type = ReadinessDetail)]
    detail: Option<ReadinessDetail>,
}

/// Details of the readiness, for administrators.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ReadinessDetail {
    /// Why the status is not `ok`: all reasons, separated by semicolons.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<String>,
    /// The seconds since the store stopped answering.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    store_away_seconds: Option<u64>,
    /// The share of `log.max_bytes` in use: 0 to 1, with four decimals.
    log_used: f64,
    /// The number of accepted readings that are not stored yet.
    pending_readings: u64,
}

/// Describes `GET /readyz`.
pub(in crate::http) fn describe_readyz() -> Operation {
    Operation::get(Tag::Operation, "getReadiness", "Whether the service accepts readings")
        .answers::<Readiness>(200, "The service accepts readings.")
        .answers::<Readiness>(503, "The log is full, nearly full, or has failed.")
}

/// `GET /readyz`: whether the service accepts readings.
///
/// The service accepts readings while the store is away, until the log is nearly full.
pub(in crate::http) async fn readyz(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
) -> (StatusCode, Json<Readiness>) {
    let usage = app.log.usage();
    let log_used = usage.bytes as f64 / app.log_max_bytes as f64;
    let failed = app.log.poisoned();
    let full = if usage.is_disk_full {
        Some("the disk of the log is full, or no file can be opened: readings are refused")
    } else if usage.is_full {
        Some("the log is full: readings are refused")
    } else {
        (usage.was_full || log_used > NEARLY_FULL).then_some("the log is nearly full")
    };
    let away = app.pipeline.store_away();
    let store_away_seconds = away.as_ref().map(|(since, _)| since.as_secs());
    let (status, code) = match (&failed, full, &away) {
        (Some(_), _, _) => ("failed", StatusCode::SERVICE_UNAVAILABLE),
        (None, Some(_), _) => ("overloaded", StatusCode::SERVICE_UNAVAILABLE),
        (None, None, Some(_)) => ("degraded", StatusCode::OK),
        (None, None, None) => ("ok", StatusCode::OK),
    };
    let away = away.map(|(_, why)| format!("the store is away: {why}"));
    let reasons: Vec<String> = [failed, full.map(str::to_owned), away].into_iter().flatten().collect();
    let detail = grant.allows(Scope::Admin).then(|| ReadinessDetail {
        reason: (!reasons.is_empty()).then(|| reasons.join("; ")),
        store_away_seconds,
        log_used: (log_used * 1e4).round() / 1e4,
        pending_readings: app.pipeline.status().pending_readings,
    });
    (code, Json(Readiness { status, detail }))
}
