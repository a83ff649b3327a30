//! `DELETE /v1/devices/{deviceId}/readings` and `DELETE /v1/devices/{deviceId}`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::{Extension, Json};
use serde::Serialize;
use utoipa::ToSchema;

use crate::access::Grant;
use crate::flush::{DeletionError, DeletionOutcome};
use crate::http::App;
use crate::http::openapi::parameter::{ALL, DRY_RUN, FROM, LABELS, METRIC, TO, TZ_OF_RANGE};
use crate::http::openapi::{Operation, Parameters, Tag};
use crate::http::problem::{Problem, ProblemCode};
use crate::http::read::bytes_of_readings;
use crate::http::read::query_limits::until_client_leaves;
use crate::http::request::device_id::DeviceInPath;
use crate::http::request::params::Params;
use crate::http::serve::connection::Peer;
use crate::ingest::IngestError;
use crate::model::{Deletion, SeriesFilter};
use crate::query::QueryError;

/// The longest time that a client waits for a deletion.
///
/// Then the client gets an answer, and the deletion continues.
const MAX_WAIT: Duration = Duration::from_secs(20);

/// The longest wait while the store is away.
///
/// Within this time, the deletion removes readings that are only pending.
const SHORT_WAIT: Duration = Duration::from_millis(500);

/// The result of a deletion.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = Deleted)]
#[serde(rename_all = "camelCase")]
pub(in crate::http) struct Receipt {
    /// The number of deleted readings.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    deleted: Option<u64>,
    /// Whether the readings were only counted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    dry_run: bool,
    /// Whether readings are still to be deleted, after the answer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pending: bool,
    /// The running instances that still have to execute the deletion.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    waits_for: Vec<Arc<str>>,
    /// The stopped instances, which execute the deletion when they start again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    absent: Vec<Arc<str>>,
}

const OF_DEVICE: Parameters = &[&[&DRY_RUN]];
const OF_READINGS: Parameters = &[&[&ALL, &FROM, &TO, &TZ_OF_RANGE, &METRIC, &LABELS, &DRY_RUN]];

/// Describes `DELETE /v1/devices/{deviceId}`.
pub(in crate::http) fn describe_device() -> Operation {
    describe(Operation::delete(Tag::Readings, "deleteDevice", "Delete a device with all its readings"))
        .parameters(OF_DEVICE)
}

/// Describes `DELETE /v1/devices/{deviceId}/readings`.
pub(in crate::http) fn describe_readings() -> Operation {
    describe(Operation::delete(Tag::Readings, "deleteReadings", "Delete readings of a device"))
        .description("`from` and `to` are required unless `all` is true.")
        .parameters(OF_READINGS)
}

fn describe(operation: Operation) -> Operation {
    operation
        .answers::<Receipt>(200, "The readings are deleted, or counted.")
        .answers::<Receipt>(202, "The deletion is durable, and is executed later.")
        .queries()
        .problems(&[ProblemCode::DeletionUnsupported, ProblemCode::LogFailed])
}

/// `DELETE /v1/devices/{deviceId}`
pub(in crate::http) async fn device(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
    peer: Option<Extension<Peer>>,
    DeviceInPath(device): DeviceInPath,
    uri: Uri,
) -> Result<(StatusCode, Json<Receipt>), Problem> {
    let mut params = Params::of(&uri, OF_DEVICE);
    let is_dry_run = params.boolean("dry_run", false)?;
    params.end()?;
    delete(app, grant, peer, device, (None, SeriesFilter::ALL), is_dry_run).await
}

/// `DELETE /v1/devices/{deviceId}/readings`
pub(in crate::http) async fn readings(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
    peer: Option<Extension<Peer>>,
    DeviceInPath(device): DeviceInPath,
    uri: Uri,
) -> Result<(StatusCode, Json<Receipt>), Problem> {
    let mut params = Params::of(&uri, OF_READINGS);
    let is_all = params.boolean("all", false)?;
    let now_ms = app.clock.now_ms();
    let zone = params.zone()?;
    let [from_ms, to_ms] = ["from", "to"].map(|name| params.instant_ms(name, now_ms, zone.as_ref()));
    let (from_ms, to_ms) = (from_ms?, to_ms?);
    let range_ms = match (from_ms, to_ms) {
        (None, None) if is_all => None,
        (Some(_), _) | (_, Some(_)) if is_all => {
            return Err(Problem::invalid_parameter("all", "cannot be combined with `from` and `to`"));
        }
        (Some(from_ms), Some(to_ms)) if from_ms < to_ms => Some(from_ms..to_ms),
        (Some(_), Some(_)) => return Err(Problem::invalid_parameter("from", "must be before `to`")),
        (None, _) => return Err(Problem::invalid_parameter("from", REQUIRED)),
        (_, None) => return Err(Problem::invalid_parameter("to", REQUIRED)),
    };
    let series = params.series()?;
    let is_dry_run = params.boolean("dry_run", false)?;
    params.end()?;
    delete(app, grant, peer, device, (range_ms, series), is_dry_run).await
}

const REQUIRED: &str = "is required: a deletion names both ends of its range, or `all=true`";

async fn delete(
    app: Arc<App>,
    grant: Arc<Grant>,
    peer: Option<Extension<Peer>>,
    device: String,
    (range_ms, series): (Option<std::ops::Range<i64>>, SeriesFilter),
    is_dry_run: bool,
) -> Result<(StatusCode, Json<Receipt>), Problem> {
    let stored_id = grant.device_scope.to_stored_id(&device).map_err(QueryError::from)?.as_ref().into();
    let deletion = Deletion { device: stored_id, range_ms, series };
    if let Some(why) = app.pipeline.refusal_of(&deletion) {
        return Err(Problem::deletion_unsupported(why));
    }
    if is_dry_run {
        let disconnect = peer.map(|Extension(peer)| peer.disconnect);
        let of_count = Arc::clone(&app);
        let counting = async move { count(&of_count, &grant, &device, deletion).await };
        return until_client_leaves(&app, disconnect, counting).await?;
    }
    let is_away = app.pipeline.store_away().is_some();
    let wait = if is_away { SHORT_WAIT } else { MAX_WAIT };
    let outcome = app.pipeline.delete(deletion, grant.author(), wait).await;
    let outcome = outcome.map_err(|error| match error {
        DeletionError::TooMany => Problem::too_many_waiting(&error),
        DeletionError::Log(error) => Problem::refused(IngestError::from(error), is_away),
    });
    match outcome? {
        DeletionOutcome::Executed { readings, absent } => {
            Ok((StatusCode::OK, Json(Receipt { deleted: Some(readings), absent, ..Receipt::default() })))
        }
        DeletionOutcome::Accepted { waits_for } => {
            Ok((StatusCode::ACCEPTED, Json(Receipt { pending: true, waits_for, ..Receipt::default() })))
        }
        DeletionOutcome::Failed(why) => Err(Problem::internal(why)),
    }
}

/// Counts the readings that a deletion would remove, within the limits of queries.
async fn count(
    app: &App,
    grant: &Grant,
    device: &str,
    deletion: Deletion,
) -> Result<(StatusCode, Json<Receipt>), Problem> {
    let running = app.query_limits.enter(&grant.quota).await?;
    // The readings are counted page by page.
    running.reserve(bytes_of_readings(app.limits.max_readings, &deletion.series, app.limits.max_points)).await?;
    let dead = app.pipeline.dead_letters().count(&deletion).await;
    let dead = dead.map_err(|error| Problem::internal(format!("cannot count the dead letters: {error}")))?;
    let (scope, now_ms) = (&grant.device_scope, app.clock.now_ms());
    let Deletion { range_ms, series, .. } = deletion;
    let count = dead + app.queries.count_readings(scope, device, range_ms, &series, now_ms).await?;
    Ok((StatusCode::OK, Json(Receipt { deleted: Some(count), dry_run: true, ..Receipt::default() })))
}
