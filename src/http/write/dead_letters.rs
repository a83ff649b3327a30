//! `POST /v1/dead-letters`: takes readings that the store once refused.
//!
//! `tidegauge dead-letters retry` sends the lines of a dead-letter file to this path. A line may be days old.
//! If the server has meanwhile accepted another value of the same device, time and series, the value of the
//! line is *older*, and the server leaves it out.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

use super::readings::{Accepted, answer, check_lines};
use super::receive::{IngestRequest, admit_readings, refused};
use crate::access::{DeviceScope, Grant};
use crate::http::App;
use crate::http::openapi::{Operation, Tag};
use crate::http::problem::Problem;
use crate::http::request::params::Params;
use crate::ingest::{Admitted, Known, KnownValues, Receipt, Repetition};
use crate::query::{QueryError, ReadingSlices};
use crate::wire::{self, Format};

/// The number of devices whose metadata one query reads.
const DEVICES_AT_ONCE: usize = 1_000;

/// Describes `POST /v1/dead-letters`.
pub(in crate::http) fn describe() -> Operation {
    let line = json!({ "deviceId": "S2", "readings": [{ "ts": 1_776_693_610_000_i64, "values": { "temp": 22.4 } }] });
    Operation::post(Tag::Readings, "postDeadLetters", "Repeat dead letters")
        .description(
            "Takes lines of a dead-letter file, each with the fields of the JSON form of readings. A value is left out \
             if the server has another value of the same device, time and series, unless `replaces` of its line has \
             that value. So a repeated reading never replaces one that was accepted after it.",
        )
        .body("application/x-ndjson", &json!({ "type": "string" }), &json!(format!("{line}\n")))
        .answers::<Accepted>(200, "All readings but the older ones are durable.")
        .takes_readings()
        .queries()
}

/// The part of a line that says which stored values its readings may replace.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Replacing<'b> {
    #[serde(borrow)]
    device_id: Cow<'b, str>,
    /// The values that the store had at the refusal, by instant (Unix ms) and series.
    replaces: BTreeMap<i64, BTreeMap<String, f64>>,
}

/// `POST /v1/dead-letters`
pub(in crate::http) async fn repeat(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Accepted>, Problem> {
    Params::of(&uri, &[]).end()?;
    check_lines(&headers)?;
    let request =
        IngestRequest { app: &app, grant: &grant, format: Format::Json, headers: &headers, body, partial: true };
    let of_token = Arc::clone(&grant);
    let parsed = admit_readings(request, move |app, bytes, admission| {
        wire::json::parse_lines(bytes, &app.formats.json.at(admission.now_ms()), admission);
        Ok(replaced_by(bytes, &of_token.device_scope))
    });
    let (readings, body, replaced) = parsed.await?;
    // Runs on the main runtime, as queries do: on the thread of its connection it would delay others.
    let appended = {
        let app = Arc::clone(&app);
        async move {
            let _body = body; // while it lives, its memory is reserved
            append(&app, &grant, readings, &replaced).await
        }
    };
    let appended = AbortOnDropHandle::new(app.main.spawn(appended));
    answer(appended.await.map_err(Problem::internal)??, true)
}

/// Appends all values that are not older, and waits until they are durable.
async fn append(app: &App, grant: &Grant, readings: Admitted, replaced: &KnownValues) -> Result<Receipt, Problem> {
    let place = app.query_limits.enter(&grant.quota).await?;
    place.reserve(ReadingSlices::MAX_BYTES).await?;
    let repetition = app.ingest.repeat(readings).await.map_err(|error| refused(app, error))?;
    let limit = app.queries.limits().timeout;
    let known = tokio::time::timeout(limit, known(app, &repetition)).await;
    match known.unwrap_or(Err(QueryError::Timeout(limit))) {
        Ok(known) => repetition.finish(&known, replaced).durable().await.map_err(|error| refused(app, error)),
        Err(error) => {
            repetition.refuse();
            Err(error.into())
        }
    }
}

/// Reads which stored values the lines of a body may replace, by stored ID.
fn replaced_by(body: &[u8], scope: &DeviceScope) -> KnownValues {
    let mut replaced = KnownValues::default();
    for line in body.split(|&byte| byte == b'\n') {
        let Ok(Replacing { device_id, replaces }) = serde_json::from_slice(line) else { continue };
        let Ok(device) = scope.to_stored_id(&device_id) else { continue };
        for (ts_ms, values) in replaces {
            for (series, value) in values {
                replaced.insert(&device, ts_ms, &series, value);
            }
        }
    }
    replaced
}

/// Reads the values at the instants of the readings, and the devices' metadata.
async fn known(app: &App, repetition: &Repetition<'_>) -> Result<Known, QueryError> {
    let queries = &app.queries;
    if queries.catch_up().await.is_some() {
        return Err(QueryError::Lagging);
    }
    let mut known = Known::default();
    for (device, instants) in repetition.instants() {
        let found = |ts_ms, series: &str, value| known.values.insert(device, ts_ms, series, value);
        queries.values_at(device, instants, found).await?;
    }
    if !repetition.has_metadata() {
        return Ok(known);
    }
    let devices: Vec<Arc<str>> = repetition.instants().keys().map(|device| (&**device).into()).collect();
    for devices in devices.chunks(DEVICES_AT_ONCE) {
        let own = queries.own_metadata(devices.to_vec()).await?;
        known.metadata.extend(own.into_iter().map(|(device, metadata)| ((&*device).into(), metadata)));
    }
    Ok(known)
}
