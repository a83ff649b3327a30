//! Detection of request bodies that were not read to the end.
//!
//! The server may answer a request before it has read the whole body, for example if the token is invalid or
//! the body too large. It does not wait for the rest of the body, but closes the connection after the answer.
//! The answer says so with `Connection: close`. Otherwise the client would send its next request into a
//! connection that is being closed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

/// A body that records that it was read to its end.
struct Observed {
    body: Body,
    is_read: Arc<AtomicBool>,
}

/// Whether a body was read to its end.
pub(in crate::http) struct BodyCompletion(Option<Arc<AtomicBool>>);

impl BodyCompletion {
    /// Observes a body, unless it is empty.
    pub(in crate::http) fn observe(body: Body) -> (Body, Self) {
        if body.is_end_stream() {
            return (body, Self(None));
        }
        let is_read = Arc::new(AtomicBool::new(false));
        let observed = Observed { body, is_read: Arc::clone(&is_read) };
        (Body::new(observed), Self(Some(is_read)))
    }

    /// Closes the connection after this answer if a part of the body is unread.
    pub(in crate::http) fn close_if_unread(self, response: &mut Response) {
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
