//! Bodies of answers that consist of several pieces of memory.
//!
//! Tasks write the pieces at the same time. The body sends each piece as it is: joining the pieces would copy
//! megabytes.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

/// A body of several pieces, whose length is known.
pub(in crate::http) struct BodyInPieces {
    rest: VecDeque<Bytes>,
    bytes: u64,
}

impl BodyInPieces {
    pub(in crate::http) fn new(pieces: impl IntoIterator<Item = Bytes>) -> Self {
        let rest: VecDeque<Bytes> = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
        let bytes = rest.iter().map(|piece| piece.len() as u64).sum();
        Self { rest, bytes }
    }
}

impl HttpBody for BodyInPieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let next = self.rest.pop_front();
        self.bytes -= next.as_ref().map_or(0, Bytes::len) as u64;
        Poll::Ready(next.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn pieces_are_one_body_whose_length_is_known() {
        let mut body = BodyInPieces::new(["ab", "", "cde"].map(Bytes::from));
        for (length, piece) in [(5, "ab"), (3, "cde")] {
            assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(length), false));
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), piece);
        }
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(0), true));
        assert!(body.frame().await.is_none());
        assert!(BodyInPieces::new([]).is_end_stream());
    }
}
