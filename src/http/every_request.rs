//! The middleware around every request.
//!
//! It gives the request an ID, and the answer its headers, metrics and log line.
//!
//! The server may answer a request before it has read the whole body, for example if the token is invalid or
//! the body too large. It does not wait for the rest of the body, but closes the connection after the answer.
//! The answer says so with `Connection: close`. Otherwise the client would send its next request into a
//! connection that is being closed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use super::App;
use super::problem::InternalError;
use crate::telemetry::{Limit, RequestId};

/// The headers of every answer, unless a handler sets its own.
///
/// An answer is data for one client. So caches must not store it (the client may, with an entity tag: see
/// `etag`). Browsers must not guess its type, run or frame it, or let other sites read it. No header names
/// the server or its version.
///
/// There is no `Strict-Transport-Security`. It holds for all ports of a host, so browsers could not open
/// other programs there that have no TLS.
const STRICT: [(HeaderName, HeaderValue); 4] = [
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

/// The header of an answer that has the ID of its request.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Middleware: adds an ID, headers, metrics and a log line to each request.
///
/// A connection with an unread body ends after the answer. Requests without a route share one label in the
/// metrics, because clients choose their paths freely.
pub(super) async fn around_every_request(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let start = Instant::now();
    let id = request_id(request.headers());
    request.extensions_mut().insert(id);
    let route = request.extensions().get::<MatchedPath>().cloned();
    let method = request.method().clone();
    let (head, body) = request.into_parts();
    let (body, completion) = BodyCompletion::observe(body);
    let mut response = next.run(Request::from_parts(head, body)).await;
    completion.close_if_unread(&mut response);
    if let Ok(value) = HeaderValue::from_str(id.as_str()) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    harden(response.headers_mut());
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

/// Returns the trace ID of the only `traceparent`, or else a new ID.
fn request_id(headers: &HeaderMap) -> RequestId {
    let mut all = headers.get_all("traceparent").iter();
    let only = all.next().filter(|_| all.next().is_none());
    only.and_then(|header| RequestId::of_traceparent(header.as_bytes())).unwrap_or_else(RequestId::random)
}

/// Adds the security headers that the answer lacks.
fn harden(headers: &mut HeaderMap) {
    for (name, value) in STRICT {
        headers.entry(name).or_insert(value);
    }
}

/// A body that records that it was read to its end.
struct Observed {
    body: Body,
    is_read: Arc<AtomicBool>,
}

/// Whether a body was read to its end; `None`: the body is empty.
struct BodyCompletion(Option<Arc<AtomicBool>>);

impl BodyCompletion {
    /// Wraps a body so that it records when it was read to its end.
    ///
    /// An empty body stays as it is.
    fn observe(body: Body) -> (Body, Self) {
        if body.is_end_stream() {
            return (body, Self(None));
        }
        let is_read = Arc::new(AtomicBool::new(false));
        let observed = Observed { body, is_read: Arc::clone(&is_read) };
        (Body::new(observed), Self(Some(is_read)))
    }

    /// Closes the connection after this answer if a part of the body is unread.
    fn close_if_unread(self, response: &mut Response) {
        if self.0.is_some_and(|is_read| !is_read.load(Ordering::Relaxed)) {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

impl HttpBody for Observed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None)) || self.body.is_end_stream() {
            self.is_read.store(true, Ordering::Relaxed);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
