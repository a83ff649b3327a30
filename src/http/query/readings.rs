//! `GET /v1/devices/{deviceId}/readings`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::{Extension, Json};
use serde::{Serialize, Serializer};

use super::{Body, answer, range, rfc3339};
use crate::access::Grant;
use crate::http::App;
use crate::http::device::DeviceInPath;
use crate::http::params::Params;
use crate::http::problem::Problem;
use crate::model::Metric;
use crate::query::ReadingsRequest;

#[derive(Debug, Serialize)]
pub(in crate::http) struct Readings {
    readings: Vec<Reading>,
    next: Option<String>,
}

#[derive(Debug, Serialize)]
struct Reading {
    ts: String,
    #[serde(serialize_with = "as_map")]
    values: Vec<(Metric, f64)>,
}

fn as_map<S: Serializer>(values: &[(Metric, f64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(values.iter().map(|(metric, value)| (metric, value)))
}

/// `GET /v1/devices/{deviceId}/readings`
pub(in crate::http) async fn readings(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
    DeviceInPath(device): DeviceInPath,
    uri: Uri,
) -> Result<Json<Body<Readings>>, Problem> {
    let mut params = Params::of(&uri);
    let (mut from_ms, to_ms) = range(&mut params)?;
    let limit = params.limit(app.limits.default_readings, app.limits.max_readings)?;
    if let Some(cursor) = params.one("cursor")? {
        let place = cursor.parse().ok().filter(|place| (from_ms..to_ms).contains(place));
        from_ms = place.ok_or_else(|| Problem::invalid_parameter("cursor", "not a `next` of this range"))?;
    }
    let metrics = params.metrics()?;
    params.end()?;
    let page = app.queries.readings(&grant.reach, &ReadingsRequest { device, from_ms, to_ms, metrics, limit }).await?;
    Ok(answer(page, |page| Readings {
        readings: page
            .readings
            .into_iter()
            .map(|mut reading| {
                reading.values.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
                Reading { ts: rfc3339(reading.ts_ms), values: reading.values }
            })
            .collect(),
        next: page.next_ms.map(|next_ms| next_ms.to_string()),
    }))
}
