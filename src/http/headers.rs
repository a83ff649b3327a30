//! Headers of every answer.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

/// What holds unless a handler says otherwise. Answers are data for whoever asked: not to be kept by caches
/// on the way, not to be taken for another type, not to be run, framed, or read by other sites. No header
/// names the server or its version.
const STRICT: [(HeaderName, HeaderValue); 4] = [
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

/// What holds besides where the answer comes over TLS: for a year, a browser asks this host over TLS only.
const OVER_TLS: (HeaderName, HeaderValue) =
    (header::STRICT_TRANSPORT_SECURITY, HeaderValue::from_static("max-age=31536000"));

/// Adds what is missing.
pub(super) fn harden(headers: &mut HeaderMap, is_over_tls: bool) {
    for (name, value) in STRICT.into_iter().chain(is_over_tls.then_some(OVER_TLS)) {
        headers.entry(name).or_insert(value);
    }
}
