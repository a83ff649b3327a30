//! The handlers of `GET /v1/rollups` and `GET /v1/devices/{deviceId}/rollups`.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::json;
use strum::{IntoEnumIterator, VariantNames};

use super::combine::Combine;
use super::rollups_json::{self, Form, OfDevice};
use super::rollups_table::{self, Subject};
use super::table::{List, ListReply, Table, respond, respond_list};
use super::{QueryParts, open_range};
use crate::access::Grant;
use crate::common::clock::Clock;
use crate::config::Period;
use crate::http::App;
use crate::http::answer::format::{Cells, Format};
use crate::http::openapi::parameter::{
    COMBINE, COMPARE, FILL, FN, FROM, LABELS, LIST_OF_DEVICES, METRIC, OFFSET, Parameter, STEP, TABLE, TO, TZ,
};
use crate::http::openapi::{Operation, Parameters, Tag, answer_of_rollups, answers_of_rollups_of_devices};
use crate::http::problem::{Problem, ProblemCode};
use crate::http::request::device_id::DeviceInPath;
use crate::http::request::params::Params;
use crate::query::{
    Answer, Column, Columns, Compared, DevicesRequest, Earlier, EarlierError, Fill, Listed, LocalTime, OffsetError,
    QueryError, RollupsRequest, Step, StepError, Zone,
};

/// The memory of the stats of one step, and their JSON with the default columns.
const BYTES_PER_POINT: usize = 330;

/// The memory of a further instant in the JSON of a step, with its value.
const BYTES_PER_INSTANT: usize = 70;

/// The memory of the device ID and the series, which each row of a table repeats.
const BYTES_OF_NAMES: usize = 200;

/// The memory of the XML elements in a row of a sheet.
const BYTES_OF_MARKUP: usize = 350;

/// The memory of a page of readings, which a query for rollups may read.
const BYTES_OF_READINGS: usize = 4 << 20;

const OF_ROLLUPS: &[&Parameter] = &[&FROM, &TO, &STEP, &OFFSET, &TZ, &FN, &FILL, &COMPARE, &METRIC, &LABELS];
const OF_ONE: Parameters = &[TABLE, OF_ROLLUPS];
const OF_DEVICES: Parameters = &[TABLE, OF_ROLLUPS, &[&COMBINE], LIST_OF_DEVICES];

/// The problems of both paths.
const PROBLEMS: [ProblemCode; 4] =
    [ProblemCode::RangeTooLong, ProblemCode::TooManyPoints, ProblemCode::TooManyValues, ProblemCode::ReadingsExpired];

/// Describes `GET /v1/devices/{deviceId}/rollups`.
pub(in crate::http) fn describe_rollups() -> Operation {
    Operation::get(Tag::Queries, "getRollups", "The rollups of a device")
        .parameters(OF_ONE)
        .answers_query_as("The points of each series.", &answer_of_rollups(), &example())
        .answers_table()
        .queries()
        .problems(&PROBLEMS)
        .problems(&[ProblemCode::UnknownDevice])
}

/// Describes `GET /v1/rollups`.
pub(in crate::http) fn describe_rollups_of_devices() -> Operation {
    Operation::get(Tag::Queries, "getRollupsOfDevices", "The rollups of many devices")
        .parameters(OF_DEVICES)
        .answers_query_as(
            "A page of devices; with `combine`, one answer for all of them, or for each group.",
            &answers_of_rollups_of_devices(),
            &json!({ "devices": [example()], "next": null }),
        )
        .answers_table()
        .queries()
        .problems(&PROBLEMS)
        .problems(&[ProblemCode::TooManyDevices, ProblemCode::HttpVersionNotSupported])
}

fn example() -> serde_json::Value {
    let point =
        json!({ "ts": "2026-04-20T14:00:00.000Z", "count": 2, "min": 22.4, "max": 22.6, "avg": 22.5, "sum": 45.0 });
    json!({ "deviceId": "S1", "step": "1h", "metrics": { "temp": [point] } })
}

/// `GET /v1/devices/{deviceId}/rollups`
pub(in crate::http) async fn rollups(
    DeviceInPath(device): DeviceInPath,
    QueryParts { app, grant, running, headers, uri, .. }: QueryParts,
) -> Result<Response, Problem> {
    let mut params = Params::of(&uri, OF_ONE);
    let mut question = Question::of(&mut params, &headers, &app.clock)?;
    params.end()?;
    running.reserve(question.bytes(app.limits.max_points)).await?;
    question.request.devices = vec![device.into()];
    let queries = app.queries.with_one_deadline();
    let found = queries.rollups(&grant.device_scope, &question.request, question.to_json()).await?;
    let found = found.map(|mut devices| devices.swap_remove(0));
    let device = &question.request.devices[0];
    let is_whole = found.partial.is_none() && found.lagging.is_none();
    if found.body.is_empty && is_whole && !queries.is_known(&grant.device_scope, device).await? {
        return Err(Problem::unknown_device(device));
    }
    let name = format!("rollups-{device}");
    let form = &question.form;
    respond(form.format, &name, found, rollups_json::of_device, |found| {
        let mut table = rollups_table::table(Subject::Device(device), form);
        table.append(found.text);
        table
    })
    .await
}

/// `GET /v1/rollups`
pub(in crate::http) async fn of_devices(parts: QueryParts) -> Result<Response, Problem> {
    let mut params = Params::of(&parts.uri, OF_DEVICES);
    let question = Question::of(&mut params, &parts.headers, &parts.app.clock)?;
    let reply = ListReply::new("rollups", question.form.format, &params, &parts);
    let QueryParts { app, grant, running, .. } = parts;
    let combine = Combine::of(&mut params)?;
    let mut which = Which::of(&app, &grant, &mut params, combine != Combine::No)?;
    params.end()?;
    if let Which::Listed(list) = &mut which {
        list.skips_any = combine == Combine::No && reply.is_whole();
    }
    running.reserve(question.bytes(app.limits.max_points) + reply.bytes()).await?;
    if combine == Combine::No {
        respond_list(RollupsList { app, grant, question, which }, reply).await
    } else {
        combine.answer(&app, &grant, question, which).await
    }
}

/// The list of the rollups of devices.
struct RollupsList {
    app: Arc<App>,
    grant: Arc<Grant>,
    question: Question,
    which: Which,
}

impl List for RollupsList {
    type Item = OfDevice;

    async fn page(&mut self) -> Result<Answer<Listed<OfDevice>>, QueryError> {
        let Self { app, grant, question, which } = self;
        let queries = app.queries.with_one_deadline();
        let (devices, known_series, next, lagging, partial) = match which {
            Which::Named(devices) => (devices.clone(), None, None, None, None),
            Which::Listed(request) => {
                let found = queries.device_ids_with_series(&grant.device_scope, request, &question.request).await?;
                let (devices, known_series) = found.body.devices.into_iter().unzip();
                (devices, Some(known_series), found.body.next, found.lagging, found.partial)
            }
        };
        (question.request.devices, question.request.known_series) = (devices, known_series);
        let mut rollups = queries.rollups(&grant.device_scope, &question.request, question.to_json()).await?;
        (rollups.lagging, rollups.partial) = (rollups.lagging.max(lagging), rollups.partial.max(partial));
        let devices = &question.request.devices;
        let is_short = rollups.body.len() < devices.len();
        let next = if is_short { devices[..rollups.body.len()].last().cloned() } else { next };
        Ok(rollups.map(|devices| Listed { devices, next }))
    }

    fn go_on_after(&mut self, last: &str) {
        match &mut self.which {
            Which::Named(devices) => {
                let at = devices.iter().position(|device| **device == *last);
                devices.drain(..at.map_or(devices.len(), |at| at + 1));
            }
            Which::Listed(request) => request.after = Some(last.to_owned()),
        }
    }

    fn table(&self) -> Table {
        rollups_table::table(Subject::Device(""), &self.question.form)
    }

    fn add_rows(device: OfDevice, table: &mut Table) {
        table.append(device.text);
    }

    fn to_json(found: Answer<Listed<OfDevice>>) -> Response {
        rollups_json::of_devices(found)
    }
}

/// A question for rollups, and the form of its answer.
pub(super) struct Question {
    pub(super) request: RollupsRequest,
    pub(super) form: Form,
}

impl Question {
    /// Reads all parameters except those that select devices.
    fn of(params: &mut Params<'_>, headers: &HeaderMap, clock: &Clock) -> Result<Self, Problem> {
        let format = Format::choose(params, headers, &Format::ALL)?;
        let cells = Cells::of(params, format)?;
        let zone = params.zone()?;
        let (from_ms, to_ms) = open_range(params, clock, zone.as_ref())?;
        let (step, text) = step(params)?;
        let step = offset(params, step)?;
        let is_local = zone.is_some() && !cells.is_local();
        let zone = zone.unwrap_or(Zone::UTC);
        let columns = columns(params)?;
        let fill = fill(params)?;
        let compare = compare(params, step)?;
        let series = params.series()?;
        let (devices, known_series) = (Vec::new(), None);
        let request =
            RollupsRequest { devices, known_series, from_ms, to_ms, series, step, zone, columns, fill, compare };
        let form = Form { step: text, columns, is_local, is_compared: compare.is_some(), format, cells };
        Ok(Self { request, form })
    }

    /// Estimates the most memory of an answer, in bytes.
    fn bytes(&self, max_points: usize) -> usize {
        let Form { columns, is_local, is_compared, format, .. } = self.form;
        let of_names = match format {
            Format::Json => 0,
            Format::Csv | Format::Ndjson => BYTES_OF_NAMES,
            Format::Xlsx => BYTES_OF_NAMES + BYTES_OF_MARKUP,
        };
        let instants = [columns.has(Column::First), columns.has(Column::Last), is_local];
        let instants = instants.into_iter().filter(|has| *has).count();
        // `compare` makes two answers, which are in memory before they are joined.
        let sides = if is_compared { 2 } else { 1 };
        let per_point = BYTES_PER_POINT + of_names + instants * BYTES_PER_INSTANT;
        max_points.saturating_mul(sides * per_point) + BYTES_OF_READINGS
    }

    /// Returns a function that writes the rollups of one device.
    ///
    /// The function gets the index of the device in the request.
    fn to_json(&self) -> impl Fn(usize, &Compared, &LocalTime) -> OfDevice + use<> {
        let (devices, form) = (self.request.devices.clone(), self.form.clone());
        move |at, rollups, local| OfDevice::new(&devices[at], &form, rollups, local)
    }
}

/// The devices of a query: named one by one, or listed page by page.
pub(super) enum Which {
    Named(Vec<Arc<str>>),
    Listed(DevicesRequest),
}

impl Which {
    fn of(app: &App, grant: &Grant, params: &mut Params<'_>, combined: bool) -> Result<Self, Problem> {
        let max = app.limits.max_devices;
        if combined {
            params.exclude(&["limit", "cursor"], "`combine`, which includes all devices")?;
        }
        if params.has("device") && !params.has_metadata() {
            params.exclude(&["prefix", "limit"], "`device`")?;
            let mut devices = super::devices::named(app, grant, params)?.unwrap_or_default();
            if let Some(cursor) = params.one("cursor")? {
                let last = devices.iter().position(|device| **device == *cursor);
                let unknown = || Problem::invalid_parameter("cursor", "is not a `next` of these devices");
                devices.drain(..=last.ok_or_else(unknown)?);
            }
            return Ok(Self::Named(devices));
        }
        let limit = if combined { max } else { params.limit(100, max)? };
        Ok(Self::Listed(super::devices::request(app, grant, params, limit)?))
    }
}

/// Reads `step`, by default one hour. Also returns its text.
fn step(params: &mut Params<'_>) -> Result<(Step, String), Problem> {
    let Some(text) = params.one("step")? else { return Ok((Step::HOUR, "1h".to_owned())) };
    let step = text.parse().map_err(|why: StepError| Problem::invalid_parameter("step", why))?;
    Ok((step, text.into_owned()))
}

/// Reads `offset`, and returns `step` shifted by it.
///
/// A step of 8h with the offset 6h begins at 6, 14 and 22 o'clock.
fn offset(params: &mut Params<'_>, step: Step) -> Result<Step, Problem> {
    let Some(text) = params.one("offset")? else { return Ok(step) };
    let why = |why: &str| {
        let shift = "a step of 8h with the offset 6h begins at 6, 14 and 22 o'clock";
        Problem::invalid_parameter("offset", format!("{why}; {shift}"))
    };
    let period = text.parse::<Period>().map_err(|_| why("expected a time such as 6h, 30m or 1d6h"))?;
    let offset_ms = i64::try_from(period.as_millis()).unwrap_or(i64::MAX);
    step.beginning_later(offset_ms).map_err(|error: OffsetError| why(&error.to_string()))
}

/// Reads `compare`, such as `-7d`: how much earlier the compared steps are.
fn compare(params: &mut Params<'_>, step: Step) -> Result<Option<Earlier>, Problem> {
    let Some(text) = params.one("compare")? else { return Ok(None) };
    let why = |why: EarlierError| Problem::invalid_parameter("compare", why);
    let earlier = text.parse::<Earlier>().map_err(why)?;
    earlier.check(step).map_err(why)?;
    Ok(Some(earlier))
}

/// Reads `fill`: the points of steps without readings.
fn fill(params: &mut Params<'_>) -> Result<Fill, Problem> {
    let Some(text) = params.one("fill")? else { return Ok(Fill::None) };
    let why = || Problem::invalid_parameter("fill", format!("expected one of {}", Fill::VARIANTS.join(", ")));
    text.parse().map_err(|_| why())
}

/// Reads `fn`, the columns of a point: `fn=min,max` or `fn=min&fn=max`.
fn columns(params: &mut Params<'_>) -> Result<Columns, Problem> {
    let values = params.all("fn");
    let mut columns = Columns::NONE;
    for name in values.iter().flat_map(|value| value.split(',')) {
        let column = name.parse::<Column>().map_err(|_| {
            let known: Vec<&str> = Column::iter().map(Into::into).collect();
            Problem::invalid_parameter("fn", format!("expected some of {}", known.join(",")))
        })?;
        columns = columns.with(column);
    }
    Ok(if values.is_empty() { Columns::default() } else { columns })
}
