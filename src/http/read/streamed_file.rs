//! Streamed files: answers of any size in constant memory.
//!
//! Three stages work at the same time, with a short queue between them. A task reads the next slice from the
//! store and pending. A blocking thread turns the slice before it into compressed pieces of text. The
//! connection sends the pieces. When the client reads slowly, the queues fill and the stages wait. A client
//! that takes longer than `http.body_timeout` for a piece loses its file, which frees the memory and the
//! place of the file.
//!
//! The status of an answer is sent before its end is known. So if a stage fails, the body ends with an error,
//! and the server closes the connection without the last chunk. Every client can tell such an answer from a
//! complete one.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Version, header};
use axum::response::Response;
use hyper::body::{Body as HttpBody, Frame};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::query_limits::FileReservation;
use crate::http::answer::format::{Encoder, Encoding};
use crate::http::problem::Problem;
use crate::influxql::StatementError;
use crate::model::Metric;
use crate::query::{Export, QueryError, ReadingSlices, Slice};

/// About how many bytes a piece has before compression.
pub(in crate::http) const PIECE_BYTES: usize = 64 << 10;

/// The most pieces that wait for the connection.
const PIECES_AHEAD: usize = 2;

/// The most memory of a file with readings, in bytes.
///
/// A file holds three slices and text: one slice is being read, one waits, and one is being written. It also
/// holds the short slices of the next devices.
pub(in crate::http) const FILE_BYTES: usize =
    ReadingSlices::MAX_BYTES + ReadingSlices::MAX_BYTES_AHEAD + 2 * Slice::MAX_BYTES + TEXT_BYTES;

/// The most memory of the text of a file, in bytes.
pub(super) const TEXT_BYTES: usize = Encoding::MAX_BYTES + (PIECES_AHEAD + 2) * PIECE_BYTES;

/// Why a file ended early.
#[derive(Debug, thiserror::Error)]
pub(in crate::http) enum FileError {
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error("a statement failed after its first rows were sent: {0}")]
    Statement(StatementError),
    #[error("the series {0} was stored after the columns were written")]
    NewSeries(Metric),
    #[error("the answer cannot be compressed: {0}")]
    Encode(#[from] io::Error),
    #[error("the client takes longer than {0:?} (http.body_timeout) for 64 KiB")]
    SlowClient(Duration),
    #[error("the client is gone")]
    Gone,
}

/// Turns slices of readings into the text of a file.
pub(super) trait Rows: Send + 'static {
    /// Writes the text before the first slice.
    fn begin(&mut self, out: &mut Output) -> Result<(), FileError>;

    /// Writes a slice of the readings of a device.
    fn write(&mut self, device: &str, slice: &Slice, out: &mut Output) -> Result<(), FileError>;
}

/// The text of a file. Full pieces go to the connection.
pub(in crate::http) struct Output {
    pub(in crate::http) text: Vec<u8>,
    encoder: Option<Encoder>,
    pieces: mpsc::Sender<Step<Bytes>>,
    runtime: Handle,
    timeout: Duration,
}

/// An element that one stage passes to the next stage.
///
/// If a queue closes without [`Step::End`], the stage before it has failed.
enum Step<T> {
    Next(T),
    End,
}

type Slices = mpsc::Receiver<Result<Step<(Arc<str>, Slice)>, QueryError>>;

/// Refuses a client of HTTP/1.0.
///
/// Such a client could not tell an interrupted file from a complete one.
pub(in crate::http) fn check_version(version: Version) -> Result<(), Problem> {
    if version < Version::HTTP_11 { Err(Problem::file_over_http_1_0()) } else { Ok(()) }
}

/// Makes a response whose body is a file of `rows`.
///
/// If the first slice cannot be read, the result is a problem, and no file begins.
pub(super) async fn respond(
    reservation: FileReservation,
    mut export: Export,
    mut rows: impl Rows,
    encoding: Encoding,
    timeout: Duration,
) -> Result<Response, Problem> {
    let mut next = export.next().await?;
    let reservation = Arc::new(reservation);
    let (send_slice, mut slices) = mpsc::channel(1);
    let of_reader = Arc::clone(&reservation);
    let reader = tokio::spawn(async move {
        let _reservation = of_reader;
        loop {
            let step = next.map_or(Step::End, Step::Next);
            let is_end = matches!(step, Step::End);
            if send_slice.send(Ok(step)).await.is_err() || is_end {
                return;
            }
            next = match export.next().await {
                Ok(slice) => slice,
                Err(error) => return drop(send_slice.send(Err(error)).await),
            };
        }
    });
    let reader = AbortOnDropHandle::new(reader);
    stream(encoding, timeout, reader, move |out| {
        let _reservation = reservation;
        write(&mut rows, &mut slices, out)
    })
}

/// Makes a response whose body `write` writes on a blocking thread.
///
/// `guard` is dropped with the body.
pub(in crate::http) fn stream(
    encoding: Encoding,
    timeout: Duration,
    guard: impl Send + 'static,
    write: impl FnOnce(&mut Output) -> Result<(), FileError> + Send + 'static,
) -> Result<Response, Problem> {
    let encoder = Encoder::new(encoding).map_err(Problem::internal)?;
    let (pieces, received) = mpsc::channel(PIECES_AHEAD);
    let mut out = Output { text: Vec::new(), encoder, pieces, runtime: Handle::current(), timeout };
    tokio::task::spawn_blocking(move || match write(&mut out).and_then(|()| out.end()) {
        Ok(()) | Err(FileError::Gone) => {}
        Err(error @ FileError::SlowClient(_)) => tracing::debug!(%error, "a file ended early"),
        Err(error) => tracing::warn!(%error, "a file ended early"),
    });
    let body = FileBody { pieces: received, is_complete: false, _guard: Box::new(guard) };
    let mut response = Response::new(Body::new(body));
    if let Some(encoding) = encoding.header() {
        response.headers_mut().insert(header::CONTENT_ENCODING, encoding);
    }
    Ok(response)
}

fn write(rows: &mut impl Rows, slices: &mut Slices, out: &mut Output) -> Result<(), FileError> {
    rows.begin(out)?;
    loop {
        match slices.blocking_recv().ok_or(FileError::Gone)?? {
            Step::Next((device, slice)) => rows.write(&device, &slice, out)?,
            Step::End => return Ok(()),
        }
    }
}

impl Output {
    /// Writes a text of any length, and sends it piece by piece.
    pub(in crate::http) fn write(&mut self, text: &[u8]) -> Result<(), FileError> {
        for piece in text.chunks(PIECE_BYTES) {
            self.text.extend_from_slice(piece);
            self.send_if_full()?;
        }
        Ok(())
    }

    /// Waits for the next part of the data, unless the client leaves meanwhile.
    pub(in crate::http) fn wait<T>(&self, next: impl Future<Output = Result<T, QueryError>>) -> Result<T, FileError> {
        self.runtime.block_on(async {
            tokio::select! {
                next = next => Ok(next?),
                () = self.pieces.closed() => Err(FileError::Gone),
            }
        })
    }

    /// Sends the text once it is long enough for a piece.
    ///
    /// Waits until the connection takes the piece.
    pub(in crate::http) fn send_if_full(&mut self) -> Result<(), FileError> {
        if self.text.len() < PIECE_BYTES {
            return Ok(());
        }
        let text = std::mem::replace(&mut self.text, Vec::with_capacity(PIECE_BYTES + PIECE_BYTES / 8));
        self.encode(text)
    }

    fn end(mut self) -> Result<(), FileError> {
        let text = std::mem::take(&mut self.text);
        self.encode(text)?;
        if let Some(encoder) = self.encoder.take() {
            self.send(encoder.finish()?)?;
        }
        self.pass(Step::End)
    }

    fn encode(&mut self, text: Vec<u8>) -> Result<(), FileError> {
        let piece = match &mut self.encoder {
            Some(encoder) => encoder.encode(&text)?,
            None => text,
        };
        self.send(piece)
    }

    fn send(&self, piece: Vec<u8>) -> Result<(), FileError> {
        if piece.is_empty() { Ok(()) } else { self.pass(Step::Next(piece.into())) }
    }

    fn pass(&self, step: Step<Bytes>) -> Result<(), FileError> {
        let step = match self.pieces.try_send(step) {
            Ok(()) => return Ok(()),
            Err(mpsc::error::TrySendError::Full(step)) => step,
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(FileError::Gone),
        };
        match self.runtime.block_on(self.pieces.send_timeout(step, self.timeout)) {
            Ok(()) => Ok(()),
            Err(mpsc::error::SendTimeoutError::Closed(_)) => Err(FileError::Gone),
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => Err(FileError::SlowClient(self.timeout)),
        }
    }
}

/// The body of a file. Dropping it ends the other stages.
struct FileBody {
    pieces: mpsc::Receiver<Step<Bytes>>,
    is_complete: bool,
    _guard: Box<dyn Send>,
}

/// Why the body of a failed file ends.
#[derive(Debug, thiserror::Error)]
#[error("the file ended early")]
struct Interrupted;

impl HttpBody for FileBody {
    type Data = Bytes;
    type Error = Interrupted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        if self.is_complete {
            return Poll::Ready(None);
        }
        Poll::Ready(match ready!(self.pieces.poll_recv(cx)) {
            Some(Step::Next(piece)) => Some(Ok(Frame::data(piece))),
            Some(Step::End) => {
                self.is_complete = true;
                None
            }
            None => Some(Err(Interrupted)),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.is_complete
    }
}
