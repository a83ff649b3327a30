//! `GET /v1/devices`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::value::RawValue;

use super::answer;
use super::table::{Table, complete, next_page};
use crate::access::Grant;
use crate::common::clock::rfc3339;
use crate::http::App;
use crate::http::admission::Admitted;
use crate::http::format::Format;
use crate::http::params::Params;
use crate::http::problem::Problem;
use crate::model::{Metric, check_device_id};
use crate::query::{self, DevicesRequest};

/// The estimated memory of a device, with its metadata and the names of its metrics.
const BYTES_PER_DEVICE: usize = 2 << 10;

#[derive(Debug, Serialize)]
pub(in crate::http) struct Devices {
    devices: Vec<Device>,
    next: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    #[serde(rename = "deviceId")]
    id: String,
    metadata: Option<Box<RawValue>>,
    metrics: Vec<Metric>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more_metrics: bool,
    first_seen: String,
    last_seen: String,
}

/// `GET /v1/devices`
pub(in crate::http) async fn devices(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
    Extension(admitted): Extension<Arc<Admitted>>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    let mut params = Params::of(&uri);
    let format = Format::choose(&mut params, &headers, &Format::ALL)?;
    let limit = params.limit(100, app.limits.max_devices)?;
    let request = request(&mut params, limit)?;
    params.end()?;
    admitted.reserve(limit.saturating_mul(BYTES_PER_DEVICE)).await?;
    let found = app.queries.devices(&grant.device_scope, &request).await?;
    if format != Format::Json {
        let ((devices, more), lagging) = complete(found)?;
        let next = devices.last().filter(|_| more).map(|last| next_page(&uri, &last.id));
        return Ok(table(format, &devices).into_response([], "devices", next, lagging));
    }
    let answer = answer(found, |(devices, more)| {
        let next = devices.last().filter(|_| more).map(|last| last.id.to_string());
        Devices { devices: devices.into_iter().map(device).collect(), next }
    });
    Ok(answer.into_response())
}

/// The devices as rows. Metadata and metrics are JSON.
fn table(format: Format, devices: &[query::Device]) -> Table {
    let columns = ["deviceId", "firstSeen", "lastSeen", "metadata", "metrics", "moreMetrics"];
    let mut table = Table::new(format, columns);
    for device in devices {
        table.text(&device.id);
        table.instant(device.first_ts_ms);
        table.instant(device.last_ts_ms);
        table.json(device.metadata.as_deref().unwrap_or("null"));
        table.json(&serde_json::to_string(&device.metrics).expect("texts are JSON"));
        table.json(if device.has_more_metrics { "true" } else { "false" });
    }
    table
}

/// Reads `prefix` and `cursor`.
pub(super) fn request(params: &mut Params<'_>, limit: usize) -> Result<DevicesRequest, Problem> {
    let prefix = params.one("prefix")?.unwrap_or_default().into_owned();
    check_prefix(&prefix)?;
    let after = params.one("cursor")?.map(std::borrow::Cow::into_owned);
    if let Some(cursor) = &after {
        check_device_id(cursor).map_err(|error| Problem::invalid_parameter("cursor", error))?;
    }
    Ok(DevicesRequest { prefix, after, limit })
}

/// Refuses a prefix with which no device ID can start, because it must be a mistake.
fn check_prefix(prefix: &str) -> Result<(), Problem> {
    if prefix.contains('*') {
        let why = "must not contain `*`: every device ID that starts with the prefix matches";
        return Err(Problem::invalid_parameter("prefix", why));
    }
    match check_device_id(prefix) {
        Err(error) if !prefix.is_empty() => Err(Problem::invalid_parameter("prefix", error)),
        _ => Ok(()),
    }
}

fn device(device: query::Device) -> Device {
    Device {
        id: device.id.to_string(),
        metadata: device.metadata.and_then(|text| RawValue::from_string(text.to_string()).ok()),
        metrics: device.metrics,
        more_metrics: device.has_more_metrics,
        first_seen: rfc3339(device.first_ts_ms),
        last_seen: rfc3339(device.last_ts_ms),
    }
}
