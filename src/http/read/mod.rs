//! Queries: readings, rollups, latest values, devices.
//!
//! Each query passes `query_limits` first. `devices`, `latest`, `readings` and `rollups` have the handlers of
//! their paths. The answer is JSON or a `table`. The readings of a range may be a file: `file_rows` writes
//! its rows, and `streamed_file` sends them in constant memory. Rollups have writers of their own
//! (`rollups_json`, `rollups_table`), and `combine` folds the rollups of many devices. Prometheus reads the
//! latest values (`latest_metrics`) and series (`remote_read`).

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Uri, Version};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use self::query_limits::RunningQuery;
use super::App;
use super::answer::format::Format;
use super::problem::Problem;
use super::request::params::Params;
use crate::access::Grant;
use crate::client::LAGGING_SECONDS;
use crate::common::clock::Clock;
use crate::model::MS_PER_HOUR;
use crate::query::{Answer, Missing, Zone};

mod combine;
mod devices;
mod file_rows;
mod latest;
mod latest_metrics;
pub(super) mod query_limits;
mod readings;
mod remote_read;
mod rollups;
mod rollups_json;
mod rollups_table;
pub(super) mod streamed_file;
mod table;

pub(super) use devices::{check_prefix, describe_device, describe_devices, device, devices};
pub(super) use latest::{describe_latest, describe_latest_of_devices, latest, latest_of_devices};
pub(super) use latest_metrics::{describe as describe_latest_metrics, latest_metrics};
pub(super) use readings::{
    bytes_of_page as bytes_of_readings, describe_readings, describe_readings_of_devices,
    of_devices as readings_of_devices, readings,
};
pub(super) use remote_read::{describe as describe_remote_read, remote_read};
pub(super) use rollups::{describe_rollups, describe_rollups_of_devices, of_devices as rollups_of_devices, rollups};

/// The length of a range without `from`: one day.
const DEFAULT_RANGE_MS: i64 = 24 * MS_PER_HOUR;

/// The head of a request for data, and what the middleware adds to it.
///
/// `running` is the place of the request among the running queries.
pub(super) struct QueryParts {
    app: Arc<App>,
    grant: Arc<Grant>,
    running: Arc<RunningQuery>,
    version: Version,
    headers: HeaderMap,
    uri: Uri,
}

impl FromRequestParts<Arc<App>> for QueryParts {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let grant = parts.extensions.get::<Arc<Grant>>().cloned();
        let running = parts.extensions.get::<Arc<RunningQuery>>().cloned();
        let (Some(grant), Some(running)) = (grant, running) else {
            return Err(Problem::internal("a query without a grant or a place among the queries"));
        };
        let (version, headers, uri) = (parts.version, parts.headers.clone(), parts.uri.clone());
        Ok(Self { app: Arc::clone(app), grant, running, version, headers, uri })
    }
}

/// An answer, with notes on what may be missing in it.
#[derive(Debug, Serialize)]
pub(super) struct Body<T> {
    #[serde(flatten)]
    answer: T,
    #[serde(flatten)]
    notes: Notes,
}

/// Notes on what may be missing in an answer.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Notes {
    /// Readings that were acknowledged within these seconds may be missing.
    #[serde(rename = "laggingSeconds", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    lagging_seconds: Option<f64>,
    /// Whether stored readings are missing, because the store does not answer, or devices, because the device
    /// index lacks them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    partial: bool,
    /// Why the answer is partial, and what to do.
    #[serde(rename = "partialReason", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    partial_reason: Option<String>,
}

fn answer<A, B>(answer: Answer<A>, make: impl FnOnce(A) -> B) -> Json<Body<B>> {
    let lagging_seconds = answer.lagging.map(|lagging| lagging.as_secs_f64());
    let (partial, partial_reason) = (answer.partial.is_some(), answer.partial.map(Missing::reason));
    Json(Body { answer: make(answer.body), notes: Notes { lagging_seconds, partial, partial_reason } })
}

/// Notes in a header that the newest acknowledged readings may be missing.
fn mark_lagging(response: &mut Response, lagging: Option<Duration>) {
    if let Some(lagging) = lagging {
        let seconds = HeaderValue::try_from(lagging.as_secs_f64().to_string()).expect("a number is ASCII");
        response.headers_mut().insert(LAGGING_SECONDS, seconds);
    }
}

/// Marks a response as the file `name`, and notes the lag of its data.
fn as_file(mut response: Response, format: Format, name: &str, lagging: Option<Duration>) -> Response {
    format.mark_file(&mut response, name);
    mark_lagging(&mut response, lagging);
    response
}

/// Reads the range `from` (inclusive) to `to` (exclusive), in the zone `tz`.
///
/// By default it is the day before `to`, and `to` is now.
fn range(params: &mut Params<'_>, clock: &Clock) -> Result<(i64, i64), Problem> {
    let zone = params.zone()?;
    let (from_ms, to_ms) = open_range(params, clock, zone.as_ref())?;
    Ok((from_ms.unwrap_or(to_ms - DEFAULT_RANGE_MS), to_ms))
}

/// Reads `from` (inclusive), if present, and `to` (exclusive), by default now.
fn open_range(params: &mut Params<'_>, clock: &Clock, zone: Option<&Zone>) -> Result<(Option<i64>, i64), Problem> {
    let now_ms = clock.now_ms();
    let (from_ms, to_ms) = (params.instant_ms("from", now_ms, zone)?, params.instant_ms("to", now_ms, zone)?);
    let to_ms = to_ms.unwrap_or(now_ms + 1);
    if from_ms.is_some_and(|from_ms| from_ms >= to_ms) {
        return Err(Problem::invalid_parameter("from", "must be before `to`"));
    }
    Ok((from_ms, to_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_lag_in_a_header() {
        let mut response = Response::default();
        mark_lagging(&mut response, None);
        assert!(response.headers().is_empty());
        mark_lagging(&mut response, Some(Duration::from_millis(1_500)));
        assert_eq!(response.headers()["tidegauge-lagging-seconds"], "1.5");
    }
}
