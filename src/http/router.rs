//! All routes.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::Uri;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};

use super::problem::Problem;
use super::{App, influx, ingest, operate, query};

/// The routes, and what is answered where there is none.
pub(super) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/readings", post(ingest::readings))
        .route("/v1/rollups", get(query::rollups_of_devices))
        .route("/v1/devices", get(query::devices))
        .route("/v1/devices/{deviceId}/rollups", get(query::rollups))
        .route("/v1/devices/{deviceId}/readings", get(query::readings))
        .route("/v1/devices/{deviceId}/latest", get(query::latest))
        .route("/write", post(influx::write_v1))
        .route("/api/v2/write", post(influx::write_v2))
        .route("/api/v3/write_lp", post(influx::write_v3))
        .route("/query", get(influx::query).post(influx::query))
        .route("/ping", get(influx::ping))
        .route("/health", get(influx::health))
        .route("/metrics", get(operate::metrics))
        .route("/healthz", get(operate::healthz))
        .route("/readyz", get(operate::readyz))
        .route("/version", get(operate::version))
        .fallback(async |uri: Uri| Problem::not_found(uri.path()))
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        .layer(middleware::from_fn_with_state(app.clone(), measure))
        .with_state(app)
}

/// Times each request. Paths without a route count together: they are anybody's to choose.
async fn measure(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let method = request.method().clone();
    let response = next.run(request).await;
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    app.metrics.http_request_seconds.record(route, method.as_str(), response.status().as_u16(), start.elapsed());
    response
}
