//! What all requests with readings have in common, whatever their format: body in, readings admitted, receipt out.

use axum::body::Body;
use axum::http::HeaderMap;

use super::App;
use super::body::{self, Received};
use super::problem::Problem;
use crate::access::Grant;
use crate::ingest::{Admission, Receipt, Refused};
use crate::telemetry::Protocol;
use crate::wire::Code;

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

/// Receives a body, lets `parse` find its readings, and waits until the good ones are durable. With `partial` unset, one
/// bad reading rejects them all.
pub(super) async fn take(
    app: &App,
    grant: &Grant,
    protocol: Protocol,
    headers: &HeaderMap,
    body: Body,
    partial: bool,
    parse: impl FnOnce(&[u8], &mut Admission<'_>) -> Result<(), Unreadable>,
) -> Result<Taken, Problem> {
    let body = body::receive(app, &grant.allowance, headers, body).await.inspect_err(|problem| {
        app.ingest.count_refused_request(protocol, problem.reason());
    })?;
    let mut admission = app.ingest.admission(protocol, &grant.reach, &grant.allowance);
    parse(&body.bytes, &mut admission).map_err(|(code, problem)| {
        app.ingest.count_unreadable_request(protocol, code);
        problem
    })?;
    let receipt = match app.ingest.commit(admission, partial).await {
        Ok(receipt) | Err(Refused::NotPartial(receipt)) => receipt,
        Err(refused) => return Err(Problem::refused(refused, app.flush.store_away().is_some())),
    };
    Ok(Taken { receipt, body })
}
