//! `GET /v1/devices`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::{Extension, Json};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{Body, answer};
use crate::access::Grant;
use crate::common::clock::rfc3339;
use crate::http::App;
use crate::http::admission::Admitted;
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
    uri: Uri,
) -> Result<Json<Body<Devices>>, Problem> {
    let mut params = Params::of(&uri);
    let limit = params.limit(100, app.limits.max_devices)?;
    let request = request(&mut params, limit)?;
    params.end()?;
    admitted.reserve(limit.saturating_mul(BYTES_PER_DEVICE)).await?;
    let found = app.queries.devices(&grant.device_scope, &request).await?;
    Ok(answer(found, |(devices, more)| {
        let next = devices.last().filter(|_| more).map(|last| last.id.to_string());
        Devices { devices: devices.into_iter().map(device).collect(), next }
    }))
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
