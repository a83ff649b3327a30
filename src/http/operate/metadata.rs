//! The metadata of devices, and the keys in it that operators set.
//!
//! `/v1/devices/{deviceId}/metadata` reads and changes one device. `/v1/metadata` lists the keys of all
//! devices, and merges changes from another server.
//!
//! An instance makes one change at a time. So a patch applies to the result of all changes before it, and no
//! other change comes between the check of `If-Match` and the change. The answer waits a moment until other
//! instances see the change. Two instances may change a device at the same time: then each key of the
//! metadata has the value of the later instant, with all its members.

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, ETAG, IF_MATCH, IF_NONE_MATCH, LINK};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use xxhash_rust::xxh3::xxh3_128;

use crate::access::{DeviceScope, Grant};
use crate::config::Scope;
use crate::flush::ChangeError;
use crate::http::App;
use crate::http::answer::etag::has_tag;
use crate::http::openapi::parameter::{CURSOR_OF_DEVICES, LIMIT_OF_DEVICES, PREFIX};
use crate::http::openapi::{Operation, Parameters, Tag};
use crate::http::problem::{Problem, ProblemCode};
use crate::http::read::check_prefix;
use crate::http::read::query_limits::until_client_leaves;
use crate::http::request::body;
use crate::http::request::device_id::{DeviceInPath, normalized};
use crate::http::request::params::Params;
use crate::http::serve::connection::Peer;
use crate::ingest::IngestError;
use crate::log::MetadataRecord;
use crate::model::{OperatorMetadata, ValueLimits, check_device_id};
use crate::query::{Missing, Queries, QueryError, TwoAuthors};
use crate::telemetry::Limit;
use crate::wire::{Format, Limits, json};

/// The most lines in a request to `POST /v1/metadata`.
const MAX_LINES: usize = 500;

/// How far the instants of such a request may be ahead of the server's clock: 1,000 years, in milliseconds.
///
/// A change that was made while a clock was ahead keeps its instant, and each later change of the device has
/// a later one ([`OperatorMetadata::next_ms`]). All of them must be taken. The limit moves with the clock, so
/// changes that come after one at the limit are taken as well.
const MAX_AHEAD_MS: i64 = 1_000 * 365 * 86_400_000;

/// A page ends after more than this many devices outside of the grant's device scope.
const MAX_OUTSIDE: usize = 10_000;

/// The fewest devices that a page asks the store for at once, unless it wants one ID only.
const DEVICES_PER_FETCH: usize = 500;

const NDJSON: HeaderValue = HeaderValue::from_static("application/x-ndjson");

/// The metadata of a device, and which author has set which key.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DeviceMetadata)]
#[serde(rename_all = "camelCase")]
pub(in crate::http) struct Answer {
    /// The ID of the device.
    device_id: String,
    /// The metadata in effect. A key of operators hides the same key of the device. Only with the scope
    /// `query`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    metadata: Option<Map<String, Value>>,
    /// The keys that operators have set.
    set_by_operators: Map<String, Value>,
    /// The metadata that the device has sent, or null. Only with the scope `query`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    sent_by_device: Option<Value>,
    /// Why metadata of the device may be missing, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    partial_reason: Option<String>,
}

/// The answer to a request whose lines were all accepted.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AcceptedChanges)]
pub(in crate::http) struct Accepted {
    /// The number of accepted lines.
    accepted: usize,
}

/// A line of `GET /v1/metadata`: the keys of a device that operators have set.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    device_id: String,
    change: OperatorMetadata,
}

const LIST: Parameters = &[&[&LIMIT_OF_DEVICES, &CURSOR_OF_DEVICES, &PREFIX]];

/// Describes `GET /v1/devices/{deviceId}/metadata`.
pub(in crate::http) fn describe_get() -> Operation {
    Operation::get(Tag::Queries, "getMetadata", "The metadata of a device by its authors")
        .answers::<Answer>(200, "The metadata. A device that has not sent anything has an answer too.")
        .answer_header(200, "ETag", ABOUT_ETAG)
        .queries()
}

/// Describes `PUT` and `PATCH` `/v1/devices/{deviceId}/metadata`.
pub(in crate::http) fn describe_changes() -> [Operation; 2] {
    let object = json!({ "type": "object" });
    let put = Operation::put(Tag::Operation, "putMetadata", "Replace what operators have set of a device").body(
        "application/json",
        &object,
        &json!({ "name": "Press 3", "units": { "temp": "Cel" } }),
    );
    let patch = Operation::patch(Tag::Operation, "patchMetadata", "Set and remove keys of the metadata of a device")
        .description(
            "The body is a JSON merge patch (RFC 7396): null removes a key. Of changes that two instances make at the \
             same time, the later value of a key of the metadata stays whole: one instance's `limits`.",
        )
        .body("application/merge-patch+json", &object, &json!({ "name": "Press 3", "note": null }))
        .body("application/json", &object, &json!({ "name": "Press 3" }));
    [put, patch].map(|operation| {
        operation
            .answers::<Answer>(200, "The change is durable.")
            .answer_header(200, "ETag", ABOUT_ETAG)
            .conditional()
            .takes_body()
            .queries()
            .problems(&[ProblemCode::InvalidMetadata, ProblemCode::LogFailed])
    })
}

/// Describes `GET /v1/metadata`.
pub(in crate::http) fn describe_list() -> Operation {
    let text = json!({ "type": "string" });
    Operation::get(Tag::Queries, "listMetadata", "What operators have set of all devices")
        .parameters(LIST)
        .answers_as(200, "A line for each device, as `POST /v1/metadata` takes it.", "application/x-ndjson", &text)
        .answer_header(200, "Link", "The address of the next page (`rel=\"next\"`), if there is one.")
        .queries()
        .problems(&[ProblemCode::TooManyDevices])
}

/// Describes `POST /v1/metadata`.
pub(in crate::http) fn describe_post() -> Operation {
    let change = json!({ "keys": { "name": { "atMs": 1_776_693_610_000_i64, "value": "Press 3" } } });
    let line = json!({ "deviceId": "S9", "change": change });
    Operation::post(Tag::Operation, "postMetadata", "Merge changes that operators have made at another server")
        .description(
            "Each line has the keys of one device with the instants of their changes. The newer value of each key \
             stays, so the same lines may be sent again. `replacedMs` removes the keys that were set before it. If a \
             line is refused, none has an effect.",
        )
        .body("application/x-ndjson", &json!({ "type": "string" }), &json!(format!("{line}\n")))
        .answers::<Accepted>(200, "The changes are durable.")
        .takes_body()
        .queries()
        .problems(&[ProblemCode::InvalidMetadata, ProblemCode::LogFailed])
}

const ABOUT_ETAG: &str = "The tag of what operators have set, for `If-Match`.";

/// `GET /v1/devices/{deviceId}/metadata`
pub(in crate::http) async fn get(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
    DeviceInPath(device): DeviceInPath,
    uri: Uri,
) -> Result<Response, Problem> {
    Params::of(&uri, &[]).end()?;
    let stored = stored_id(&grant.device_scope, &device)?;
    on_main(Arc::clone(&app), async move {
        let _place = app.query_limits.enter(&grant.quota).await?;
        Ok(respond(device, &app.queries.metadata(&stored).await?, true))
    })
    .await
}

/// `PUT` and `PATCH /v1/devices/{deviceId}/metadata`
pub(in crate::http) async fn change(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
    DeviceInPath(device): DeviceInPath,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let is_patch = method == Method::PATCH;
    let types: &[&str] =
        if is_patch { &["application/merge-patch+json", "application/json"] } else { &["application/json"] };
    check_type(&headers, types)?;
    Params::of(&uri, &[]).end()?;
    body::require_length(&headers)?;
    let body = body::receive(&app, &grant.quota, Format::Json, &headers, body).await?;
    let (limits, text) = (app.ingest.rules().limits, body.bytes.trim_ascii());
    let object = limits.check_metadata(text.len()).and_then(|()| json::parse_metadata(text, &limits));
    let object = object.map_err(|rejection| Problem::invalid_metadata(rejection.detail))?;
    if !is_patch && let Some((key, _)) = object.iter().find(|(_, value)| value.is_null()) {
        let why = format!("{key:?} is null: PUT sets all keys, and leaves out those that it removes");
        return Err(Problem::invalid_metadata(why));
    }
    let stored = stored_id(&grant.device_scope, &device)?;
    on_main(Arc::clone(&app), async move {
        let _body = body; // while it lives, its memory is reserved
        let place = app.query_limits.enter(&grant.quota).await?;
        let turn = app.pipeline.metadata_turn().await;
        let known = app.queries.metadata(&stored).await.map_err(QueryError::of_change)?;
        check_preconditions(&headers, &known.operator)?;
        let at_ms = known.operator.next_ms(app.clock.now_ms());
        let change =
            if is_patch { known.operator.patched(object, at_ms) } else { OperatorMetadata::replacement(object, at_ms) };
        let mut after = known;
        after.operator.merge(change.clone());
        if !change.is_empty() {
            check(&app, &after.operator, &change, false)?;
            if !after.is_known {
                admit(&app, &grant, std::slice::from_ref(&stored))?;
            }
            let record = MetadataRecord { device: Arc::clone(&stored), by: grant.author().into(), change };
            append(&app, vec![record]).await?;
            drop((turn, place));
            app.pipeline.metadata_seen(&[stored], app.queries.limits().catch_up).await;
        }
        Ok(respond(device, &after, grant.allows(Scope::Query)))
    })
    .await
}

/// `GET /v1/metadata`
pub(in crate::http) async fn list(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
    peer: Option<Extension<Peer>>,
    uri: Uri,
) -> Result<Response, Problem> {
    let mut params = Params::of(&uri, LIST);
    let limit = params.limit(100, app.limits.max_devices)?;
    let after = params.one("cursor")?.map(Cow::into_owned);
    if let Some(after) = &after {
        check_device_id(after).map_err(|error| Problem::invalid_parameter("cursor", error))?;
    }
    let prefix = params.one("prefix")?.unwrap_or_default().into_owned();
    check_prefix(&prefix)?;
    params.end()?;
    let path = uri.path().to_owned();
    let disconnect = peer.map(|Extension(peer)| peer.disconnect);
    let of_list = Arc::clone(&app);
    let list = async move {
        let place = of_list.query_limits.enter(&grant.quota).await?;
        let devices = limit.max(DEVICES_PER_FETCH);
        place.reserve(devices * max_line(&of_list.ingest.rules().limits)).await?;
        let found = page(&of_list.queries, &grant.device_scope, &prefix, after.as_deref(), limit);
        let found = tokio::time::timeout_at(of_list.queries.deadline(), found).await;
        let (lines, next) = found.map_err(|_| QueryError::Timeout(of_list.queries.limits().timeout))??;
        let mut response = ([(CONTENT_TYPE, NDJSON)], lines).into_response();
        if let Some(next) = next {
            let query = form_urlencoded::Serializer::new(String::new())
                .append_pair("limit", &limit.to_string())
                .append_pair("prefix", &prefix)
                .append_pair("cursor", &next)
                .finish();
            insert(&mut response, LINK, &format!("<{path}?{query}>; rel=\"next\""));
        }
        Ok(response)
    };
    until_client_leaves(&app, disconnect, list).await?
}

/// Returns the lines of the next devices after `after`, and the client ID after which the list continues.
///
/// A page ends early after too many devices outside of the scope. It fails if it has no line then.
async fn page(
    queries: &Queries,
    scope: &DeviceScope,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<(Vec<u8>, Option<String>), Problem> {
    let mut after = after.map(|after| scope.with_prefix(after));
    let (mut lines, mut last, mut count, mut outside) = (Vec::new(), None, 0, 0);
    for range in scope.ranges(prefix) {
        loop {
            let wanted = if range.is_one_id { 1 } else { (limit - count).max(DEVICES_PER_FETCH) };
            let found = queries.list_operator_metadata(&range.prefix, after.as_deref(), wanted).await?;
            let is_last = range.is_one_id || found.len() < wanted;
            for (device, mut change) in found.into_iter().filter(|(device, _)| range.holds(device)) {
                after = Some(device.to_string());
                change.forget_old_removals(); // as the store will, if it has not taken some of them
                let Some(id) = scope.to_client_id(&device) else {
                    outside += 1;
                    continue;
                };
                let line = Line { device_id: id.to_owned(), change };
                serde_json::to_writer(&mut lines, &line).map_err(Problem::internal)?;
                lines.push(b'\n');
                count += 1;
                last = Some(line.device_id);
                if count == limit {
                    return Ok((lines, last));
                }
            }
            if is_last {
                break;
            }
            if outside > MAX_OUTSIDE {
                return last.map(|last| (lines, Some(last))).ok_or_else(|| QueryError::TooManyDevices(outside).into());
            }
        }
    }
    Ok((lines, None))
}

/// `POST /v1/metadata`
pub(in crate::http) async fn post(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Accepted>, Problem> {
    Params::of(&uri, &[]).end()?;
    check_type(&headers, &["application/x-ndjson"])?;
    body::require_length(&headers)?;
    let body = body::receive(&app, &grant.quota, Format::Json, &headers, body).await?;
    on_main(Arc::clone(&app), async move {
        let read = {
            let (app, grant) = (Arc::clone(&app), Arc::clone(&grant));
            move || changes_in(&app, &grant.device_scope, &body.bytes)
        };
        let changes = tokio::task::spawn_blocking(read).await.map_err(Problem::internal)??;
        let place = app.query_limits.enter(&grant.quota).await?;
        let turn = app.pipeline.metadata_turn().await;
        let devices: Vec<Arc<str>> = changes.iter().map(|(_, device, _)| Arc::clone(device)).collect();
        let known = app.queries.all_operator_metadata(&devices).await;
        let mut known = known.map_err(QueryError::of_change)?;
        let (accepted, by): (_, Arc<str>) = (changes.len(), grant.author().into());
        let is_new = |device| known.get(device).is_none_or(OperatorMetadata::is_empty);
        let new = changes.iter().filter(|(_, device, change)| !change.is_empty() && is_new(device));
        let new = new.map(|(_, device, _)| Arc::clone(device)).collect();
        let new = app.queries.devices_without_readings(new).await.map_err(QueryError::of_change)?;
        let mut records = Vec::new();
        for (line, device, change) in changes {
            let known = known.entry(Arc::clone(&device)).or_default();
            let before = known.clone();
            known.merge(change.clone());
            if *known != before {
                check(&app, known, &change, true).map_err(|error| error.in_line(line))?;
                records.push(MetadataRecord { device, by: Arc::clone(&by), change });
            }
        }
        admit(&app, &grant, &new)?;
        append(&app, records).await?;
        drop((turn, place));
        app.pipeline.metadata_seen(&devices, app.queries.limits().catch_up).await;
        Ok(Json(Accepted { accepted }))
    })
    .await
}

/// Reads the lines of `POST /v1/metadata`: line number, stored ID, change.
fn changes_in(
    app: &App,
    scope: &DeviceScope,
    body: &[u8],
) -> Result<Vec<(usize, Arc<str>, OperatorMetadata)>, Problem> {
    let rules = app.ingest.rules();
    let latest_ms = app.clock.now_ms().saturating_add(MAX_AHEAD_MS);
    let max_line = max_line(&rules.limits);
    let limits = Limits { max_metadata_bytes: max_line, ..rules.limits };
    let mut changes = Vec::new();
    for (at, line) in body.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let number = at + 1;
        let refused = |why: String| Problem::invalid_metadata(format!("line {number}: {why}"));
        if changes.len() == MAX_LINES {
            return Err(refused(format!("a request has at most {MAX_LINES} lines")));
        }
        if line.len() > max_line {
            return Err(refused("the line is longer than metadata may be (ingest.max_metadata_bytes)".to_owned()));
        }
        let (device_id, change) = read_line(line, &limits).map_err(refused)?;
        let device = normalized(scope, "deviceId", &device_id)?;
        let device = stored_id(scope, &device)?;
        if change.newest_ms().is_some_and(|newest_ms| newest_ms > latest_ms) {
            return Err(refused("an instant is more than 1000 years ahead of the server's clock".to_owned()));
        }
        changes.push((number, device, change));
    }
    Ok(changes)
}

/// The longest line of `POST /v1/metadata`, in bytes. What `GET` lists or forwarding sends is no longer.
///
/// The shortest key of metadata, `"a":1,`, has 6 bytes, and in a line up to 38 more:
/// `"a":{"atMs":-9223372036854775808,"value":1},`. The shortest removed key of a patch, `"a":null,`, has 9
/// bytes, and in a line up to 25 more. So the keys of a change have less than 12 times the bytes that
/// metadata may have. Beside these, 32 KiB are enough for the device ID and the removals that a store
/// remembers: up to 64, with 4 KiB of names, each byte of which may have 6 bytes in JSON.
const fn max_line(limits: &Limits) -> usize {
    limits.max_metadata_bytes.saturating_mul(12).saturating_add(32 << 10)
}

/// Reads a line of `POST /v1/metadata`: the device ID and the change.
///
/// It refuses what serde would accept: an array in place of an object, and two equal keys.
fn read_line(line: &[u8], limits: &Limits) -> Result<(String, OperatorMetadata), String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Line<'a> {
        device_id: String,
        #[serde(borrow)]
        change: &'a RawValue,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Change<'a> {
        replaced_ms: Option<i64>,
        #[serde(borrow)]
        keys: Option<&'a RawValue>,
    }
    let invalid = |error: serde_json::Error| error.to_string();
    let is_object = |text: &[u8]| text.first() == Some(&b'{');
    if !is_object(line) {
        return Err("a line is an object with \"deviceId\" and \"change\"".to_owned());
    }
    let Line { device_id, change } = serde_json::from_slice(line).map_err(invalid)?;
    if !is_object(change.get().as_bytes()) {
        return Err("\"change\" is an object with \"replacedMs\", \"keys\" or both".to_owned());
    }
    let Change { replaced_ms, keys } = serde_json::from_str(change.get()).map_err(invalid)?;
    let keys = keys.map_or("{}", RawValue::get).as_bytes();
    let keys = json::parse_metadata_keys(keys, limits).map_err(|rejection| rejection.detail)?;
    let read = |(key, of): (String, Value)| {
        if !of.is_object() {
            return Err(format!("the key {key:?} has no object with \"atMs\" and \"value\""));
        }
        let of = serde_json::from_value(of).map_err(|error| format!("the key {key:?}: {error}"))?;
        Ok((key, of))
    };
    Ok((device_id, OperatorMetadata { replaced_ms, keys: keys.into_iter().map(read).collect::<Result<_, _>>()? }))
}

/// Charges new devices to the sender, as admission does for readings.
fn admit(app: &App, grant: &Grant, new: &[Arc<str>]) -> Result<(), Problem> {
    let admitted = app.ingest.admit_new_devices(&grant.quota, new);
    admitted.map_err(|wait| Problem::rate_limited(Limit::NewDevices, wait))
}

/// Checks the size of the keys that operators have set after `change`, and the form of those that it sets.
///
/// The form of other keys does not count, so that a value from before this check refuses no later change. A
/// copy from another server may have such values too, so only its limits count, which were always checked.
fn check(app: &App, after: &OperatorMetadata, change: &OperatorMetadata, is_copy: bool) -> Result<(), Problem> {
    let text = Value::from(after.object()).to_string();
    let is_short = app.ingest.rules().limits.check_metadata(text.len());
    is_short.map_err(|rejection| Problem::invalid_metadata(rejection.detail))?;
    let set = change.keys.iter().filter(|(key, of)| after.keys.get(*key) == Some(*of));
    let mut counting = set.filter(|(key, _)| !is_copy || *key == "limits");
    let wrong = counting.find_map(|(key, of)| wrong_form(key, of.value.as_ref()?));
    wrong.map_or(Ok(()), |why| Err(Problem::invalid_metadata(why)))
}

/// Returns which part of the value of a key has a wrong form, and the right form, if the key has a meaning.
fn wrong_form(key: &str, value: &Value) -> Option<String> {
    let form = match key {
        "name" => "\"name\" is a text",
        "units" => "\"units\" has a text for each metric, by its name without labels: {\"temp\": \"°C\"}",
        // A text may describe the device: `"pump"`.
        "kind" if !value.is_string() => {
            "\"kind\" is \"counter\", or has \"counter\" for each metric that is one: {\"energy\": \"counter\"}; give \
             another name to a key with another meaning"
        }
        "limits" => {
            "\"limits\" has an object for each metric, by its name without labels, with \"min\", \"max\" or both as \
             numbers, and \"min\" is not above \"max\": {\"temp\": {\"min\": -5, \"max\": 80}}"
        }
        _ => return None,
    };
    let is_right = |member: &str, of: &Value| match key {
        "units" => of.is_string(),
        "kind" => *of == "counter",
        _ => ValueLimits::of_metadata(&json!({ "limits": { member: of } }).to_string()).invalid == 0,
    };
    let wrong = match value {
        Value::String(_) if key == "name" => return None,
        Value::Object(members) if key != "name" => {
            let (member, _) = members.iter().find(|&(member, of)| !is_right(member, of))?;
            format!("{key}.{member}")
        }
        _ => key.to_owned(),
    };
    Some(format!("{wrong:?} has a wrong form: {form}"))
}

fn check_preconditions(headers: &HeaderMap, known: &OperatorMetadata) -> Result<(), Problem> {
    let (tag, is_set) = (tag(known), !known.object().is_empty());
    let names = |name: HeaderName| {
        let mut lists = headers.get_all(name).iter().peekable();
        lists.peek()?;
        Some(lists.any(|list| if list == "*" { is_set } else { has_tag(list, &tag) }))
    };
    if names(IF_MATCH) == Some(false) || names(IF_NONE_MATCH) == Some(true) {
        let why = "the metadata has another tag than the header: somebody has changed it, or the tag lacks its quotes";
        return Err(Problem::precondition_failed(why));
    }
    Ok(())
}

/// The entity tag of the keys that operators have set: a hash.
fn tag(metadata: &OperatorMetadata) -> String {
    format!("{:032x}", xxh3_128(Value::from(metadata.object()).to_string().as_bytes()))
}

/// Answers with the metadata of a device, or only with the keys of operators if the client may not query.
fn respond(device_id: String, metadata: &TwoAuthors, may_query: bool) -> Response {
    let object = |text: &Arc<str>| serde_json::from_str::<Map<String, Value>>(text).ok();
    let in_effect = metadata.operator.over(metadata.own.as_ref());
    let answer = Answer {
        device_id,
        metadata: may_query.then(|| in_effect.as_ref().and_then(object).unwrap_or_default()),
        set_by_operators: metadata.operator.object(),
        sent_by_device: may_query.then(|| Value::from(metadata.own.as_ref().and_then(object))),
        partial_reason: metadata.partial.filter(|_| may_query).map(Missing::reason),
    };
    let mut response = Json(answer).into_response();
    insert(&mut response, ETAG, &format!("\"{}\"", tag(&metadata.operator)));
    response
}

fn insert(response: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::try_from(value) {
        response.headers_mut().insert(name, value);
    }
}

/// Appends changes, and waits until they are durable.
async fn append(app: &App, records: Vec<MetadataRecord>) -> Result<(), Problem> {
    app.pipeline.change_metadata(records).await.map_err(|error| match error {
        ChangeError::TooMany => Problem::too_many_waiting(&error),
        ChangeError::Log(error) => Problem::refused(IngestError::from(error), app.pipeline.store_away().is_some()),
    })
}

fn stored_id(scope: &DeviceScope, device: &str) -> Result<Arc<str>, Problem> {
    Ok(scope.to_stored_id(device).map_err(QueryError::from)?.as_ref().into())
}

/// Runs `work` on the main runtime, where queries run.
///
/// The work goes on if the client leaves, because its change may be in the log already.
async fn on_main<T: Send + 'static>(
    app: Arc<App>,
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    app.main.spawn(work).await.map_err(Problem::internal)?
}

/// Refuses a body whose media type is none of `expected`.
fn check_type(headers: &HeaderMap, expected: &[&str]) -> Result<(), Problem> {
    let (essence, found) = body::media_type(headers);
    if expected.iter().any(|expected| essence.eq_ignore_ascii_case(expected)) {
        return Ok(());
    }
    Err(Problem::expected_media_type(&expected.join(" or "), found))
}
