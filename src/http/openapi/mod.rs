//! The description of the API: an OpenAPI 3.1 document.
//!
//! Each route has the description of its operations (`router` takes no route without one). The service makes
//! the document of them when it starts. So it cannot differ from the code:
//! - The schemas of answers are derived from the types that handlers write.
//! - A handler reads only the query parameters that its description lists: a debug build panics at any other.
//! - A debug build panics at an answer with a status or a problem that the description of its route lacks
//!   (`conformance`). So every test of the real binary checks both.
//! - The limits are the configured ones. So each server has its own document, which needs a token as the
//!   other paths do.
//!
//! `tests/openapi` executes each example and checks each answer, with every field, against its schema.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use strum::IntoEnumIterator;

use super::Limits;
use super::access::authorize::Need;

mod access;
mod conformance;
mod operation;
pub(super) mod parameter;
mod schemas;

pub(super) use conformance::check;
pub(super) use operation::{Operation, Tag};
pub(super) use parameter::Parameters;
pub(super) use schemas::{answer_of_rollups, answers_of_rollups_of_devices, body_of_readings};

use conformance::Conformance;

/// The version of the API.
const VERSION: &str = "1.0.0";

const DESCRIPTION: &str = "Readings of devices in, readings, rollups and latest values out. \
    [docs/http-api.md](https://github.com/tidegauge/tidegauge/blob/main/docs/http-api.md) has examples and rules. The \
    webhooks of the configuration are not in this document.";

/// The descriptions of routes, of which the document is made.
#[derive(Debug, Default)]
pub(super) struct Paths {
    paths: BTreeMap<String, BTreeMap<&'static str, Value>>,
    schemas: BTreeMap<String, Value>,
}

impl Paths {
    /// Adds the operations of a route, and returns the answers that it may give.
    pub(super) fn add<const N: usize>(
        &mut self,
        need: Need,
        path: &str,
        operations: [Operation; N],
        limits: &Limits,
    ) -> Conformance {
        let expected = operations.iter().map(|operation| operation.expected(need)).collect();
        for operation in operations {
            let method = operation.method;
            let (operation, schemas) = operation.into_json(need, path, limits);
            self.schemas.extend(schemas);
            self.paths.entry(path.to_owned()).or_default().insert(method, operation);
        }
        Conformance::new(path, expected)
    }

    /// Makes the document.
    pub(super) fn to_json(&self) -> Value {
        let mut schemas = self.schemas.clone();
        schemas.extend(schemas::components().map(|(name, schema)| (name.to_owned(), schema)));
        let tags: Vec<Value> = Tag::iter().map(tag).collect();
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": "tidegauge", "version": VERSION, "description": DESCRIPTION,
                "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            },
            "servers": [{ "url": "/" }],
            "tags": tags,
            "paths": self.paths,
            "components": { "schemas": schemas, "securitySchemes": access::schemes() },
        })
    }
}

fn tag(tag: Tag) -> Value {
    let name: &str = tag.into();
    let description = match tag {
        Tag::Readings => "Readings in.",
        Tag::Queries => "Readings, rollups and devices out.",
        Tag::Influxdb => "What clients of InfluxDB use.",
        Tag::Protocols => "Readings in other protocols.",
        Tag::Operation => "The state of the service.",
    };
    json!({ "name": name, "description": description })
}

/// Describes `GET /v1/openapi.json`.
pub(super) fn describe() -> Operation {
    Operation::get(Tag::Operation, "getOpenapi", "This document").answers_as(
        200,
        "An OpenAPI 3.1 document with the limits of this server.",
        "application/json",
        &json!({ "type": "object", "required": ["openapi", "info", "paths"] }),
    )
}

/// Answers `GET /v1/openapi.json` with the document.
pub(super) fn respond(document: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], document).into_response()
}
