//! The security schemes and refusals of operations, by the access of their route.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::operation::{Operation, header};
use crate::config::Scope;
use crate::http::access::authorize::Need;
use crate::http::problem::{self, ProblemCode};
use crate::http::write::influx::{self, Version};
use crate::http::write::otlp;

/// The problems that a request to any route may have.
const OF_ALL: [ProblemCode; 7] = [
    ProblemCode::InvalidHost,
    ProblemCode::Unauthorized,
    ProblemCode::Forbidden,
    ProblemCode::ForeignOrigin,
    ProblemCode::HostNotAllowed,
    ProblemCode::Internal,
    ProblemCode::TooManyConnections,
];

/// The problems that a request with readings may have.
pub(super) const OF_READINGS: [ProblemCode; 12] = [
    ProblemCode::InvalidParameter,
    ProblemCode::InvalidBody,
    ProblemCode::PartiallyRejected,
    ProblemCode::Rejected,
    ProblemCode::LengthRequired,
    ProblemCode::BodyTimeout,
    ProblemCode::BodyTooLarge,
    ProblemCode::TooManyReadings,
    ProblemCode::RequestTooLarge,
    ProblemCode::UnsupportedMediaType,
    ProblemCode::Overloaded,
    ProblemCode::LogFailed,
];

/// The problems that a body may have.
pub(super) const OF_BODIES: [ProblemCode; 7] = [
    ProblemCode::InvalidBody,
    ProblemCode::LengthRequired,
    ProblemCode::BodyTimeout,
    ProblemCode::BodyTooLarge,
    ProblemCode::UnsupportedMediaType,
    ProblemCode::RateLimited,
    ProblemCode::Overloaded,
];

/// The problems that a query may have.
pub(super) const OF_QUERIES: [ProblemCode; 6] = [
    ProblemCode::InvalidParameter,
    ProblemCode::DeviceForbidden,
    ProblemCode::DeviceIndexIncomplete,
    ProblemCode::Overloaded,
    ProblemCode::QueryTimeout,
    ProblemCode::StoreUnavailable,
];

/// Returns the problems that a request to any route with this access may have.
///
/// Requests for metrics, health and the dashboard have no rate limit.
pub(super) fn problems(need: Need) -> impl Iterator<Item = ProblemCode> {
    let has_rate = !matches!(need, Need::Metrics | Need::Health | Need::Nothing);
    let of_forwarder = need.may_be_forwarded().then_some(ProblemCode::ForwardLoop);
    OF_ALL.into_iter().chain(has_rate.then_some(ProblemCode::RateLimited)).chain(of_forwarder)
}

/// Returns the status of a problem in the error format of the route.
pub(super) fn status(need: Need, code: ProblemCode) -> u16 {
    match (need, code) {
        (Need::RemoteWrite | Need::Otlp | Need::InfluxWrite(_), ProblemCode::BodyTimeout)
        | (Need::InfluxWrite(Version::V1), ProblemCode::RateLimited) => 503,
        _ => code.status().as_u16(),
    }
}

/// Returns the response object of refusals with this status.
pub(super) fn refusal(need: Need, status: u16, codes: &BTreeSet<&'static str>, operation: &mut Operation) -> Value {
    let listed: Vec<String> = codes.iter().map(|code| format!("`{code}`")).collect();
    let content = match need {
        Need::InfluxWrite(version) => {
            let schema = match version {
                Version::V1 => operation.refer::<influx::ErrorV1<'_>>(),
                Version::V2 => operation.refer::<influx::ErrorV2<'_>>(),
                Version::V3 => operation.refer::<influx::ErrorV3<'_>>(),
            };
            json!({ "application/json": { "schema": schema } })
        }
        Need::InfluxQl => {
            let schema = operation.refer::<influx::ErrorV1<'_>>();
            json!({ "application/json": { "schema": schema }, "text/csv": {}, "application/x-msgpack": {} })
        }
        Need::RemoteWrite => json!({ "text/plain": { "schema": { "type": "string" } } }),
        Need::Otlp => {
            let schema = operation.refer::<otlp::Status<'_>>();
            json!({ "application/json": { "schema": schema }, "application/x-protobuf": {} })
        }
        _ => json!({ "application/problem+json": { "schema": problem(codes, operation) } }),
    };
    let mut response = json!({ "description": format!("{}.", listed.join(", ")), "content": content });
    if status == 429 || status == 503 {
        let about = "The seconds after which the same request may succeed.";
        response["headers"] = json!({ "Retry-After": header(about, "integer") });
    }
    response
}

/// Returns the schema of a problem with one of these codes.
///
/// A problem about rejected readings also counts them.
fn problem(codes: &BTreeSet<&'static str>, operation: &mut Operation) -> Value {
    let problem = operation.refer::<problem::Document<'_>>();
    let with = |codes: Vec<&&str>, more: &[Value]| {
        let mut all = vec![problem.clone(), json!({ "properties": { "code": { "enum": codes } } })];
        all.extend_from_slice(more);
        json!({ "allOf": all })
    };
    let takes_readings = operation.has_problem(ProblemCode::PartiallyRejected);
    let is_rejection =
        |code: &str| [ProblemCode::PartiallyRejected, ProblemCode::Rejected].iter().any(|one| one.as_str() == code);
    let is_of_readings = |code: &str| is_rejection(code) || code == ProblemCode::RateLimited.as_str();
    let counted: Vec<_> = codes.iter().filter(|code| takes_readings && is_of_readings(code)).collect();
    let plain: Vec<_> = codes.iter().filter(|code| !is_rejection(code)).collect();
    if counted.is_empty() {
        return with(plain, &[]);
    }
    let counts = operation.refer::<problem::Counts>();
    let counted = with(counted, &[counts]);
    if plain.is_empty() { counted } else { json!({ "anyOf": [with(plain, &[]), counted] }) }
}

/// Returns the security requirements of a route.
///
/// They are alternatives: for example a token with the scope `ingest`, or a certificate.
pub(super) fn security(need: Need) -> Value {
    match need {
        Need::Scope(Scope::Ingest) | Need::RemoteWrite | Need::Otlp | Need::Webhook => {
            json!([{ "token": ["ingest"] }, { "certificate": [] }])
        }
        Need::Scope(scope) => json!([{ "token": [scope.as_str()] }]),
        Need::InfluxWrite(_) => {
            let scope = ["ingest"];
            json!([{ "token": scope }, { "basic": scope }, { "influxToken": scope }, { "certificate": [] }])
        }
        Need::InfluxQl => json!([{ "token": ["query"] }, { "basic": ["query"] }, { "influxToken": ["query"] }]),
        Need::Nothing => json!([{}]),
        Need::AnyToken => json!([{ "token": [] }]),
        Need::Metrics => json!([{ "token": ["admin"] }, {}]),
        Need::Health => json!([{}, { "token": ["admin"] }]),
    }
}

/// Returns the security schemes that the requirements name.
pub(super) fn schemes() -> Value {
    let about = "A token of `auth.tokens`, with the scopes that the operation lists. Without tokens in the \
                 configuration, none is needed.";
    json!({
        "token": { "type": "http", "scheme": "bearer", "description": about },
        "basic": { "type": "http", "scheme": "basic", "description": "The token as password, with any user name." },
        "influxToken": {
            "type": "apiKey", "in": "header", "name": "Authorization", "description": "`Token TOKEN`, as clients of \
            InfluxDB send it.",
        },
        "certificate": {
            "type": "mutualTLS", "description": "A client certificate that names the device of the readings.",
        },
    })
}
