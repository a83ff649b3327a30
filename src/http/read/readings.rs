//! The handlers of `GET /v1/devices/{deviceId}/readings` and `GET /v1/readings`.

use std::sync::Arc;

use axum::http::{HeaderMap, Version};
use axum::response::{IntoResponse, Response};
use serde::{Serialize, Serializer};
use serde_json::json;
use utoipa::ToSchema;

use super::file_rows::{Columns, Lines, Values};
use super::query_limits::{FileReservation, RunningQuery};
use super::streamed_file::{self, FILE_BYTES, Rows};
use super::{QueryParts, answer, as_file, range};
use crate::access::Grant;
use crate::common::clock::rfc3339;
use crate::http::App;
use crate::http::answer::format::{Cells, Format};
use crate::http::openapi::parameter::{
    CURSOR_OF_READINGS, DEVICE, FILE, FROM, LABELS, LIMIT_OF_FILE, LIMIT_OF_READINGS, METADATA, METRIC, PREFIX, TABLE,
    TO, TZ_OF_RANGE,
};
use crate::http::openapi::{Operation, Parameters, Tag};
use crate::http::problem::{Problem, ProblemCode};
use crate::http::request::device_id::DeviceInPath;
use crate::http::request::params::Params;
use crate::model::{METRICS_PER_READING, Metric, SeriesFilter, Wanted};
use crate::query::{DevicesRequest, ExportRequest, ExportedDevices, ReadingsRequest};

/// The most series that a file of one device may have as columns.
const MAX_COLUMNS: usize = 1_000;

/// The memory of a value of a page, and of a reading without its values, in bytes.
const BYTES_PER_VALUE: usize = 160;
const BYTES_PER_READING: usize = 160;

/// The assumed number of series of a metric in a reading.
///
/// A metric has a series for each core, disk or network interface, for example.
const SERIES_OF_METRIC: usize = 16;

/// A page of readings.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct Readings {
    /// The readings in time order.
    readings: Vec<Reading>,
    /// The `cursor` of the next page, or null.
    #[schema(required)]
    next: Option<String>,
}

/// A reading.
#[derive(Debug, Serialize, ToSchema)]
struct Reading {
    /// The instant.
    #[schema(format = DateTime)]
    ts: String,
    /// The values by series.
    #[serde(serialize_with = "as_map")]
    #[schema(value_type = BTreeMap<String, f64>)]
    values: Vec<(Metric, f64)>,
}

fn as_map<S: Serializer>(values: &[(Metric, f64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(values.iter().map(|(metric, value)| (metric, value)))
}

const OF_ONE: Parameters =
    &[TABLE, &[&FROM, &TO, &TZ_OF_RANGE, &METRIC, &LABELS, &LIMIT_OF_READINGS, &CURSOR_OF_READINGS]];
const OF_DEVICES: Parameters =
    &[FILE, &[&FROM, &TO, &TZ_OF_RANGE, &DEVICE, &PREFIX, &METADATA, &METRIC, &LABELS, &LIMIT_OF_FILE]];

/// Describes `GET /v1/devices/{deviceId}/readings`.
pub(in crate::http) fn describe_readings() -> Operation {
    let readings = json!([
        { "ts": "2026-04-20T14:00:10.000Z", "values": { "temp": 22.4 } },
        { "ts": "2026-04-20T14:00:20.000Z", "values": { "temp": 22.6 } },
    ]);
    Operation::get(Tag::Queries, "getReadings", "The readings of a device")
        .description("JSON is a page. The other formats are a file of the whole range.")
        .parameters(OF_ONE)
        .answers_query::<Readings>(
            "A page of readings. While `next` is not null, there may be more.",
            &json!({ "readings": readings, "next": null }),
        )
        .answers_table()
        .queries()
        .problems(&[
            ProblemCode::RangeTooLong,
            ProblemCode::TooManyPoints,
            ProblemCode::TooManyColumns,
            ProblemCode::HttpVersionNotSupported,
        ])
}

/// Describes `GET /v1/readings`.
pub(in crate::http) fn describe_readings_of_devices() -> Operation {
    Operation::get(Tag::Queries, "getReadingsOfDevices", "The readings of many devices as a file")
        .parameters(OF_DEVICES)
        .answers_file("All readings of the range. The answer has no clean end if the store stops answering.")
        .queries()
        .problems(&[ProblemCode::HttpVersionNotSupported])
}

/// A request for readings, without its parameters.
struct Asked {
    app: Arc<App>,
    grant: Arc<Grant>,
    running: Arc<RunningQuery>,
    version: Version,
    headers: HeaderMap,
    format: Format,
    cells: Cells,
}

/// `GET /v1/devices/{deviceId}/readings`
pub(in crate::http) async fn readings(
    DeviceInPath(device): DeviceInPath,
    QueryParts { app, grant, running, version, headers, uri }: QueryParts,
) -> Result<Response, Problem> {
    let mut params = Params::of(&uri, OF_ONE);
    let format = Format::choose(&mut params, &headers, &Format::ALL)?;
    let cells = Cells::of(&mut params, format)?;
    let asked = Asked { app, grant, running, version, headers, format, cells };
    if format == Format::Json { asked.page(device, params).await } else { asked.file(device, params).await }
}

/// `GET /v1/readings`
pub(in crate::http) async fn of_devices(
    QueryParts { app, grant, running, version, headers, uri }: QueryParts,
) -> Result<Response, Problem> {
    let mut params = Params::of(&uri, OF_DEVICES);
    let format = Format::choose(&mut params, &headers, &Format::FILES)?;
    let cells = Cells::of(&mut params, format)?;
    Asked { app, grant, running, version, headers, format, cells }.file_of_devices(params).await
}

impl Asked {
    /// Answers with a page of readings as JSON.
    async fn page(self, device: String, mut params: Params<'_>) -> Result<Response, Problem> {
        let Self { app, grant, running, .. } = self;
        let (mut from_ms, to_ms) = range(&mut params, &app.clock)?;
        let limit = params.limit(app.limits.default_readings, app.limits.max_readings)?;
        if let Some(cursor) = params.one("cursor")? {
            // A `from` before now moves on from page to page, so the cursor may be before it.
            let is_place = |place: &i64| *place < to_ms && jiff::Timestamp::from_millisecond(*place).is_ok();
            let place = cursor.parse().ok().filter(is_place);
            from_ms = place.ok_or_else(|| Problem::invalid_parameter("cursor", "is not a `next` of this range"))?;
        }
        let series = params.series()?;
        params.end()?;
        running.reserve(bytes_of_page(limit, &series, app.limits.max_points)).await?;
        let request = ReadingsRequest { device, from_ms, to_ms, series, limit };
        let page = app.queries.readings(&grant.device_scope, &request).await?;
        let page = answer(page, |page| Readings {
            readings: page
                .readings
                .into_iter()
                .map(|mut reading| {
                    reading.values.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
                    Reading { ts: rfc3339(reading.ts_ms), values: reading.values }
                })
                .collect(),
            next: page.next_ms.map(|next_ms| next_ms.to_string()),
        });
        Ok(page.into_response())
    }

    /// Answers with a file of all readings of a device in a range.
    async fn file(self, device: String, params: Params<'_>) -> Result<Response, Problem> {
        let devices = ExportedDevices::Named(vec![device.as_str().into()]);
        params.exclude(&["cursor"], "a format that has no pages")?;
        let request = self.export_request(devices, params)?;
        let reservation = self.reserve_file().await?;
        let lagging = self.app.queries.catch_up().await;
        let name = format!("readings-{device}");
        let response = if self.format.has_cells() {
            let (scope, series) = (&self.grant.device_scope, (&request.series, request.from_ms));
            let columns = self.app.queries.columns(scope, &device, series, MAX_COLUMNS).await?;
            self.respond(reservation, request, Columns::new(columns, self.cells.clone())).await?
        } else {
            self.respond(reservation, request, Lines).await?
        };
        Ok(as_file(response, self.format, &name, lagging))
    }

    /// Answers with a file of all readings of several devices in a range.
    async fn file_of_devices(self, mut params: Params<'_>) -> Result<Response, Problem> {
        params.exclude(&["cursor"], "a format that has no pages")?;
        let devices = if params.has("device") && !params.has_metadata() {
            params.exclude(&["prefix"], "`device`")?;
            ExportedDevices::Named(super::devices::named(&self.app, &self.grant, &mut params)?.unwrap_or_default())
        } else {
            let max = self.app.limits.max_devices;
            let first = super::devices::first_page(&self.app, &self.grant, &mut params, max)?;
            ExportedDevices::Listed(DevicesRequest { skips_any: true, ..first })
        };
        let request = self.export_request(devices, params)?;
        let reservation = self.reserve_file().await?;
        let lagging = self.app.queries.catch_up().await;
        let response = if self.format.has_cells() {
            self.respond(reservation, request, Values(self.cells.clone())).await?
        } else {
            self.respond(reservation, request, Lines).await?
        };
        Ok(as_file(response, self.format, "readings", lagging))
    }

    /// Reads the parameters that do not select devices.
    fn export_request(&self, devices: ExportedDevices, mut params: Params<'_>) -> Result<ExportRequest, Problem> {
        let (from_ms, to_ms) = range(&mut params, &self.app.clock)?;
        let limit = params.limit(usize::MAX, usize::MAX)?;
        let series = params.series()?;
        params.end()?;
        Ok(ExportRequest { devices, from_ms, to_ms, series, limit })
    }

    async fn reserve_file(&self) -> Result<FileReservation, Problem> {
        streamed_file::check_version(self.version)?;
        Arc::clone(&self.running).reserve_file(FILE_BYTES).await
    }

    async fn respond(
        &self,
        reservation: FileReservation,
        request: ExportRequest,
        rows: impl Rows,
    ) -> Result<Response, Problem> {
        let export = self.app.queries.export(Arc::clone(&self.grant), request)?;
        let encoding = self.format.encoding(&self.headers);
        streamed_file::respond(reservation, export, rows, encoding, self.app.limits.body_timeout).await
    }
}

/// Estimates the most memory of a page, in bytes.
///
/// The page has stored and pending samples, the readings made of them, and their JSON in memory.
pub(in crate::http) fn bytes_of_page(limit: usize, series: &SeriesFilter, max_points: usize) -> usize {
    let of_wanted = |wanted| if matches!(wanted, Wanted::Name(_)) { SERIES_OF_METRIC } else { 1 };
    let of_reading = series.metrics().map_or(METRICS_PER_READING, |metrics| metrics.map(of_wanted).sum());
    let readings = limit + 1;
    readings.saturating_mul(of_reading).min(max_points).saturating_mul(BYTES_PER_VALUE) + readings * BYTES_PER_READING
}
