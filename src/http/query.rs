//! `GET /v1/devices` and what is below it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use serde::Serialize;
use serde_json::value::RawValue;

use super::App;
use super::device::DeviceInPath;
use super::params::Params;
use super::problem::Problem;
use crate::model::{MS_PER_HOUR, Metric, Stats, check_device_id};
use crate::query::{Answer, DevicesRequest, ReadingsRequest, RollupsRequest, Step};
use crate::store::DeviceSummary;

/// The range when none is asked for: the last day.
const DEFAULT_RANGE_MS: i64 = 24 * MS_PER_HOUR;

/// An answer, with a note when it may lack what was acked lately.
#[derive(Debug, Serialize)]
pub(super) struct Body<T> {
    #[serde(flatten)]
    body: T,
    #[serde(rename = "laggingSeconds", skip_serializing_if = "Option::is_none")]
    lagging_seconds: Option<f64>,
}

fn answer<A, B>(answer: Answer<A>, make: impl FnOnce(A) -> B) -> Json<Body<B>> {
    let lagging_seconds = answer.lagging.map(|lagging| lagging.as_secs_f64());
    Json(Body { body: make(answer.body), lagging_seconds })
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Rollups {
    device_id: String,
    step: String,
    metrics: BTreeMap<Metric, Vec<Point>>,
}

#[derive(Debug, Serialize)]
struct Point {
    ts: String,
    count: u64,
    min: f64,
    max: f64,
    avg: f64,
    sum: f64,
}

/// `GET /v1/devices/{deviceId}/rollups`
pub(super) async fn rollups(
    State(app): State<Arc<App>>,
    DeviceInPath(device): DeviceInPath,
    uri: Uri,
) -> Result<Json<Body<Rollups>>, Problem> {
    let mut params = Params::of(&uri);
    let (from_ms, to_ms) = range(&mut params)?;
    let (step, step_text) = step(&mut params)?;
    let metrics = params.metrics();
    params.end()?;
    let request = RollupsRequest { device, from_ms, to_ms, metrics, step };
    let rollups = app.queries.rollups(&request).await?;
    Ok(answer(rollups, |rollups| {
        let series =
            |series: Vec<(i64, Stats)>| series.into_iter().map(|(ts_ms, stats)| point(ts_ms, &stats)).collect();
        let metrics = rollups.into_iter().map(|(metric, points)| (metric, series(points))).collect();
        Rollups { device_id: request.device, step: step_text, metrics }
    }))
}

fn point(ts_ms: i64, stats: &Stats) -> Point {
    let Stats { count, min, max, sum } = *stats;
    Point { ts: rfc3339(ts_ms), count, min, max, avg: stats.avg(), sum }
}

#[derive(Debug, Serialize)]
pub(super) struct Readings {
    readings: Vec<Reading>,
    next: Option<String>,
}

#[derive(Debug, Serialize)]
struct Reading {
    ts: String,
    values: BTreeMap<Metric, f64>,
}

/// `GET /v1/devices/{deviceId}/readings`
pub(super) async fn readings(
    State(app): State<Arc<App>>,
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
    let metrics = params.metrics();
    params.end()?;
    let page = app.queries.readings(&ReadingsRequest { device, from_ms, to_ms, metrics, limit }).await?;
    Ok(answer(page, |page| Readings {
        readings: page
            .readings
            .into_iter()
            .map(|reading| Reading { ts: rfc3339(reading.ts_ms), values: reading.values.into_iter().collect() })
            .collect(),
        next: page.next_ms.map(|next_ms| next_ms.to_string()),
    }))
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Latest {
    device_id: String,
    metrics: BTreeMap<Metric, LatestValue>,
}

#[derive(Debug, Serialize)]
struct LatestValue {
    ts: String,
    value: f64,
}

/// `GET /v1/devices/{deviceId}/latest`
pub(super) async fn latest(
    State(app): State<Arc<App>>,
    DeviceInPath(device): DeviceInPath,
    uri: Uri,
) -> Result<Json<Body<Latest>>, Problem> {
    Params::of(&uri).end()?;
    let latest = app.queries.latest(&device).await?;
    let Some(body) = latest.body else { return Err(Problem::unknown_device(&device)) };
    Ok(answer(Answer { body, lagging: latest.lagging }, |latest| {
        let values =
            latest.into_iter().map(|(metric, (ts_ms, value))| (metric, LatestValue { ts: rfc3339(ts_ms), value }));
        Latest { device_id: device, metrics: values.collect() }
    }))
}

#[derive(Debug, Serialize)]
pub(super) struct Devices {
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
    first_seen: String,
    last_seen: String,
}

/// `GET /v1/devices`
pub(super) async fn devices(State(app): State<Arc<App>>, uri: Uri) -> Result<Json<Body<Devices>>, Problem> {
    let mut params = Params::of(&uri);
    let prefix = app.device_id_case.apply(&params.one("prefix")?.unwrap_or_default()).into_owned();
    let limit = params.limit(100, app.limits.max_devices)?;
    let after = params.one("cursor")?.map(std::borrow::Cow::into_owned);
    params.end()?;
    if let Some(cursor) = &after {
        check_device_id(cursor).map_err(|error| Problem::invalid_parameter("cursor", error))?;
    }
    let found = app.queries.devices(&DevicesRequest { prefix, after, limit }).await?;
    Ok(answer(found, |(devices, more)| {
        let next = devices.last().filter(|_| more).map(|last| last.device.to_string());
        Devices { devices: devices.into_iter().map(device).collect(), next }
    }))
}

fn device(summary: DeviceSummary) -> Device {
    Device {
        id: summary.device.to_string(),
        metadata: summary.metadata.and_then(|text| RawValue::from_string(text.to_string()).ok()),
        metrics: summary.metrics,
        first_seen: rfc3339(summary.first_ts_ms),
        last_seen: rfc3339(summary.last_ts_ms),
    }
}

/// `from` (inclusive) and `to` (exclusive); without them, the last day up to now.
fn range(params: &mut Params<'_>) -> Result<(i64, i64), Problem> {
    let (from, to) = (params.instant_ms("from")?, params.instant_ms("to")?);
    #[expect(clippy::disallowed_methods, reason = "a range without an end ends with the date of now")]
    let now_ms = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as i64);
    let to_ms = to.unwrap_or_else(|| now_ms() + 1);
    let from_ms = from.unwrap_or(to_ms - DEFAULT_RANGE_MS);
    if from_ms < to_ms { Ok((from_ms, to_ms)) } else { Err(Problem::invalid_parameter("from", "not before `to`")) }
}

/// `step`: hours (`1h`, `2h`, ... that divide a day) or one day (`1d`).
fn step(params: &mut Params<'_>) -> Result<(Step, String), Problem> {
    let Some(text) = params.one("step")? else { return Ok((Step::HOUR, "1h".to_owned())) };
    let hours = match &*text {
        "1d" => Some(24),
        text => text.strip_suffix('h').and_then(|hours| hours.parse().ok()),
    };
    let step = hours.and_then(Step::hours);
    let step = step.ok_or_else(|| Problem::invalid_parameter("step", "expected 1h, 2h, 3h, 4h, 6h, 8h, 12h or 1d"))?;
    Ok((step, text.into_owned()))
}

fn rfc3339(ts_ms: i64) -> String {
    // The range of jiff is that of admission, less two days at its ends that no time zone can show.
    jiff::Timestamp::from_millisecond(ts_ms).map_or_else(|_| ts_ms.to_string(), |instant| format!("{instant:.3}"))
}
