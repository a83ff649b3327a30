//! The description of one operation: a method of a path.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

use super::access;
use super::parameter::Parameters;
use super::schemas::{self, reference};
use crate::http::Limits;
use crate::http::access::authorize::Need;
use crate::http::answer::format::XLSX;
use crate::http::problem::ProblemCode;
use crate::http::read::Notes;

/// An operation, without the parts that its path and its access add.
#[derive(Debug, Clone)]
pub(in crate::http) struct Operation {
    pub(super) method: &'static str,
    /// The name of the operation in generated clients: `getDevice`.
    id: &'static str,
    tag: Tag,
    summary: &'static str,
    description: &'static str,
    parameters: Parameters,
    /// The content of the body by media type.
    body: BTreeMap<&'static str, Value>,
    is_body_required: bool,
    answers: BTreeMap<u16, Answer>,
    problems: Vec<ProblemCode>,
    is_tagged: bool,
    is_conditional: bool,
    schemas: BTreeMap<String, Value>,
}

/// The groups of operations in the document.
#[derive(Debug, Clone, Copy, strum::IntoStaticStr, strum::EnumIter)]
#[strum(serialize_all = "snake_case")]
pub(in crate::http) enum Tag {
    Readings,
    Queries,
    Influxdb,
    Protocols,
    Operation,
}

/// An answer other than a refusal.
#[derive(Debug, Clone, Default)]
struct Answer {
    description: &'static str,
    /// The content by media type.
    content: BTreeMap<&'static str, Value>,
    headers: BTreeMap<&'static str, &'static str>,
}

/// The statuses and problems that the answers of an operation may have.
#[derive(Debug, Clone)]
pub(super) struct Expected {
    pub(super) method: &'static str,
    pub(super) statuses: BTreeSet<u16>,
    pub(super) problems: Vec<ProblemCode>,
}

impl Operation {
    pub(in crate::http) fn get(tag: Tag, id: &'static str, summary: &'static str) -> Self {
        Self::new("get", tag, id, summary)
    }

    pub(in crate::http) fn post(tag: Tag, id: &'static str, summary: &'static str) -> Self {
        Self::new("post", tag, id, summary)
    }

    pub(in crate::http) fn put(tag: Tag, id: &'static str, summary: &'static str) -> Self {
        Self::new("put", tag, id, summary)
    }

    pub(in crate::http) fn patch(tag: Tag, id: &'static str, summary: &'static str) -> Self {
        Self::new("patch", tag, id, summary)
    }

    pub(in crate::http) fn delete(tag: Tag, id: &'static str, summary: &'static str) -> Self {
        Self::new("delete", tag, id, summary)
    }

    fn new(method: &'static str, tag: Tag, id: &'static str, summary: &'static str) -> Self {
        Self {
            method,
            id,
            tag,
            summary,
            description: "",
            parameters: &[],
            body: BTreeMap::new(),
            is_body_required: true,
            answers: BTreeMap::new(),
            problems: Vec::new(),
            is_tagged: false,
            is_conditional: false,
            schemas: BTreeMap::new(),
        }
    }

    /// Sets the description, in Markdown.
    pub(in crate::http) fn description(self, description: &'static str) -> Self {
        Self { description, ..self }
    }

    /// Sets the parameters that the handler reads.
    pub(in crate::http) fn parameters(self, parameters: Parameters) -> Self {
        Self { parameters, ..self }
    }

    /// Adds a media type of the body, with an example that a test sends.
    pub(in crate::http) fn body(mut self, media_type: &'static str, schema: &Value, example: &Value) -> Self {
        self.body.insert(media_type, json!({ "schema": schema, "example": example }));
        self
    }

    /// Adds a media type of binary bodies.
    pub(in crate::http) fn binary_body(mut self, media_type: &'static str) -> Self {
        self.body.insert(media_type, json!({}));
        self
    }

    /// Allows requests without a body.
    pub(in crate::http) fn may_have_no_body(self) -> Self {
        Self { is_body_required: false, ..self }
    }

    /// Adds an answer in JSON with this status.
    pub(in crate::http) fn answers<T: ToSchema>(mut self, status: u16, description: &'static str) -> Self {
        let schema = self.refer::<T>();
        self.add_answer(status, description, [("application/json", json!({ "schema": schema }))])
    }

    /// Adds the answer of a query in JSON, with notes on what may be missing.
    ///
    /// `example` is the answer to the query that the examples of the parameters make.
    pub(in crate::http) fn answers_query<T: ToSchema>(mut self, description: &'static str, example: &Value) -> Self {
        let answer = self.refer::<T>();
        self.answers_query_as(description, &answer, example)
    }

    /// As `answers_query`, with the schema of the answer in place of its type.
    pub(in crate::http) fn answers_query_as(
        mut self,
        description: &'static str,
        answer: &Value,
        example: &Value,
    ) -> Self {
        self.is_tagged = true;
        let schema = json!({ "allOf": [answer, self.refer::<Notes>()] });
        self.add_answer(200, description, [("application/json", json!({ "schema": schema, "example": example }))])
    }

    /// Adds CSV, NDJSON and workbooks as formats of an answer in JSON.
    pub(in crate::http) fn answers_table(self) -> Self {
        let mut operation = self.answers_file("");
        let next = "The address of the next page of a table (`rel=\"next\"`).";
        operation.answers.entry(200).or_default().headers.insert("Link", next);
        operation
    }

    /// Adds a file as the answer: CSV, NDJSON or a workbook.
    pub(in crate::http) fn answers_file(self, description: &'static str) -> Self {
        let text = json!({ "schema": { "type": "string" } });
        let files = [("text/csv", text.clone()), ("application/x-ndjson", text), (XLSX, json!({}))];
        let mut operation = self.add_answer(200, description, files).problems(&[ProblemCode::NotAcceptable]);
        operation.answers.entry(200).or_default().headers.extend([
            ("Content-Disposition", "The name of the file, unless the answer is JSON."),
            ("Tidegauge-Lagging-Seconds", "`laggingSeconds`, unless the answer is JSON."),
        ]);
        operation
    }

    /// Adds an answer of another media type, with a schema.
    pub(in crate::http) fn answers_as(
        self,
        status: u16,
        description: &'static str,
        media_type: &'static str,
        schema: &Value,
    ) -> Self {
        self.add_answer(status, description, [(media_type, json!({ "schema": schema }))])
    }

    /// Adds a binary media type to an answer.
    pub(in crate::http) fn answers_binary(self, status: u16, media_type: &'static str) -> Self {
        self.add_answer(status, "", [(media_type, json!({}))])
    }

    /// Adds a header to the answer with this status.
    pub(in crate::http) fn answer_header(mut self, status: u16, name: &'static str, about: &'static str) -> Self {
        self.answers.entry(status).or_default().headers.insert(name, about);
        self
    }

    /// Adds an answer without a body.
    pub(in crate::http) fn answers_nothing(self, status: u16, description: &'static str) -> Self {
        self.add_answer(status, description, [])
    }

    /// Adds problems to those that every route with the same access has.
    pub(in crate::http) fn problems(mut self, problems: &[ProblemCode]) -> Self {
        self.problems.extend_from_slice(problems);
        self
    }

    /// Adds the problems of requests with readings.
    pub(in crate::http) fn takes_readings(self) -> Self {
        self.problems(&access::OF_READINGS)
    }

    /// Adds the problems of bodies.
    pub(in crate::http) fn takes_body(self) -> Self {
        self.problems(&access::OF_BODIES)
    }

    /// Adds the header `ETag` to the answer.
    pub(in crate::http) fn tagged(self) -> Self {
        Self { is_tagged: true, ..self }
    }

    /// Adds the headers `If-Match` and `If-None-Match` of a change, and their refusal.
    pub(in crate::http) fn conditional(self) -> Self {
        Self { is_conditional: true, ..self }.problems(&[ProblemCode::PreconditionFailed])
    }

    /// Adds the problems of queries.
    pub(in crate::http) fn queries(self) -> Self {
        self.problems(&access::OF_QUERIES)
    }

    /// Whether the description has this problem.
    pub(super) fn has_problem(&self, code: ProblemCode) -> bool {
        self.problems.contains(&code)
    }

    /// Returns a reference to the schema of a type, and adds the schema.
    pub(in crate::http) fn refer<T: ToSchema>(&mut self) -> Value {
        let mut found: Vec<(String, RefOr<Schema>)> = vec![(T::name().into_owned(), T::schema())];
        T::schemas(&mut found);
        for (name, schema) in found {
            self.schemas.insert(name, serde_json::to_value(schema).expect("a schema is JSON"));
        }
        reference(&T::name())
    }

    fn add_answer<const N: usize>(
        mut self,
        status: u16,
        description: &'static str,
        content: [(&'static str, Value); N],
    ) -> Self {
        let answer = self.answers.entry(status).or_default();
        if !description.is_empty() {
            answer.description = description;
        }
        answer.content.extend(content);
        self
    }

    /// Returns the answers that the operation may give on a route with this access.
    pub(super) fn expected(&self, need: Need) -> Expected {
        let refusals = self.refusals(need).into_keys();
        let mut statuses: BTreeSet<u16> = self.answers.keys().copied().chain(refusals).collect();
        statuses.extend(self.is_tagged.then_some(304));
        let problems = self.problems.iter().copied().chain(access::problems(need)).collect();
        Expected { method: self.method, statuses, problems }
    }

    /// Returns the codes of the problems by the status of the answer.
    fn refusals(&self, need: Need) -> BTreeMap<u16, BTreeSet<&'static str>> {
        let mut by_status: BTreeMap<u16, BTreeSet<&'static str>> = BTreeMap::new();
        for code in self.problems.iter().copied().chain(access::problems(need)) {
            by_status.entry(access::status(need, code)).or_default().insert(code.as_str());
        }
        by_status
    }

    /// Returns the operation object, and the schemas that it refers to.
    pub(super) fn into_json(mut self, need: Need, path: &str, limits: &Limits) -> (Value, BTreeMap<String, Value>) {
        let mut parameters: Vec<Value> = path.split('/').filter_map(in_path).collect();
        parameters.extend(self.parameters.iter().copied().flatten().map(|parameter| parameter.to_json(limits)));
        parameters.extend(self.is_tagged.then(if_none_match));
        parameters.extend(self.is_conditional.then(preconditions).into_iter().flatten());
        let tag: &str = self.tag.into();
        let mut operation = json!({
            "operationId": self.id, "tags": [tag], "summary": self.summary, "parameters": parameters,
            "security": access::security(need),
        });
        if !self.description.is_empty() {
            operation["description"] = json!(self.description);
        }
        if !self.body.is_empty() {
            operation["requestBody"] = json!({
                "description": "`Content-Encoding` may be `gzip`, `zstd` or `deflate`.",
                "required": self.is_body_required, "content": self.body,
            });
        }
        operation["responses"] = self.responses(need);
        (operation, self.schemas)
    }

    fn responses(&mut self, need: Need) -> Value {
        let too_large = "The request has a head of more than 64 KiB, or more than 100 headers. There is no body.";
        let mut responses = BTreeMap::from([("431".to_owned(), json!({ "description": too_large }))]);
        for (status, answer) in &self.answers {
            let mut response = json!({ "description": answer.description });
            if !answer.content.is_empty() {
                response["content"] = json!(answer.content);
            }
            let mut headers: BTreeMap<&str, Value> = BTreeMap::new();
            headers.extend(answer.headers.iter().map(|(name, about)| (*name, header(about, "string"))));
            if self.is_tagged {
                headers
                    .insert("ETag", header("The tag of the answer, for `If-None-Match`. Files have none.", "string"));
            }
            if !headers.is_empty() {
                response["headers"] = json!(headers);
            }
            responses.insert(status.to_string(), response);
        }
        if self.is_tagged {
            let etag = header("The tag of the answer.", "string");
            let response = json!({ "description": "The client has this answer.", "headers": { "ETag": etag } });
            responses.insert("304".to_owned(), response);
        }
        for (status, codes) in self.refusals(need) {
            let refusal = access::refusal(need, status, &codes, self);
            let response = responses.entry(status.to_string()).or_insert_with(|| json!({ "description": "" }));
            join(response, &refusal);
        }
        json!(responses)
    }
}

/// Adds the refusals with a status to the answer with the same status.
fn join(response: &mut Value, refusal: &Value) {
    let texts = [&response["description"], &refusal["description"]].map(|text| text.as_str().unwrap_or_default());
    let description = texts.join(if texts[0].is_empty() { "" } else { " Or a refusal: " });
    for part in ["content", "headers"] {
        let Some(added) = refusal[part].as_object().cloned() else { continue };
        if response[part].is_null() {
            response[part] = json!({});
        }
        if let Some(members) = response[part].as_object_mut() {
            for (name, value) in added {
                match members.get_mut(&name) {
                    Some(present) => {
                        let schemas = [present["schema"].take(), value["schema"].clone()];
                        present["schema"] = json!({ "anyOf": schemas });
                    }
                    None => {
                        members.insert(name, value);
                    }
                }
            }
        }
    }
    response["description"] = json!(description);
}

pub(super) fn header(about: &str, of_type: &str) -> Value {
    json!({ "description": about, "schema": { "type": of_type } })
}

/// Returns the parameter of a segment such as `{deviceId}`.
fn in_path(segment: &str) -> Option<Value> {
    let name = segment.strip_prefix('{')?.strip_suffix('}')?;
    let (description, schema, example) = match name {
        "deviceId" => ("The ID of the device, percent-encoded: `/` is `%2F`.", schemas::device_id(), "S1"),
        "file" => ("The name of the file.", json!({ "type": "string" }), "main.js"),
        _ => ("The hash of all files.", json!({ "type": "string" }), "0"),
    };
    Some(json!({
        "name": name, "in": "path", "required": true, "schema": schema, "example": example, "description": description,
    }))
}

fn if_none_match() -> Value {
    let about = "The `ETag` of an answer that the client has. If it is still the answer, the status is `304`.";
    header_of_request("If-None-Match", "\"0\"", about)
}

/// Returns the headers on which a change depends.
fn preconditions() -> [Value; 2] {
    let if_match = "The `ETag` of an answer: nothing changes (`412`) if another change followed it. `*`: nothing \
                    changes if there is nothing yet.";
    let if_none_match = "`*`: nothing changes (`412`) if there is something already. Or an `ETag`: nothing changes if \
                         it is still that of the answer.";
    [header_of_request("If-Match", "*", if_match), header_of_request("If-None-Match", "\"0\"", if_none_match)]
}

fn header_of_request(name: &str, example: &str, about: &str) -> Value {
    let schema = json!({ "type": "string" });
    json!({ "name": name, "in": "header", "schema": schema, "example": example, "description": about })
}
