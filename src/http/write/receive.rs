//! The common path of all requests with readings: from the body to the receipt.

use std::sync::Arc;

use axum::body::Body;
use axum::http::HeaderMap;

use crate::access::Grant;
use crate::http::App;
use crate::http::access::authorize::delay_refusal;
use crate::http::problem::Problem;
use crate::http::request::body::{self, Received};
use crate::http::request::turn::{PARSING, in_turn};
use crate::ingest::{Admission, Admitted, IngestError, Receipt};
use crate::wire::{Code, Format, Source};

/// The size in bytes up to which the thread of the connection parses a body.
///
/// Parsing it takes milliseconds. A larger body would delay other requests, so a blocking thread parses it.
const INLINE_BYTES: usize = 256 << 10;

/// Why a body cannot be parsed: the code for the metrics, and the problem.
pub(super) type UnreadableBody = (Code, Problem);

/// A request with readings, before its body is read.
pub(super) struct IngestRequest<'a> {
    pub(super) app: &'a Arc<App>,
    pub(super) grant: &'a Arc<Grant>,
    pub(super) format: Format,
    pub(super) headers: &'a HeaderMap,
    pub(super) body: Body,
    /// Whether valid readings are accepted if others of the request are rejected.
    pub(super) partial: bool,
}

/// The outcome of a request whose body was parsed. Its readings may be rejected.
#[derive(Debug)]
pub(super) struct IngestOutcome<T = ()> {
    /// The accepted and rejected readings.
    pub(super) receipt: Receipt,
    /// The body, decompressed.
    pub(super) body: Received,
    /// The value that the parser returned.
    pub(super) parsed: T,
}

/// Receives and parses a body, and waits until the accepted readings are durable.
pub(super) async fn receive_readings<T: Send + 'static>(
    request: IngestRequest<'_>,
    parse: impl FnOnce(&App, &[u8], &mut Admission<'_>) -> Result<T, UnreadableBody> + Send + 'static,
) -> Result<IngestOutcome<T>, Problem> {
    let (app, partial) = (request.app, request.partial);
    let (admitted, body, parsed) = admit_readings(request, parse).await?;
    match app.ingest.finish(admitted, partial).durable().await {
        Ok(receipt) => Ok(IngestOutcome { receipt, body, parsed }),
        Err(IngestError::NotPartial(receipt)) => Ok(IngestOutcome { receipt: *receipt, body, parsed }),
        Err(error) => Err(refused(app, error)),
    }
}

/// Makes the answer to a request that was refused as a whole.
pub(super) fn refused(app: &App, error: IngestError) -> Problem {
    Problem::refused(error, app.pipeline.store_away().is_some())
}

/// Receives the body of a request, and parses it. Nothing is in the log yet.
pub(super) async fn admit_readings<T: Send + 'static>(
    request: IngestRequest<'_>,
    parse: impl FnOnce(&App, &[u8], &mut Admission<'_>) -> Result<T, UnreadableBody> + Send + 'static,
) -> Result<(Admitted, Received, T), Problem> {
    let IngestRequest { app, grant, format, headers, body, .. } = request;
    let source = Source::http(format);
    let permit = match app.ingest.begin(source, &grant.quota) {
        Ok(permit) => permit,
        Err(error) => return Err(Problem::readings_rate_limited(delay_refusal(error.retry_after).await)),
    };
    let received = async {
        body::require_length(headers)?;
        body::receive(app, &grant.quota, format, headers, body).await
    };
    let body = received.await.inspect_err(|error| {
        app.ingest.count_refused_request(source.into(), error.reason());
    })?;
    let body_bytes = body.bytes.len();
    let read = {
        let (app, grant) = (Arc::clone(app), Arc::clone(grant));
        move || {
            let mut admission = app.ingest.admission(permit, &grant.device_scope, &grant.quota);
            let parsed = parse(&app, &body.bytes, &mut admission);
            (parsed.map(|parsed| (admission.end(), parsed)), body) // while the body lives, its memory is reserved
        }
    };
    let (admitted, body) = run(body_bytes, read).await?;
    let (admitted, parsed) = admitted.map_err(|(code, problem)| {
        app.ingest.count_unreadable_request(source.into(), code);
        problem
    })?;
    Ok((admitted, body, parsed))
}

/// Runs `work` on this thread if the body is small, else on a blocking thread when it is its turn.
async fn run<T: Send + 'static>(body_bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    if body_bytes <= INLINE_BYTES {
        return Ok(work());
    }
    in_turn(&PARSING, work).await.map_err(Problem::internal)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn other_requests_go_on_while_a_large_body_is_parsed() {
        let (others_go_on, goes_on) = mpsc::channel();
        // The test has one thread. So the other task runs only while a blocking thread parses.
        let parse = move || goes_on.recv_timeout(Duration::from_secs(60)).is_ok();
        let large = run(INLINE_BYTES + 1, parse);
        let other = async move { others_go_on.send(()).unwrap() };
        let (parsed, ()) = tokio::join!(large, other);
        assert!(parsed.is_ok_and(|was_not_delayed| was_not_delayed));
    }

    #[tokio::test]
    async fn a_small_body_is_parsed_where_it_was_received() {
        let here = std::thread::current().id();
        let there = run(INLINE_BYTES, || std::thread::current().id()).await;
        assert!(there.is_ok_and(|there| there == here));
    }
}
