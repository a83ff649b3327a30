//! What all requests with readings have in common, whatever their format: body in, readings admitted, receipt
//! out.

use std::sync::{Arc, LazyLock};

use axum::body::Body;
use axum::http::HeaderMap;
use tokio::sync::Semaphore;

use super::App;
use super::body::{self, Received};
use super::problem::Problem;
use crate::access::Grant;
use crate::ingest::{Admission, Receipt, Refused};
use crate::wire::{Code, Format, Source};

/// A body of at most this size is parsed where it was received, within milliseconds. A larger one would hold
/// up other requests, so a thread that may block parses it.
const INLINE_BYTES: usize = 256 << 10;

/// As many large bodies are parsed at once as there are processors, so that requests with small ones are not
/// held up.
static PARSERS: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(std::thread::available_parallelism().map_or(1, std::num::NonZero::get)));

/// A body that is not in the format it claims: how it counts, and how it is told.
pub(super) type Unreadable = (Code, Problem);

/// A request that was understood. Some or all of its readings may be rejected.
#[derive(Debug)]
pub(super) struct Taken {
    /// What became of the readings.
    pub(super) receipt: Receipt,
    /// The body, decompressed.
    pub(super) body: Received,
}

/// Receives a body, lets `parse` find its readings, and waits until the good ones are durable. With `partial`
/// unset, one bad reading rejects them all.
pub(super) async fn take(
    app: &Arc<App>,
    grant: &Arc<Grant>,
    format: Format,
    headers: &HeaderMap,
    body: Body,
    partial: bool,
    parse: impl FnOnce(&App, &[u8], &mut Admission<'_>) -> Result<(), Unreadable> + Send + 'static,
) -> Result<Taken, Problem> {
    let source = Source::http(format);
    let received = async {
        body::require_length(headers)?;
        body::receive(app, &grant.quota, headers, body).await
    };
    let body = received.await.inspect_err(|problem| {
        app.ingest.count_refused_request(source.into(), problem.reason());
    })?;
    let body_bytes = body.bytes.len();
    let read = {
        let (app, grant) = (Arc::clone(app), Arc::clone(grant));
        move || {
            let mut admission = app.ingest.admission(source, &grant.device_scope, &grant.quota);
            let parsed = parse(&app, &body.bytes, &mut admission);
            (parsed.map(|()| admission.end()), body) // the body keeps its share of the budget until here
        }
    };
    let (admitted, body) = run(body_bytes, read).await?;
    let admitted = admitted.map_err(|(code, problem)| {
        app.ingest.count_unreadable_request(source.into(), code);
        problem
    })?;
    let receipt = match app.ingest.commit(admitted, &grant.quota, partial).await {
        Ok(receipt) | Err(Refused::NotPartial(receipt)) => receipt,
        Err(refused) => return Err(Problem::refused(refused, app.pipeline.store_away().is_some())),
    };
    Ok(Taken { receipt, body })
}

/// Does the work that a body of so many bytes makes: at once, or on a thread of its own.
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
        // Ends when the other task has run, for which there is no thread but this one.
        let parse = move || goes_on.recv_timeout(Duration::from_secs(60)).is_ok();
        let large = run(INLINE_BYTES + 1, parse);
        let other = async move { others_go_on.send(()).unwrap() };
        let (parsed, ()) = tokio::join!(large, other);
        assert!(parsed.is_ok_and(|was_held_up_by_nothing| was_held_up_by_nothing));
    }

    #[tokio::test]
    async fn a_small_body_is_parsed_where_it_was_received() {
        let here = std::thread::current().id();
        let there = run(INLINE_BYTES, || std::thread::current().id()).await;
        assert!(there.is_ok_and(|there| there == here));
    }
}
