//! `GET /metrics`: the metrics for Prometheus.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::http::App;
use crate::http::openapi::{Operation, Tag};
use crate::telemetry::Exposition;

/// `GET /metrics`
pub(in crate::http) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let status = app.pipeline.status();
    let metrics = &app.metrics;
    metrics.readings_pending.set(status.pending_readings as f64);
    let dead_letters = app.pipeline.dead_letters();
    metrics.dead_letter_bytes.set(dead_letters.bytes() as f64);
    metrics.dead_letter_limit_bytes.set(dead_letters.max_bytes() as f64);
    metrics.pending_bytes.set(status.pending_bytes as f64);
    metrics.pending_limit_bytes.set(app.pending_max_bytes as f64);
    metrics.pending_buckets.set(status.pending_buckets as f64);
    metrics.oldest_pending_seconds.set(status.oldest_pending.as_secs_f64());
    metrics.log_bytes.set(app.log.usage().bytes as f64);
    metrics.log_limit_bytes.set(app.log_max_bytes as f64);
    metrics.known_devices.set(app.ingest.known_devices() as f64);
    metrics.http_bytes_in_flight.set(app.body_memory.in_flight() as f64);
    ([(header::CONTENT_TYPE, Exposition::CONTENT_TYPE)], app.exposition.render()).into_response()
}

/// Describes `GET /metrics`.
pub(in crate::http) fn describe() -> Operation {
    let text = json!({ "type": "string" });
    Operation::get(Tag::Operation, "getMetrics", "The metrics for Prometheus")
        .description("`auth.metrics` says who may read them.")
        .answers_as(200, "The text format of Prometheus.", "text/plain", &text)
}
