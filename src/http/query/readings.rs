//! `GET /v1/devices/{deviceId}/readings`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::{Extension, Json};
use serde::{Serialize, Serializer};

use super::{Body, answer, range};
use crate::access::Grant;
use crate::common::clock::rfc3339;
use crate::http::App;
use crate::http::admission::Admitted;
use crate::http::device::DeviceInPath;
use crate::http::params::Params;
use crate::http::problem::Problem;
use crate::model::{Metric, SeriesFilter, Wanted};
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
    Extension(admitted): Extension<Arc<Admitted>>,
    DeviceInPath(device): DeviceInPath,
    uri: Uri,
) -> Result<Json<Body<Readings>>, Problem> {
    let mut params = Params::of(&uri);
    let (mut from_ms, to_ms) = range(&mut params, &app.clock)?;
    let limit = params.limit(app.limits.default_readings, app.limits.max_readings)?;
    if let Some(cursor) = params.one("cursor")? {
        let place = cursor.parse().ok().filter(|place| (from_ms..to_ms).contains(place));
        from_ms = place.ok_or_else(|| Problem::invalid_parameter("cursor", "is not a `next` of this range"))?;
    }
    let series = params.series()?;
    params.end()?;
    admitted.reserve(bytes_of_page(limit, &series, app.limits.max_points)).await?;
    let page =
        app.queries.readings(&grant.device_scope, &ReadingsRequest { device, from_ms, to_ms, series, limit }).await?;
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

/// The largest memory of a page: stored and pending samples, the readings made of them, and their JSON.
fn bytes_of_page(limit: usize, series: &SeriesFilter, max_points: usize) -> usize {
    let of_wanted = |wanted| if matches!(wanted, Wanted::Name(_)) { SERIES_OF_METRIC } else { 1 };
    let of_reading = series.metrics().map_or(METRICS_OF_READING, |metrics| metrics.map(of_wanted).sum());
    let readings = limit + 1;
    readings.saturating_mul(of_reading).min(max_points).saturating_mul(BYTES_PER_VALUE) + readings * BYTES_PER_READING
}

/// The memory of a value and of a reading, without the names of metrics.
const BYTES_PER_VALUE: usize = 160;
const BYTES_PER_READING: usize = 160;

/// The assumed number of metrics of a reading: the default of `ingest.max_metrics_per_reading`.
const METRICS_OF_READING: usize = 256;

/// The assumed number of series of a metric in a reading: one for each core, disk or network interface.
const SERIES_OF_METRIC: usize = 16;
