//! `GET /v1/devices/{deviceId}/latest`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::answer;
use super::table::{Table, complete};
use crate::access::Grant;
use crate::common::clock::rfc3339;
use crate::http::App;
use crate::http::admission::Admitted;
use crate::http::device::DeviceInPath;
use crate::http::format::Format;
use crate::http::params::Params;
use crate::http::problem::Problem;
use crate::model::Metric;
use crate::query;

/// The memory of an answer with some thousands of metrics.
const ANSWER_BYTES: usize = 2 << 20;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::http) struct Latest {
    device_id: String,
    metrics: BTreeMap<Metric, LatestValue>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more_metrics: bool,
}

#[derive(Debug, Serialize)]
struct LatestValue {
    ts: String,
    value: f64,
}

/// `GET /v1/devices/{deviceId}/latest`
pub(in crate::http) async fn latest(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
    Extension(admitted): Extension<Arc<Admitted>>,
    DeviceInPath(device): DeviceInPath,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    let mut params = Params::of(&uri);
    let format = Format::choose(&mut params, &headers, &Format::ALL)?;
    let series = params.series()?;
    params.end()?;
    admitted.reserve(ANSWER_BYTES).await?;
    let latest = app.queries.latest(&grant.device_scope, &device, &series).await?;
    if latest.body.is_none() && latest.lagging.is_none() {
        return Err(Problem::unknown_device(&device));
    }
    if format != Format::Json {
        let (latest, lagging) = complete(latest)?;
        let mut table = Table::new(format, ["deviceId", "ts", "series", "value"]);
        for (metric, (ts_ms, value)) in latest.unwrap_or_default().values {
            table.text(&device);
            table.instant(ts_ms);
            table.text(&metric);
            table.number(value);
        }
        return Ok(table.into_response([], &format!("latest-{device}"), None, lagging));
    }
    let answer = answer(latest, |latest| {
        let query::Latest { values, has_more } = latest.unwrap_or_default();
        let values =
            values.into_iter().map(|(metric, (ts_ms, value))| (metric, LatestValue { ts: rfc3339(ts_ms), value }));
        Latest { device_id: device, metrics: values.collect(), more_metrics: has_more }
    });
    Ok(answer.into_response())
}
