//! The HTTP API.
//!
//! A handler turns a request into a call of a room below, and the result into an answer. Only this room knows
//! axum, and no room below it knows HTTP.
//!
//! A request passes these modules, from top to bottom:
//!
//! 1. `serve` accepts connections, makes TLS handshakes, and closes connections.
//! 2. `every_request` gives each request an ID, and each answer its headers, metrics and log line.
//! 3. `router` lists all routes, each with its handler, its description and the access that it requires.
//! 4. `access` refuses requests of other sites' pages, and turns a token or certificate into a grant.
//! 5. A handler reads parameters, device IDs and bodies with `request`. The handlers are in
//!    - `write`: readings, one file for each protocol, and one common path (`receive`),
//!    - `read`: queries, within their limits (`query_limits`), answered whole or as a file (`streamed_file`),
//!    - `influxql`: `/query` for clients of InfluxDB 1,
//!    - `operate`: metrics, health, version, clock, deletions,
//!    - `dashboard`: the page at `/` and its files,
//!    - `openapi`: the description of the API, made of the descriptions beside the handlers.
//! 6. `answer` chooses the format of an answer, tags and compresses it.
//!
//! Every error is an RFC 9457 problem with a stable code; `problem` makes all of them, and the files of other
//! protocols rewrite them into the formats of their clients. `fuzz` has the invariants of fuzz targets.
//!
//! Promises:
//! - Everything is bounded: connections, the time for a head and for a body, the size of a body before and
//!   after decompression, and the bytes of all bodies together.
//! - At a limit the answer is 429 or 503 with `Retry-After`, and the service continues. A client that waits
//!   that long and stays within its own limits succeeds with the same request.
//! - Requests that a browser sends for a page of another site are refused (`access`). The page of this
//!   server (`dashboard`) is of the same site.
//! - Authentication precedes the handler and the first byte of the body. No answer shows a token. Only a
//!   client with a token sees the version, and a client sees only devices of its device scope.
//! - A listener with TLS accepts nothing but TLS.
//! - On shutdown, the server answers the requests of the connections that it has accepted, and accepts no
//!   new ones.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::access::Gate;
use crate::common::clock::Clock;
use crate::config::{LineProtocol, Otlp, RemoteWrite};
use crate::flush::Pipeline;
use crate::ingest::Ingest;
use crate::limits::BodyMemory;
use crate::log::Log;
use crate::query::Queries;
use crate::telemetry::{Exposition, Metrics, RefusalLog};
use crate::wire::{json, senml::NameSplit};

mod access;
mod answer;
mod dashboard;
mod every_request;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod influxql;
mod openapi;
mod operate;
mod problem;
mod read;
mod request;
mod router;
mod serve;
mod write;

pub use access::cross_site::Hosts;
pub use read::query_limits::QueryLimits;
pub use serve::connection::{listen, serve};
pub use serve::over_capacity::connections_within;
pub use serve::threads::Threads;
pub use write::webhook::Webhook;

/// The limits of HTTP requests and answers.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The most connections that may be open at once.
    pub max_connections: usize,
    /// The most bytes of a body, before and after decompression.
    pub max_body_bytes: usize,
    /// The longest time that a client may take to send the head of a request.
    pub header_timeout: Duration,
    /// The longest time for a body, or for a client to take a piece of a file.
    pub body_timeout: Duration,
    /// The largest `limit` of a page of readings.
    pub max_readings: usize,
    /// The `limit` of a page of readings if the query has none.
    pub default_readings: usize,
    /// The most devices that a page may have, and that a query may name or combine.
    pub max_devices: usize,
    /// The most values in an answer (`query.max_points`).
    pub max_points: usize,
}

/// The settings of the formats in which clients send readings.
#[derive(Debug, Clone)]
pub struct Formats {
    /// Line protocol: the tags that name a device, and the rule for text fields.
    pub line_protocol: LineProtocol,
    /// JSON: the meaning of unknown keys.
    pub json: json::Options<'static>,
    /// The labels of remote write that name and describe devices.
    pub remote_write: RemoteWrite,
    /// The resource attributes of OTLP that name the device.
    pub otlp: Otlp,
    /// The rule that splits a `SenML` name into device and metric.
    pub senml_names: NameSplit,
    /// The webhooks, each with a route of its own.
    pub webhooks: Vec<Webhook>,
}

/// The rooms and limits that handlers use.
pub struct App {
    /// The tokens and what they allow.
    pub gate: Arc<Gate>,
    /// The host names by which clients may address the server.
    pub hosts: Hosts,
    /// Admission of readings into the log.
    pub ingest: Ingest,
    /// Queries over pending and stored readings.
    pub queries: Queries,
    /// The pending readings and the state of the store.
    pub pipeline: Arc<Pipeline>,
    /// The ID of the store, once it is known.
    pub store_id: watch::Receiver<Option<String>>,
    /// The log, for its usage and health.
    pub log: Arc<Log>,
    /// The most bytes of the log (`log.max_bytes`).
    pub log_max_bytes: u64,
    /// The most bytes of the pending readings (`pending.max_bytes`).
    pub pending_max_bytes: u64,
    /// The wall clock.
    pub clock: Clock,
    /// The metrics that handlers record.
    pub metrics: Arc<Metrics>,
    /// The log lines about refused requests and rejected readings.
    pub refusals: Arc<RefusalLog>,
    /// The text of all metrics, for `GET /metrics`.
    pub exposition: Exposition,
    /// The limit on the memory of all request bodies together.
    pub body_memory: BodyMemory,
    /// The limits on running queries and their memory.
    pub query_limits: QueryLimits,
    /// The tokio runtime on which queries run.
    pub main: tokio::runtime::Handle,
    /// The limits of HTTP requests and answers.
    pub limits: Limits,
    /// The settings of the formats in which clients send readings.
    pub formats: Formats,
}
