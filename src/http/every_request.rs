//! The middleware around every request: its ID, the security headers of its answer, metrics, a log line.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;

use super::App;
use super::problem::InternalError;
use super::serve::connection::Peer;
use super::serve::unread_body::BodyCompletion;
use crate::telemetry::{Limit, RequestId};

/// The headers of every answer, unless a handler sets its own.
///
/// Answers are data for one client: caches must not store them (the client itself may keep one with an entity
/// tag, see `etag`), and browsers must not guess their type, run or frame them, or let other sites read
/// them. No header names the server or its version.
const STRICT: [(HeaderName, HeaderValue); 4] = [
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

/// The header of answers over TLS: for a year, a browser uses only TLS with this host.
const OVER_TLS: (HeaderName, HeaderValue) =
    (header::STRICT_TRANSPORT_SECURITY, HeaderValue::from_static("max-age=31536000"));

/// The header of an answer with the ID of its request.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Middleware of all requests: IDs, security headers, metrics, and the end of connections with unread bodies.
///
/// Requests without a route share one label in the metrics, because clients choose their paths freely.
pub(super) async fn around_every_request(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let start = Instant::now();
    let id = request_id(request.headers());
    request.extensions_mut().insert(id);
    let route = request.extensions().get::<MatchedPath>().cloned();
    let method = request.method().clone();
    let is_over_tls = request.extensions().get::<Peer>().is_some_and(|peer| peer.is_over_tls);
    let (head, body) = request.into_parts();
    let (body, completion) = BodyCompletion::observe(body);
    let mut response = next.run(Request::from_parts(head, body)).await;
    completion.close_if_unread(&mut response);
    if let Ok(value) = HeaderValue::from_str(id.as_str()) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    harden(response.headers_mut(), is_over_tls);
    if let Some(limit) = response.extensions().get::<Limit>() {
        app.metrics.limited_total.of(*limit).increment(1);
    }
    if let Some(InternalError(error)) = response.extensions().get() {
        tracing::error!(error, request_id = id.as_str(), "a request failed");
    }
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    let (status, took) = (response.status().as_u16(), start.elapsed());
    app.metrics.http_request_seconds.record(route, method.as_str(), status, took);
    tracing::debug!(request_id = id.as_str(), route, %method, status, ?took, "a request was answered");
    response
}

/// The ID of a request: the trace ID of its only `traceparent`, if that is valid, or a new one.
fn request_id(headers: &HeaderMap) -> RequestId {
    let mut all = headers.get_all("traceparent").iter();
    let only = all.next().filter(|_| all.next().is_none());
    only.and_then(|header| RequestId::of_traceparent(header.as_bytes())).unwrap_or_else(RequestId::random)
}

/// Adds the missing headers.
fn harden(headers: &mut HeaderMap, is_over_tls: bool) {
    for (name, value) in STRICT.into_iter().chain(is_over_tls.then_some(OVER_TLS)) {
        headers.entry(name).or_insert(value);
    }
}
