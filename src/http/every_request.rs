//! The headers of every answer: security, and the ID of the request.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::telemetry::RequestId;

/// The headers of every answer, unless a handler sets its own.
///
/// Answers are data for one client: caches must not store them (the client itself may keep one with an entity
/// tag, see `delivery`), and browsers must not guess their type, run or frame them, or let other sites read
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

/// The ID of a request: the trace ID of its only `traceparent`, if that is valid, or a new one.
pub(super) fn request_id(headers: &HeaderMap) -> RequestId {
    let mut all = headers.get_all("traceparent").iter();
    let only = all.next().filter(|_| all.next().is_none());
    only.and_then(|header| RequestId::of_traceparent(header.as_bytes())).unwrap_or_else(RequestId::random)
}

/// Adds the ID of the request to its answer.
pub(super) fn identify(headers: &mut HeaderMap, id: RequestId) {
    if let Ok(value) = HeaderValue::from_str(id.as_str()) {
        headers.insert(REQUEST_ID, value);
    }
}

/// Adds the missing headers.
pub(super) fn harden(headers: &mut HeaderMap, is_over_tls: bool) {
    for (name, value) in STRICT.into_iter().chain(is_over_tls.then_some(OVER_TLS)) {
        headers.entry(name).or_insert(value);
    }
}
