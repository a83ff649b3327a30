//! The handlers of `GET /v1/devices/{deviceId}/latest` and `GET /v1/latest`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;
use strum::IntoStaticStr;
use utoipa::ToSchema;

use super::devices::bytes_of_page;
use super::table::{List, ListReply, Table, respond, respond_list};
use super::{QueryParts, answer};
use crate::access::Grant;
use crate::common::clock::rfc3339;
use crate::http::App;
use crate::http::answer::format::{Cells, Format};
use crate::http::openapi::parameter::{BEYOND, LABELS, LIST_OF_DEVICES, METRIC, TABLE, TZ_OF_TIMES};
use crate::http::openapi::{Operation, Parameters, Tag};
use crate::http::problem::{Problem, ProblemCode};
use crate::http::request::device_id::DeviceInPath;
use crate::http::request::params::Params;
use crate::model::{Bound, Metric, SeriesFilter, ValueLimits};
use crate::query::{self, Answer, DevicesRequest, Listed, QueryError};

/// The memory of the latest values of one device with some thousands of metrics.
const ANSWER_BYTES: usize = 2 << 20;

/// The latest values of a device.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::http) struct Latest {
    /// The ID of the device.
    device_id: String,
    /// The latest value of each series.
    #[schema(value_type = BTreeMap<String, LatestValue>)]
    metrics: BTreeMap<Metric, LatestValue>,
    /// Whether there may be more series than `metrics` has.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more_metrics: bool,
}

/// A page of the latest values of devices.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct LatestOfDevices {
    /// The devices in the order of their IDs.
    devices: Vec<Latest>,
    /// The `cursor` of the next page, or null.
    #[schema(required)]
    next: Option<String>,
}

/// A value and its instant.
#[derive(Debug, Serialize, ToSchema)]
struct LatestValue {
    /// The instant.
    #[schema(format = DateTime)]
    ts: String,
    /// The value.
    value: f64,
    /// The limit in the metadata of the device that the value is beyond.
    #[serde(skip_serializing_if = "Option::is_none")]
    beyond: Option<Beyond>,
}

/// A limit that a value is beyond.
#[derive(Debug, Clone, Copy, Serialize, IntoStaticStr, ToSchema)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
enum Beyond {
    Min,
    Max,
}

const OF_ONE: Parameters = &[TABLE, &[&TZ_OF_TIMES, &METRIC, &LABELS]];
const OF_DEVICES: Parameters = &[TABLE, &[&TZ_OF_TIMES], LIST_OF_DEVICES, &[&METRIC, &LABELS, &BEYOND]];

/// Describes `GET /v1/devices/{deviceId}/latest`.
pub(in crate::http) fn describe_latest() -> Operation {
    Operation::get(Tag::Queries, "getLatest", "The latest values of a device")
        .parameters(OF_ONE)
        .answers_query::<Latest>("The latest value of each series.", &example())
        .answers_table()
        .queries()
        .problems(&[ProblemCode::UnknownDevice])
}

/// Describes `GET /v1/latest`.
pub(in crate::http) fn describe_latest_of_devices() -> Operation {
    let devices = json!({ "devices": [example()], "next": null });
    Operation::get(Tag::Queries, "getLatestOfDevices", "The latest values of many devices")
        .parameters(OF_DEVICES)
        .answers_query::<LatestOfDevices>("A page of devices. While `next` is not null, there may be more.", &devices)
        .answers_table()
        .queries()
        .problems(&[ProblemCode::TooManyDevices, ProblemCode::HttpVersionNotSupported])
}

fn example() -> serde_json::Value {
    json!({ "deviceId": "S1", "metrics": { "temp": { "ts": "2026-04-20T14:00:20.000Z", "value": 22.6 } } })
}

/// `GET /v1/devices/{deviceId}/latest`
pub(in crate::http) async fn latest(
    DeviceInPath(device): DeviceInPath,
    QueryParts { app, grant, running, headers, uri, .. }: QueryParts,
) -> Result<Response, Problem> {
    let mut params = Params::of(&uri, OF_ONE);
    let format = Format::choose(&mut params, &headers, &Format::ALL)?;
    let cells = Cells::of(&mut params, format)?;
    let series = params.series()?;
    params.end()?;
    running.reserve(ANSWER_BYTES).await?;
    let queries = app.queries.with_one_deadline();
    let latest = queries.latest(&grant.device_scope, &device, &series).await?;
    let has_none = latest.body.is_none() && latest.lagging.is_none();
    if has_none && !queries.is_known(&grant.device_scope, &device).await? {
        return Err(Problem::unknown_device(&device));
    }
    let name = format!("latest-{device}");
    let latest = latest.map(|latest| (device, latest.unwrap_or_default()));
    let to_json = |latest| answer(latest, |(device, latest)| Latest::new(device, latest)).into_response();
    respond(format, &name, latest, to_json, |(device, latest)| {
        let mut table = table(format, &cells);
        add_rows(&mut table, &device, &latest);
        table
    })
    .await
}

/// `GET /v1/latest`
pub(in crate::http) async fn latest_of_devices(parts: QueryParts) -> Result<Response, Problem> {
    let mut params = Params::of(&parts.uri, OF_DEVICES);
    let format = Format::choose(&mut params, &parts.headers, &Format::ALL)?;
    let cells = Cells::of(&mut params, format)?;
    let reply = ListReply::new("latest", format, &params, &parts);
    let QueryParts { app, grant, running, .. } = parts;
    let limit = params.limit(100, app.limits.max_devices)?;
    let series = params.series()?;
    let beyond_limits = super::devices::beyond_limits(&mut params)?;
    let mut request = super::devices::request(&app, &grant, &mut params, limit)?;
    params.end()?;
    request.skips_any = reply.is_whole();
    request.selection.beyond_limits = beyond_limits;
    running.reserve(bytes_of_page(limit, beyond_limits) + reply.bytes()).await?;
    respond_list(LatestList { app, grant, request, series, format, cells }, reply).await
}

/// The list of the latest values of devices.
struct LatestList {
    app: Arc<App>,
    grant: Arc<Grant>,
    request: DevicesRequest,
    series: SeriesFilter,
    format: Format,
    cells: Cells,
}

impl List for LatestList {
    type Item = (Arc<str>, query::Latest);

    async fn page(&mut self) -> Result<Answer<Listed<Self::Item>>, QueryError> {
        self.app.queries.latest_of_devices(&self.grant.device_scope, &self.request, &self.series).await
    }

    fn go_on_after(&mut self, last: &str) {
        self.request.after = Some(last.to_owned());
    }

    fn table(&self) -> Table {
        table(self.format, &self.cells)
    }

    fn add_rows((device, latest): Self::Item, table: &mut Table) {
        add_rows(table, &device, &latest);
    }

    fn to_json(found: Answer<Listed<Self::Item>>) -> Response {
        let answer = answer(found, |Listed { devices, next }| LatestOfDevices {
            devices: devices.into_iter().map(|(id, latest)| Latest::new(id.to_string(), latest)).collect(),
            next: next.map(|next| next.to_string()),
        });
        answer.into_response()
    }
}

/// Makes a table that has a row for each latest value.
fn table(format: Format, cells: &Cells) -> Table {
    Table::new(format, cells, ["deviceId", "ts", "series", "value", "beyond", "moreMetrics"])
}

fn add_rows(table: &mut Table, device: &str, latest: &query::Latest) {
    let limits = latest.limits();
    for (metric, (ts_ms, value)) in &latest.values {
        table.text(device);
        table.instant(*ts_ms);
        table.text(metric);
        table.number(*value);
        match Beyond::of(&limits, metric, *value) {
            Some(bound) => table.text(bound.into()),
            None => table.json("null"),
        }
        table.json(if latest.has_more { "true" } else { "false" });
    }
}

impl Beyond {
    fn of(limits: &ValueLimits, metric: &Metric, value: f64) -> Option<Self> {
        limits.beyond(metric, value).map(|bound| match bound {
            Bound::Min => Self::Min,
            Bound::Max => Self::Max,
        })
    }
}

impl Latest {
    fn new(device_id: String, latest: query::Latest) -> Self {
        let limits = latest.limits();
        let value = |(metric, (ts_ms, value))| {
            let beyond = Beyond::of(&limits, &metric, value);
            (metric, LatestValue { ts: rfc3339(ts_ms), value, beyond })
        };
        let metrics = latest.values.into_iter().map(value).collect();
        Self { device_id, metrics, more_metrics: latest.has_more }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_whether_series_of_its_device_may_be_missing() {
        for has_more in [false, true] {
            let latest = query::Latest { values: [("t".into(), (0, 1.5))].into(), has_more, metadata: None };
            let mut table = table(Format::Ndjson, &Cells::default());
            add_rows(&mut table, "d", &latest);
            let row: serde_json::Value = serde_json::from_slice(&table.into_rows()).expect("one row");
            assert_eq!(row["moreMetrics"], json!(has_more));
        }
    }
}
