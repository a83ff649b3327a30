//! `GET /v1/rollups` and `GET /v1/devices/{deviceId}/rollups`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, Uri, Version};
use axum::response::Response;
use serde_json::json;
use strum::{IntoEnumIterator, VariantNames};

use super::open_range;
use super::rollups_json::{self, Form, OfDevice};
use super::rollups_table;
use super::table::{Whole, complete, next_page};
use crate::access::Grant;
use crate::common::clock::Clock;
use crate::http::App;
use crate::http::admission::Admitted;
use crate::http::device::DeviceInPath;
use crate::http::format::Format;
use crate::http::openapi::parameter::{
    COMBINE, CURSOR_OF_DEVICES, DEVICE, FILL, FN, FORMAT, FROM, LABELS, LIMIT_OF_DEVICES, METADATA, METRIC, PREFIX,
    STEP, TO, TZ,
};
use crate::http::openapi::{Operation, Parameters, Tag, answer_of_rollups, answers_of_rollups_of_devices};
use crate::http::params::Params;
use crate::http::problem::{Problem, ProblemCode};
use crate::query::{
    Answer, Column, Columns, DevicesRequest, Fill, Listed, LocalTime, QueryError, Rollups, RollupsRequest, Step,
    StepError, Zone,
};

/// The memory of the stats of one step, with the JSON of the usual columns.
const BYTES_PER_POINT: usize = 330;

/// The memory of the JSON of an instant, with another value.
const BYTES_PER_INSTANT: usize = 70;

/// The memory of the device ID and the series in each row.
const BYTES_OF_NAMES: usize = 200;

/// The memory of a page of readings that a query for rollups reads.
const BYTES_OF_READINGS: usize = 4 << 20;

const OF_ONE: Parameters = &[&FORMAT, &FROM, &TO, &STEP, &TZ, &FN, &FILL, &METRIC, &LABELS];
const OF_DEVICES: Parameters = &[
    &FORMAT,
    &FROM,
    &TO,
    &STEP,
    &TZ,
    &FN,
    &FILL,
    &METRIC,
    &LABELS,
    &COMBINE,
    &LIMIT_OF_DEVICES,
    &CURSOR_OF_DEVICES,
    &DEVICE,
    &PREFIX,
    &METADATA,
];

/// The problems of both paths.
const PROBLEMS: [ProblemCode; 5] = [
    ProblemCode::NotAcceptable,
    ProblemCode::RangeTooLong,
    ProblemCode::TooManyPoints,
    ProblemCode::TooManyValues,
    ProblemCode::ReadingsExpired,
];

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
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
    Extension(admitted): Extension<Arc<Admitted>>,
    DeviceInPath(device): DeviceInPath,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    let mut params = Params::of(&uri, OF_ONE);
    let mut question = Question::of(&mut params, &headers, &app.clock)?;
    params.end()?;
    admitted.reserve(question.bytes(app.limits.max_points)).await?;
    question.request.devices = vec![device.into()];
    let found = app.queries.rollups(&grant.device_scope, &question.request, question.to_json()).await?;
    let found = found.map(|mut devices| devices.swap_remove(0));
    let device = &question.request.devices[0];
    let is_whole = !found.partial && found.lagging.is_none();
    if found.body.is_empty && is_whole && !app.queries.is_known(&grant.device_scope, device).await? {
        return Err(Problem::unknown_device(device));
    }
    if question.form.format != Format::Json {
        let name = format!("rollups-{device}");
        let (found, lagging) = complete(found)?;
        return Ok(rollups_table::respond(true, &question.form, [found.text], &name, (None, lagging)));
    }
    Ok(rollups_json::of_device(found))
}

/// `GET /v1/rollups`
pub(in crate::http) async fn of_devices(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
    Extension(admitted): Extension<Arc<Admitted>>,
    version: Version,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    let mut params = Params::of(&uri, OF_DEVICES);
    let mut question = Question::of(&mut params, &headers, &app.clock)?;
    let format = question.form.format;
    let whole = Whole::of(format, &params, &admitted, (version, &headers), app.limits.body_timeout);
    let combine = Combine::of(&mut params, format)?;
    let combined = combine != Combine::No;
    let mut which = Which::of(&app, &grant, &mut params, combined)?;
    params.end()?;
    admitted.reserve(question.bytes(app.limits.max_points) + Whole::bytes(whole.as_ref())).await?;
    if combined {
        let partial = which.resolve(&app, &grant, &mut question.request.devices).await?;
        return combine.answer(&app, &grant, &question, partial).await;
    }
    let found = page(&app, &grant, &mut question, &which).await?;
    if format == Format::Json {
        return Ok(rollups_json::of_devices(found));
    }
    let (Listed { devices, next }, lagging) = complete(found)?;
    let (first, rows) = (rollups_table::table(true, &question.form), devices.into_iter().map(|device| device.text));
    let (Some(after), Some(whole)) = (&next, whole) else {
        return Ok(first.into_response(rows, "rollups", next.map(|next| next_page(&uri, &next)), lagging));
    };
    if let Which::Listed(list) = &which {
        app.queries.check_list(&grant.device_scope, list).await?;
    }
    let rest = async move |after: Arc<str>| {
        which.go_on_after(&after);
        let (Listed { devices, next }, _) = complete(page(&app, &grant, &mut question, &which).await?)?;
        Ok((devices.into_iter().map(|device| device.text).collect(), next))
    };
    first.into_file(rows, "rollups", (Arc::clone(after), lagging), whole, rest).await
}

/// Reads the rollups of the first devices of `which`.
async fn page(
    app: &App,
    grant: &Grant,
    question: &mut Question,
    which: &Which,
) -> Result<Answer<Listed<OfDevice>>, QueryError> {
    let (devices, next, partial) = match which {
        Which::Named(devices) => (devices.clone(), None, false),
        Which::Listed(request) => {
            let found = app.queries.device_ids(&grant.device_scope, request).await?;
            (found.body.devices, found.body.next, found.partial)
        }
    };
    question.request.devices = devices;
    let mut rollups = app.queries.rollups(&grant.device_scope, &question.request, question.to_json()).await?;
    rollups.partial |= partial;
    let devices = &question.request.devices;
    let is_short = rollups.body.len() < devices.len();
    let next = if is_short { devices[..rollups.body.len()].last().cloned() } else { next };
    Ok(rollups.map(|devices| Listed { devices, next }))
}

/// The devices whose rollups are combined.
#[derive(Debug, PartialEq)]
enum Combine {
    No,
    All,
    /// The devices with the same values of these keys of their metadata.
    By(Vec<String>),
}

/// The most keys of metadata by which devices are combined.
const MAX_KEYS: usize = 8;

/// The longest key.
const MAX_KEY_BYTES: usize = 256;

impl Combine {
    /// Reads `combine`.
    fn of(params: &mut Params<'_>, format: Format) -> Result<Self, Problem> {
        match params.one("combine")?.as_deref() {
            None | Some("false" | "0") => Ok(Self::No),
            Some("true" | "1") => Ok(Self::All),
            Some(by) if by.starts_with("by:") && format != Format::Json => {
                Err(Problem::invalid_parameter("combine", "by: has answers in JSON only"))
            }
            Some(by) => {
                let keys: Vec<String> =
                    by.strip_prefix("by:").into_iter().flat_map(|keys| keys.split(',')).map(str::to_owned).collect();
                let is_key = |key: &String| (1..=MAX_KEY_BYTES).contains(&key.len());
                let is_valid = (1..=MAX_KEYS).contains(&keys.len()) && keys.iter().all(is_key);
                let why = "expected true, false, or by:KEY of the metadata, or up to eight keys with commas between";
                if is_valid { Ok(Self::By(keys)) } else { Err(Problem::invalid_parameter("combine", why)) }
            }
        }
    }

    /// Answers for the devices of the question. `partial`: some devices may be missing.
    async fn answer(self, app: &App, grant: &Grant, question: &Question, partial: bool) -> Result<Response, Problem> {
        let Question { request, form } = question;
        let scope = &grant.device_scope;
        let Self::By(keys) = self else {
            let one_group = vec![0; request.devices.len()];
            let mut rollups = app.queries.combined_rollups(scope, request, &one_group).await?;
            rollups.partial |= partial;
            if form.format != Format::Json {
                let ((rollups, local), lagging) = complete(rollups)?;
                let rows = rollups.iter().map(|rollups| rollups_table::rows(None, form, rollups, &local));
                return Ok(rollups_table::respond(false, form, rows, "rollups", (None, lagging)));
            }
            return Ok(rollups_json::combined(&rollups, request.devices.len(), form));
        };
        let groups = app.queries.device_groups(scope, &request.devices, &keys).await?;
        let mut rollups = app.queries.combined_rollups(scope, request, &groups.body.group_of).await?;
        rollups.partial |= partial || groups.partial;
        Ok(rollups_json::combined_groups(&rollups, &groups.body.groups, &keys, form))
    }
}

/// The parameters that both paths have in common.
struct Question {
    request: RollupsRequest,
    form: Form,
}

impl Question {
    /// Reads all parameters except the devices.
    fn of(params: &mut Params<'_>, headers: &HeaderMap, clock: &Clock) -> Result<Self, Problem> {
        let format = Format::choose(params, headers, &Format::ALL)?;
        let (from_ms, to_ms) = open_range(params, clock)?;
        let (step, text) = step(params)?;
        let zone = zone(params)?;
        let is_local = zone.is_some();
        let zone = zone.unwrap_or(Zone::UTC);
        let columns = columns(params)?;
        let fill = fill(params)?;
        let series = params.series()?;
        let request = RollupsRequest { devices: Vec::new(), from_ms, to_ms, series, step, zone, columns, fill };
        Ok(Self { request, form: Form { step: text, columns, is_local, format } })
    }

    /// The largest memory of an answer.
    fn bytes(&self, max_points: usize) -> usize {
        let Form { columns, is_local, format, .. } = self.form;
        let of_names = if format == Format::Json { 0 } else { BYTES_OF_NAMES };
        let instants = [columns.has(Column::First), columns.has(Column::Last), is_local];
        let instants = instants.into_iter().filter(|has| *has).count();
        max_points.saturating_mul(BYTES_PER_POINT + of_names + instants * BYTES_PER_INSTANT) + BYTES_OF_READINGS
    }

    /// Returns the function that writes the rollups of the device at an index.
    fn to_json(&self) -> impl Fn(usize, &Rollups, &LocalTime) -> OfDevice + use<> {
        let (devices, form) = (self.request.devices.clone(), self.form.clone());
        move |at, rollups, local| OfDevice::new(&devices[at], &form, rollups, local)
    }
}

/// The most pages of a list of devices that are read for one combined answer.
const PAGES_MAX: usize = 10;

/// The devices of a query.
enum Which {
    Named(Vec<Arc<str>>),
    Listed(DevicesRequest),
}

impl Which {
    fn of(app: &App, grant: &Grant, params: &mut Params<'_>, combined: bool) -> Result<Self, Problem> {
        let max = app.limits.max_devices;
        if combined {
            params.exclude(&["limit"], "combine=true, which includes all devices")?;
        }
        if params.has("device") && !params.has_metadata() {
            params.exclude(&["prefix", "limit"], "device")?;
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

    /// Leaves the devices up to this one out.
    fn go_on_after(&mut self, last: &str) {
        match self {
            Self::Named(devices) => {
                let at = devices.iter().position(|device| **device == *last);
                devices.drain(..at.map_or(devices.len(), |at| at + 1));
            }
            Self::Listed(request) => request.after = Some(last.to_owned()),
        }
    }

    /// Puts all devices into `into`, and returns whether some may be missing.
    async fn resolve(self, app: &App, grant: &Grant, into: &mut Vec<Arc<str>>) -> Result<bool, Problem> {
        let mut request = match self {
            Self::Named(devices) => {
                *into = devices;
                return Ok(false);
            }
            Self::Listed(request) => request,
        };
        let mut is_partial = false;
        for _ in 0..PAGES_MAX {
            let found = app.queries.device_ids(&grant.device_scope, &request).await?;
            let Answer { body: Listed { devices, next }, partial, .. } = found;
            is_partial |= partial;
            into.extend(devices);
            if into.len() > request.limit {
                let why = format!(
                    "more than {} devices match (query.max_devices); select fewer with `prefix=`, `device=` or \
                     `meta.KEY=`",
                    request.limit
                );
                return Err(Problem::invalid_parameter("combine", why));
            }
            if next.is_none() {
                return Ok(is_partial);
            }
            request.after = next.map(|next| next.to_string());
        }
        let why = "the devices are too many to look at the metadata of each; use a longer prefix";
        Err(Problem::invalid_parameter("combine", why))
    }
}

/// Reads `step`, by default one hour.
fn step(params: &mut Params<'_>) -> Result<(Step, String), Problem> {
    let Some(text) = params.one("step")? else { return Ok((Step::HOUR, "1h".to_owned())) };
    let step = text.parse().map_err(|why: StepError| Problem::invalid_parameter("step", why.to_string()))?;
    Ok((step, text.into_owned()))
}

/// Reads `tz`, the name of a time zone.
fn zone(params: &mut Params<'_>) -> Result<Option<Zone>, Problem> {
    let Some(name) = params.one("tz")? else { return Ok(None) };
    let why = "expected the name of a time zone in the IANA database, such as Europe/Berlin";
    Zone::named(&name).ok_or_else(|| Problem::invalid_parameter("tz", why)).map(Some)
}

/// Reads `fill`.
fn fill(params: &mut Params<'_>) -> Result<Fill, Problem> {
    let Some(text) = params.one("fill")? else { return Ok(Fill::None) };
    let why = || Problem::invalid_parameter("fill", format!("expected one of {}", Fill::VARIANTS.join(", ")));
    text.parse().map_err(|_| why())
}

/// Reads `fn`: columns, separated by commas, in one parameter or in several.
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
