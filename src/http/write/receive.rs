//! The common path of all requests with readings: receive the body, admit the readings, return the receipt.

use std::sync::{Arc, LazyLock};

use axum::body::Body;
use axum::http::HeaderMap;
use tokio::sync::Semaphore;

use crate::access::Grant;
use crate::http::access::authorize::delay_refusal;
use crate::http::problem::Problem;
use crate::http::request::body::{self, Received};
use crate::http::{App, Threads};
use crate::ingest::{Admission, Admitted, IngestError, Receipt};
use crate::wire::{Code, Format, Source};

/// The largest body that is parsed on the thread that received it, within milliseconds. A larger body would
/// delay other requests, so a blocking thread parses it.
const INLINE_BYTES: usize = 256 << 10;

/// Limits the large bodies that are parsed at once to the number of processors, so that requests with small
/// bodies are not delayed.
static PARSERS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(Threads::count()));

/// A body that is not in the format that it claims: the code that counts it, and the answer.
pub(super) type UnreadableBody = (Code, Problem);

/// A request with readings, before its body is read.
pub(super) struct IngestRequest<'a> {
    pub(super) app: &'a Arc<App>,
    pub(super) grant: &'a Arc<Grant>,
    pub(super) format: Format,
    pub(super) headers: &'a HeaderMap,
    pub(super) body: Body,
    /// Whether valid readings are accepted beside rejected ones.
    pub(super) partial: bool,
}

/// The outcome of a request whose body was parsed. Some or all of its readings may be rejected.
#[derive(Debug)]
pub(super) struct IngestOutcome<T = ()> {
    /// The accepted and rejected readings.
    pub(super) receipt: Receipt,
    /// The body, decompressed.
    pub(super) body: Received,
    /// The result of the parser.
    pub(super) parsed: T,
}

/// Receives the body of a request, parses it with `parse`, and waits until the accepted readings are durable.
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

/// The answer to a request of which no reading was accepted.
pub(super) fn refused(app: &App, error: IngestError) -> Problem {
    Problem::refused(error, app.pipeline.store_away().is_some())
}

/// Receives the body of a request, and parses it with `parse`. Nothing is accepted yet.
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
            (parsed.map(|parsed| (admission.end(), parsed)), body) // the body keeps its memory until here
        }
    };
    let (admitted, body) = run(body_bytes, read).await?;
    let (admitted, parsed) = admitted.map_err(|(code, problem)| {
        app.ingest.count_unreadable_request(source.into(), code);
        problem
    })?;
    Ok((admitted, body, parsed))
}

/// Runs the work on a body of this size: here if it is small, else on a blocking thread.
async fn run<T: Send + 'static>(body_bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    if body_bytes <= INLINE_BYTES {
        return Ok(work());
    }
    let internal = |error: &dyn std::fmt::Display| Problem::internal(&error.to_string());
    let _turn = PARSERS.acquire().await.map_err(|error| internal(&error))?;
    tokio::task::spawn_blocking(work).await.map_err(|error| internal(&error))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn other_requests_go_on_while_a_large_body_is_parsed() {
        let (others_go_on, goes_on) = mpsc::channel();
        // Returns when the other task has run, and this test has one thread only.
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
