//! The handlers of `GET /v1/devices` and `GET /v1/devices/{deviceId}`.
//!
//! Other queries read the parameters that select devices with `request`, `first_page` and `named`.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::table::{List, ListReply, Table, respond_list};
use super::{Body, QueryParts, answer};
use crate::access::Grant;
use crate::common::clock::rfc3339;
use crate::config::Period;
use crate::http::App;
use crate::http::answer::format::{Cells, Format};
use crate::http::openapi::parameter::{BEYOND, LIST_OF_DEVICES, SILENT_FOR, TABLE, TZ_OF_TIMES};
use crate::http::openapi::{Operation, Parameters, Tag};
use crate::http::problem::{Problem, ProblemCode};
use crate::http::request::device_id::{DeviceInPath, normalized};
use crate::http::request::params::Params;
use crate::model::{Metric, check_device_id, check_device_prefix};
use crate::query::{self, Answer, DeviceSelection, DevicesRequest, Listed, QueryError};

/// The estimated memory of a device in a list, with its metadata and metrics.
pub(super) const BYTES_PER_DEVICE: usize = 2 << 10;

/// The estimated memory of the values of a page that are compared with limits.
const BYTES_OF_COMPARED: usize = 2 << 20;

/// The memory of one device with as many metrics as the device index keeps.
const ONE_DEVICE_BYTES: usize = 2 << 20;

/// A page of devices.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct Devices {
    /// The devices in the order of their IDs.
    devices: Vec<Device>,
    /// The `cursor` of the next page, or null.
    #[schema(required)]
    next: Option<String>,
}

/// A device.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::http) struct Device {
    /// The ID.
    #[serde(rename = "deviceId")]
    id: String,
    /// The newest metadata, or null.
    #[schema(value_type = Option<Object>, required)]
    metadata: Option<Box<RawValue>>,
    /// The series in the order of their texts.
    #[schema(value_type = Vec<String>)]
    metrics: Vec<Metric>,
    /// Whether there are more series than `metrics` has.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more_metrics: bool,
    /// The first reading ever stored.
    #[schema(format = DateTime)]
    first_seen: String,
    /// The last reading or rollup.
    #[schema(format = DateTime)]
    last_seen: String,
}

const OF_DEVICES: Parameters = &[TABLE, &[&TZ_OF_TIMES], LIST_OF_DEVICES, &[&SILENT_FOR, &BEYOND]];

/// Describes `GET /v1/devices`.
pub(in crate::http) fn describe_devices() -> Operation {
    let devices = json!({ "devices": [example()], "next": null });
    Operation::get(Tag::Queries, "listDevices", "The devices")
        .parameters(OF_DEVICES)
        .answers_query::<Devices>("A page of devices. While `next` is not null, there may be more.", &devices)
        .answers_table()
        .queries()
        .problems(&[ProblemCode::TooManyDevices, ProblemCode::HttpVersionNotSupported])
}

/// Describes `GET /v1/devices/{deviceId}`.
pub(in crate::http) fn describe_device() -> Operation {
    Operation::get(Tag::Queries, "getDevice", "One device")
        .answers_query::<Device>("The device.", &example())
        .queries()
        .problems(&[ProblemCode::UnknownDevice])
}

fn example() -> Value {
    json!({
        "deviceId": "S1", "metadata": { "floor": 2 }, "metrics": ["hum", "temp"],
        "firstSeen": "2026-04-20T14:00:10.000Z", "lastSeen": "2026-04-20T14:00:20.000Z",
    })
}

/// `GET /v1/devices`
pub(in crate::http) async fn devices(parts: QueryParts) -> Result<Response, Problem> {
    let mut params = Params::of(&parts.uri, OF_DEVICES);
    let format = Format::choose(&mut params, &parts.headers, &Format::ALL)?;
    let cells = Cells::of(&mut params, format)?;
    let reply = ListReply::new("devices", format, &params, &parts);
    let QueryParts { app, grant, running, .. } = parts;
    let limit = params.limit(100, app.limits.max_devices)?;
    let silent_for = silent_for(&mut params)?;
    let beyond_limits = beyond_limits(&mut params)?;
    let mut request = request(&app, &grant, &mut params, limit)?;
    params.end()?;
    request.skips_any = reply.is_whole();
    request.selection.silent_since_ms = silent_for.map(|period_ms| request.now_ms.saturating_sub(period_ms));
    request.selection.beyond_limits = beyond_limits;
    running.reserve(bytes_of_page(limit, beyond_limits) + reply.bytes()).await?;
    respond_list(DeviceList { app, grant, request, format, cells }, reply).await
}

/// The list of devices.
struct DeviceList {
    app: Arc<App>,
    grant: Arc<Grant>,
    request: DevicesRequest,
    format: Format,
    cells: Cells,
}

impl List for DeviceList {
    type Item = query::Device;

    async fn page(&mut self) -> Result<Answer<Listed<query::Device>>, QueryError> {
        self.app.queries.devices(&self.grant.device_scope, &self.request).await
    }

    fn go_on_after(&mut self, last: &str) {
        self.request.after = Some(last.to_owned());
    }

    fn table(&self) -> Table {
        table(self.format, &self.cells)
    }

    /// Adds the row of a device. Metadata and metrics are cells with JSON.
    fn add_rows(device: query::Device, table: &mut Table) {
        table.text(&device.id);
        table.instant(device.first_ts_ms);
        table.instant(device.last_ts_ms);
        table.json(metadata_of(&device).as_ref().map_or("null", |metadata| metadata.get()));
        table.json(&serde_json::to_string(&device.metrics).expect("texts are JSON"));
        table.json(if device.has_more_metrics { "true" } else { "false" });
    }

    fn to_json(found: Answer<Listed<query::Device>>) -> Response {
        let answer = answer(found, |Listed { devices, next }| Devices {
            devices: devices.into_iter().map(Device::from).collect(),
            next: next.map(|next| next.to_string()),
        });
        answer.into_response()
    }
}

fn table(format: Format, cells: &Cells) -> Table {
    Table::new(format, cells, ["deviceId", "firstSeen", "lastSeen", "metadata", "metrics", "moreMetrics"])
}

/// `GET /v1/devices/{deviceId}`
pub(in crate::http) async fn device(
    DeviceInPath(device): DeviceInPath,
    QueryParts { app, grant, running, uri, .. }: QueryParts,
) -> Result<Json<Body<Device>>, Problem> {
    Params::of(&uri, &[]).end()?;
    running.reserve(ONE_DEVICE_BYTES).await?;
    grant.device_scope.to_stored_id(&device).map_err(QueryError::from)?;
    let request = DevicesRequest::of_each(Some(vec![device.as_str().into()]), app.clock.now_ms());
    let request = DevicesRequest { limit: 1, skips_any: false, ..request };
    let Answer { body, lagging, partial } = app.queries.devices(&grant.device_scope, &request).await?;
    let Some(found) = body.devices.into_iter().next() else {
        Answer { body: (), lagging, partial }.complete()?; // the device may be what the answer lacks
        return Err(Problem::unknown_device(&device));
    };
    Ok(answer(Answer { body: found, lagging, partial }, Device::from))
}

/// Estimates the memory of a page of at most `limit` devices.
///
/// `beyond_limits` says whether the query compares their values with limits.
pub(super) fn bytes_of_page(limit: usize, beyond_limits: bool) -> usize {
    let of_compared = if beyond_limits { BYTES_OF_COMPARED } else { 0 };
    limit.saturating_mul(BYTES_PER_DEVICE) + of_compared
}

/// Reads the parameters that select devices, and `cursor`.
///
/// The request is for the page of the list that begins after the device `cursor`.
pub(super) fn request(
    app: &App,
    grant: &Grant,
    params: &mut Params<'_>,
    limit: usize,
) -> Result<DevicesRequest, Problem> {
    let after = params.one("cursor")?.map(Cow::into_owned);
    if let Some(cursor) = &after {
        check_device_id(cursor).map_err(|error| Problem::invalid_parameter("cursor", error))?;
    }
    Ok(DevicesRequest { after, ..first_page(app, grant, params, limit)? })
}

/// Reads the parameters that select devices: `prefix`, `device` and `meta.KEY`.
///
/// The request is for the first page of the list.
pub(super) fn first_page(
    app: &App,
    grant: &Grant,
    params: &mut Params<'_>,
    limit: usize,
) -> Result<DevicesRequest, Problem> {
    let prefix = params.one("prefix")?.unwrap_or_default().into_owned();
    check_prefix(&prefix)?;
    let ids = named(app, grant, params)?;
    if ids.is_some() && !prefix.is_empty() {
        return Err(Problem::invalid_parameter("prefix", "cannot be combined with `device`"));
    }
    let selection =
        DeviceSelection { ids, prefix, metadata: params.metadata()?, silent_since_ms: None, beyond_limits: false };
    Ok(DevicesRequest { selection, after: None, limit, now_ms: app.clock.now_ms(), skips_any: false })
}

/// Reads all parameters `device`, each ID once; `None`: the request has none.
pub(super) fn named(app: &App, grant: &Grant, params: &mut Params<'_>) -> Result<Option<Vec<Arc<str>>>, Problem> {
    let named = params.all("device");
    if named.len() > app.limits.max_devices {
        let why = format!("at most {} devices (query.max_devices)", app.limits.max_devices);
        return Err(Problem::invalid_parameter("device", why));
    }
    let mut known = HashSet::with_capacity(named.len());
    let mut devices = Vec::with_capacity(named.len());
    for name in &named {
        let device: Arc<str> = normalized(&grant.device_scope, "device", name)?.into();
        if known.insert(Arc::clone(&device)) {
            devices.push(device);
        }
    }
    for device in &devices {
        grant.device_scope.to_stored_id(device).map_err(QueryError::from)?; // refuses devices outside of the scope
    }
    Ok(if named.is_empty() { None } else { Some(devices) })
}

/// Reads `silent_for`, and returns it in milliseconds.
fn silent_for(params: &mut Params<'_>) -> Result<Option<i64>, Problem> {
    let Some(text) = params.one("silent_for")? else { return Ok(None) };
    let period = text.parse::<Period>().map_err(|why| Problem::invalid_parameter("silent_for", why))?;
    Ok(Some(i64::try_from(period.as_millis()).unwrap_or(i64::MAX)))
}

/// Reads `beyond=limits`: whether only devices beyond their limits are wanted.
pub(super) fn beyond_limits(params: &mut Params<'_>) -> Result<bool, Problem> {
    match params.one("beyond")?.as_deref() {
        None => Ok(false),
        Some("limits") => Ok(true),
        Some(_) => Err(Problem::invalid_parameter("beyond", "expected limits")),
    }
}

/// Refuses a prefix with which no device ID can start: a probable mistake.
pub(in crate::http) fn check_prefix(prefix: &str) -> Result<(), Problem> {
    match check_device_prefix(prefix) {
        Err(error) if !prefix.is_empty() => Err(Problem::invalid_parameter("prefix", error)),
        _ => Ok(()),
    }
}

/// Returns the metadata of a device without spaces and line feeds, keys sorted.
///
/// Devices write JSON in many forms, and the store may keep another form than pending has.
fn metadata_of(device: &query::Device) -> Option<Box<RawValue>> {
    let object: Map<String, Value> = serde_json::from_str(device.metadata.as_deref()?).ok()?;
    serde_json::value::to_raw_value(&object).ok()
}

impl From<query::Device> for Device {
    fn from(device: query::Device) -> Self {
        Self {
            id: device.id.to_string(),
            metadata: metadata_of(&device),
            metrics: device.metrics,
            more_metrics: device.has_more_metrics,
            first_seen: rfc3339(device.first_ts_ms),
            last_seen: rfc3339(device.last_ts_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_one_line_however_it_was_written() {
        let device = |metadata: &str| query::Device {
            id: "S1".into(),
            metadata: Some(metadata.into()),
            metrics: Vec::new(),
            has_more_metrics: false,
            first_ts_ms: 0,
            last_ts_ms: 0,
        };
        let written = device("{\"z\": [\r\n1e3,\n -0 ],\t\"a\\n\": \"\\u000a\"}\n");
        assert_eq!(metadata_of(&written).unwrap().get(), r#"{"a\n":"\n","z":[1000.0,-0.0]}"#);
        let mut table = table(Format::Ndjson, &Cells::default());
        DeviceList::add_rows(written, &mut table);
        assert_eq!(String::from_utf8(table.into_rows()).unwrap().lines().count(), 1);
    }
}
