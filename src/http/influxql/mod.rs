//! `/query`: InfluxQL, for clients of InfluxDB 1.
//!
//! The room `influxql` parses and evaluates the language. This room reads the parameters of a request
//! (`form`), and gives statements their data (`source`): `catalogue` and `index` find measurements, tags and
//! fields in the device index, and `reading` reads the values. `job` evaluates the statements on a blocking
//! thread.

mod catalogue;
mod form;
mod index;
mod job;
mod reading;
mod source;
#[cfg(test)]
mod stretch;

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, IF_NONE_MATCH};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::response::Response;
use serde_json::json;

use self::form::Form;
use self::job::Job;
use super::App;
use super::answer::etag::Negotiation;
use super::answer::format::Encoding;
use super::openapi::parameter::{CHUNK_SIZE, CHUNKED, DB, EPOCH, PARAMS, PRETTY, Parameter, Q};
use super::openapi::{self, Operation, Tag};
use super::problem::{Problem, ProblemCode};
use super::read::query_limits::{self, RunningQuery};
use super::read::streamed_file;
use super::serve::connection::Peer;
use super::write::influx::INFLUXDB_VERSION;
use crate::access::Grant;
use crate::config::Scope;
use crate::influxql::ast::Statement;
use crate::influxql::{Format, Parameters, ParseError, Writer, parse};

/// The most bytes of statements and parameters for a token without `query`.
///
/// A token without this scope may only create databases.
const INGEST_MAX_BYTES: usize = 1_024;

/// The parameters that [`Form`] reads.
const KNOWN: &[&Parameter] = &[&Q, &DB, &EPOCH, &PARAMS, &PRETTY, &CHUNKED, &CHUNK_SIZE];
const PARAMETERS: openapi::Parameters = &[KNOWN];

/// Describes `GET /query` and `POST /query`.
pub(super) fn describe() -> [Operation; 2] {
    let summary = "Query with InfluxQL, as clients of InfluxDB 1";
    let form = json!({ "type": "object", "properties": { "q": { "type": "string" } } });
    let post = Operation::post(Tag::Influxdb, "postQuery", summary);
    let post = post.body("application/x-www-form-urlencoded", &form, &json!({ "q": "SHOW DATABASES" }));
    [Operation::get(Tag::Influxdb, "getQuery", summary), post.may_have_no_body()].map(|operation| {
        operation
            .description("A token with the scope `ingest` may send `CREATE DATABASE`, which has no effect.")
            .parameters(PARAMETERS)
            .answers_as(200, "A result for each statement.", "application/json", &json!({ "type": "object" }))
            .answers_as(200, "", "text/csv", &json!({ "type": "string" }))
            .answers_binary(200, "application/x-msgpack")
            .tagged()
            .takes_body()
            .queries()
            .problems(&[ProblemCode::HttpVersionNotSupported])
    })
}

/// `GET /query` and `POST /query`
pub(super) async fn query(
    State(app): State<Arc<App>>,
    Extension(grant): Extension<Arc<Grant>>,
    request: Request,
) -> Response {
    let (mut head, body) = request.into_parts();
    if head.method == Method::POST {
        head.headers.remove(IF_NONE_MATCH); // 304 answers a GET only
    }
    let form = Form::receive(&app, &grant, (&head.method, &head.uri, &head.headers), body).await;
    match form {
        Ok(form) => {
            let shape = form.shape();
            answer(&app, grant, form, &head).await.unwrap_or_else(|refusal| refusal.into_response(shape))
        }
        Err((refusal, shape)) => refusal.into_response(shape),
    }
}

/// The form of an answer: its format, and whether it is indented.
#[derive(Debug, Clone, Copy)]
struct Shape {
    format: Format,
    is_pretty: bool,
}

/// Why a request as a whole is refused.
#[derive(Debug)]
enum Refusal {
    Problem(Problem),
    /// The query or its parameters are malformed.
    Malformed(String),
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl From<ParseError> for Refusal {
    fn from(error: ParseError) -> Self {
        Self::Malformed(error.to_string())
    }
}

impl Refusal {
    /// Makes the answer in the format of InfluxDB. A header has the message too.
    fn into_response(self, shape: Shape) -> Response {
        let (status, message) = match &self {
            Self::Problem(problem) => (problem.status(), problem.detail()),
            Self::Malformed(message) => (StatusCode::BAD_REQUEST, &**message),
        };
        let mut text = Vec::new();
        Writer::error(shape.format, shape.is_pretty, message, &mut text);
        let mut response = shape.respond(Body::from(text));
        *response.status_mut() = status;
        super::write::influx::set_error(response.headers_mut(), message);
        if let Self::Problem(problem) = &self {
            problem.mark(&mut response);
        }
        response
    }
}

impl Shape {
    fn respond(self, body: Body) -> Response {
        let mut response = Response::new(body);
        let media_type = match self.format {
            Format::Json => "application/json",
            Format::Csv => "text/csv",
            Format::MessagePack => "application/x-msgpack",
        };
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        let version = HeaderValue::from_static(INFLUXDB_VERSION);
        response.headers_mut().insert(HeaderName::from_static("x-influxdb-version"), version);
        response
    }
}

async fn answer(app: &Arc<App>, grant: Arc<Grant>, form: Form, head: &Parts) -> Result<Response, Refusal> {
    let statements = statements(&form, grant.allows(Scope::Query))?;
    if form.chunk_rows.is_some() && form.format == Format::Csv {
        streamed_file::check_version(head.version)?; // the other formats say in each chunk whether more follow
    }
    let encoding = Encoding::choose(&head.headers);
    let disconnect = head.extensions.get::<Peer>().map(|peer| peer.disconnect.clone());
    let request = head.extensions.get().copied();
    let (shape, quota, job_app) = (form.shape(), Arc::clone(&grant.quota), Arc::clone(app));
    let of_job = disconnect.clone();
    let answer = move |running: Arc<RunningQuery>| async move {
        let answer = Job::start(job_app, grant, running, statements, form, (encoding, of_job), request).await;
        answer.unwrap_or_else(|problem| Refusal::Problem(problem).into_response(shape))
    };
    Ok(query_limits::run(app, &quota, Negotiation::of(&head.headers), disconnect, answer).await?)
}

/// Parses the statements of a request.
///
/// Without the scope `query`, it refuses a long request, and any statement other than `CREATE DATABASE`.
fn statements(form: &Form, may_query: bool) -> Result<Vec<Statement>, Refusal> {
    let forbidden = || Problem::forbidden("a query needs a token with the scope \"query\"".to_owned());
    if !may_query && form.query.len() + form.parameters.as_ref().map_or(0, String::len) > INGEST_MAX_BYTES {
        return Err(forbidden().into());
    }
    let parameters = match &form.parameters {
        Some(json) => Parameters::from_json(json).map_err(Refusal::Malformed)?,
        None => Parameters::default(),
    };
    let statements = parse(&form.query, &parameters)?;
    let is_allowed = may_query || statements.iter().all(|statement| *statement == Statement::CreateDatabase);
    if is_allowed { Ok(statements) } else { Err(forbidden().into()) }
}
