//! Bodies that nobody read to the end.
//!
//! A request may be answered before its body has come: a stranger's, one that is too large, one for which
//! there is no memory. The rest of the body is not worth waiting for, so the connection ends with that
//! answer, and the answer says so. Otherwise the client would send its next request into a connection that is
//! being closed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

/// A body that is watched.
struct Watched {
    body: Body,
    is_read: Arc<AtomicBool>,
}

/// Knows whether a body was read to its end.
pub(super) struct Watch(Option<Arc<AtomicBool>>);

impl Watch {
    /// Watches a body. One that is empty needs no watching.
    pub(super) fn over(body: Body) -> (Body, Self) {
        if body.is_end_stream() {
            return (body, Self(None));
        }
        let is_read = Arc::new(AtomicBool::new(false));
        let watched = Watched { body, is_read: Arc::clone(&is_read) };
        (Body::new(watched), Self(Some(is_read)))
    }

    /// Ends the connection with this answer if there is something left of the body.
    pub(super) fn close_behind(self, response: &mut Response) {
        if self.0.is_some_and(|is_read| !is_read.load(Ordering::Relaxed)) {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

impl HttpBody for Watched {
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
