//! The security headers of every answer.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

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

/// Adds the missing headers.
pub(super) fn harden(headers: &mut HeaderMap, is_over_tls: bool) {
    for (name, value) in STRICT.into_iter().chain(is_over_tls.then_some(OVER_TLS)) {
        headers.entry(name).or_insert(value);
    }
}
